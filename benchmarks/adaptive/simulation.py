"""A service behind a limit, in virtual time: who waits, who is served, how long it takes.

Slots are granted by the real ledger; only the service, the clients and the clock are simulated.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from slotwise._core.adaptive import Adaptive, Outcome
from slotwise._ledger.adaptation import adaptation
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.paths import PathLedger

Value = Callable[[float], float]  # of the time

_PATH = (None,)
MOST_WAITING = 2000  # an open load gives up beyond that, as callers with a timeout do


class Controller(Protocol):
    """Whatever moves a limit."""

    limit: int

    def end(self, now: float, held: float, outcome: Outcome, in_flight: int) -> int:
        """Count a call that has ended; return the limit from now on."""


class Fixed:
    """A limit that stays."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def end(self, now: float, held: float, outcome: Outcome, in_flight: int) -> int:  # noqa: ARG002
        return self.limit


class Ours:
    """An adaptive value of slotwise."""

    def __init__(self, options: Adaptive) -> None:
        self.adaptation = adaptation(options, 0)
        self.limit = self.adaptation.limit

    def end(self, now: float, held: float, outcome: Outcome, in_flight: int) -> int:  # noqa: ARG002
        self.adaptation.end(int(now * 1_000_000), int(held * 1_000_000), outcome)
        self.limit = self.adaptation.limit
        return self.limit


@dataclass(frozen=True)
class Service:
    """What is behind the limit.

    ``seconds`` is what a call takes when it is alone, with ``spread`` (a standard deviation, of 1)
    and with ``jitter`` (the mean of an exponential addition to every other call, of 1).
    """

    seconds: float | Value = 0.1
    spread: float = 0.1
    jitter: float = 0.0
    workers: int | Callable[[float], int] | None = None  # this many at once; others queue there
    bend: float = 0.0  # instead of queueing, all get slower; the less, the shallower the knee
    rate: float | None = None  # this many begin per second; others are deferred
    refuses_above: int | None = None  # calls beyond that are refused after 10 ms
    is_dead: Callable[[float], bool] | None = None  # calls hang then, until they time out
    timeout: float = 1.0


@dataclass
class Run:
    """What happened: every call that ended, and every limit."""

    calls: list[tuple[float, float, bool]] = field(default_factory=list)  # end, seconds, succeeded
    limits: list[tuple[float, int]] = field(default_factory=list)

    def between(self, first: float, last: float) -> Seen:
        """Throughput and latency of a span of time."""
        calls = [(held, fine) for end, held, fine in self.calls if first <= end < last]
        took = sorted(held for held, fine in calls if fine)
        if not took:
            return Seen(0.0, float("inf"), float("inf"), 0.0)
        p99 = took[min(len(took) * 99 // 100, len(took) - 1)]
        return Seen(len(took) / (last - first), sum(took) / len(took), p99, len(took) / len(calls))

    def mean_limit(self, first: float, last: float) -> float:
        """The limit, averaged over a span of time."""
        total = 0.0
        ends = [*(at for at, _ in self.limits[1:]), last]
        for (at, limit), end in zip(self.limits, ends, strict=True):
            total += limit * max(min(end, last) - max(at, first), 0.0)
        return total / (last - first)


@dataclass(frozen=True)
class Seen:
    """Calls that succeeded per second, their mean and 99th percentile (s), and their share."""

    throughput: float
    mean: float
    p99: float
    succeeded: float

    @property
    def power(self) -> float:
        """Throughput per latency: what the best fixed limit has the most of."""
        return self.throughput / self.mean

    @property
    def score(self) -> float:
        """What rivals are compared by: a limit that has many calls refused is no good one."""
        return self.power * self.succeeded


class Simulation:
    """One run. ``load`` is in calls per second, or the number of clients that never rest."""

    def __init__(
        self,
        service: Service,
        controller: Controller,
        load: Value | int,
        *,
        processes: int = 1,
        seed: int = 1,
    ) -> None:
        self.service, self.controller, self.load = service, controller, load
        self.dice = random.Random(seed)
        # A grant reaches another process a little later; its slot is held meanwhile.
        self.delivery = 0.0 if processes == 1 else 0.002
        self.ledger: PathLedger[PathClaim] = PathLedger([controller.limit])
        self.run = Run(limits=[(0.0, controller.limit)])
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.number = 0
        self.busy = 0  # workers
        self.in_flight = 0
        self.queue: deque[tuple[PathClaim, float]] = deque()  # at the service
        self.next_start = 0.0  # of a service with a rate

    def play(self, seconds: float) -> Run:
        """Run it for so long."""
        if callable(self.load):
            self.later(self.dice.expovariate(self.load(0.0)), self.arrive)
        else:
            for _ in range(self.load):
                self.later(self.dice.random() * 0.05, self.ask)
        if callable(self.service.workers):
            self.later(0.25, self.look_for_workers)
        while self.events and self.events[0][0] < seconds:
            self.now, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)
        return self.run

    def later(self, seconds: float, what: Callable[..., None], *arguments: object) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + seconds, self.number, what, arguments))

    # ------------------------------------------------------------ the clients

    def arrive(self) -> None:
        assert callable(self.load)
        self.later(self.dice.expovariate(max(self.load(self.now), 1e-6)), self.arrive)
        if len(self.ledger.waiting) < MOST_WAITING:
            self.ask()

    def ask(self) -> None:
        self.number += 1
        self.deliver(self.ledger.request(PathClaim(self.number), _PATH, self.now))

    def deliver(self, granted: list[PathClaim]) -> None:
        for claim in granted:
            if self.delivery:
                self.later(self.dice.random() * 2 * self.delivery, self.begin, claim)
            else:
                self.begin(claim)

    def end(self, claim: PathClaim, began: float, outcome: Outcome, has_worker: bool) -> None:
        if has_worker:
            self.busy -= 1
            self.start_queued()
        held = self.now - began
        if held > self.service.timeout and self.service.is_dead is not None:
            outcome = "dropped"
        self.run.calls.append((self.now, held, outcome == "ok"))
        limit = self.controller.end(self.now, held, outcome, self.in_flight)
        self.in_flight -= 1
        granted = self.ledger.release(claim.key, self.now)
        if limit != self.ledger.node().value:
            self.run.limits.append((self.now, limit))
            granted += self.ledger.resize(0, limit, None, self.now)[1]
        self.deliver(granted)
        if not callable(self.load):
            self.ask()

    # ------------------------------------------------------------ the service

    def begin(self, claim: PathClaim) -> None:
        service = self.service
        self.in_flight += 1
        if service.is_dead is not None and service.is_dead(self.now):
            self.later(service.timeout, self.end, claim, self.now, "dropped", False)
        elif service.refuses_above is not None and self.busy >= service.refuses_above:
            self.later(0.01, self.end, claim, self.now, "dropped", False)
        elif service.rate is not None:
            start = max(self.next_start, self.now)
            self.next_start = start + 1 / service.rate
            self.later(start - self.now + self.took(), self.end, claim, self.now, "ok", False)
        elif service.bend:
            assert isinstance(service.workers, int)
            crowd = (1 + (self.in_flight / service.workers) ** service.bend) ** (1 / service.bend)
            self.later(self.took() * crowd, self.end, claim, self.now, "ok", False)
        elif service.workers is None and service.refuses_above is None:
            self.later(self.took(), self.end, claim, self.now, "ok", False)
        else:
            self.queue.append((claim, self.now))
            self.start_queued()

    def start_queued(self) -> None:
        workers = self.service.workers
        most = workers(self.now) if callable(workers) else workers
        while self.queue and (most is None or self.busy < most):
            self.busy += 1
            claim, began = self.queue.popleft()
            self.later(self.took(), self.end, claim, began, "ok", True)

    def look_for_workers(self) -> None:
        """See whether there are more workers than before."""
        self.start_queued()
        self.later(0.25, self.look_for_workers)

    def took(self) -> float:
        service = self.service
        seconds = service.seconds(self.now) if callable(service.seconds) else service.seconds
        factor = max(self.dice.gauss(1, service.spread), 0.3)
        if service.jitter and self.dice.random() < 0.5:
            factor += self.dice.expovariate(1 / service.jitter)
        return seconds * factor
