"""Parked: the groups that wait at one node, found in the order of their turns.

Groups are ordered by the *turn* of their heads (`paths`, rule 9). Which of them is granted is
decided in `path_queue`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise._ledger.path_nodes import BaseNode, Group

# The tag of the key, which is 0 without fair order; the rank; and the ticket if there is a head
# start, so that no two turns are the same.
Turn = tuple[float, int, int]

# An entry of a heap of groups: the rank and the tie of its turn, and the group.
Entry = tuple[int, int, "Group"]

# Stale entries are swept out when they are more than half, and more than this.
_FEW_STALE = 32

_pushes = count()  # breaks ties in heaps, so that keys are never compared


class Parked(list[Entry]):
    """A heap of groups by the turns of their heads; some entries are stale.

    A group knows its latest entry, in this heap or in another; all its other entries are stale.
    The tag is not part of an entry: it is the same for all groups here.
    """

    __slots__ = ()

    def add(self, group: Group, node: BaseNode) -> None:
        """Add a group; ``node`` is the one whose heap it is, which would be a cycle to refer to."""
        if len(self) > 2 * node.waiting + _FEW_STALE:
            self[:] = [entry for entry in self if entry[2].entry is entry]
            heapify(self)
        group.entry = entry = group.rank, group.tie, group
        heappush(self, entry)

    def first(self) -> Group | None:
        """Return the group whose turn comes first."""
        while self:
            entry = self[0]
            group = entry[2]
            if group.entry is entry:
                return group
            heappop(self)
        return None

    def has_groups(self) -> bool:
        """Whether any group is here; it changes nothing, so it may be asked without the lock."""
        return any(entry[2].entry is entry for entry in self)

    def remove_first(self) -> None:
        """Remove the group that `first` found."""
        heappop(self)

    def groups(self) -> Iterator[Group]:
        return iter([group for entry in self if (group := entry[2]).entry is entry])


class FairParked:
    """The same for fair order: a heap of keys by the turns of their first groups.

    The tag of a key changes with each of its grants. An entry is corrected only when it comes to
    the top, so a grant costs nothing for groups that are not looked at.
    """

    __slots__ = ("_entered", "_heap", "_keys")

    def __init__(self) -> None:
        self._keys: dict[Hashable, Parked] = {}
        self._heap: list[tuple[Turn, int, Hashable]] = []
        self._entered: dict[Hashable, Turn] = {}  # the turn in the entry of a key that counts

    def add(self, group: Group, node: BaseNode) -> None:
        assert group.share is not None
        key = group.share.key
        if key not in self._keys:
            self._keys[key] = Parked()
        self._keys[key].add(group, node)
        if len(self._heap) > 2 * node.waiting + _FEW_STALE:
            self._sweep()
        entered = self._entered.get(key)
        if entered is None or group.turn < entered:
            self._entered[key] = group.turn
            heappush(self._heap, (group.turn, next(_pushes), key))

    def first(self) -> Group | None:
        heap = self._heap
        while heap:
            turn, _, key = heap[0]
            if self._entered.get(key) != turn:
                heappop(heap)  # another entry counts
                continue
            group = self._keys[key].first()
            if group is None:
                heappop(heap)
                del self._keys[key], self._entered[key]
            elif group.turn != turn:
                self._entered[key] = group.turn
                heapreplace(heap, (group.turn, next(_pushes), key))
            else:
                return group
        return None

    def has_groups(self) -> bool:
        return any(parked.has_groups() for parked in list(self._keys.values()))

    def remove_first(self) -> None:
        self._keys[self._heap[0][2]].remove_first()

    def _sweep(self) -> None:
        firsts = {key: parked.first() for key, parked in self._keys.items()}
        self._keys = {key: self._keys[key] for key, first in firsts.items() if first is not None}
        self._entered = {key: first.turn for key, first in firsts.items() if first is not None}
        self._heap = [(turn, next(_pushes), key) for key, turn in self._entered.items()]
        heapify(self._heap)

    def groups(self) -> Iterator[Group]:
        return (group for parked in self._keys.values() for group in parked.groups())
