"""PathQueue: those who wait for paths, where they are parked, and who of them is next.

The rules stand in `paths`; these are 3, 4, 5 and 9. Nothing here knows holders or deadlines.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush, heappushpop
from itertools import count
from typing import Any, Generic, TypeVar

from slotwise._ledger.deadlines import NEVER
from slotwise._ledger.fair import FairOrder
from slotwise._ledger.parked import Turn
from slotwise._ledger.path_nodes import UNLIMITED, BaseNode, FairGroup, Group, Node, Path, PathClaim
from slotwise._ledger.rate_nodes import RateNode

PATIENCE = 100
LOOKS = 128

C = TypeVar("C", bound=PathClaim)

_pushes = count()  # so that the nodes in a heap are not compared


class PathQueue(Generic[C]):
    """The waiters by their keys and in groups, and the nodes that have to be looked at."""

    __slots__ = (
        *("passing", "fair", "groups", "last_ticket", "refills", "several", "waiting", "widest"),
        "work",
    )

    def __init__(
        self, widest: int | None, fair: FairOrder | None = None, *, has_rates: bool
    ) -> None:
        """``widest``: which tier is the widest one with slots. Without ``fair`` it is FIFO."""
        self.widest = widest
        self.fair = fair
        self.waiting: dict[Hashable, C] = {}
        self.groups: dict[Path, Group] = {}
        self.last_ticket = 0
        self.several = False  # whether somebody has waited for several slots since nobody waited
        # The highest tickets of those who were granted while somebody waited, one more than
        # `PATIENCE` at most, as a heap: that many have passed whoever is older than all of them.
        self.passing: list[int] = []
        # Nodes to look at: a heap of (turn of the first head there, number of the push, node).
        self.work: list[tuple[Turn, int, BaseNode]] = []
        # With rates: the nodes to be looked at because of the time, a heap of (when, number
        # of the push, node), some stale.
        self.refills: list[tuple[float, int, RateNode]] | None = [] if has_rates else None

    # ------------------------------------------------------- coming and going

    def next_ticket(self, now: float) -> int:
        """The ticket of whoever comes now: the microsecond, or one more than the last one."""
        ticket, last = int(now * 1_000_000 + 0.5), self.last_ticket  # `microseconds`, written out
        return ticket if ticket > last else last + 1

    def turn_of_newcomer(self, head_start: int, path: Path, ticket: int) -> Turn:
        """The turn of somebody who begins to wait now."""
        tag = 0.0 if self.fair is None else self.fair.tag_of(path[self.fair.tier])
        return tag, ticket - head_start, ticket if head_start else 0

    def wait(
        self, claim: C, path: Path, nodes: Sequence[Any], now: float, weight: float = 1.0
    ) -> bool:
        """Let a claim wait; False if meanwhile it lacks nothing."""
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
        ticket = self.next_ticket(now)
        if group.share is not None:
            group.share.weight = weight  # who asked last knows it best
        at = group.parked_at
        assert at is not None
        self.last_ticket = ticket
        if self.join(claim, group, ticket):  # it came with a head start
            self._drop_keeps(group, group.keeps)
            group.entry = None  # it is not found by its former turn any more
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
        """Put a claim among the others of its group; return whether it is the head now."""
        claim.ticket = ticket
        # The same object if it may be: there may be very many.
        claim.rank = ticket - claim.head_start if claim.head_start else ticket
        claim.nodes = group.nodes
        claim.group = group
        for node in group.nodes:
            node.waiting += 1
        if group.share is not None:
            group.share.waiting += 1
        self.waiting[claim.key] = claim
        if claim.needs is not None:
            self.several = True
        return group.add(claim)

    def leave(self, claim: C, now: float) -> None:
        """Take a waiter out; grants nothing."""
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
            # Too little for the head that left, but perhaps not for those behind it.
            if not isinstance(at, Node) or at.has_room(1, now):
                self.look_at(at)
        for node in group.nodes:
            node.used = max(node.used, now)

    def _take_out(self, claim: C) -> None:
        """End a wait; its group is not parked any more if it was the head."""
        group = claim.group
        del self.waiting[claim.key], claim.group
        group.remove(claim)
        for node in group.nodes:
            node.waiting -= 1
        if not group.waiters:
            del self.groups[group.path]
            self._move(group, None)
            group.entry = None
        if self.fair is not None:
            assert group.share is not None
            self.fair.leave(group.share)
        if not self.waiting:
            self.several = False
            self.passing.clear()
            if self.fair is not None:
                self.fair.reset()

    # -------------------------------------------------- where they are looked for

    def park(self, group: Group, node: BaseNode) -> None:
        if self.fair is None:
            group.parked_at = node
        else:
            self._move(group, node)
        if node.parked is None:
            node.park(group)
        else:
            node.parked.add(group)
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
        """Put a node that may have got a slot among those to be looked at."""
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
        """Look at a rate node again when there will be room for its oldest head."""
        if not isinstance(node, RateNode):
            return
        assert self.refills is not None
        when = node.ready_at(first.need(node), first)
        if when != node.refill_at:
            node.refill_at = when
            if when < NEVER:
                heappush(self.refills, (when, next(_pushes), node))

    def look_when_pause_ends(self, node: BaseNode) -> None:
        """A node was paused: what is there by time is not looked at before that."""
        first = node.first_parked()
        if first is not None:
            self._look_when_refilled(node, first)

    def _look_at_refilled(self, now: float) -> None:
        refills = self.refills
        assert refills is not None
        while refills and (refills[0][0] <= now or refills[0][0] != refills[0][2].refill_at):
            when, _, node = heappop(refills)
            if when == node.refill_at:
                node.refill_at = NEVER
                self.look_at(node)

    def next_refill(self) -> float:
        """When somebody who waits for time alone may have waited long enough."""
        refills = self.refills
        while refills and refills[0][0] != refills[0][2].refill_at:
            heappop(refills)
        return refills[0][0] if refills else NEVER

    # ----------------------------------------------------------------- serving

    def settle(self, now: float) -> list[C]:
        """Go on with what is unfinished, by rule 4.

        Return who has got its slots, with its number; the ledger makes it a holder.
        """
        granted: list[C] = []
        work, looks = self.work, LOOKS
        if self.refills:
            self._look_at_refilled(now)
        while work and looks:
            turn, _, node = heappop(work)
            if node.look is not turn:
                continue  # it has been put there with an earlier turn since
            node.look = None
            parked: Any = node.parked  # it has had somebody
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
            heappop(work)  # so that `unfinished` tells the truth
        return granted

    def _examine(self, group: Group, here: BaseNode, now: float, granted: list[C]) -> None:
        """Grant the head of a group that has room here, or park it where it lacks some."""
        lacking = group.lacks(now, self.several, here)
        while lacking is None:
            claim: C = group.head
            number = take_all(claim, group.nodes, self.widest, now)
            if number is not None:
                claim._slot_number = number
                self._grant(claim, group, now)
                if group.waiters:
                    self.park(group, group.lacks(now, self.several) or here)
                granted.append(claim)
                return
            lacking = group.lacks(now, self.several)
        passing = self.passing
        is_overdue = len(passing) > PATIENCE and passing[0] > group.ticket  # as `is_overdue` says
        if group.keeps or is_overdue:
            narrower = group.nodes[: group.nodes.index(lacking)]
            if group.keeps:
                self._drop_keeps(group, [node for node in group.keeps if node not in narrower])
            if is_overdue:
                self._keep(group, narrower)
        self.park(group, lacking)

    def _grant(self, claim: C, group: Group, now: float) -> None:
        if group.keeps:
            for node in group.keeps:
                node.kept_for, node.kept = None, 0  # it is taken now
                if isinstance(node, RateNode):
                    self.look_at(node)  # those who wait there wait for another time
            group.keeps = []
        weight = 1.0 if group.share is None else group.share.weight
        self.count_grant(claim, group.path, claim.ticket, weight, now)
        self._take_out(claim)

    def is_overdue(self, ticket: int) -> bool:
        """Whether more than `PATIENCE` that came later have been granted."""
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
                # Somebody else may come before the heads of its key now, and need less time.
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
    """Take what a claim needs of each node; its slot number, or None if one had too little.

    Without any slots the number is 0.
    """
    if claim.needs is not None:
        return _take_several(claim, nodes, claim.needs, widest, now)
    number = 0
    for node in nodes:
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
        if not taken:  # of a ledger without rates: only there is a quick lane
            for other, others_need in zip(nodes[:index], needs, strict=False):
                other.put_back(others_need, ())
            return None
        if index == widest:
            claim.ranges = taken
            number = taken[0].start
    return number
