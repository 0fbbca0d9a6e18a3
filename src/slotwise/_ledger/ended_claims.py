"""Remember what claims that ended lately took of rates, while that can be corrected."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain
from typing import Any

from slotwise._core.rates import Rate
from slotwise._ledger.path_nodes import BasePathClaim, Path
from slotwise._ledger.shrinking import shrink

# For how many seconds at least; or for a whole `per`, if that is longer.
_AT_LEAST = 60.0


class EndedClaim:
    """What an ended claim took, and until when that can be corrected.

    Not its claim: a driver's claim knows the objects of its name, which may be gone by then.
    """

    __slots__ = ("needs", "path", "until")

    def __init__(self, until: float, path: Path, needs: tuple[int, ...] | None) -> None:
        self.until = until
        self.path = path
        self.needs = needs


class EndedClaims:
    """What claims that have ended took of rates, by their keys.

    They are forgotten many at a time: a table is dropped when all in it have been there for long
    enough, so some are kept longer than needed. Remembering one costs little, which matters, since
    every release does it.
    """

    __slots__ = ("_old", "remembered_for", "turn_at", "young")

    def __init__(self, rates: Iterable[Rate]) -> None:
        # In seconds.
        self.remembered_for = max([_AT_LEAST, *[rate.per for rate in rates]])
        # Each value is an `EndedClaim`, or a tuple of its arguments. There may be very many.
        self.young: dict[Hashable, Any] = {}
        self._old: dict[Hashable, Any] = {}
        self.turn_at = 0.0  # when the young ones become the old ones

    def remember_longer(self, rate: Rate) -> None:
        """Remember those that come from now on long enough for another rate too."""
        self.remembered_for = max(self.remembered_for, rate.per)

    def remember(self, claim: BasePathClaim, now: float) -> None:
        if now >= self.turn_at:
            self.forget_old(now)
        # Not its nodes: the garbage collector stops looking at tuples of numbers and texts.
        self.young[claim.key] = (now + self.remembered_for, claim.path, claim.needs)

    def forget_old(self, now: float) -> None:
        if now >= self.turn_at:
            # All that are young ended before that, so these too may be old enough.
            too_old = now >= self.turn_at + self.remembered_for
            self._old = {} if too_old else self.young
            self.young = {}
            self.turn_at = now + self.remembered_for

    def get(self, key: Hashable) -> EndedClaim | None:
        """Return what one took; None if it is unknown, or no longer known."""
        table = self.young if key in self.young else self._old
        ended = table.get(key)
        if type(ended) is tuple:
            ended = table[key] = EndedClaim(*ended)
        return ended

    def pop(self, key: Hashable, default: None) -> EndedClaim | None:
        ended = self.get(key) or default
        self.young.pop(key, None)
        self._old.pop(key, None)
        return ended

    def __iter__(self) -> Iterator[Hashable]:
        return chain(self._old, self.young)


class OrderedEndedClaims(OrderedDict[Hashable, Any]):
    """The same, but each is a claim and is forgotten exactly when its time is over.

    For processes that have to remember the same at each step. No object of a driver keeps the
    claims' names alive there.
    """

    def __init__(self, rates: Iterable[Rate]) -> None:
        super().__init__()
        self.remembered_for = max([_AT_LEAST, *[rate.per for rate in rates]])  # in seconds

    def remember_longer(self, rate: Rate) -> None:
        self.remembered_for = max(self.remembered_for, rate.per)

    def remember(self, claim: Any, now: float) -> None:
        self.forget_old(now)
        claim.until = now + self.remembered_for
        self[claim.key] = claim

    def forget_old(self, now: float) -> None:
        forgotten = 0
        while self and next(iter(self.values())).until <= now:
            self.popitem(last=False)
            forgotten += 1
        if forgotten:
            shrink(self)
