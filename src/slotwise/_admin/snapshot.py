"""The snapshot: all limits of a directory or a server at one moment.

``ls`` and ``show`` take one; ``top``, ``export`` and the page take one a second, and a `Watcher`
derives rates, waits and a history from them. How it is shown is up to each of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from slotwise._admin.backends import Backend, Claimants, NotFound, claimants
from slotwise._admin.tier_view import TiersView, through, view
from slotwise._core import fork
from slotwise._core.semaphore import Semaphore
from slotwise._core.stats import Claimant, SemaphoreStats, age
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


WINDOW = 60.0  # seconds over which rates and waits are computed


class Subject(NamedTuple):
    """What a row is about: a semaphore, a tier, or one key of a tier."""

    name: str
    tier: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A semaphore, a tier or a key at one moment."""

    value: int
    holders: Sequence[Claimant]
    waiters: Sequence[Claimant]
    rate: str | None = None  # 600/60s; then the value is its burst
    level: float | None = None  # of a rate, and in how many seconds it is full
    full_in: float | None = None
    closed: bool = False
    paused_for: float = 0.0
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """What is shown of a semaphore, a tier or a key; None where nothing was seen."""

    name: str
    value: int
    held: int
    waiting: int
    oldest_hold_seconds: float | None
    acquisitions_per_second: float | None
    wait_p50_seconds: float | None
    wait_p95_seconds: float | None
    tier: str | None = None
    key: str | None = None
    rate: str | None = None
    level: float | None = None
    full_in_seconds: float | None = None
    value_before: int | None = None  # if it has moved within the last minute
    closed: bool = False
    paused_for_seconds: float = 0.0
    frozen: bool = False

    @property
    def title(self) -> str:
        """``api``, or ``api tenant=acme``, or ``api all``."""
        if self.tier is None:
            return self.name
        return f"{self.name} {self.tier}" + ("" if self.key is None else f"={self.key}")


@dataclass(slots=True)
class _Seen:
    began: float
    holders: set[str]
    waiting_since: dict[str, datetime] = field(default_factory=dict)
    grants: deque[tuple[float, float]] = field(default_factory=deque)  # when, how long waited
    value: int = 0
    moved: tuple[float, int] | None = None  # when its value was last seen to move, and from what


class Sampler:
    """Turns successive samples into rows."""

    def __init__(self) -> None:
        self._seen: dict[Subject, _Seen] = {}

    def add(self, samples: Mapping[Subject, Sample], now: datetime) -> list[Row]:
        """Add the next samples; return a row for each."""
        at = now.timestamp()
        for subject in self._seen.keys() - samples.keys():
            del self._seen[subject]
        return [self._row(subject, sample, now, at) for subject, sample in samples.items()]

    def _row(self, subject: Subject, sample: Sample, now: datetime, at: float) -> Row:
        seen = self._seen.get(subject)
        if seen is None:
            # Holders in the first sample were granted at a time that was not seen.
            seen = _Seen(at, {each.acquisition_id for each in sample.holders}, value=sample.value)
            self._seen[subject] = seen
        if sample.value != seen.value:
            seen.moved, seen.value = (at, seen.value), sample.value
        elif seen.moved is not None and seen.moved[0] < at - WINDOW:
            seen.moved = None
        self._note_grants(seen, sample, at)
        waits = sorted(waited for _, waited in seen.grants)
        watched = min(at - seen.began, WINDOW)
        holds = [lasted for each in sample.holders if (lasted := age(each.since, now)) is not None]
        is_rate = sample.rate is not None  # nothing is held of those
        return Row(
            subject.name,
            sample.value,
            0 if is_rate else sum(_slots(each, subject.tier) for each in sample.holders),
            len(sample.waiters),
            max(holds, default=None),
            len(seen.grants) / watched if watched > 0 else None,
            percentile(waits, 50),
            percentile(waits, 95),
            subject.tier,
            subject.key,
            *(sample.rate, sample.level, sample.full_in),
            None if seen.moved is None else seen.moved[1],
            *(sample.closed, sample.paused_for, sample.frozen),
        )

    @staticmethod
    def _note_grants(seen: _Seen, sample: Sample, at: float) -> None:
        for each in sample.holders:
            if each.acquisition_id in seen.holders:
                continue
            waited_since = seen.waiting_since.get(each.acquisition_id)
            known = waited_since is not None and each.since is not None
            waited = (each.since - waited_since).total_seconds() if known else 0.0  # type: ignore[operator]
            seen.grants.append((at, max(waited, 0.0)))
        while seen.grants and seen.grants[0][0] < at - WINDOW:
            seen.grants.popleft()
        seen.holders = {each.acquisition_id for each in sample.holders}
        seen.waiting_since = {
            each.acquisition_id: each.since for each in sample.waiters if each.since is not None
        }


def _slots(claimant: Claimant, tier: str | None) -> int:
    """Return what a claimant takes of a semaphore, or of a tier."""
    return claimant.slots if tier is None else claimant.needs.get(tier, 1)


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The smallest value that at least ``percent`` % do not exceed; None if there are none."""
    if not ordered:
        return None
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]
