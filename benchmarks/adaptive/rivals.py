"""What others do, written anew from their published descriptions with their published constants.

Gradient2 and Vegas are those of Netflix's concurrency-limits; both see the mean latency of windows
of a second, as they are deployed there. AIMD moves at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log10

from benchmarks.adaptive.scenarios import MAX, MIN
from benchmarks.adaptive.simulation import Controller
from slotwise._core.adaptive import Outcome


def _within(limit: float) -> float:
    return min(max(limit, MIN), MAX)


class Aimd:
    """One more at a success while half is used, a tenth fewer at a drop or after 5 s."""

    def __init__(self, start: int) -> None:
        self.limit = start

    def end(self, now: float, held: float, outcome: Outcome, in_flight: int) -> int:  # noqa: ARG002
        if outcome == "dropped" or held > 5:
            self.limit = int(_within(self.limit * 0.9))
        elif in_flight * 2 >= self.limit:
            self.limit = int(_within(self.limit + 1))
        return self.limit


class _Windowed:
    """Moves once a second, by the mean latency of the calls that ended in it."""

    def __init__(self, start: int) -> None:
        self.limit, self.exact = start, float(start)
        self._until, self._sum, self._count, self._peak, self._dropped = 1.0, 0.0, 0, 0, False

    def end(self, now: float, held: float, outcome: Outcome, in_flight: int) -> int:
        self._sum, self._count = self._sum + held, self._count + 1
        self._peak = max(self._peak, in_flight)
        self._dropped |= outcome == "dropped"
        if now >= self._until and self._count >= 10:
            self.move(self._sum / self._count, self._peak, self._dropped)
            self.limit = int(self.exact)
            self._until, self._sum, self._count, self._peak = now + 1, 0.0, 0, 0
            self._dropped = False
        return self.limit

    def move(self, latency: float, in_flight: int, dropped: bool) -> None:
        raise NotImplementedError


class Gradient2(_Windowed):
    """The ratio of a long average of latencies to the last, with half as much again tolerated."""

    long = 0.0
    seen = 0

    def move(self, latency: float, in_flight: int, dropped: bool) -> None:  # noqa: ARG002
        self.seen += 1
        if self.seen <= 10:
            self.long += (latency - self.long) / self.seen
        else:
            self.long += (latency - self.long) * 2 / 601
        if self.long / latency > 2:
            self.long *= 0.95
        if in_flight < self.exact / 2:
            return
        gradient = max(0.5, min(1.0, 1.5 * self.long / latency))
        self.exact = _within(self.exact * 0.8 + (self.exact * gradient + 4) * 0.2)


class Vegas(_Windowed):
    """The queue that the least latency ever seen implies, kept between two bounds."""

    least = 0.0
    probes = 0

    def move(self, latency: float, in_flight: int, dropped: bool) -> None:
        self.probes += 1
        if not self.least or latency < self.least or self.probes >= 30 * self.exact:
            self.least, self.probes = latency, 0
            return
        step = max(1.0, log10(self.exact))
        queue = ceil(self.exact * (1 - self.least / latency))
        if dropped:
            self.exact = _within(self.exact - step)
        elif in_flight * 2 < self.exact:
            return
        elif queue <= step:
            self.exact = _within(self.exact + 6 * step)
        elif queue < 3 * step:
            self.exact = _within(self.exact + step)
        elif queue > 6 * step:
            self.exact = _within(self.exact - step)


RIVALS: dict[str, Callable[[int], Controller]] = {
    "Gradient2": Gradient2,
    "Vegas": Vegas,
    "AIMD": Aimd,
}
