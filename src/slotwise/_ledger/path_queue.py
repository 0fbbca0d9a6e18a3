"""PathQueue: the waiters for paths, where they are parked, and which of them is granted next.

It implements rules 3, 4, 5 and 9 of `paths`. Holders and deadlines are the ledger's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush, heappushpop
from itertools import count
from typing import Any, Generic, TypeVar

from slotwise._ledger.deadlines import NEVER
from slotwise._ledger.fair import FairOrder
from slotwise._ledger.parked import Turn
from slotwise._ledger.path_nodes import (
    UNLIMITED,
    BaseNode,
    BasePathClaim,
    FairGroup,
    Group,
    Node,
    Path,
)
from slotwise._ledger.rate_nodes import RateNode
from slotwise._ledger.times import microseconds

PATIENCE = 100
LOOKS = 128

C = TypeVar("C", bound=BasePathClaim)

_pushes = count()  # breaks ties in heaps, so that nodes are never compared


class PathQueue(Generic[C]):
    """The waiters, by id and in groups, and the nodes that have to be looked at."""

    __slots__ = (
        *("fair", "groups", "is_simple", "last_ticket", "passing", "refills", "several", "waiting"),
        *("widest", "work"),
    )

    def __init__(
        self, widest: int | None, fair: FairOrder | None = None, *, has_rates: bool
    ) -> None:
        """Make an empty queue; ``widest`` is the widest tier with slots. FIFO without ``fair``."""
        self.widest = widest
        self.fair = fair
        self.waiting: dict[Hashable, C] = {}
        self.groups: dict[Path, Group] = {}
        self.last_ticket = 0
        self.several = False  # whether anybody has needed several slots since the queue was empty
        # The highest tickets granted while somebody waited, as a heap of at most `PATIENCE` + 1:
        # a waiter older than all of them has been passed by that many.
        self.passing: list[int] = []
        # Nodes to look at: a heap of (turn of the first head there, number of the push, node).
        self.work: list[tuple[Turn, int, BaseNode]] = []
        # With rates, the nodes to look at when time has refilled them: a heap of (when, number
        # of the push, node), with stale entries.
        self.refills: list[tuple[float, int, RateNode]] | None = [] if has_rates else None
        # Whether turns are the ranks, and room comes by releases alone.
        self.is_simple = fair is None and not has_rates

    # ------------------------------------------------------- coming and going

    def next_ticket(self, now: float) -> int:
        """Return the ticket of an arrival now: the microsecond, or the last ticket plus one."""
        ticket, last = int(now * 1_000_000 + 0.5), self.last_ticket  # `microseconds`, inlined
        return ticket if ticket > last else last + 1

    def turn_of_newcomer(self, head_start: int, path: Path, ticket: int) -> Turn:
        """Return the turn of a request that begins to wait now."""
        tag = 0.0 if self.fair is None else self.fair.tag_of(path[self.fair.tier])
        return tag, ticket - head_start, ticket if head_start else 0

    def wait(
        self, claim: C, path: Path, nodes: Sequence[Any], now: float, weight: float = 1.0
    ) -> bool:
        """Let a claim wait; return False, and don't, if it lacks nothing by now."""
        group = self.groups.get(path)
        if group is not None:
            self.wait_with(claim, group, now, weight)
            return True
        ticket = self.next_ticket(now)
        group = self.new_group(path, nodes, weight)
        self.join(claim, group, ticket)
        at = group.lacks(now, self.several) or group.unfinished()
        if at is None:
            self._take_out(claim)
            return False
        self.last_ticket = ticket
        self.park(group, at)
        return True

    def wait_with(self, claim: C, group: Group, now: float, weight: float) -> None:
        """Let a claim wait with others of its path."""
        ticket = int(now * 1_000_000 + 0.5)  # `next_ticket`, inlined
        if ticket <= self.last_ticket:
            ticket = self.last_ticket + 1
        self.last_ticket = ticket
        if group.share is not None:
            group.share.weight = weight  # the latest request has the latest weight
        if self.join(claim, group, ticket):  # it has a head start
            at = group.parked_at
            assert at is not None
            self._drop_keeps(group, group.keeps)
            group.entry = None  # its entry has the turn of the former head
            self.park(group, group.lacks(now, self.several) or at)
            self.look_at(at)

    def new_group(self, path: Path, nodes: Sequence[Any], weight: float = 1.0) -> Group:
        if self.fair is None:
            group = Group(path, tuple(nodes))
        else:
            share = self.fair.share_of(path[self.fair.tier], weight)
            group = FairGroup(path, tuple(nodes), share)
        self.groups[path] = group
        return group

    def join(self, claim: C, group: Group, ticket: int) -> bool:
        """Add a claim to its group; return whether it is the head now."""
        head_start = claim.head_start
        claim.ticket = ticket
        # The same int object where possible: there may be very many claims.
        claim.rank = ticket - head_start if head_start else ticket
        claim.nodes = group.nodes
        claim.group = group
        for node in group.nodes:
            node.waiting += 1
        if group.share is not None:
            group.share.waiting += 1
        self.waiting[claim.key] = claim
        if claim.needs is not None:
            self.several = True
        if not head_start and group.waiters and group.order is None:
            group.waiters[claim.key] = claim  # `Group.add` for most claims, inlined
            return False
        return group.add(claim)

    def leave(self, claim: C, now: float) -> None:
        """Remove a waiter; grant nothing."""
        group = claim.group
        was_head = group.ticket == claim.ticket
        if was_head:
            self._drop_keeps(group, group.keeps)
        at = group.parked_at
        assert at is not None
        self._take_out(claim)
        if was_head:
            if group.waiters:
                self.park(group, at)
            # What was too little for the head that left may be enough for those behind it.
            if not isinstance(at, Node) or at.has_room(1, now):
                self.look_at(at)
        for node in group.nodes:
            node.used = max(node.used, now)

    def _take_out(self, claim: C) -> None:
        """End a wait; if it was the head's, the caller parks what is left of the group anew."""
        group, waiting = claim.group, self.waiting
        del waiting[claim.key], claim.group
        group.remove(claim)
        for node in group.nodes:
            node.waiting -= 1
        if group.head is None:
            del self.groups[group.path]
            self._move(group, None)
            group.entry = None
        if self.fair is not None:
            assert group.share is not None
            self.fair.leave(group.share)
        if not waiting:
            self.several = False
            self.passing.clear()
            if self.fair is not None:
                self.fair.reset()

    # --------------------------------------------------- parking, and looking at nodes

    def park(self, group: Group, node: BaseNode) -> None:
        if self.fair is None:
            group.parked_at = node
        else:
            self._move(group, node)
        if node.parked is None:
            node.park(group)
        else:
            node.parked.add(group, node)
        if node.look is None and self.refills is None:
            return
        if node.first_parked() is group:
            self._look_when_refilled(node, group)
            if node.look is not None:
                self.look_at(node)  # with an earlier turn

    def _move(self, group: Group, node: BaseNode | None) -> None:
        if self.fair is not None:
            assert group.share is not None
            self.fair.move(group.share, group.parked_at, node)
        group.parked_at = node

    def look_at(self, node: BaseNode) -> None:
        """Have a node looked at that may have room for its first head now."""
        parked = node.parked
        first = None if parked is None else parked.first()
        if first is None:
            if isinstance(node, RateNode):
                node.refill_at = NEVER
            return
        turn = first.turn
        if node.look is None or turn < node.look:
            node.look = turn
            heappush(self.work, (turn, next(_pushes), node))

    def _look_when_refilled(self, node: BaseNode, first: Group) -> None:
        """Look at a rate node again when there is room for its first head."""
        if not isinstance(node, RateNode):
            return
        assert self.refills is not None
        when = node.ready_at(first.need(node), first)
        if when != node.refill_at:
            node.refill_at = when
            if when < NEVER:
                heappush(self.refills, (when, next(_pushes), node))

    def look_when_pause_ends(self, node: BaseNode) -> None:
        """Look at a rate node that was paused when the pause ends, and not before."""
        first = node.first_parked()
        if first is not None:
            self._look_when_refilled(node, first)

    def _look_at_refilled(self, now: float) -> None:
        refills = self.refills
        assert refills is not None
        at = microseconds(now)
        while refills:
            when, _, node = refills[0]
            # If the clock was set back, it is looked at as well: then its time is another one.
            if now < when == node.refill_at and node.at <= at:
                break
            heappop(refills)
            if when == node.refill_at:
                node.refill_at = NEVER
                self.look_at(node)

    def next_refill(self) -> float:
        """Return when a rate node has to be looked at next; `NEVER` if none."""
        refills = self.refills
        while refills and refills[0][0] != refills[0][2].refill_at:
            heappop(refills)
        return refills[0][0] if refills else NEVER

    # ----------------------------------------------------------------- serving

    def hand_over(self, node: Any) -> list[C]:
        """`look_at` the only tier's node, which has just got slots, and `serve`, in fewer steps.

        Only if the queue is simple, nobody needs several slots, and nothing is paused, unbalanced
        or unfinished. ``tests/ledger/test_hand_over.py`` compares it with `serve`.
        """
        granted: list[C] = []
        parked, waiting, passing = node.parked, self.waiting, self.passing
        group = None if parked is None else parked.first()
        while group is not None and (node.free or node.circulating < node.value):
            if len(granted) == LOOKS:
                self.look_at(node)  # `serve` continues
                break
            try:
                number = heappop(node.free)
            except IndexError:
                number = node.take_one()
                if number is None:  # a taker on the quick lane was faster
                    continue
            claim: C = group.head
            claim._slot_number = number
            granted.append(claim)
            # `count_grant` and `_take_out`, inlined.
            (heappushpop if len(passing) > PATIENCE else heappush)(passing, claim.ticket)
            del waiting[claim.key], claim.group
            node.waiting -= 1
            group.remove(claim)
            if group.head is None:
                del self.groups[group.path]
                group.parked_at = group.entry = None
                group = parked.first()
        if not waiting:
            passing.clear()
        return granted

    @property
    def has_work(self) -> bool:
        return bool(self.work) or bool(self.refills)

    def serve(self, now: float, looks: int | None = None) -> list[C]:
        """Continue with what is unfinished, by rule 4; examine ``looks`` heads at most, or `LOOKS`.

        Return the claims that got their slots and numbers; the ledger makes them holders.
        """
        granted: list[C] = []
        work, looks = self.work, LOOKS if looks is None else looks
        if self.refills:
            self._look_at_refilled(now)
        while work and looks:
            turn, _, node = heappop(work)
            if node.look is not turn:
                continue  # stale: it was pushed again, with an earlier turn
            node.look = None
            parked: Any = node.parked  # not None: somebody was parked here
            first = parked.first()
            if first is None:
                continue
            need = 1 if first.needs is None else first.need(node)
            if not node.has_room(need, now, first):
                if self.refills is not None:
                    self._look_when_refilled(node, first)
                continue
            if first.turn == turn:
                looks -= 1
                parked.remove_first()
                self._examine(first, node, now, granted)
                if not node.free and node.circulating >= node.value:
                    continue  # all slots are held: there is no room for anybody
                first = parked.first()
                if first is None:
                    if self.refills is None:
                        continue
                else:
                    need = 1 if first.needs is None else first.need(node)
                    if not node.has_room(need, now, first):
                        if self.refills is not None:
                            self._look_when_refilled(node, first)  # as on the next pass
                        continue
            self.look_at(node)
        while work and work[0][2].look is not work[0][0]:
            heappop(work)  # stale: else `unfinished` would be true for nothing
        return granted

    def _examine(self, group: Group, here: BaseNode, now: float, granted: list[C]) -> None:
        """Grant the head of a group that has room here, or park the group where it lacks room."""
        lacking = group.lacks(now, self.several, here)
        while lacking is None:
            claim: C = group.head
            number = take_all(claim, group.nodes, self.widest, now)
            if number is not None:
                claim._slot_number = number
                if group.keeps:
                    self._use_kept(group)
                if group.share is None:  # `count_grant`, inlined
                    passing = self.passing
                    (heappushpop if len(passing) > PATIENCE else heappush)(passing, claim.ticket)
                else:
                    weight = group.share.weight
                    self.count_grant(claim, group.path, claim.ticket, weight, now)
                self._take_out(claim)
                if group.head is not None:
                    self.park(group, group.lacks(now, self.several) or here)
                granted.append(claim)
                return
            lacking = group.lacks(now, self.several)
        passing = self.passing
        is_overdue = len(passing) > PATIENCE and passing[0] > group.ticket  # `is_overdue`, inlined
        if group.keeps or is_overdue:
            narrower = group.nodes[: group.nodes.index(lacking)]
            if group.keeps:
                self._drop_keeps(group, [node for node in group.keeps if node not in narrower])
            if is_overdue:
                self._keep(group, narrower)
        self.park(group, lacking)

    def _use_kept(self, group: Group) -> None:
        """Keep nothing more for a head that was granted: it has taken it."""
        for node in group.keeps:
            node.kept_for, node.kept = None, 0
            if isinstance(node, RateNode):
                self.look_at(node)  # its first head has to wait for another time now
        group.keeps = []

    def is_overdue(self, ticket: int) -> bool:
        """Whether more than `PATIENCE` later requests have been granted."""
        return len(self.passing) > PATIENCE and self.passing[0] > ticket

    def count_grant(self, claim: C, path: Path, ticket: int, weight: float, now: float) -> None:
        """Note a grant while somebody waits."""
        if len(self.passing) > PATIENCE:
            heappushpop(self.passing, ticket)
        else:
            heappush(self.passing, ticket)
        if self.fair is not None:
            tier = self.fair.cost_tier
            cost = 1 if claim.needs is None or tier is None else claim.needs[tier]
            key = path[self.fair.tier]
            self.fair.count(key, cost, weight)
            share = self.fair.shares.get(key)
            for node in [*share.nodes] if share is not None else ():
                # The head of another key may come first now, and need less time.
                first = node.first_parked()
                if first is None or first.share is share:
                    continue
                if node.has_room(first.need(node), now, first):
                    self.look_at(node)
                else:
                    self._look_when_refilled(node, first)

    def _keep(self, group: Group, narrower: Iterable[BaseNode]) -> None:
        for node in narrower:
            if node.kept_for is None and node.value != UNLIMITED:
                node.kept_for, node.kept = group, group.need(node)
                group.keeps.append(node)
            elif node.kept_for is not group and node.value != UNLIMITED:
                return

    def _drop_keeps(self, group: Group, which: list[BaseNode]) -> None:
        group.keeps = [node for node in group.keeps if node not in which]
        for node in which:
            node.kept_for, node.kept = None, 0
            self.look_at(node)


def take_all(claim: C, nodes: Sequence[Any], widest: int | None, now: float) -> int | None:
    """Take what a claim needs of each node; return its slot number.

    Return None, and take nothing, if a node has too little. Without any slots the number is 0.
    """
    if claim.needs is not None:
        return _take_several(claim, nodes, claim.needs, widest, now)
    number = 0
    for node in nodes:
        try:
            number = heappop(node.free)  # `take_one` where a slot is free, inlined
        except IndexError:
            taken = node.take_one()
            if taken is None:  # a taker on the quick lane was faster
                for other in nodes[: nodes.index(node)]:
                    other.put_back_one(number)
                return None
            number = taken
    return number


def _take_several(
    claim: C, nodes: Sequence[Any], needs: Sequence[int], widest: int | None, now: float
) -> int | None:
    number = 0
    for index, (node, need) in enumerate(zip(nodes, needs, strict=True)):
        taken = node.take(need, now)
        # A taker on the quick lane was faster. There are no rates then to put back: a ledger
        # with rates has no quick lane.
        if not taken:
            for other, others_need in zip(nodes[:index], needs, strict=False):
                other.put_back(others_need, ())
            return None
        if index == widest:
            claim.ranges = taken
            number = taken[0].start
    return number
