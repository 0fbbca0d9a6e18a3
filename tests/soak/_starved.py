"""What the machine did to a history: when its processes waited for a processor, and for how long.

That is measured by the kernel (`_processor`). Nothing is assumed, so where it wasn't measured,
nobody has waited.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any


class _Series:
    """A number of seconds that grows, at the times at which it was read."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._totals: list[float] = []

    def add(self, at: float, total: float) -> None:
        if self.times and (at <= self.times[-1] or total < self._totals[-1]):
            return  # two threads wrote at once
        self.times.append(at)
        self._totals.append(total)

    def growth(self, start: float, end: float) -> float:
        return max(self._total(end) - self._total(start), 0.0)

    def _total(self, at: float) -> float:
        position = bisect_right(self.times, at)
        if position == 0:
            return self._totals[0] if self._totals else 0.0
        if position == len(self.times):
            return self._totals[-1]
        (t0, t1) = self.times[position - 1 : position + 1]
        (n0, n1) = self._totals[position - 1 : position + 1]
        return n0 + (n1 - n0) * (at - t0) / (t1 - t0)


class Starved:
    """By process, for how long it waited, up to when."""

    def __init__(self) -> None:
        self._main: dict[int, _Series] = {}
        self._heartbeats: dict[int, _Series] = {}
        self._servers: dict[int, _Series] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Note an event of a process, if it tells."""
        if event.get("waited") is None:
            return
        at, pid, (main, heartbeats) = event["at"], event["pid"], event["waited"]
        if event.get("is_server"):
            self._servers.setdefault(pid, _Series()).add(at, main)
        else:
            self._main.setdefault(pid, _Series()).add(at, main)
            self._heartbeats.setdefault(pid, _Series()).add(at, heartbeats)

    def servers(self, start: float, end: float) -> float:
        return sum(each.growth(start, end) for each in self._servers.values())

    def process(self, pid: int, start: float, end: float) -> float:
        """For how long the threads of a process that callers depend on have waited."""
        series = [each[pid] for each in (self._main, self._heartbeats) if pid in each]
        return sum(each.growth(start, end) for each in series)

    def call(self, pid: int, start: float, end: float) -> float:
        """For how long a process and the servers have waited."""
        return self.process(pid, start, end) + self.servers(start, end)

    def service(self, start: float, end: float, *, has_server: bool) -> float:
        """For how long one of those who take part was kept waiting, at the most.

        They run one after the other, so it may be more in total. But a sum would hide a mechanism
        that is late while everybody has to wait now and then.
        """
        waited = [series.growth(start, end) for series in self._main.values()]
        if has_server:
            waited.append(self.servers(start, end))
        return min(max(waited, default=0.0), end - start)

    def silences(self, pid: int, interval: float, ping: float) -> Iterator[tuple[float, float]]:
        """When no heartbeat of a process may have got through for too long."""
        series = self._heartbeats.get(pid)
        for end in series.times if series is not None else ():
            start = end - interval
            assert series is not None
            if series.growth(start, end) + self.servers(start, end) >= interval - 2 * ping:
                yield start, end
