"""SemaphoreStats, Totals and Claimant: what inspecting returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Totals:
    """What this process got of a limit since `slotwise.instrumentation.keep_totals`.

    ``refused`` counts by reason: timeout, cancelled, closed, full, unreachable. ``lost`` is how
    many holds ended without a release. Times are in seconds, None if there were none; the 95th
    percentiles are accurate to about 5 %.
    """

    granted: int
    refused: Mapping[str, int] = field(hash=False)
    lost: int
    wait_mean: float | None
    wait_p95: float | None
    hold_mean: float | None
    hold_p95: float | None


@dataclass(frozen=True, slots=True)
class SemaphoreStats:
    """How full a semaphore is.

    After a shrink ``acquired_slots`` exceeds ``max_slots`` until enough holders
    have left; nothing is granted meanwhile. ``closed`` says whether it is closed
    everywhere, ``reason`` why. ``paused_for`` is in how many seconds a pause ends, 0.0 if there is
    none. ``frozen`` says whether an adaptive value is kept where it is; of a path through tiers
    it is never set: `TierStats` and `KeyStats` have it. For a path through tiers without limits
    ``max_slots`` is 0.
    ``totals`` has what this process got of it, if it keeps totals. ``scope`` is who shares it, as
    that of an `AcquisitionResult`.
    """

    acquired_slots: int
    max_slots: int
    waiting: int = 0
    closed: bool = False
    reason: str | None = None
    acquired_percent: float = field(init=False)
    paused_for: float = field(default=0.0, compare=False, kw_only=True)
    frozen: bool = field(default=False, compare=False, repr=False, kw_only=True)
    totals: Totals | None = field(default=None, compare=False, kw_only=True)
    scope: str = field(default="memory", compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        percent = 100 * self.acquired_slots / self.max_slots if self.max_slots else 0.0
        object.__setattr__(self, "acquired_percent", percent)


# Set while totals are kept: returns what this process got of a limit, by scope and name.
totals_of: Callable[[str, str | None], Totals | None] | None = None


def fullest(
    found: Mapping[str, SemaphoreStats], limit: int, *, idle_too: bool
) -> dict[str, SemaphoreStats]:
    """Return the fullest of what was found, at most ``limit``; idle ones only with ``idle_too``."""
    shown = [
        (name, stats)
        for name, stats in found.items()
        if idle_too or stats.acquired_slots or stats.waiting or stats.closed or stats.paused_for
    ]
    shown.sort(key=lambda item: (-item[1].acquired_percent, -item[1].waiting, item[0]))
    return dict(shown[:limit])


@dataclass(frozen=True, slots=True)
class Claimant:
    """One holder or waiter, of any process.

    ``since`` is when it was granted, or when it began to wait, by the server's
    clock where there is a server. Clients that speak only the documented Redis
    protocol leave no host, pid, label or slot number behind, and as holders no time.
    Of an ``unreadable`` one, whose record none of our code wrote, only the id is known, with
    bytes that are not text escaped. ``keys`` has the keys of a path through tiers, ``needs`` what
    it takes of each tier, if that is not one slot of each; then ``slots`` is what it takes of
    the widest. ``lacks`` is the tier that a waiter for a path, or the one in front of it with the
    same keys, lacks. ``ttl`` is for how many seconds it may hold, None forever.
    """

    acquisition_id: str
    slots: int
    since: datetime | None
    host: str | None = None
    pid: int | None = None
    label: str | None = None
    slot_number: int | None = None
    unreadable: bool = False
    keys: Mapping[str, str] = field(default_factory=dict, hash=False)
    needs: Mapping[str, int] = field(default_factory=dict, hash=False)
    lacks: str | None = None
    ttl: float | None = None


def age(since: datetime | None, now: datetime | None = None) -> float | None:
    """Return for how many seconds something has lasted; 0 if the clocks disagree."""
    if since is None:
        return None
    return max(((now or datetime.now(UTC)) - since).total_seconds(), 0.0)
