"""The rules of atomic paths: one slot of every tier at one instant, or none.

A *path* is one key for each tier, narrow to wide; a *node* is one key of one
tier, with a limit and a count of what is held. Nothing is held while waiting.
Every request that is granted or waits gets a ticket, 1, 2, 3, … at its arrival
(the quick lane, see below, gives none: nobody waits then, so nobody is passed).

1. A node *has a slot* for a request if fewer are held than its limit, one slot
   that is kept for somebody else (rule 5) counting as held. A request *fits* if
   every node of its path has a slot for it; else it *lacks* the first node,
   narrow to wide, that has none. A node without a limit always has a slot.
2. A newcomer that fits is granted at once, unless somebody of the very same
   path waits, or a node of its path is unfinished (rule 4). So requests of one
   path never pass each other, and others are passed only by who fits.
3. Otherwise it waits. Waiters of one path form a *group*, in the order of
   arrival, and only its head matters to others. A group is *parked* at one node,
   the first that its head lacks (or the unfinished one): waiters are found by
   what they lack, and never scanned.
4. A node that gets a slot is *looked at*: while it has one that is not kept, the
   oldest head parked there is examined. Of several nodes to be looked at, that
   with the oldest head comes first. A head that fits is granted, and its group
   goes on with the next, parked where that one lacks something, or left here if
   it lacks nothing, until its turn comes. One that does not fit is parked at the
   node it lacks. At most `LOOKS` heads are examined in one call; what is left is
   *unfinished*, and the next call of any kind goes on with it first.
5. Nobody starves. A head is *overdue* when more than `PATIENCE` later requests
   have come: until then no more than that can have passed it. When an overdue
   head is examined and lacks a node, one slot of each narrower node with a limit
   is *kept* for it, from the narrowest on, up to the first that is keeping one
   for somebody else: no node keeps more than one. The keeper uses what is kept
   when it is granted; if it leaves, it is dropped. Only after a shrink can a head
   lack a node that is kept for it, or a narrower one; then the keeps from that
   node on are dropped.
6. Growing looks at a node. After a shrink nothing is granted there until it fits.
7. Whoever stops waiting, for whatever reason, leaves its group at once. Nothing is
   ever closed here: an object that is closed takes its own waiters out.

Why nobody starves: who keeps slots waits for wider tiers only, so no two wait for
each other in a circle, and what is kept is not lost again. A keeper that waits
for the widest tier is granted once the older ones there are; then one that waits
for the tier below that; and so on down to the narrowest. When a keeper is granted
the next oldest keeps. And a slot of a wide tier is never kept for a request that
lacks a narrower one: the second upload of a user never holds up another user.

Nothing here waits, wakes, locks or knows the time. Callers take a lock, but for
the *quick lane*: while nobody waits, slots that have been used before are taken
and given by single operations on lists and dicts, each atomic in CPython:

    take    if not ledger.attention:
                for nodes, key in zip(ledger.tables, path):
                    number = heappop(nodes[key].free)   # KeyError, IndexError: undo, ask `request`
                ledger.holders[claim.key] = claim
    give    ledger.holders.pop(key, None)               # None: has ended already
            if ledger.attention:
                ledger.give(claim, now)                 # under the lock
            else:
                for node in claim.nodes:
                    node.used = now
                    heappush(node.free, number)
                if ledger.attention:
                    ledger.look_after(claim.nodes)      # under the lock
    undo    is like give

It is safe for the reason that `ledger` gives: who is about to wait raises
``attention`` before it looks a last time, a giver fills ``free`` before it looks
whether somebody waits, so at least one of them sees the other. A node is
forgotten by taking all its slots away, so that who has just found it gets none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush
from typing import TypeVar

from slotwise._ledger.base import QUICK_LANE, BaseLedger
from slotwise._ledger.deadlines import NEVER, Deadlines
from slotwise._ledger.path_nodes import UNLIMITED, Group, Node, Path, PathClaim, TierNodes
from slotwise.errors import SemaphoreClosed

__all__ = ["LOOKS", "PATIENCE", "PathClaim", "PathLedger"]

PATIENCE = 100
LOOKS = 64

C = TypeVar("C", bound=PathClaim)


class PathLedger(BaseLedger[C]):
    """Who holds which path, and who waits."""

    __slots__ = (
        "attention",
        "closed",
        "deadlines",
        "groups",
        "holders",
        "last_ticket",
        "shrunk",
        "tables",
        "tiers",
        "waiting",
        "work",
    )

    # Between any two calls:
    #   P1  a node's `held` counts the holders, its `waiting` the waiters, of paths through it
    #   P2  `held` exceeds the limit only after a shrink, and nothing is granted there then
    #   P3  a group is parked at a node of its path that has no slot for its head, or that
    #       is unfinished; so nobody waits who fits, unless something is unfinished
    #   P4  no node keeps more than one slot, and that for an overdue head; unless a limit
    #       was changed, that head lacks something wider, and every narrower node with a
    #       limit is kept for it too
    #   P5  tickets within a group rise
    #   P6  attention is up if somebody waits, while a shrink is not done, and while closed
    #   P7  nobody waits on a closed ledger
    # `paths_invariants.check` is these, as code.

    def __init__(self, values: Sequence[int]) -> None:
        """A ledger with one tier for each of ``values``, narrow to wide; 0 is no limit."""
        self.tiers = tuple(TierNodes(index, value) for index, value in enumerate(values))
        self.tables = tuple(tier.nodes for tier in self.tiers)
        self.holders: dict[Hashable, C] = {}
        self.waiting: dict[Hashable, C] = {}
        self.groups: dict[Path, Group] = {}
        self.deadlines: Deadlines | None = None
        self.last_ticket = 0
        self.closed = False
        self.attention = not QUICK_LANE
        self.shrunk: set[Node] = set()  # nodes of which too many slots are held
        # Nodes to look at: a heap of (ticket of the oldest head there, node). A head is
        # parked at one node, so no two tickets are the same, and nodes are not compared.
        self.work: list[tuple[int, Node]] = []

    # ------------------------------------------------------------ the verbs

    def request(
        self, claim: C, path: Path, now: float = 0.0, *, wait_until: float | None = None
    ) -> list[C]:
        """Grant ``claim`` one slot of each node, or let it wait; who is granted now is returned.

        Raises:
            SemaphoreClosed: nothing is granted any more.
        """
        granted = self.settle(now) if self.work else []
        if self.try_request(claim, path, now):
            granted.append(claim)
            return granted
        # From here on nobody gives without looking for those who wait. What was
        # given before that, without looking, is seen by another try.
        self.attention = True
        while not self.try_request(claim, path, now):
            if self._wait(claim, path, now):
                if wait_until is not None:
                    self.timed().set(claim.key, wait_until)
                return granted
        self._lower_attention()
        granted.append(claim)
        return granted

    def try_request(self, claim: C, path: Path, now: float = 0.0) -> bool:
        """Grant ``claim`` one slot of each node if rule 2 allows it; else take nothing."""
        if self.closed:
            raise SemaphoreClosed("the ledger is closed")
        if path in self.groups:
            return False
        nodes = self._nodes(path, now)
        for node in nodes:
            if node.look is not None or not node.has_slot_for(None):
                return False
        number = self._take(nodes)
        if not number:
            return False
        claim.nodes = nodes
        self.last_ticket += 1
        self._file(claim, number, now)
        return True

    def release(self, key: Hashable, now: float = 0.0) -> list[C]:
        """End a holder's claim; an ended or unknown one is left alone."""
        claim = self.holders.pop(key, None)
        if claim is not None:
            self._free(claim, now)
        return self.settle(now) if self.work else []

    def cancel(self, key: Hashable, now: float = 0.0) -> list[C]:
        """Take a waiter out; one that does not wait is left alone."""
        return self.cancel_all([key], now)

    def cancel_all(self, keys: Iterable[Hashable], now: float = 0.0) -> list[C]:
        """Take several waiters out, and only then see who is granted."""
        for key in keys:
            claim = self.waiting.get(key)
            if claim is not None:
                self._leave(claim, now)
        return self.settle(now) if self.work else []

    def resize(
        self, tier: int, value: int, key: Hashable = None, now: float = 0.0, *, one: bool = False
    ) -> list[C]:
        """Change the value of a tier, or with ``one`` that of one key: who is granted now."""
        which = self.tiers[tier]
        if one:
            which.own_values[key] = value
            nodes: Iterable[Node] = [which.nodes[key]] if key in which.nodes else []
        else:
            which.value = value
            nodes = which.nodes.values()
        self.attention = True
        for node in nodes:
            node.limit = which.value_of(node.key) or UNLIMITED
            self.shrunk.add(node)
        self.look_after(nodes)
        return self.settle(now)

    def close(self, now: float = 0.0) -> list[C]:
        """Refuse newcomers from now on: the waiters, who all fail, are returned."""
        self.closed = self.attention = True
        waiters = list(self.waiting.values())
        self.cancel_all([claim.key for claim in waiters], now)
        return waiters

    def reopen(self) -> None:
        """Undo `close`. Nobody waits, so nobody is granted anything."""
        self.closed = False
        self._lower_attention()

    def look_after(self, nodes: Iterable[Node]) -> None:
        """See to nodes that got slots, or another limit; grants nothing."""
        for node in nodes:
            if node in self.shrunk and node.shrink():
                self.shrunk.discard(node)
            if node.waiting:
                self._look_at(node)
        self._lower_attention()

    def settle(self, now: float = 0.0) -> list[C]:
        """Go on with what is unfinished, by rule 4, and return who is granted."""
        granted: list[C] = []
        work, looks = self.work, LOOKS
        while work and looks:
            ticket, node = heappop(work)
            if node.look != ticket:
                continue  # it has been put there with an older head since
            node.look = None
            first = node.first_parked()
            if first is None or not node.has_slot_for(None):
                continue
            if first.ticket == ticket:
                looks -= 1
                node.unpark()
                self._examine(first, node, now, granted)
            self._look_at(node)
        self._lower_attention()
        return granted

    @property
    def unfinished(self) -> bool:
        """Whether `settle` has to be called again."""
        return bool(self.work)

    def forget_idle(
        self,
        tier: int,
        now: float,
        older_than: float,
        keep_at_most: int | None = None,
        looks: int = UNLIMITED,
    ) -> tuple[int, bool]:
        """Forget nodes idle for that long, or beyond ``keep_at_most``; see `TierNodes.forget`."""
        which = self.tiers[tier]
        too_many = 0
        if keep_at_most is not None:
            claims = (*self.holders.values(), *self.waiting.values())
            busy = len({claim.nodes[tier] for claim in claims})
            too_many = len(which.nodes) - busy - keep_at_most
        return which.forget(now, now - older_than, too_many, looks)

    def trim(self, now: float) -> None:
        """Forget the longest idle nodes of tiers that remember too many."""
        for tier in self.tiers:
            # Not counted, but at most so many can be in use.
            busy = len(self.holders) + len(self.waiting)
            too_many = len(tier.nodes) - busy - tier.max_idle
            if too_many > 0:
                tier.forget(now, -NEVER, too_many, 2 * too_many + LOOKS)

    # ---------------------------------------------------------- the own steps

    def _nodes(self, path: Path, now: float) -> list[Node]:
        return [
            tier.nodes.get(key) or tier.make(key, now)
            for tier, key in zip(self.tiers, path, strict=True)
        ]

    def _take(self, nodes: Sequence[Node]) -> int:
        """Take a slot of each node; the number is that of the last, or 0 if one had none."""
        number = 0
        for count, node in enumerate(nodes):
            taken = node.take()
            if taken is None:  # a taker on the quick lane was faster
                for other in nodes[:count]:
                    other.put_back(number)
                return 0
            number = taken
        return number

    def give(self, claim: C, now: float = 0.0) -> list[C]:
        """Take back the slots of a claim that the caller took out of ``holders``."""
        self._free(claim, now)
        return self.settle(now) if self.work else []

    def _free(self, claim: C, now: float) -> None:
        if self.deadlines is not None:
            self.deadlines.discard(claim.key)
        for node in claim.nodes:
            node.used = now
            node.put_back(claim._slot_number)
        self.look_after(claim.nodes)

    def _lower_attention(self) -> None:
        if not self.groups and not self.shrunk and not self.closed:
            self.attention = not QUICK_LANE

    def _wait(self, claim: C, path: Path, now: float) -> bool:
        """Let a claim wait; False if meanwhile it lacks nothing."""
        group = self.groups.get(path)
        if group is None:
            group = Group(path, tuple(self._nodes(path, now)))
            at = group.lacks() or next((n for n in group.nodes if n.look is not None), None)
            if at is None:
                return False
            self.groups[path] = group
            group.ticket = self.last_ticket + 1
            self._park(group, at)
        self.last_ticket = claim.ticket = self.last_ticket + 1
        claim.nodes = group.nodes
        claim.group = group
        for node in group.nodes:
            node.waiting += 1
        group.waiters[claim.key] = claim
        self.waiting[claim.key] = claim
        return True

    def _leave(self, claim: C, now: float) -> None:
        if self.deadlines is not None:
            self.deadlines.discard(claim.key)
        group = claim.group
        was_head = group.ticket == claim.ticket
        if was_head:
            self._drop_keeps(group, group.keeps)
        at = self._take_out(claim)
        if was_head and at is not None:
            # The next one of the same path lacks the same node.
            self._park(group, at)
        for node in group.nodes:
            node.used = now
        self._lower_attention()

    def _take_out(self, claim: C) -> Node | None:
        """End a wait; where its group is parked, or None if nobody is left in it."""
        group = claim.group
        del self.waiting[claim.key], group.waiters[claim.key], claim.group
        for node in group.nodes:
            node.waiting -= 1
        at = group.parked_at
        if not group.waiters:
            del self.groups[group.path]
            group.parked_at = None
            return None
        group.ticket = next(iter(group.waiters.values())).ticket
        return at

    def _park(self, group: Group, node: Node) -> None:
        group.parked_at = node
        node.park(group)

    def _look_at(self, node: Node) -> None:
        """Put a node that may have got a slot among those to be looked at."""
        first = node.first_parked()
        if first is not None and (node.look is None or first.ticket < node.look):
            node.look = first.ticket
            heappush(self.work, (first.ticket, node))

    def _examine(self, group: Group, here: Node, now: float, granted: list[C]) -> None:
        """Grant the head of a group, or park it where it lacks something."""
        lacking = group.lacks()
        while lacking is None:
            number = self._take(group.nodes)
            if number:
                self._grant(group, number, here, now, granted)
                return
            lacking = group.lacks()
        narrower = group.nodes[: group.nodes.index(lacking)]
        if group.keeps:
            self._drop_keeps(group, [node for node in group.keeps if node not in narrower])
        if self.last_ticket - group.ticket > PATIENCE:
            self._keep(group, narrower)
        self._park(group, lacking)

    def _grant(self, group: Group, number: int, here: Node, now: float, granted: list[C]) -> None:
        claim: C = next(iter(group.waiters.values()))
        for node in group.keeps:
            node.kept_for = None  # it is taken now
        group.keeps = []
        self._file(claim, number, now)
        if self._take_out(claim) is not None:
            self._park(group, group.lacks() or here)
        granted.append(claim)

    def _keep(self, group: Group, narrower: Iterable[Node]) -> None:
        for node in narrower:
            if node.kept_for is None and node.limit != UNLIMITED:
                node.kept_for = group
                group.keeps.append(node)
            elif node.kept_for is not group and node.limit != UNLIMITED:
                return

    def _drop_keeps(self, group: Group, which: list[Node]) -> None:
        group.keeps = [node for node in group.keeps if node not in which]
        for node in which:
            node.kept_for = None
            self._look_at(node)
