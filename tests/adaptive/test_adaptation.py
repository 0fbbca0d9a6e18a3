"""The rules of a value that moves by itself, one by one, and any sequence of samples."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from statistics import median
from typing import Any

import pytest
from benchmarks.adaptive.scenarios import MAX, MIN, SCENARIOS, Scenario
from benchmarks.adaptive.simulation import Ours, Service, Simulation
from hypothesis import given
from hypothesis import strategies as some

from slotwise import Adaptive, Change, Errors, Latency
from slotwise._core.adaptive import OUTCOMES, Outcome
from slotwise._ledger.adaptation import GROWTH, Adaptation, adaptation

SECOND = 1_000_000


def feed(
    value: Adaptation, seconds: float, *, in_use: float, rate: float, outcome: Outcome = "ok"
) -> None:
    """Calls that end at an even rate; each was held for what keeps so many in use."""
    begin, count = feed.now, int(seconds * rate)
    for number in range(count):
        feed.now = begin + int((number + 1) / rate * SECOND)
        value.end(feed.now, int(in_use / rate * SECOND), outcome)


feed.now = 0  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def begin() -> None:
    feed.now = 0  # type: ignore[attr-defined]


def test_nothing_changes_while_less_than_half_is_used() -> None:
    value = adaptation(Adaptive(20, 2, 200), 0)
    feed(value, 60, in_use=9, rate=100)
    assert value.limit == 20
    assert not value.changes


def test_a_service_that_answers_in_constant_time_gets_more() -> None:
    value = adaptation(Adaptive(20, 2, 200), 0)
    while feed.now < 60 * SECOND:
        feed(value, 0.1, in_use=value.limit, rate=value.limit * 10)
    assert value.value == 200
    assert value.changes[0].old == 20
    assert value.changes[-1].new == 200


@pytest.mark.parametrize("slots", [1, 2])
def test_calls_of_several_slots_use_as_many(slots: int) -> None:
    value, limits = adaptation(Adaptive(20, 2, 200), 0), set()
    for number in range(1, 1000):  # 8 calls at once
        value.end(number * SECOND // 80, SECOND // 10, "ok", 0, slots)
        limits.add(value.limit)
    assert limits == ({20} if slots == 1 else {20, 17}), "it looks below if half of it is used"


def test_growth_stays_within_three_times_what_was_in_use() -> None:
    value = adaptation(Adaptive(20, 2, 10_000), 0)
    for _ in range(400):
        used = min(value.limit, 40)
        before = value.limit
        feed(value, 0.1, in_use=used, rate=used * 10)
        assert value.limit <= max(GROWTH * 40, before)


def test_a_frozen_value_stays_until_it_is_thawed() -> None:
    value = adaptation(Adaptive(20, 2, 200), 0)
    assert value.freeze(0, 7)
    feed(value, 20, in_use=7, rate=700)
    assert value.limit == 7
    assert [(each.old, each.new, each.reason) for each in value.changes] == [(20, 7, "frozen")]
    value.thaw(feed.now)
    while feed.now < 40 * SECOND:
        feed(value, 0.1, in_use=value.limit, rate=value.limit * 100)
    assert value.limit > 7
    for outside in (1, 201):
        with pytest.raises(ValueError, match="within 2 and 200"):
            value.freeze(feed.now, outside)


@pytest.mark.parametrize("algorithm", [Latency(), Errors()])
def test_a_service_that_asks_to_be_left_alone_gets_no_more_until_then(
    algorithm: Latency | Errors,
) -> None:
    value = adaptation(Adaptive(20, 2, 200, algorithm=algorithm), 0)
    value.end(0, SECOND, "dropped", 50 * SECOND)
    least = value.limit
    while feed.now < 49 * SECOND:
        feed(value, 0.1, in_use=value.limit, rate=value.limit * 10)
        assert value.limit <= max(least, 20)
    while feed.now < 90 * SECOND:
        feed(value, 0.1, in_use=value.limit, rate=value.limit * 10)
    assert value.limit > 20


def test_drops_of_calls_from_before_a_cut_are_not_counted_twice() -> None:
    value = adaptation(Adaptive(100, 1, 200, algorithm=Errors()), 0)
    for late in range(50):
        value.end(10 * SECOND + late, SECOND, "dropped")
    assert value.limit == 70
    value.end(12 * SECOND, SECOND, "dropped")
    assert value.limit == 49


def test_when_everything_fails_the_value_falls_to_its_minimum() -> None:
    value = adaptation(Adaptive(100, 3, 200), 0)
    while feed.now < 60 * SECOND:
        feed(value, 0.1, in_use=value.limit, rate=max(value.limit, 50), outcome="dropped")
    assert value.limit == 3


@given(
    some.sampled_from([Latency(), Latency(0.01, 1), Errors()]),
    some.lists(
        some.tuples(
            some.integers(0, 3 * SECOND),
            some.integers(0, 5 * SECOND),
            some.sampled_from(OUTCOMES),
            some.sampled_from([0, 0, 0, SECOND]),
        ),
        max_size=300,
    ),
)
def test_whatever_happens_the_value_is_between_its_bounds(
    algorithm: Latency | Errors, samples: list[tuple[int, int, Any, int]]
) -> None:
    value = adaptation(Adaptive(5, 2, 9, algorithm=algorithm), 0)
    now = 0
    for after, held, outcome, retry_after in samples:
        now += after
        before = value.limit
        assert value.end(now, held, outcome, retry_after) is (value.limit != before)
        assert 2 <= value.value <= 9
        assert 2 <= value.limit <= 9
        assert abs(value.limit - value.value) <= max(1, 0.15 * value.value + 1)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((1, 2, 3), {}, ValueError, "min <= start <= max"),
        ((4, 1, 3), {}, ValueError, "min <= start <= max"),
        ((1, 0, 3), {}, ValueError, "min must be at least 1"),
        ((1.5, 1, 3), {}, TypeError, "start must be an int"),
        ((math.nan, 1, 3), {}, TypeError, "start must be an int"),
        ((1, 1, 3), {"algorithm": "vegas"}, TypeError, "algorithm must be"),
        ((1, 1, 3), {"drop_on": [TimeoutError]}, TypeError, "a tuple of exception classes"),
        ((1, 1, 3), {"drop_on": ("TimeoutError",)}, TypeError, "a tuple of exception classes"),
    ],
)
def test_bad_options_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Adaptive(*arguments, **options)


@pytest.mark.parametrize("window", [0, -1, math.nan, math.inf])
def test_a_window_is_a_finite_number_of_seconds(window: float) -> None:
    with pytest.raises(ValueError, match="window"):
        Latency(window)


# ----------------------------------------------------------------------- options


VALUES = [
    Latency(2.0, 70),
    Errors(),
    Adaptive(10, 1, 100, algorithm=Errors(), drop_on=(KeyError,), pause_on_retry_after=True),
    Change(1.5, 3, 4, "more"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_copies_are_equal_and_nothing_can_be_changed(value) -> None:
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert (other, hash(other), repr(other)) == (value, hash(value), repr(value))
    for name in type(value).__slots__:
        with pytest.raises(AttributeError):
            setattr(value, name, 1)
        with pytest.raises(AttributeError):
            delattr(value, name)
    assert value != next(each for each in VALUES if each is not value)


def test_they_say_what_they_are() -> None:
    assert repr(Latency()) == "Latency(window=1.0, samples=50)"
    assert repr(Adaptive(2, 1, 3)).startswith("Adaptive(start=2, min=1, max=3, algorithm=Latency(")
    assert Adaptive(2, 1, 3) == Adaptive(2, 1, 3) != Adaptive(2, 1, 4)
    assert "algorithm" in inspect.signature(Adaptive).parameters
    match Change(1.0, 2, 3, "why"):
        case Change(_, old, new, _):
            assert (old, new) == (2, 3)


# --------------------------------------------------------------- in virtual time


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
