"""The parts of a PathLedger: claims, nodes with their slots, groups of waiters.

The rules are in `paths`; nothing here grants anything. `tier_nodes` makes and finds the nodes
of a tier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Any

from slotwise._core.adaptive import Outcome
from slotwise._ledger.fair import Share
from slotwise._ledger.parked import Entry, FairParked, Parked, Turn
from slotwise._ledger.slots import FEW, NO_NUMBERS, NumberedSlots
from slotwise._ledger.slots import UNLIMITED as UNLIMITED

if TYPE_CHECKING:
    from slotwise._ledger.adaptation import Adaptation

Path = tuple[Hashable, ...]

# A head start, in microseconds, that is longer than any that a caller may have.
FIRST = 2**60

# Empty, since a class can't inherit from two with slots. Not a literal, which mypy would take for
# the only attributes.
NO_SLOTS: tuple[str, ...] = ()


class BasePathClaim:
    """One request for a path, from its arrival to its end.

    Its slot number is the lowest free one of the widest tier.
    """

    __slots__ = NO_SLOTS

    # Whether it is among the holders while it holds. A driver may have claims
    # that nobody can name, and remember their numbers by itself.
    named: bool = True
    replaces: bool = False  # holders, and so it comes before all others
    is_kicked: bool = False  # it keeps its slots for a while, but nobody else replaces it
    head_start: int = 0  # in microseconds: it comes before those that arrived less earlier

    key: Any
    ttl: float | None
    _slot_number: int
    nodes: Sequence[Any]  # one of each tier
    ticket: int  # while it waits
    rank: int  # while it waits: its ticket less its head start
    group: Group  # while it waits
    # What it takes of each tier; None, as for most claims, is one slot of each.
    needs: tuple[int, ...] | None = None
    # The slot numbers of the widest tier, if it has ``needs``; else there is only the one number.
    ranges: Sequence[range] = ()

    def ending(self, _now: float) -> tuple[int, Outcome, int]:
        """Return how long it was held, how that ended, and for how long the service wants no more.

        For adaptive values; times are in microseconds.
        """
        return 0, "ignored", 0

    @property
    def slots(self) -> int:
        """How many it takes of a semaphore."""
        return 1 if self.needs is None else self.needs[0]

    @property
    def path(self) -> Path:
        """The keys of its nodes, once it has some."""
        return tuple([node.key for node in self.nodes])

    @property
    def slot_number(self) -> int:
        """The lowest of the slot numbers that it was granted."""
        return self._slot_number

    @property
    def numbers(self) -> tuple[int, ...]:
        """The slot numbers that it was granted in the widest tier, lowest first."""
        if self.needs is None or not self.ranges:
            return (self._slot_number,)
        return (*chain(*self.ranges),)


class PathClaim(BasePathClaim):
    """A request for slots of each tier, perhaps for several or with a head start."""

    __slots__ = (
        *("_slot_number", "group", "head_start", "key", "needs", "nodes", "rank", "ranges"),
        *("ticket", "ttl"),
    )

    head_start: int
    needs: tuple[int, ...] | None
    ranges: Sequence[range]

    def __init__(
        self,
        key: Hashable,
        needs: tuple[int, ...] | None = None,
        ttl: float | None = None,
        head_start: int = 0,
    ) -> None:
        self.key = key
        self.needs = needs
        self.ttl = ttl
        self.head_start = head_start
        self.ranges = ()


class LineGrant:
    """The grant of a slot to a ticket of the line, or with number 0 its refusal."""

    __slots__ = ("_slot_number", "key")

    named = False

    def __init__(self, ticket: Hashable, number: int) -> None:
        self.key = ticket
        self._slot_number = number


class BaseNode:
    """One key of one tier: which groups are parked there, and for which one it keeps something."""

    __slots__ = (
        "kept",
        "kept_for",
        "key",
        "look",
        "parked",
        "paused_until",
        "tier",
        "used",
        "value",
        "waiting",
    )

    # Moves an adaptive value; a `Node` has the slot.
    adaptation: Adaptation | None = None
    # The slots of a `Node`. Those of others are never all held: they have none.
    free: Any = (0,)
    circulating: int = 0

    def __init__(self, tier: int, key: Hashable, value: int, now: float) -> None:
        self.tier = tier
        self.key = key
        self.value = value  # `UNLIMITED` if it has no limit; of a rate, its burst
        self.waiting = 0  # requests that wait, wherever they are parked
        self.kept = 0  # what is kept for the head of a group
        self.kept_for: Group | None = None
        # The groups parked here; None until there is one, as at most nodes there never is.
        self.parked: Parked | FairParked | None = None
        self.look: Turn | None = None  # its turn in the heap of nodes to look at
        self.paused_until = 0.0  # there is no room for anybody before that
        self.used = now  # when it was last in use, if it is idle

    @abstractmethod
    def has_room(self, need: int, now: float, group: Group | None = None) -> bool:
        """Whether ``need`` is free, without what is kept for groups other than ``group``."""

    @abstractmethod
    def take(self, need: int, now: float = 0.0) -> Sequence[range]:
        """Take ``need``; return the numbers of the slots, or nothing if there is too little."""

    @abstractmethod
    def retire(self, now: float) -> bool:
        """Make an idle node unusable, to be forgotten; return False if it is in use."""

    # ---------------------------------------------------------- parked groups

    def park(self, group: Group) -> None:
        if self.parked is None:
            self.parked = Parked() if group.share is None else FairParked()
        self.parked.add(group, self)

    def first_parked(self) -> Group | None:
        """Return the group parked here whose turn comes first."""
        return None if self.parked is None else self.parked.first()

    @property
    def is_waited_for(self) -> bool:
        """Whether any group is parked here; it may be asked without the lock."""
        return self.parked is not None and self.parked.has_groups()

    def parked_groups(self) -> list[Group]:
        """Return the groups that are parked here, in no particular order."""
        return [] if self.parked is None else [*self.parked.groups()]

    def is_blocked(self, turn: Turn, now: float) -> bool:
        """Whether an earlier head is parked here that there is too little room for."""
        first = self.first_parked()
        if first is None or first.turn >= turn:
            return False
        return not self.has_room(first.need(self), now, first)


class Node(BaseNode, NumberedSlots):
    """One key of one tier, and its slots.

    A slot is a number, in ``free`` or held. In the widest tier it is one of 1 to the value; after
    a shrink the node is out of balance until the numbers above the value have come back. In the
    others the number has no meaning: a holder gives back that of its widest tier to all its nodes.

    It is one class for both, because the interpreter looks up attributes much faster where it
    always meets the same class, and whoever goes through a path meets both kinds of nodes.
    """

    __slots__ = ("adaptation", "circulating", "free", "is_numbered", "reserve", "top")

    adaptation: Adaptation | None
    free: list[int]

    rate = None  # `RateNode` has one

    def __init__(
        self, tier: int, key: Hashable, value: int, now: float, *, is_numbered: bool = False
    ) -> None:
        BaseNode.__init__(self, tier, key, value, now)
        self.adaptation = None
        self.is_numbered = is_numbered
        if is_numbered:
            NumberedSlots.__init__(self, value)
        else:
            self.free = []
            self.circulating = self.top = 0
            self.reserve = NO_NUMBERS

    def has_room(self, need: int, now: float, group: Group | None = None) -> bool:
        if self.kept and self.kept_for is not group:
            need += self.kept
        # `in_use`, inlined: this runs about six times for each grant.
        return self.circulating - len(self.free) + need <= self.value and self.paused_until <= now

    def take_one(self) -> int | None:
        """Take a slot; return its number, or None if all that the value allows are held."""
        if self.is_numbered:
            return self._take_one()
        try:
            return heappop(self.free)
        except IndexError:
            if self.circulating >= self.value:
                return None
        self.circulating += 1
        return 1

    def take(self, need: int, now: float = 0.0) -> Sequence[range]:  # noqa: ARG002
        if self.is_numbered:
            return self._take(need)
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
        """Take a slot back, and out of circulation if too many circulate."""
        if self.circulating <= self.value:
            heappush(self.free, number)
        elif self.is_numbered:
            self._put_back(number)
        else:
            self.circulating -= 1

    def put_back(self, need: int, ranges: Sequence[range]) -> None:
        """Take back what `take` took; ``ranges`` are the numbers of the widest tier."""
        if self.is_numbered:
            self._put_back_ranges(ranges)
        elif need > FEW:
            self.circulating -= need
        else:
            for number in range(1, need + 1):
                self.put_back_one(number)

    @property
    def is_balanced(self) -> bool:
        """Whether no more slots circulate than the value allows, as the quick lane requires."""
        return not self.reserve and self.circulating <= self.value

    def balance(self) -> None:
        """Take free slots out of circulation while too many circulate."""
        if self.is_numbered:
            if not self.is_balanced:
                self._rebalance_if_needed()
            return
        while self.circulating > self.value and self._pop_free() is not None:
            self.circulating -= 1

    def retire(self, now: float) -> bool:  # noqa: ARG002
        if self.waiting or not self._take_everything():
            return False
        self.value = 0
        return True


class Group:
    """The waiters of one path, and their head."""

    __slots__ = (
        *("entry", "head", "keeps", "needs", "nodes", "order", "parked_at", "path", "rank"),
        *("share", "ticket", "tie", "turn", "waiters"),
    )

    head: Any  # None while nobody waits
    turn: Turn  # its head's

    def __init__(self, path: Path, nodes: tuple[BaseNode, ...], share: Share | None = None) -> None:
        self.path = path
        self.nodes = nodes
        self.share = share  # of its key, in fair order: see `FairGroup`
        self.waiters: OrderedDict[Hashable, Any] = OrderedDict()  # in the order of arrival
        # A heap of (rank, tie, claim), with stale entries of waiters that have left; None while
        # the order of ranks is that of arrival.
        self.order: list[tuple[int, int, Any]] | None = None
        self.head = None
        self.ticket = self.rank = self.tie = 0  # its head's
        self.needs: tuple[int, ...] | None = None  # its head's
        self.parked_at: BaseNode | None = None
        self.entry: Entry | None = None  # in the heap of that node
        self.keeps: list[BaseNode] = []

    def add(self, claim: Any) -> bool:
        """Add a waiter; return whether it is the head now."""
        tie = claim.ticket if claim.head_start else 0  # `tie_of`, inlined
        is_head = not self.waiters or (claim.rank, tie) < (self.rank, self.tie)
        if self.order is None and self.waiters and claim.head_start:
            self.order = [(each.rank, tie_of(each), each) for each in self.waiters.values()]
            heapify(self.order)
        self.waiters[claim.key] = claim
        if self.order is not None:
            heappush(self.order, (claim.rank, tie_of(claim), claim))
        elif claim.head_start < 0:
            # Later arrivals may come before it.
            self.order = [(claim.rank, tie_of(claim), claim)]
        if is_head:
            self._set_head(claim)
        return is_head

    def remove(self, claim: Any) -> None:
        waiters = self.waiters
        del waiters[claim.key]
        if not waiters:
            self.head = None  # or a stale entry of a heap would keep the claim alive
        elif self.head is claim:
            self._set_head(waiters[next(iter(waiters))] if self.order is None else self._first())

    def _first(self) -> Any:
        order = self.order
        assert order is not None
        while self.waiters.get(order[0][2].key) is not order[0][2]:
            heappop(order)
        return order[0][2]

    def _set_head(self, claim: Any) -> None:
        self.head = claim
        self.ticket = ticket = claim.ticket
        self.rank = rank = claim.rank
        self.tie = tie = ticket if claim.head_start else 0  # `tie_of`, inlined
        self.needs = claim.needs
        if self.share is None:  # a FairGroup computes its turn
            self.turn = 0.0, rank, tie

    def lacks(
        self, now: float, several: bool = True, roomy: BaseNode | None = None
    ) -> BaseNode | None:
        """Return the first node, narrow to wide, that has no room for its head or is blocked.

        Call it while the group isn't parked itself. Unless somebody waits for ``several`` slots
        of a node, nobody can be blocked: room for one head is room for any. ``roomy`` is a
        node that is known to have room for the head.
        """
        needs = self.needs
        if needs is None and not several:  # what follows, in fewer steps
            for node in self.nodes:
                if node is not roomy and (
                    (not node.free and node.circulating >= node.value)  # all are held
                    or not node.has_room(1, now, self)
                ):
                    return node
            return None
        for node in self.nodes:
            need = 1 if needs is None else needs[node.tier]
            if node is not roomy and not node.has_room(need, now, self):
                return node
            if several and node.kept_for is not self and node.is_blocked(self.turn, now):
                return node
        return None

    def unfinished(self) -> BaseNode | None:
        """Return the first node where a head with an earlier turn has still to be looked at."""
        for node in self.nodes:
            first = node.first_parked()
            if first is not None and first.turn < self.turn:
                return node
        return None

    def need(self, node: BaseNode) -> int:
        """Return how much its head needs of a node."""
        return 1 if self.needs is None else self.needs[node.tier]


class FairGroup(Group):
    """The waiters of one path in fair order: its turn changes with the tag of its key."""

    __slots__ = ()

    share: Share

    @property
    def turn(self) -> Turn:  # type: ignore[override] # there it is set
        return self.share.tag, self.rank, self.tie


def tie_of(claim: BasePathClaim) -> int:
    """Return what orders claims of equal rank; only head starts can make ranks equal."""
    return claim.ticket if claim.head_start else 0
