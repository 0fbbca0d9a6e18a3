"""Explanation: why a request waits, or would wait, worked out from statistics and claimants.

Nothing here asks a backend: limits do, and pass the answers on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from slotwise._core.paths import Needs, NodeStats, Path, PathStats, TierSpec, is_rate_limit
from slotwise._core.rates import Rate
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.stats import Claimant, SemaphoreStats, age

_ORDINALS = (
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)


@dataclass(frozen=True, slots=True)
class Lack:
    """What is missing: a tier, or one key of it; a semaphore and a `RateLimit` have neither.

    ``held`` of ``value`` slots are held; of a rate (``is_rate``), that much of its burst is used.
    ``oldest`` is the oldest holder, if known. ``paused_for`` is in how many seconds a pause ends.
    ``need`` is what the request takes of it.
    """

    tier: str | None
    key: str | None
    held: int
    value: int
    oldest: Claimant | None = None
    paused_for: float = 0.0
    is_rate: bool = False
    need: int = 1

    def __str__(self) -> str:
        tier = "" if self.tier is None else f"tier {self.tier}"
        which = " ".join(filter(None, (tier, "" if self.key is None else repr(self.key))))
        full = f"{self.held} of {self.value} held"
        if self.is_rate:
            left = self.value - self.held
            amount = f"{left} left of a" if left >= 0 else f"{-left} in debt, with a"
            full = f"{amount} burst of {self.value}"
        if self.need > 1:
            full += f", {self.need} needed"
        if self.oldest is not None:
            full += f", oldest by {describe_holder(self.oldest)}"
        if self.paused_for > 0:
            full = f"paused for another {_seconds(self.paused_for)}, {full}"
        return f"{which} ({full})" if which else full


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request waits, or a newcomer would; ``str()`` is a sentence.

    ``state`` is ``waiting``, ``holding``, ``new`` or ``unknown``. ``place`` is that in the queue,
    from 1; None if it is not there. ``estimate`` is in about how many seconds it will be served,
    None if unknown. With ``waiting``, it explains the line of that many: its first waiter.
    """

    state: Literal["waiting", "holding", "new", "unknown"]
    place: int | None
    lacks: tuple[Lack, ...]
    estimate: float | None
    title: str = field(default="it", kw_only=True)
    closed: str | None = field(default=None, kw_only=True)  # why it is closed everywhere, or ""
    claimant: Claimant | None = field(default=None, kw_only=True, repr=False)
    waiting: int | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        if self.state == "unknown":
            return f"nobody with that id holds {self.title} or waits for it"
        if self.state == "holding":
            assert self.claimant is not None
            number = self.claimant.slot_number
            slot = "" if number is None else f"slot {number} of "
            return f"holds {slot}{self.title}{_for(self.claimant)}"
        if self.closed is not None:
            why = f": {self.closed}" if self.closed else ""
            return f"{self.title} is closed{why}; newcomers are refused"
        if self.place is None:
            return f"a newcomer gets its slots of {self.title} at once"
        line = f"{_ordinal(self.place)} in line for {self.title}"
        parts = [line if self.state == "waiting" else f"a newcomer is {line}"]
        lacks, until_then = "lacks", "about {} to go"
        if self.waiting is not None:
            parts = [f"{self.waiting} waiting for {self.title}"]
            lacks, until_then = "short of", "next grant in about {}"
        tiers = [str(lack) for lack in self.lacks if lack.tier is not None]
        parts += [f"{lacks} {' and '.join(tiers)}"] if tiers else map(str, self.lacks)
        if self.estimate is not None:
            parts.append(until_then.format(_seconds(self.estimate)))
        return "; ".join(parts)


def explain_semaphore(
    title: str,
    which: str | AcquisitionResult | None,
    waiters: Sequence[Claimant],
    holders: Sequence[Claimant],
    stats: SemaphoreStats,
    estimate: float | None,
) -> Explanation:
    """Explain a request for a semaphore; ``estimate`` is that of a newcomer."""
    found = _find(title, which, waiters, holders)
    if isinstance(found, Explanation):
        return found
    if found is None and stats.closed:
        return Explanation("new", None, (), None, title=title, closed=stats.reason or "")
    free = stats.max_slots - stats.acquired_slots
    if found is None and not waiters and free > 0 and not stats.paused_for:
        return Explanation("new", None, (), 0.0, title=title)
    place = len(waiters) + 1 if found is None else waiters.index(found) + 1
    lack = Lack(
        *(None, None, stats.acquired_slots, stats.max_slots, oldest(holders)),
        paused_for=stats.paused_for,
    )
    estimate = _share(estimate, place, len(waiters), lack.paused_for)
    return _in_line(title, found, place, (lack,), estimate)


def explain_path(
    title: str,
    which: str | AcquisitionResult | None,
    waiters: Sequence[Claimant],
    holders: Sequence[Claimant],
    specs: Sequence[TierSpec],
    look: Callable[[Path], tuple[PathStats, float | None]],
    path: Path | None,
    needs: Needs | None = None,
) -> Explanation:
    """Explain a request for a path; ``look`` returns how full one is, and a newcomer's estimate.

    ``path`` is that of a newcomer, ``needs`` what it takes; a waiter has its own.
    """
    found = _find(title, which, waiters, holders)
    if isinstance(found, Explanation):
        return found
    if found is not None:
        path = path_of(found, specs)
        needs = tuple(found.needs.get(spec.name, 1) for spec in specs)
    assert path is not None
    stats, estimate = look(path)
    if found is None and stats.closure is not None:
        return Explanation("new", None, (), None, title=title, closed=stats.closure.reason or "")
    lacks = _lacks_of(specs, path, needs or (1,) * len(specs), stats.nodes, holders, found)
    if found is None and not lacks:
        return Explanation("new", None, (), 0.0, title=title)
    ahead = _same_line(waiters, found, lacks)
    place = len(ahead) + 1 if found is None else ahead.index(found) + 1
    paused_for = max((lack.paused_for for lack in lacks), default=0.0)
    return _in_line(title, found, place, lacks, _share(estimate, place, len(ahead), paused_for))


def path_of(claimant: Claimant, specs: Sequence[TierSpec]) -> Path:
    return tuple(claimant.keys.get(spec.name) if spec.keyed else None for spec in specs)


def _lacks_of(
    specs: Sequence[TierSpec],
    path: Path,
    needs: Needs,
    nodes: Sequence[NodeStats],
    holders: Sequence[Claimant],
    waiter: Claimant | None,
) -> tuple[Lack, ...]:
    """Return the tiers that have too little for a path, and what a waiter is said to lack."""
    lacks = []
    for spec, key, need, node in zip(specs, path, needs, nodes, strict=True):
        is_full = node.value and node.active + node.kept + need > node.value
        if is_full or node.paused_for or (waiter is not None and waiter.lacks == spec.name):
            through = [each for each in holders if key is None or each.keys.get(spec.name) == key]
            lacks.append(
                lack_of(specs, spec, key, node.active, node.value, through, node.paused_for, need)
            )
    return tuple(lacks)


def lack_of(
    specs: Sequence[TierSpec],
    spec: TierSpec,
    key: str | None,
    held: int,
    value: int,
    holders: Sequence[Claimant],
    paused_for: float,
    need: int = 1,
) -> Lack:
    """Return what is missing of a tier, or of one key of it; ``holders`` are those there."""
    tier, is_rate = None if is_rate_limit(specs) else spec.name, isinstance(spec.value, Rate)
    holder = oldest(holders) if isinstance(spec.value, int) else None
    return Lack(tier, key, held, value, holder, paused_for, is_rate, need)


def _same_line(
    waiters: Sequence[Claimant], found: Claimant | None, lacks: Sequence[Lack]
) -> list[Claimant]:
    """Return the waiters for the same thing: the line in which a waiter has its place."""
    if found is not None:
        tier, key = found.lacks, found.keys.get(found.lacks or "")
    else:
        tier, key = lacks[0].tier, lacks[0].key
    same = [
        each
        for each in waiters
        if each is found
        or (each.lacks == tier and (key is None or each.keys.get(tier or "") == key))
    ]
    return same if tier is not None else list(waiters)


def _find(
    title: str,
    which: str | AcquisitionResult | None,
    waiters: Sequence[Claimant],
    holders: Sequence[Claimant],
) -> Explanation | Claimant | None:
    """Return the waiter, None for a newcomer, or the explanation of anything else."""
    if which is None:
        return None
    acquisition_id = acquisition_id_of(which)
    for each in waiters:
        if each.acquisition_id == acquisition_id:
            return each
    for each in holders:
        if each.acquisition_id == acquisition_id:
            return Explanation("holding", None, (), None, title=title, claimant=each)
    return Explanation("unknown", None, (), None, title=title)


def _in_line(
    title: str,
    found: Claimant | None,
    place: int,
    lacks: tuple[Lack, ...],
    estimate: float | None,
) -> Explanation:
    state: Literal["new", "waiting"] = "new" if found is None else "waiting"
    return Explanation(state, place, lacks, estimate, title=title, claimant=found)


def _share(
    estimate: float | None, place: int, waiting: int, paused_for: float = 0.0
) -> float | None:
    """Return a waiter's share of a newcomer's estimate: a newcomer comes after all waiters.

    Nobody is served before a pause ends.
    """
    share = None if estimate is None else estimate * place / max(waiting + 1, place)
    return max(share or 0.0, paused_for) if paused_for else share


def oldest(holders: Sequence[Claimant]) -> Claimant | None:
    """The oldest holder; None if it isn't known since when they hold."""
    known = [each for each in holders if each.since is not None]
    return min(known, key=lambda each: each.since or datetime.max.replace(tzinfo=UTC), default=None)


def describe_holder(holder: Claimant) -> str:
    """``web3:4411 'export' for 42 s``."""
    host = ":".join(str(each) for each in (holder.host, holder.pid) if each is not None)
    who = host or holder.acquisition_id
    return who + ("" if holder.label is None else f" {holder.label!r}") + _for(holder)


def _for(holder: Claimant) -> str:
    seconds = age(holder.since)
    return "" if seconds is None else f" for {_seconds(seconds)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 else f"{seconds:.0f} s"


def _ordinal(number: int) -> str:
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 % 10 == 1 else ends.get(number % 10, 'th')}"
