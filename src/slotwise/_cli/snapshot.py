"""The snapshot: all limits of a directory or a server at one moment, for everything that shows it.

``ls`` and ``show`` take one; ``top``, ``export`` and the page take one a second, and a `Watcher`
makes rates, waits and a history of them. How it is shown is up to each of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from slotwise._cli.backends import Backend, Claimants, NotFound
from slotwise._cli.output import age
from slotwise._cli.sampling import WINDOW, Row, Sample, Sampler, Subject
from slotwise._cli.tier_view import TiersView, through, view
from slotwise._core import fork
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.results import Claimant, SemaphoreStats
from slotwise._core.semaphore import Semaphore
from slotwise.errors import SlotwiseError

T = TypeVar("T")

MOST = 200  # semaphores that are sampled: the fullest; and as many names of tiers
_TIER_KEYS = 3  # the busiest of each tier that are sampled


# ------------------------------------------------------------------------------ one look


@dataclass(frozen=True, slots=True)
class Survey:
    """How full everything is, by name, and what was wrong with what is not among it."""

    semaphores: dict[str, SemaphoreStats]
    tiers: dict[str, TiersView]
    errors: list[SlotwiseError]


def survey(backend: Backend, *, used: bool = False, idle: bool = True) -> Survey:
    """Look at all semaphores and tiers; with ``used``, at those held or waited for.

    Without ``idle`` those are left out that are neither used nor closed.
    """
    stats, found_tiers, errors = backend.look()
    tiers = {}
    for name, found in found_tiers.items():
        if not found.is_used and (used or not (idle or found.closure)):
            continue
        try:
            tiers[name] = view(found)
        except SlotwiseError as error:
            errors.append(error)
        except ValueError:  # records that none of our code wrote must not hide the others
            errors.append(
                SlotwiseError(f"the tiers {name!r} can't be read: not what slotwise wrote")
            )
    if used or not idle:
        stats = {
            name: one
            for name, one in stats.items()
            if one.acquired_slots or one.waiting or (one.closed and not used)
        }
    return Survey(stats, tiers, errors)


def claimants(limit: Semaphore | FoundTiers) -> Claimants:
    """Return the holders and waiters of a semaphore or of tiers."""
    where = limit.paths if isinstance(limit, FoundTiers) else limit
    # Waiters first: one that is granted in between is seen as both, and not as neither.
    waiters = where.waiters_sync()
    return Claimants(where.holders_sync(), waiters)


def claimant_as_dict(claimant: Claimant, *, tiers: bool = False) -> dict[str, Any]:
    """What is shown of a holder or waiter as JSON; of tiers, its keys too."""
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


@dataclass(slots=True)
class _Hold:
    """A hold that was seen: by which number, from when until when."""

    number: int | None
    label: str
    began: float
    seen: float
    ended: bool = False


@dataclass(slots=True)
class _History:
    """What earlier snapshots showed of one name."""

    fullness: deque[float] = field(default_factory=lambda: deque(maxlen=180))
    values: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=100))
    holds: dict[str, _Hold] = field(default_factory=dict)

    def add(self, row: dict[str, Any], at: float) -> None:
        self.fullness.append(round(row["full"], 3))
        if not self.values or self.values[-1][1] != row["value"]:
            self.values.append((at, row["value"]))

    def add_holders(self, holders: Iterable[Claimant], at: float) -> None:
        now = datetime.fromtimestamp(at, UTC)
        held = set()
        for each in holders:
            held.add(each.acquisition_id)
            known = self.holds.get(each.acquisition_id)
            if known is None:
                began = at - (age(each.since, now) or 0.0)
                hold = _Hold(each.slot_number, each.label or "", began, at)
                self.holds[each.acquisition_id] = hold
            else:
                known.seen = at
        for acquisition_id, hold in list(self.holds.items()):
            hold.ended = acquisition_id not in held
            if hold.ended and hold.seen < at - WINDOW:
                del self.holds[acquisition_id]


class Watcher:
    """Takes snapshots of a directory or a server again and again; one thread at a time."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.errors: list[SlotwiseError] = []  # of what can't be read
        self._sampler = Sampler()
        self._known: dict[str, Semaphore] = {}
        self.sampled: dict[str, Claimants] = {}  # of the last look, by the semaphores' names
        self._histories: dict[tuple[str, str], _History] = {}

    def rows(self) -> list[Row]:
        """Take a snapshot: a row for each semaphore, tier and key that is sampled."""
        seen = survey(self.backend)
        self.errors = seen.errors
        return self._rows(seen)

    def _rows(self, seen: Survey, most: int = MOST) -> list[Row]:
        stats = seen.semaphores
        names = sorted(stats, key=lambda name: _urgency(stats[name]))[:most]
        self._known = {name: self._known[name] for name in names if name in self._known}
        for name in names:
            if name not in self._known:
                with suppress(NotFound):  # gone since a moment ago
                    self._known[name] = self.backend.found(name, stats[name])
        looked = self.backend.claimants(self._known)
        self.sampled = {name: found for name, found in looked.items() if found is not None}
        samples: dict[Subject, Sample] = {
            Subject(name): Sample(stats[name].max_slots, found.holders, found.waiters)
            for name, found in self.sampled.items()
        }
        fullest = sorted(
            seen.tiers.values(), key=lambda each: (-each.found.waiters, -each.found.holders)
        )
        for each in fullest[:most]:
            samples |= _sample_tiers(each)
        return self._sampler.add(samples, datetime.now(UTC))

    # ---------------------------------------------------------------- for the page

    def look(self, names: Iterable[str] = ()) -> Look:
        """Take a snapshot, with the holders and waiters of the limits called ``names``."""
        at = time.time()
        seen = survey(self.backend)
        self.errors = seen.errors
        rows = {row.name: row for row in self._rows(_in_use(seen), _SAMPLED) if row.tier is None}
        semaphores = seen.semaphores.items()
        limits = [_semaphore_row(name, one, rows.get(name)) for name, one in semaphores]
        limits += [_tiers_row(each) for each in seen.tiers.values()]
        limits.sort(key=lambda row: (-row["full"], -row["waiting"], row["name"]))
        histories = {(row["kind"], row["name"]): row for row in limits}
        self._histories = {key: self._histories.get(key) or _History() for key in histories}
        for key, row in histories.items():
            self._histories[key].add(row, at)
            row["spark"] = list(self._histories[key].fullness)[-60:]
        details = {name: self._detail(name, seen, rows.get(name), at) for name in {*names}}
        return Look(at, limits, details, [str(error) for error in seen.errors])

    def _detail(self, name: str, seen: Survey, row: Row | None, at: float) -> dict[str, Any] | None:
        """One limit, with its holders and waiters; None if there is none of that name."""
        try:
            limit = self.backend.find_either(name)
            found = claimants(limit)
        except SlotwiseError:
            return None
        is_tiers = isinstance(limit, FoundTiers)
        now = datetime.fromtimestamp(at, UTC)
        rate = None if row is None else row.acquisitions_per_second
        kind = "tiers" if is_tiers else "semaphore"
        history = self._histories.setdefault((kind, name), _History())
        history.add_holders(found.holders, at)
        tiers = seen.tiers.get(name) if is_tiers else None
        return {
            "name": name,
            "kind": kind,
            "holders": [_shown(each, now, tiers=is_tiers) for each in found.holders[:MOST]],
            "holders_total": len(found.holders),
            "waiters": [
                _shown(each, now, tiers=is_tiers)
                | {"place": place, "lacks": each.lacks, "estimate": place / rate if rate else None}
                for place, each in enumerate(found.waiters[:MOST], 1)
            ],
            "waiters_total": len(found.waiters),
            "tiers": [] if tiers is None else tiers.as_dict(10)["tiers"],
            "values": [list(each) for each in history.values],
            "strip": [
                {
                    "slot": hold.number,
                    "label": hold.label,
                    "from": max(hold.began, at - WINDOW) - at,
                    "to": (hold.seen if hold.ended else at) - at,
                }
                for hold in list(history.holds.values())[-MOST:]
            ],
        }


_SAMPLED = 50  # of these, the fullest in use, the page has rates and waits


@dataclass(frozen=True, slots=True)
class Look:
    """What the page shows: all limits, the fullest first, and some of them in detail."""

    at: float
    limits: list[dict[str, Any]]
    details: dict[str, dict[str, Any] | None]
    errors: list[str]

    def as_dict(self, name: str | None = None, search: str = "") -> dict[str, Any]:
        """As JSON: at most 200 limits, those whose names contain ``search``."""
        wanted = search.casefold()
        rows = [row for row in self.limits if wanted in row["name"].casefold()]
        return {
            "at": self.at,
            "total": len(self.limits),
            "found": len(rows),
            "limits": rows[:MOST],
            "limit": None if name is None else self.details.get(name),
            "errors": self.errors[:5],
        }


def _in_use(seen: Survey) -> Survey:
    used = {n: one for n, one in seen.semaphores.items() if one.acquired_slots or one.waiting}
    return Survey(used, {}, [])


def _urgency(stats: SemaphoreStats) -> tuple[float, int]:
    return -stats.acquired_percent, -stats.waiting


def _semaphore_row(name: str, stats: SemaphoreStats, row: Row | None) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "semaphore",
        "value": stats.max_slots,
        "held": stats.acquired_slots,
        "waiting": stats.waiting,
        "full": stats.acquired_percent / 100,
        "closed": stats.closed,
        "reason": stats.reason,
        "per_second": None if row is None else row.acquisitions_per_second,
        "wait_p50": None if row is None else row.wait_p50_seconds,
        "wait_p95": None if row is None else row.wait_p95_seconds,
        "oldest": None if row is None else row.oldest_hold_seconds,
    }


def _tiers_row(each: TiersView) -> dict[str, Any]:
    """The row of tiers: the value of the widest one, and as full as their fullest part."""
    parts = [part for tier in each.tiers for part in (tier.keys or (tier.total,))]
    shares = [part.taken / part.value for part in parts if part.value]
    found = each.found
    return {
        "name": found.name,
        "kind": "tiers",
        "value": each.tiers[-1].total.value if each.tiers else 0,
        "held": found.holders,
        "waiting": found.waiters,
        "full": max(shares, default=0.0),
        "closed": found.closure is not None,
        "reason": None if found.closure is None else found.closure.reason,
        **dict.fromkeys(("per_second", "wait_p50", "wait_p95", "oldest")),
    }


def _shown(claimant: Claimant, now: datetime, *, tiers: bool) -> dict[str, Any]:
    return claimant_as_dict(claimant, tiers=tiers) | {"age": age(claimant.since, now)}


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
                counts.level,
                counts.full_in,
            )
    return samples


# ------------------------------------------------------------------------------ sharing a look


class Shared(Generic[T]):
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
