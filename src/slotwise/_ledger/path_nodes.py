"""What a ledger of paths is made of: claims, nodes with their slots, groups of waiters, tiers.

The rules that they follow stand in `paths`; nothing here grants anything.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from slotwise._ledger.claims import BaseClaim
from slotwise._ledger.slots import SlotPool

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

    nodes: Sequence[Node]
    ticket: int  # while it waits
    group: Group  # while it waits

    def __init__(self, key: Hashable, ttl: float | None = None) -> None:
        self.key = key
        self.ttl = ttl


class Node(SlotPool):
    """One key of one tier, and its slots.

    A slot is a number in ``free`` or in a holder's hand; numbers are made when they
    are needed. Only in the widest tier do they mean anything: that is where
    a claim has its slot number from, which it gives back to all its nodes.
    """

    __slots__ = (
        "_parked",
        "kept_for",
        "key",
        "limit",
        "look",
        "retired",
        "used",
        "waiting",
    )

    def __init__(self, key: Hashable, limit: int, now: float) -> None:
        self.key = key
        self.limit = limit
        self.free = []
        self.circulating = 0
        self.top = 0
        self.retired: list[int] | None = None  # a heap of numbers that a shrink took away
        self.waiting = 0  # requests that wait, wherever they are parked
        self.kept_for: Group | None = None
        self._parked: list[tuple[int, Group]] = _NOBODY  # a heap; some entries are stale
        self.look: int | None = None  # its ticket in the list of nodes to look at
        self.used = now  # when a slot of it was last given back

    def has_slot_for(self, group: Group | None) -> bool:
        kept = self.kept_for is not None and self.kept_for is not group
        return self.in_use + kept < self.limit

    def take(self) -> int | None:
        """The lowest free number; None if there is none, nor may be."""
        try:
            return heappop(self.free)
        except IndexError:
            if self.circulating >= self.limit:
                return None
        self.circulating += 1
        if self.retired:
            return heappop(self.retired)
        self.top += 1
        return self.top

    def put_back(self, number: int) -> None:
        """Take a number back, out of circulation if there are too many."""
        if self.circulating > self.limit:
            self.circulating -= 1
            if self.retired is None:
                self.retired = []
            heappush(self.retired, number)
        else:
            heappush(self.free, number)

    def shrink(self) -> bool:
        """Take free numbers out of circulation, the highest first; False if too many are held."""
        spare = self._drain() if self.circulating > self.limit else []
        for number in reversed(spare):
            self.put_back(number)
        return self.circulating <= self.limit

    def retire(self) -> bool:
        """Let nobody take anything here any more, if nobody has or wants anything."""
        if self.waiting or not self._take_everything():
            return False
        self.limit = 0
        return True

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

    def unpark(self) -> None:
        """Take out the group that `first_parked` found."""
        heappop(self._parked)

    def has_parked(self, group: Group) -> bool:
        return any(entry[1] is group and self._counts(entry) for entry in self._parked)

    def _counts(self, entry: tuple[int, Group]) -> bool:
        """Whether an entry is not stale: its group is still here, with the same head."""
        ticket, group = entry
        return group.parked_at is self and group.ticket == ticket


class Group:
    """Those who wait for one path, in the order of their arrival."""

    __slots__ = ("keeps", "nodes", "parked_at", "path", "ticket", "waiters")

    def __init__(self, path: Path, nodes: tuple[Node, ...]) -> None:
        self.path = path
        self.nodes = nodes
        self.waiters: OrderedDict[Hashable, Any] = OrderedDict()
        self.ticket = 0  # its head's
        self.parked_at: Node | None = None
        self.keeps: list[Node] = []

    def lacks(self) -> Node | None:
        return next((node for node in self.nodes if not node.has_slot_for(self)), None)


class TierNodes:
    """The nodes of one tier: those in use, and those that are idle and only remembered."""

    __slots__ = ("_ages", "_made", "index", "max_idle", "nodes", "own_values", "value")

    def __init__(self, index: int, value: int) -> None:
        self.index = index
        self.value = value  # 0: no limit
        self.nodes: dict[Hashable, Node] = {}
        self.max_idle = UNLIMITED  # beyond that the longest idle are forgotten
        self.own_values: dict[Hashable, int] = {}  # of keys with another value
        # A heap of (when it was used, a number, node): no later than `used` says, so
        # that the first one that is right is the longest idle. Of two that were used
        # at one instant it is the one that was made first.
        self._ages: list[tuple[float, int, Node]] = []
        self._made = 0

    def value_of(self, key: Hashable) -> int:
        return self.own_values.get(key, self.value)

    def make(self, key: Hashable, now: float) -> Node:
        self.nodes[key] = node = Node(key, self.value_of(key) or UNLIMITED, now)
        if key is not None:  # a tier without keys has one node, for ever
            self._made += 1
            heappush(self._ages, (now, self._made, node))
        return node

    def forget(self, now: float, before: float, too_many: int, looks: int) -> tuple[int, bool]:
        """Forget nodes unused since ``before``, and the ``too_many`` that are idle for longest.

        Those that are held or waited for stay. At most ``looks`` are looked at; how
        many were forgotten, and whether there is more to look at.
        """
        ages, in_use = self._ages, []
        forgotten = 0
        while ages and looks:
            when, tie, node = ages[0]
            if when > before and forgotten >= too_many:
                break
            looks -= 1
            if node.used > when:
                heapreplace(ages, (node.used, tie, node))
            elif node.retire():
                heappop(ages)
                del self.nodes[node.key]
                forgotten += 1
            else:
                in_use.append((now, *heappop(ages)[1:]))
        for entry in in_use:  # it will not be idle for longer than from now on
            heappush(ages, entry)
        return forgotten, bool(ages) and not looks
