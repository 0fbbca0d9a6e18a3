"""Totals: count what this process acquires of each limit, in constant memory.

Times go into buckets whose bounds grow by a tenth, so a percentile is right to about 5 %.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from math import ceil, log

from slotwise._core import events, fork, stats
from slotwise._core.event import Event

# Names come and go: at most this many are kept, those used last.
_MOST_NAMES = 10_000

_SHORTEST = 1e-6  # seconds: all that is shorter is counted as that
_GROWTH = 1.1
_LOG_GROWTH = log(_GROWTH)


class Distribution:
    """Times, in buckets: how many, their mean, and any percentile of them."""

    __slots__ = ("_buckets", "_count", "_sum")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._count = 0
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._count += 1
        self._sum += seconds
        self._buckets[ceil(log(max(seconds, _SHORTEST) / _SHORTEST) / _LOG_GROWTH)] += 1

    @property
    def mean(self) -> float | None:
        return self._sum / self._count if self._count else None

    def percentile(self, share: float) -> float | None:
        """The time that ``share`` of all are not longer than; None if there are none."""
        left = share * self._count
        for bucket, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                return float(_SHORTEST * _GROWTH ** (bucket - 0.5))
        return None


class _Counts:
    """What was counted for one limit."""

    __slots__ = ("granted", "hold", "lost", "refused", "wait")

    def __init__(self) -> None:
        self.granted = self.lost = 0
        self.refused: Counter[str] = Counter()
        self.wait = Distribution()
        self.hold = Distribution()

    def add(self, event: Event) -> None:
        if event.kind == "acquired":
            self.granted += 1
            self.wait.add(event.waited or 0.0)
        elif event.kind == "refused":
            self.refused[str(event.reason)] += 1
        elif event.kind in events.ENDINGS:
            self.lost += event.kind != "released"
            self.hold.add(event.held or 0.0)

    def totals(self) -> stats.Totals:
        return stats.Totals(
            self.granted,
            dict(self.refused),
            self.lost,
            self.wait.mean,
            self.wait.percentile(0.95),
            self.hold.mean,
            self.hold.percentile(0.95),
        )


_Key = tuple[str, str]  # scope and name

_lock = fork.new_lock()
_counts: OrderedDict[_Key, _Counts] = OrderedDict()


def keep_totals() -> None:
    """Count what this process gets of its limits from now on: ``SemaphoreStats.totals`` has it.

    Limits without a name are not counted. Calling it again changes nothing.
    """
    stats.totals_of = _totals_of
    events.add_hook(_count)


def drop_totals() -> None:
    """Stop counting, and forget what was counted."""
    stats.totals_of = None
    events.remove_hook(_count)
    with _lock:
        _counts.clear()


def _count(event: Event) -> None:
    if event.name is None or event.kind in ("requested", "resized", "adapted"):
        return
    key = event.scope, event.name
    with _lock:
        counts = _counts.get(key)
        if counts is None:
            counts = _counts[key] = _Counts()
            if len(_counts) > _MOST_NAMES:
                _counts.popitem(last=False)
        else:
            _counts.move_to_end(key)
        counts.add(event)


def _totals_of(scope: str, name: str | None) -> stats.Totals | None:
    """What was counted for a limit; None for one without a name."""
    if name is None:
        return None
    with _lock:
        return _counts.get((scope, name), _NOTHING).totals()


_NOTHING = _Counts()


fork.in_child(fork.Step.FORGET, _counts.clear)
