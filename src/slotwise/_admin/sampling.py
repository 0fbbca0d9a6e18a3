"""Compute rates and waits from samples of semaphores and tiers, taken from time to time.

No backend counts grants, so these describe what was *seen*: an acquisition that came and
went between two samples is missed. A rate is therefore a lower bound. A wait that was seen
is exact, as waiters and holders carry their times; a holder that was never seen waiting
waited for less than the time between two samples, and counts as 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from slotwise._core.stats import Claimant, age

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
