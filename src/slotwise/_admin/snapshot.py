"""The snapshot: all limits of a directory or a server at one moment.

``ls`` and ``show`` take one; ``top``, ``export`` and the page take one a second, and a `Watcher`
derives rates, waits and a history from them. How it is shown is up to each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from slotwise._admin.backends import Backend, Claimants, NotFound, claimants
from slotwise._admin.sampling import Row, Sample, Sampler, Subject
from slotwise._admin.tier_view import TiersView, through, view
from slotwise._core import fork
from slotwise._core.semaphore import Semaphore
from slotwise._core.stats import Claimant, SemaphoreStats
from slotwise.errors import SlotwiseError

T = TypeVar("T")

MOST = 200  # semaphores that are sampled: the fullest; and as many names of tiers
_TIER_KEYS = 3  # the busiest of each tier that are sampled


# ------------------------------------------------------------------------------ one look


@dataclass(frozen=True, slots=True)
class Survey:
    """How full all limits are, by name, and an error for each that could not be read."""

    semaphores: dict[str, SemaphoreStats]
    tiers: dict[str, TiersView]
    errors: list[SlotwiseError]


def survey(backend: Backend, *, used: bool = False, idle: bool = True) -> Survey:
    """Read all semaphores and tiers; with ``used``, those held or waited for.

    Without ``idle``, those that are neither used, closed nor paused are left out.
    """
    stats, found_tiers, errors = backend.look()
    tiers = {}
    for name, found in found_tiers.items():
        if used and not found.is_used:
            continue
        try:
            seen = view(found)
            if found.is_used or idle or found.closure or seen.paused():
                tiers[name] = seen
        except SlotwiseError as error:
            errors.append(error)
        except ValueError:  # records that none of our code wrote must not hide the others
            errors.append(
                SlotwiseError(
                    f"the tiers {name!r} can't be read: slotwise did not write their contents"
                )
            )
    if used or not idle:
        stats = {
            name: one
            for name, one in stats.items()
            if one.acquired_slots or one.waiting or ((one.closed or one.paused_for) and not used)
        }
    return Survey(stats, tiers, errors)


def claimant_as_dict(claimant: Claimant, *, tiers: bool = False) -> dict[str, Any]:
    """Return what JSON shows of a holder or waiter; for tiers, its keys too."""
    shown: dict[str, Any] = {
        "id": claimant.acquisition_id,
        "since": None if claimant.since is None else claimant.since.isoformat(),
        "host": claimant.host,
        "pid": claimant.pid,
        "label": claimant.label,
        "slots": claimant.slots,
        "slot_number": claimant.slot_number,
        "unreadable": claimant.unreadable,
    }
    if tiers:
        shown |= {"keys": {**claimant.keys}, "needs": {**claimant.needs}}
    return shown


# ------------------------------------------------------------------------------ look after look


class Watcher:
    """Takes snapshots of a directory or a server again and again; one thread at a time."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.errors: list[SlotwiseError] = []  # the errors of what can't be read
        self._sampler = Sampler()
        self._known: dict[str, Semaphore] = {}

    def rows(self) -> list[Row]:
        """Take a snapshot: a row for each semaphore, tier and key that is sampled."""
        seen = survey(self.backend)
        self.errors = seen.errors
        stats = seen.semaphores
        samples = {
            Subject(name): _sample(stats[name], found)
            for name, found in self._claimants(stats, MOST).items()
        }
        for each in _fullest(seen.tiers)[:MOST]:
            samples |= _sample_tiers(each)
        return self._sampler.add(samples, datetime.now(UTC))

    def limits(self, most: int) -> tuple[Survey, dict[Subject, Claimants], dict[Subject, Row]]:
        """Take a snapshot: holders, waiters and a row of as many of the fullest limits in use.

        Tiers have one row, for all of them; their subject is ``name, ""``.
        """
        seen = survey(self.backend)
        self.errors = seen.errors
        stats = {n: one for n, one in seen.semaphores.items() if one.acquired_slots or one.waiting}
        found = {Subject(name): each for name, each in self._claimants(stats, most).items()}
        for tiers in [each for each in _fullest(seen.tiers) if each.found.is_used][:most]:
            with suppress(SlotwiseError):  # the survey says what is wrong
                found[Subject(tiers.found.name, "")] = claimants(tiers.found)
        samples = {
            subject: Sample(0, each.holders, each.waiters) for subject, each in found.items()
        }
        rows = self._sampler.add(samples, datetime.now(UTC))
        return seen, found, dict(zip(samples, rows, strict=True))

    def _claimants(self, stats: Mapping[str, SemaphoreStats], most: int) -> dict[str, Claimants]:
        """The holders and waiters of the fullest semaphores."""
        fullness = {name: (-one.acquired_percent, -one.waiting) for name, one in stats.items()}
        names = sorted(stats, key=lambda name: (*fullness[name], name))[:most]
        self._known = {name: self._known[name] for name in names if name in self._known}
        for name in names:
            if name not in self._known:
                with suppress(NotFound):  # deleted just now
                    self._known[name] = self.backend.found(name, stats[name])
        looked = self.backend.claimants(self._known)
        return {name: found for name, found in looked.items() if found is not None}


def _fullest(tiers: Mapping[str, TiersView]) -> list[TiersView]:
    return sorted(
        tiers.values(), key=lambda each: (-each.found.waiters, -each.found.holders, each.found.name)
    )


def _sample(stats: SemaphoreStats, found: Claimants) -> Sample:
    return Sample(
        *(stats.max_slots, found.holders, found.waiters),
        closed=stats.closed,
        paused_for=stats.paused_for,
        frozen=stats.frozen,
    )


def _sample_tiers(each: TiersView) -> dict[Subject, Sample]:
    """Each tier, or the busiest keys of it."""
    found = claimants(each.found)
    samples = {}
    for tier in each.tiers:
        name = tier.spec.name
        for counts in tier.keys[:_TIER_KEYS] or (tier.total,):
            samples[Subject(each.found.name, name, counts.key)] = Sample(
                counts.value,
                through(found.holders, name, counts.key),
                through(found.waiters, name, counts.key),
                *(counts.rate_words, counts.level, counts.full_in, bool(each.closed)),
                max(counts.paused_for, tier.total.paused_for),
                counts.frozen,
            )
    return samples


# ------------------------------------------------------------------ sharing a snapshot


class SharedSnapshot(Generic[T]):
    """At most one snapshot in ``every`` seconds, shared by all who ask meanwhile."""

    def __init__(self, take: Callable[[], T], every: float = 1.0) -> None:
        self._take = take
        self._every = every
        self._lock = fork.new_lock()
        self._taken_at = float("-inf")
        self._last: T | None = None

    def get(self) -> T:
        with self._lock:
            if self._last is None or time.monotonic() - self._taken_at >= self._every:
                self._last = self._take()
                self._taken_at = time.monotonic()
            return self._last
