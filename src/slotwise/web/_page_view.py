"""What the page shows: all limits, some of them in detail, with their history.

The snapshots themselves are taken by `snapshot`. Everything here becomes JSON.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from slotwise._admin.backends import Backend, Claimants, Kind, claimants
from slotwise._admin.snapshot import MOST, WINDOW, Row, Subject, Survey, Watcher, claimant_as_dict
from slotwise._admin.tier_view import TiersView, shortages, through, view
from slotwise._core.explain import oldest, path_of
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.semaphore import Semaphore
from slotwise._core.stats import Claimant, SemaphoreStats, age
from slotwise.errors import SlotwiseError

_SAMPLED = 50  # for this many, the fullest in use, the page has rates, waits and a strip
_SPARK = 60  # snapshots in a sparkline: a minute
_ESTIMATED = 8  # lines at tiers for which a backend is asked when they are served
_TIER_KEYS = 10  # the busiest of each tier
_CHANGES = 100  # of an adaptive value
_ADAPTIVE_KEYS = 3  # the busiest of an adaptive tier


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """All limits, the fullest first, and some of them in detail."""

    at: float
    where: str
    limits: list[dict[str, Any]]
    details: dict[Subject, dict[str, Any] | None]
    errors: list[str]

    def as_dict(self, chosen: Subject | None = None, search: str = "") -> dict[str, Any]:
        """Return it for JSON: at most 200 limits, those whose names contain ``search``."""
        wanted = search.casefold()
        rows = [row for row in self.limits if wanted in row["name"].casefold()]
        return {
            "at": self.at,
            "where": self.where,
            "total": len(self.limits),
            "found": len(rows),
            "limits": rows[:MOST],
            "limit": None if chosen is None else self.details.get(chosen),
            "errors": self.errors[:5],
        }


@dataclass(frozen=True, slots=True)
class _Taken:
    """A snapshot: the survey, the rows, and the holders and waiters that were sampled."""

    seen: Survey
    rows: dict[Subject, dict[str, Any]]
    found: dict[Subject, Claimants]
    at: float


class PageWatcher:
    """Takes snapshots for the page again and again; one thread at a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._watcher = Watcher(backend)
        self._histories: dict[Subject, _History] = {}
        self._last: _Taken | None = None  # what the latest snapshot was made of

    def look(self) -> PageSnapshot:
        """Take a snapshot."""
        at = time.time()
        seen, found, rows = self._watcher.limits(_SAMPLED)
        limits: dict[Subject, dict[str, Any]] = {
            Subject(name): _semaphore_row(name, one) for name, one in seen.semaphores.items()
        }
        limits |= {Subject(name, ""): _tiers_row(each) for name, each in seen.tiers.items()}
        self._histories = {each: self._histories.get(each) or _History() for each in limits}
        now = datetime.fromtimestamp(at, UTC)
        for subject, shown in limits.items():
            history = self._histories[subject]
            history.add(shown["full"])
            row, who = rows.get(subject), found.get(subject)
            shown |= _seen_of(row) | _blamed(who, seen, subject, now) | {"spark": history.spark}
            if who is not None:
                history.add_holders(who.holders, at, now)
        self._last = _Taken(seen, limits, found, at)
        ordered = sorted(
            limits.values(), key=lambda each: (-each["full"], -each["waiting"], each["name"])
        )
        errors = [str(error) for error in seen.errors]
        return PageSnapshot(at, self._backend.location, ordered, {}, errors)

    def add_detail(self, look: PageSnapshot, chosen: Subject) -> None:
        """Add the holders and waiters of a limit to the latest snapshot.

        ``name, ""`` are the tiers of a name; ``name`` is the semaphore, or the tiers if there is
        none.
        """
        if self._last is not None:
            look.details[chosen] = self._detail(chosen, self._last)

    def _detail(self, chosen: Subject, taken: _Taken) -> dict[str, Any] | None:
        """Its row, with its holders and waiters; None if there is no limit of that name."""
        seen, rows, found, at = taken.seen, taken.rows, taken.found, taken.at
        now = datetime.fromtimestamp(at, UTC)
        try:
            limit = self._find(chosen, seen)
            subject = Subject(chosen.name, "" if isinstance(limit, FoundTiers) else None)
            who = found.get(subject)
            history = self._histories.setdefault(subject, _History())
            if who is None:
                who = claimants(limit)
                history.add_holders(who.holders, at, now)
            own = (
                _tiers_detail(limit, who) if isinstance(limit, FoundTiers) else _detail(limit, who)
            )
            row = rows.get(subject) or _new_row(limit)
        except (SlotwiseError, LookupError):
            return None
        line = own.pop("line")
        return {
            **row,
            **_blamed(who, seen, subject, now),
            "holders": [_shown(each, now) for each in who.holders[:MOST]],
            "holders_total": len(who.holders),
            "waiters": [
                _shown(each, now) | {"place": place, "lacks": _lacks(each), "estimate": estimate}
                for place, (each, estimate) in enumerate(line, 1)
            ],
            "waiters_total": len(who.waiters),
            "strip": history.strip(at),
            **own,
        }

    def _find(self, chosen: Subject, seen: Survey) -> Semaphore | FoundTiers:
        """Return the semaphore or the tiers of a name, from the survey if it has them."""
        name = chosen.name
        kind: Kind = None if chosen.tier is None else "tiers"
        if name in seen.semaphores and kind is None:
            return self._backend.found(name, seen.semaphores[name])
        if name in seen.tiers:
            return seen.tiers[name].found
        return self._backend.find(name, kind)


# ------------------------------------------------------------------------------ rows


def _new_row(limit: Semaphore | FoundTiers) -> dict[str, Any]:
    """The row of one that the survey didn't have."""
    if isinstance(limit, FoundTiers):
        row = _tiers_row(view(limit))
    else:
        row = _semaphore_row(limit.name, limit.stats_sync())
    return row | _seen_of(None) | {"spark": []}


def _semaphore_row(name: str | None, stats: SemaphoreStats) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "semaphore",
        "value": stats.max_slots,
        "held": stats.acquired_slots,
        "waiting": stats.waiting,
        "full": stats.acquired_percent / 100,
        "closed": stats.closed,
        "reason": stats.reason,
        "paused_for": stats.paused_for,
        "frozen": stats.frozen,
    }


def _tiers_row(each: TiersView) -> dict[str, Any]:
    """The row of tiers: the value of the widest one that has slots, and how full the fullest is."""
    parts = [part for tier in each.tiers for part in (tier.keys or (tier.total,))]
    shares = [part.taken / part.value for part in parts if part.value]
    found = each.found
    return {
        "name": found.name,
        "kind": "tiers",
        "value": next((t.total.value for t in each.tiers[::-1] if t.total.rate is None), None),
        "held": found.holders,
        "waiting": found.waiters,
        "full": max(shares, default=0.0),
        "closed": found.closure is not None,
        "reason": None if found.closure is None else found.closure.reason,
        "paused_for": max((left for _, left in each.paused()), default=0.0),
        "frozen": bool(each.frozen()),
    }


def _seen_of(row: Row | None) -> dict[str, Any]:
    if row is None:
        return dict.fromkeys(("per_second", "wait_p50", "wait_p95"))
    return {
        "per_second": row.acquisitions_per_second,
        "wait_p50": row.wait_p50_seconds,
        "wait_p95": row.wait_p95_seconds,
    }


def _blamed(who: Claimants | None, seen: Survey, subject: Subject, now: datetime) -> dict[str, Any]:
    """What waiters for tiers lack, the oldest holder, how long the first waiter has waited.

    Holders of a rate are not to blame: what they took comes back by time.
    """
    holders, waiters = ([], []) if who is None else (who.holders, who.waiters)
    tiers = seen.tiers.get(subject.name) if subject.tier is not None else None
    short = shortages(tiers, waiters)[:1] if tiers is not None else []
    for each in short:
        is_rate = each.counts.level is not None
        holders = [] if is_rate else through(holders, each.spec.name, each.counts.key)
    holder = oldest(holders)
    return {
        "short": next(({"what": str(each), "next": each.next_grant} for each in short), None),
        "oldest": None if holder is None else _shown(holder, now),
        "first_waits": age(waiters[0].since, now) if waiters else None,
    }


def _shown(claimant: Claimant, now: datetime) -> dict[str, Any]:
    shown = claimant_as_dict(claimant, tiers=bool(claimant.keys or claimant.needs))
    return shown | {"age": age(claimant.since, now), "ttl": claimant.ttl}


# ------------------------------------------------------------------------------ details


def _lacks(waiter: Claimant) -> str | None:
    """The tier that a waiter for a path lacks, with its key."""
    if waiter.lacks is None:
        return None
    key = waiter.keys.get(waiter.lacks)
    return waiter.lacks if key is None else f"{waiter.lacks}={key}"


_Line = list[tuple[Claimant, float | None]]  # in order of service, with when each is served


def _detail(limit: Semaphore, who: Claimants) -> dict[str, Any]:
    return {
        "line": _line(limit, len(who.waiters), who.waiters[:MOST]),
        "tiers": [],
        "adaptive": _adaptive(limit),
    }


def _tiers_detail(limit: FoundTiers, who: Claimants) -> dict[str, Any]:
    tiers = view(limit)
    return {
        "line": _path_line(limit, who.waiters, who.waiters[:MOST]),
        "tiers": tiers.as_dict(_TIER_KEYS)["tiers"],
        "adaptive": _adaptive_tiers(tiers),
    }


def _line(limit: Semaphore, waiting: int, shown: Sequence[Claimant]) -> _Line:
    """Each of the first waiters with its share of the estimate for a newcomer."""
    newcomer = limit.estimate_sync() if waiting else None
    return [
        (each, None if newcomer is None else newcomer * place / (waiting + 1))
        for place, each in enumerate(shown, 1)
    ]


def _path_line(limit: FoundTiers, waiters: Sequence[Claimant], shown: Sequence[Claimant]) -> _Line:
    """The same for paths through tiers: those that lack the same are one line.

    Where keys take turns, those with the same keys are one. Those of different lines are served in
    the order of their estimates, as far as is known.
    """
    is_fair = any(spec.fair for spec in limit.specs)

    def line_of(each: Claimant) -> Hashable:
        if is_fair:
            return path_of(each, limit.specs)
        return each.lacks, each.keys.get(each.lacks or "")

    lines = Counter(map(line_of, waiters))
    firsts: dict[Hashable, Claimant] = {}
    for each in shown:
        firsts.setdefault(line_of(each), each)
    newcomers = {
        line: limit.paths.estimate_sync(path_of(first, limit.specs))
        for line, first in islice(firsts.items(), _ESTIMATED)
    }
    places: Counter[Hashable] = Counter()
    line: _Line = []
    for each in shown:
        own = line_of(each)
        places[own] += 1
        newcomer, share = newcomers.get(own), places[own] / (lines[own] + 1)
        line.append((each, None if newcomer is None else newcomer * share))
    return sorted(line, key=lambda pair: math.inf if pair[1] is None else pair[1])


def _adaptive(limit: Semaphore) -> list[dict[str, Any]]:
    """How an adaptive value has moved; nothing if it is fixed."""
    try:
        changes = limit.changes_sync()
    except TypeError:
        return []
    return [{"tier": None, "key": None, "changes": [*map(asdict, changes[-_CHANGES:])]}]


def _adaptive_tiers(tiers: TiersView) -> list[dict[str, Any]]:
    """The same of each adaptive tier, or of its busiest keys."""
    found = []
    for tier in tiers.tiers:
        for each in (tier.keys[:_ADAPTIVE_KEYS] or (tier.total,)) if tier.spec.rules else ():
            if tier.spec.keyed and each.key is None:
                continue  # nobody uses one
            changes = tiers.found.paths.changes_sync(tier.spec.name, each.key)
            found.append(
                {
                    "tier": tier.spec.name,
                    "key": each.key,
                    "value": each.value,
                    "changes": [*map(asdict, changes[-_CHANGES:])],
                }
            )
    return found


# ------------------------------------------------------------------------------ history


@dataclass(slots=True)
class _Hold:
    """A hold that was seen: which slot, whose, and from when until when."""

    number: int | None
    label: str
    began: float
    ended: float | None = None


@dataclass(slots=True)
class _History:
    """What earlier snapshots showed of one limit."""

    fullness: deque[float] = field(default_factory=lambda: deque(maxlen=_SPARK))
    holds: dict[str, _Hold] = field(default_factory=dict)

    @property
    def spark(self) -> list[float]:
        return list(self.fullness)

    def add(self, full: float) -> None:
        self.fullness.append(round(full, 3))

    def add_holders(self, holders: Iterable[Claimant], at: float, now: datetime) -> None:
        """Add the current holders; a hold that is gone ended when the next one got the slot."""
        began_at: dict[int | None, float] = {}
        held = set()
        for each in holders:
            held.add(each.acquisition_id)
            if each.acquisition_id not in self.holds:
                began = at - (age(each.since, now) or 0.0)
                began_at[each.slot_number] = began
                label = each.label or ":".join(map(str, filter(None, (each.host, each.pid))))
                self.holds[each.acquisition_id] = _Hold(each.slot_number, label, began)
        for acquisition_id, hold in list(self.holds.items()):
            if acquisition_id not in held and hold.ended is None:
                hold.ended = max(began_at.get(hold.number, at), hold.began)
            if hold.ended is not None and hold.ended < at - WINDOW:
                del self.holds[acquisition_id]

    def strip(self, at: float) -> list[dict[str, Any]]:
        """The holds of the last minute, in seconds from now."""
        return [
            {
                "slot": hold.number,
                "label": hold.label,
                "from": max(hold.began, at - WINDOW) - at,
                "to": (at if hold.ended is None else hold.ended) - at,
                "ended": hold.ended is not None,
            }
            for hold in list(self.holds.values())[-2 * MOST :]
        ]
