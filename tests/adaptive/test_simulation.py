"""An adaptive value against the best fixed one, in virtual time and through the real ledger."""

from __future__ import annotations

from statistics import median

import pytest
from benchmarks.adaptive.scenarios import MAX, MIN, SCENARIOS, Scenario
from benchmarks.adaptive.simulation import Ours, Service, Simulation

from slotwise._core.adaptive import Adaptive, Errors


def ours(start: int = 20) -> Ours:
    return Ours(Adaptive(start, MIN, MAX))


# The others are played by `make soak`, and all of them by `make bench ARGS=adaptive`.
EVERY_DAY = {"knee at 20", "knee at 4", "jittery knee at 20", "defers above 200/s", "bursts"}


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, id=each.name, marks=() if each.name in EVERY_DAY else pytest.mark.soak)
        for each in SCENARIOS
    ],
)
def test_the_value_is_as_good_as_the_best_fixed_one(scenario: Scenario) -> None:
    for seen, best, _ in scenario.play(ours(scenario.start)):
        assert seen.throughput >= 0.87 * best.throughput
        assert seen.p99 <= 1.6 * best.p99


@pytest.mark.soak
def test_in_the_median_only_a_twentieth_of_the_throughput_is_lost() -> None:
    shares = [
        seen.throughput / best.throughput
        for scenario in SCENARIOS
        for seed in range(1, 4)
        for seen, best, _ in scenario.play(ours(scenario.start), seed=seed)
    ]
    assert median(shares) >= 0.95
    assert min(shares) >= 0.87


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [
        "knee at 20",
        *(
            pytest.param(each, marks=pytest.mark.soak)
            for each in ("knee at 8", "knee at 60", "shallow knee", "jittery knee at 20")
        ),
    ],
)
def test_fifty_processes_find_the_same_value_as_one(name: str) -> None:
    [scenario] = [each for each in SCENARIOS if each.name == name]
    means = [
        Simulation(scenario.service, ours(scenario.start), scenario.load, processes=processes)
        .play(120)
        .mean_limit(40, 120)
        for processes in (1, 50)
    ]
    assert means[1] == pytest.approx(means[0], rel=0.1)


@pytest.mark.soak
def test_the_value_does_not_drift_in_a_day_of_overload() -> None:
    run = Simulation(Service(2.0, workers=20), ours(), 60).play(24 * 3600)
    means = [run.mean_limit(hour * 3600, (hour + 1) * 3600) for hour in range(1, 24)]
    assert max(means) <= 1.1 * median(means)
    assert min(means) >= 0.9 * median(means)


def test_a_service_of_others_is_left_alone_when_it_refuses_calls() -> None:
    """`Errors` needs no latency: it stays near where calls are refused."""
    options = Adaptive(5, MIN, MAX, algorithm=Errors())
    run = Simulation(Service(refuses_above=30), Ours(options), 400).play(90)
    assert 20 <= run.mean_limit(30, 90) <= 30
    assert run.between(30, 90).succeeded >= 0.95
