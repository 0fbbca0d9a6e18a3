"""MemoryGuard: compare the memory in use with a limit, to continue, slow down or stop.

It starts and stops nothing itself: pipelines do. One guard may serve several runs, even at the same
time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from slotwise._core import fork
from slotwise._core.arguments import check_seconds
from slotwise._core.redaction import kind_of

MB = 1024 * 1024

# cgroup v1 says "no limit" with a number near 2**63, rounded to pages.
_NO_LIMIT = 1 << 60


class Pressure(Enum):
    """Whether new work may start, as of the last sample."""

    FREE = "free"
    SLOW = "slow"
    STOP = "stop"


class MemoryGuard:
    """Slows a run down above one threshold of memory, and stops it above another.

    Args:
        limit_mb: the limit. None: that of the container, or else the machine's memory.
        slow_at: above this fraction of the limit, one item is started at a time.
        stop_at: above this fraction of the limit, nothing is started.
        interval: seconds between two samples; checks in between cost nothing.
        gauge: returns the bytes in use. None: this process's resident memory.
        clock: returns the time in seconds, to tell when the next sample is due.
    """

    def __init__(
        self,
        limit_mb: float | None = None,
        *,
        slow_at: float = 0.85,
        stop_at: float = 0.95,
        interval: float = 0.1,
        gauge: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if limit_mb is not None and (
            isinstance(limit_mb, bool) or not isinstance(limit_mb, int | float)
        ):
            raise TypeError(f"limit_mb must be a number or None, not {kind_of(limit_mb)}")
        if limit_mb is not None and not limit_mb > 0:
            raise ValueError(f"limit_mb must be above 0, not {limit_mb!r}")
        if not 0 < slow_at <= stop_at:
            raise ValueError(
                f"slow_at must be above 0 and at most stop_at, not {slow_at!r} and {stop_at!r}"
            )
        self.limit_bytes: float = available_memory() if limit_mb is None else limit_mb * MB
        self.slow_at = slow_at
        self.stop_at = stop_at
        self.interval = check_seconds("interval", interval, zero=True) or 0.0
        self._gauge = resident_memory if gauge is None else gauge
        self._clock = clock
        self._lock = fork.new_lock()
        self._due: float | None = None
        self.memory = 0
        self.peak_memory = 0
        self._pressure = Pressure.FREE

    def check(self) -> Pressure:
        """Return the pressure as of the last sample; take another one if that is too old."""
        now = self._clock()
        if self._due is None or now >= self._due:
            with self._lock:
                if self._due is None or now >= self._due:
                    self._due = now + self.interval
                    self.sample()
        return self._pressure

    def sample(self) -> int:
        """Take a sample now; return the bytes in use."""
        self.memory = used = self._gauge()
        self.peak_memory = max(self.peak_memory, used)
        if used > self.stop_at * self.limit_bytes:
            self._pressure = Pressure.STOP
        elif used > self.slow_at * self.limit_bytes:
            self._pressure = Pressure.SLOW
        else:
            self._pressure = Pressure.FREE
        return used

    def describe(self) -> str:
        share = 100 * self.memory / self.limit_bytes
        return f"{self.memory / MB:.1f} MB of {self.limit_bytes / MB:.1f} MB in use ({share:.0f} %)"


_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_memory() -> int:
    """Return the resident set size of this process, in bytes."""
    try:
        with Path("/proc/self/statm").open("rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:  # no /proc: use the maximum so far
        import resource
        import sys

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def available_memory(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """Return the smallest limit that applies to this process: its container's or the machine's."""
    machine = os.sysconf("SC_PHYS_PAGES") * _PAGE
    limits = [limit for limit in _cgroup_limits(root, membership) if limit < _NO_LIMIT]
    return min([machine, *limits])


def _cgroup_limits(root: Path, membership: Path) -> list[int]:
    """Return all limits from this process's group up to the root; each of them applies."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    files = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:  # version 2
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        files += [base.joinpath(*parts[:depth], name) for depth in range(1, len(parts) + 1)]
    return [limit for file in files if (limit := _limit_in(file)) is not None]


def _limit_in(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None
