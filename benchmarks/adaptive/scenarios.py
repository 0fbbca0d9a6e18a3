"""The scenarios: a service, a load, and when the limit must have found its value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from benchmarks.adaptive.simulation import Controller, Fixed, Seen, Service, Simulation, Value

MIN, START, MAX = 2, 20, 200
CLIENTS = 400  # that never rest: more than any limit


@dataclass(frozen=True)
class Scenario:
    """A service under a load; ``spans`` begin 60 s after a change, 30 s after a recovery."""

    name: str
    service: Service
    load: Value | int = CLIENTS
    spans: tuple[tuple[float, float], ...] = ((60, 90),)
    start: int = START
    bests: tuple[int, ...] = ()  # of each span: what `search` finds

    def play(
        self, controller: Controller, *, processes: int = 1, seed: int = 1
    ) -> list[tuple[Seen, Seen, int]]:
        """For each span: what was seen, what the best fixed limit shows, and that limit."""
        simulation = Simulation(self.service, controller, self.load, processes=processes, seed=seed)
        run = simulation.play(self.spans[-1][1])
        return [
            (run.between(*span), fixed(self, limit, span), limit)
            for span, limit in zip(self.spans, self.bests, strict=True)
        ]


def _half(t: float) -> int:
    return 10 if 60 <= t < 150 else 20


SCENARIOS = (
    Scenario("constant link", Service(0.4), bests=(200,)),
    Scenario("knee at 20", Service(workers=20), bests=(20,)),
    Scenario("knee at 60", Service(0.2, workers=60), bests=(60,)),
    Scenario("shallow knee", Service(workers=20, bend=2), bests=(20,)),
    Scenario("knee at 4", Service(0.02, workers=4), bests=(4,)),
    Scenario("knee at 8", Service(0.05, workers=8), bests=(8,)),
    Scenario("jittery link", Service(0.4, jitter=1), bests=(200,)),
    Scenario("jittery knee at 20", Service(workers=20, jitter=1), bests=(20,)),
    Scenario("defers above 200/s", Service(0.05, rate=200), bests=(11,)),
    Scenario("drops above 30", Service(refuses_above=30), bests=(30,)),
    Scenario(
        "capacity halves, recovers",
        Service(workers=_half),
        spans=((120, 150), (180, 210)),
        bests=(10, 20),
    ),
    Scenario(
        "all time out for 30 s",
        Service(workers=20, is_dead=lambda t: 60 <= t < 90),
        spans=((120, 150),),
        bests=(20,),
    ),
    Scenario(
        "latency drifts to 3 x",
        Service(lambda t: 0.1 * (1 + t / 90), workers=20),
        spans=((60, 90), (150, 180)),
        bests=(20, 20),
    ),
    Scenario("load far below", Service(workers=20), lambda _: 30.0, bests=(4,)),
    Scenario("four fifths of the load", Service(workers=20), lambda _: 160.0, bests=(20,)),
    Scenario("bursts", Service(workers=20), lambda t: 450.0 if t % 10 < 3 else 25.0, bests=(20,)),
    Scenario("begun under overload", Service(workers=20), start=MAX, bests=(20,)),
)


def _candidates() -> Iterator[int]:
    value = MIN
    while value < MAX:
        yield value
        value = max(value + 1, value * 9 // 8)
    yield MAX


@cache
def fixed(scenario: Scenario, limit: int, span: tuple[float, float]) -> Seen:
    """What a fixed limit shows."""
    run = Simulation(scenario.service, Fixed(limit), scenario.load, seed=7).play(span[1])
    return run.between(*span)


def search(scenario: Scenario, span: tuple[float, float]) -> int:
    """The fixed limit with the most throughput per latency in a span."""
    return max(_candidates(), key=lambda limit: fixed(scenario, limit, span).power)
