"""What a ledger of paths is made of: claims, nodes with their slots, groups of waiters.

The rules are in `paths`; nothing here grants anything. Which nodes a tier has stands in
`tier_nodes`.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any

from slotwise._ledger.claims import BaseClaim
from slotwise._ledger.slots import FEW, NumberedSlots, SlotPool

UNLIMITED = sys.maxsize

Path = tuple[Hashable, ...]

# What a node starts with, since most never have anybody parked. Shared, never changed.
_NOBODY: list[Any] = []
# Stale entries are swept out when they are more than half, and more than this.
_FEW_STALE = 32


class PathClaim(BaseClaim):
    """One request for a path, from its arrival to its end; then the caller's result.

    Its slot number is one of the widest tier, the lowest that is free.
    """

    __slots__ = ("group", "nodes", "ticket")

    nodes: Sequence[Any]  # one of each tier
    ticket: int  # while it waits
    group: Group  # while it waits
    # What it takes of each tier; None is one slot of each, and most have that.
    needs: tuple[int, ...] | None = None
    ranges: Sequence[range] = ()  # of its numbers in the widest tier, if it has ``needs``

    def __init__(self, key: Hashable, ttl: float | None = None) -> None:
        self.key = key
        self.ttl = ttl

    @property
    def numbers(self) -> tuple[int, ...]:
        """The slot numbers of the widest tier that it was granted, lowest first."""
        return (self._slot_number,) if self.needs is None else (*chain(*self.ranges),)


class LargePathClaim(PathClaim):
    """A request for several slots of at least one tier."""

    __slots__ = ("needs", "ranges")

    needs: tuple[int, ...] | None
    ranges: Sequence[range]

    def __init__(self, key: Hashable, needs: tuple[int, ...], ttl: float | None = None) -> None:
        super().__init__(key, ttl)
        self.needs = needs


class BaseNode:
    """One key of one tier: who is parked there, and what is kept for whom."""

    __slots__ = (
        "_parked",
        "kept",
        "kept_for",
        "key",
        "look",
        "tier",
        "used",
        "value",
        "waiting",
    )

    def __init__(self, tier: int, key: Hashable, value: int, now: float) -> None:
        self.tier = tier
        self.key = key
        self.value = value  # `UNLIMITED` if it has no limit; of a rate, its burst
        self.waiting = 0  # requests that wait, wherever they are parked
        self.kept = 0  # what is kept for the head of a group
        self.kept_for: Group | None = None
        self._parked: list[tuple[int, Group]] = _NOBODY  # a heap; some entries are stale
        self.look: int | None = None  # its ticket in the list of nodes to look at
        self.used = now  # since when nothing of it is in use, if nothing is

    @abstractmethod
    def has_room(self, need: int, now: float, group: Group | None = None) -> bool:
        """Whether this much is free and not kept for another group than ``group``."""

    @abstractmethod
    def take(self, need: int, now: float = 0.0) -> Sequence[range]:
        """Take this much; return the numbers of the slots, or nothing if there is too little."""

    @abstractmethod
    def retire(self, now: float) -> bool:
        """Let nobody take anything here any more, if nobody has or wants anything."""

    # ------------------------------------------------------ who is parked here

    def park(self, group: Group) -> None:
        if self._parked is _NOBODY:
            self._parked = []
        elif len(self._parked) > 2 * self.waiting + _FEW_STALE:
            self._parked = [entry for entry in self._parked if self._counts(entry)]
            heapify(self._parked)
        heappush(self._parked, (group.ticket, group))

    def first_parked(self) -> Group | None:
        """The group parked here whose head is the oldest."""
        parked = self._parked
        while parked:
            if self._counts(parked[0]):
                return parked[0][1]
            heappop(parked)
        return None

    def parked_groups(self) -> list[Group]:
        """The groups that are parked here."""
        return [entry[1] for entry in self._parked if self._counts(entry)]

    def is_blocked(self, ticket: int, now: float) -> bool:
        """Whether an older head is parked here that there is too little room for."""
        first = self.first_parked()
        if first is None or first.ticket >= ticket:
            return False
        return not self.has_room(first.need(self), now, first)

    def unpark(self) -> None:
        """Take out the group that `first_parked` found."""
        heappop(self._parked)

    def has_parked(self, group: Group) -> bool:
        return any(entry[1] is group and self._counts(entry) for entry in self._parked)

    def _counts(self, entry: tuple[int, Group]) -> bool:
        """Whether an entry is not stale: its group is still here, with the same head."""
        ticket, group = entry
        return group.parked_at is self and group.ticket == ticket


class Node(BaseNode, SlotPool):
    """One key of one tier, and its slots.

    A slot is a number in ``free`` or in a holder's hand. Which number it is means nothing
    here: a holder gives that of its widest tier back to all its nodes. `NumberedNode` is
    for that tier.
    """

    __slots__ = ("circulating", "free")

    rate = None  # of a `RateNode` it is one

    def __init__(self, tier: int, key: Hashable, value: int, now: float) -> None:
        super().__init__(tier, key, value, now)
        self.free = []
        self.circulating = 0

    def has_room(self, need: int, now: float, group: Group | None = None) -> bool:  # noqa: ARG002
        kept = 0 if self.kept_for is group else self.kept
        return self.in_use + kept + need <= self.value

    def take_one(self) -> int | None:
        """Take a slot; return its number, or None if there is none, nor may be."""
        try:
            return heappop(self.free)
        except IndexError:
            if self.circulating >= self.value:
                return None
        self.circulating += 1
        return 1

    def take(self, need: int, now: float = 0.0) -> Sequence[range]:  # noqa: ARG002
        taken = 0
        try:
            while taken < need:
                heappop(self.free)
                taken += 1
        except IndexError:
            pass
        missing = need - taken
        if missing > self.value - self.circulating:  # a taker on the quick lane was faster
            for number in range(1, taken + 1):
                heappush(self.free, number)
            return ()
        self.circulating += missing
        return (range(1, need + 1),)

    def put_back_one(self, number: int) -> None:
        """Take a slot back, out of circulation if there are too many."""
        if self.circulating > self.value:
            self.circulating -= 1
        else:
            heappush(self.free, number)

    def put_back(self, need: int, ranges: Sequence[range]) -> None:  # noqa: ARG002 - the widest
        """Take back what `take` took."""
        if need > FEW:
            self.circulating -= need
        else:
            for number in range(1, need + 1):
                self.put_back_one(number)

    @property
    def is_balanced(self) -> bool:
        """Whether what circulates is what the value allows, so that the quick lane may run."""
        return self.circulating <= self.value

    def balance(self) -> None:
        """Take free slots out of circulation while there are too many."""
        while self.circulating > self.value and self._pop_free() is not None:
            self.circulating -= 1

    def retire(self, now: float) -> bool:  # noqa: ARG002
        if self.waiting or not self._take_everything():
            return False
        self.value = 0
        return True


class NumberedNode(Node, NumberedSlots):
    """One key of the widest tier: its slots are numbered from 1 to its value.

    After a shrink it is out of balance until the numbers above the value have come back.
    """

    __slots__ = ("closed", "reserve", "top")

    def __init__(self, tier: int, key: Hashable, value: int, now: float) -> None:
        Node.__init__(self, tier, key, value, now)
        NumberedSlots.__init__(self, value)

    def take_one(self) -> int | None:
        return self._take_one()

    def take(self, need: int, now: float = 0.0) -> Sequence[range]:  # noqa: ARG002
        return self._take(need)

    def put_back_one(self, number: int) -> None:
        self._put_back(number)

    def put_back(self, need: int, ranges: Sequence[range]) -> None:  # noqa: ARG002
        self._put_back_ranges(ranges)

    @property
    def is_balanced(self) -> bool:
        return not self.reserve and self.circulating <= self.value

    def balance(self) -> None:
        if not self.is_balanced:
            self._rebalance_if_needed()


class Group:
    """Those who wait for one path, in the order of their arrival."""

    __slots__ = ("keeps", "needs", "nodes", "parked_at", "path", "ticket", "waiters")

    def __init__(self, path: Path, nodes: tuple[BaseNode, ...]) -> None:
        self.path = path
        self.nodes = nodes
        self.waiters: OrderedDict[Hashable, Any] = OrderedDict()
        self.ticket = 0  # its head's
        self.needs: tuple[int, ...] | None = None  # its head's
        self.parked_at: BaseNode | None = None
        self.keeps: list[BaseNode] = []

    def lacks(self, now: float) -> BaseNode | None:
        """The first node, narrow to wide, without room for its head, or that an older one blocks.

        It is not parked itself when this is asked.
        """
        for node in self.nodes:
            if not node.has_room(self.need(node), now, self):
                return node
            if node.kept_for is not self and node.is_blocked(self.ticket, now):
                return node
        return None

    def need(self, node: BaseNode) -> int:
        """How much of a node its head needs."""
        return 1 if self.needs is None else self.needs[node.tier]
