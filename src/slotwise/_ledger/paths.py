"""PathLedger: grant what a request needs of every tier at one instant, or nothing.

A *path* is one key for each tier, narrow to wide; a *node* is one key of one
tier, with a value and a count of what is held. A request needs one slot of each
node of its path, or more of some; nothing is held while waiting.
Every request that is granted or waits gets a ticket at its arrival: the time in
microseconds, or one more than the last ticket if that is not less (the quick lane,
see below, gives none: nobody waits then, so nobody is passed). Whoever waits has a
*turn* (rule 9), by which "before", "after" and "first" are meant; without fair order
and head starts it is the order of arrival.

1. A node *has room* for a request if what is held, what is kept for others (rule
   5) and what the request needs there are not more than its value. A request
   *fits* if every node of its path has room for it, and none is *blocked*: by a head
   that is parked there (rule 3), comes before it, and needs more than there is room for.
   (What is kept for a request is not blocked for it.) Else it *lacks* the first
   node, narrow to wide, of which that is not true. A node without a limit always
   has room. A request that needs more than a value is refused at once, and when a
   value shrinks below it.
2. A newcomer that fits is granted at once, unless somebody of the very same path
   waits who comes before it, or at a node of its path somebody who comes before it has
   still to be looked at (rule 4). So requests of one path are granted in the order of
   their turns, and a head that needs more than is free at a node is passed only by
   requests that don't need that node or whose turn comes before.
3. Otherwise it waits. Waiters of one path form a *group*, in the order of their
   turns, and only its head matters to others. A group is *parked* at one node,
   the first that its head lacks (or the unfinished one): waiters are found by what
   they lack, and never scanned.
4. A node that gets slots, or loses a head that was parked there, is *looked at*:
   while it has room for the first head parked there, that is examined. Of several
   nodes to be looked at, that whose first head comes before the others is first. A head
   that fits is granted, and its group goes on with the next, parked where that
   one lacks something, or left here if it lacks nothing, until its turn comes.
   One that does not fit is parked at the node it lacks. At most `LOOKS` heads are
   examined in one call; what is left is *unfinished*, and the next call of any
   kind goes on with it first.
5. Nobody starves. A head is *overdue* when more than `PATIENCE` requests that came
   later have been granted: that many have passed it. (Those that came and wait have not:
   the thousands behind a head don't make it overdue.) When an overdue head is examined
   and lacks a node, what it needs of each narrower node with a limit is *kept* for it,
   from the narrowest on, up to the first that is keeping something for another head: a
   node keeps for one head at a time. The keeper uses what is kept when it is granted; if
   it leaves, it is dropped. Only after a shrink can a head lack a node that is kept for
   it, or a narrower one; then the keeps from that node on are dropped.
6. Growing looks at a node. After a shrink nothing is granted there until it fits.
7. Whoever stops waiting, for whatever reason, leaves its group at once. Nothing is
   ever closed here: an object that is closed takes its own waiters out.

8. A node with a *rate* is a bucket instead of slots: what is taken comes back by time
   alone, at most up to its burst, and not by a release. All rules are the same: it has
   room for a request if what is in it, less what is kept for others, is at least the
   cost; a head that lacks only time is parked there, blocks newcomers there, and is
   looked at exactly when there is enough for it. What was really used is stated
   afterwards (`charge`): what is left over goes back, and more becomes debt, with
   which there is room for nobody. Bound: of a rate of r per second with burst b, the
   grants of any time t, with what was settled in it, take at most r * t + b.

9. A *turn* is (tag, rank). The *rank* of a request is its ticket less its head start,
   in microseconds; of two with the same rank the one without a head start is first,
   then the older. Bound: nobody who has waited longer than the difference between the
   two head starts is passed by a later request that needs the same nodes, and without
   head starts nobody is. Whatever is granted, a newcomer's ticket is after all others, so
   a head start moves nobody but its request.
   The *tag* is 0 in FIFO order. In fair order it is a number that each key of one tier
   has: start-time fair queueing. V is the largest tag that was granted (the virtual
   time), c what a request takes of the widest slots, or reserves of the rate that
   counts, w the weight of its key.
      A key that begins to wait has the tag max(V, its last one): that of its head.
      At each grant of the key, V becomes max(V, tag), and then its tag is
      max(V, tag + c / w): that of the request which is its head now.
      Who takes the place of a head that has left has its tag.
      When nobody waits any more, V is 0 and all tags are forgotten; grants while nobody
      waits don't count. So there is neither credit for a time without requests, nor debt
      for what was had when nobody else wanted it.
   Requests of one key are in the order of their ranks: a head start never moves a key.
   Bound: for two keys f and g that wait all the time for the same node, and lack nothing
   else, what they have had since then differs by |W_f/w_f - W_g/w_g| <= c_f/w_f + c_g/w_g
   at most, with c the largest request of each. So a key that comes is served before any
   other has had more than one request and its share on top; with n keys that wait, a
   head is passed by at most w_g/w_f * c_f/c_g + 1 requests of each other key g.
   It is work-conserving: nothing that a head could use is left idle for the sake of
   another key, except by rules 1 and 5, in which a large head collects what it needs.
   A key that is held up by a limit of its own has the turn of one request saved, not of
   more; after that it comes with V again.

10. A key of a tier can be *paused* until a time, and so can a whole tier, with the keys that
   it gets meanwhile. Nothing there has room for anybody before that; then it is looked at. What
   is held stays, what comes back is kept for the first, and of several pauses the one that ends
   last counts. As after a shrink, a head can then lack a node that is kept for it.

Why nobody starves, however much it needs: who keeps slots waits for wider tiers only,
so no two wait for each other in a circle, and what is kept is not lost again. Nothing
of the widest tier is kept, and need not be: whoever is the first parked there gets
all that comes back, until it has enough. A keeper that waits for the widest tier
is granted once those before it there are; then one that waits for the tier below
that; and so on down to the narrowest. When a keeper is granted the next one
keeps. The bound: an overdue head is offered room where it is parked once more
than it has tiers at most. And a slot of a wide tier is never kept for a request
that lacks a narrower one: the second upload of a user never holds up another user.
What it costs: slots of a node are idle while they are too few for the first head
parked there, for at most as long as the longest hold there.

Nothing here waits, wakes, locks or knows the time. Callers take a lock, but for
the *quick lane*: while nobody waits, slots that have been used before are taken
and given by single operations on lists and dicts, each atomic in CPython:

    take    if not ledger.attention:                    # one slot of each
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

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from slotwise._core.adaptive import Adaptive
from slotwise._core.rates import Rate
from slotwise._ledger.base import QUICK_LANE, BaseLedger
from slotwise._ledger.deadlines import NEVER, Deadlines
from slotwise._ledger.ended_claims import EndedClaim, EndedClaims
from slotwise._ledger.fair import FairOrder
from slotwise._ledger.path_nodes import BaseNode, Group, Node, NumberedNode, Path, PathClaim
from slotwise._ledger.path_queue import PathQueue, take_all
from slotwise._ledger.rate_nodes import RateTier
from slotwise._ledger.tier_nodes import TierNodes
from slotwise._ledger.times import microseconds
from slotwise.errors import SemaphoreClosed

C = TypeVar("C", bound=PathClaim)


class PathLedger(BaseLedger[C]):
    """The holders with their paths, and the waiters."""

    __slots__ = (
        "attention",
        "closed",
        "deadlines",
        "fixed_nodes",
        "groups",
        "has_adaptive",
        "holders",
        "paused",
        "queue",
        "recent",
        "refills",
        "tables",
        "tiers",
        "unbalanced",
        "waiting",
    )

    # Between any two calls:
    #   P1  a node's `in_use` counts the slots of the holders, its `waiting` the waiters, of
    #       paths through it
    #   P2  `in_use` exceeds the value only after a shrink, and nothing is granted there then
    #   P3  a group is parked at a node of its path that has no room for its head, or where a
    #       head is parked that comes before, or that is unfinished; so nobody waits who fits,
    #       unless something is unfinished
    #   P4  a node keeps slots for one overdue head at most, as many as that needs; unless a
    #       value was changed, that head lacks something wider, and every narrower node with a
    #       limit keeps for it too
    #   P5  the head of a group is the one of it whose turn comes first
    #   P6  attention is up if somebody waits, while a node is not balanced, and while closed or
    #       paused
    #   P7  nobody waits on a closed ledger
    #   P9  a bucket is never more than full; one that a head waits for is
    #       looked at when there is room for that by time
    #   P10 a node is paused until the pauses of its tier say
    #   P8  the holders of a widest node have different numbers, each the lowest at its grant
    # `paths_invariants.check` is these, as code.

    def __init__(
        self,
        values: Sequence[int | Rate | Adaptive | None],
        fair_by: int | None = None,
        fair_cost: int | None = None,
    ) -> None:
        """A ledger with one tier for each of ``values``, narrow to wide; 0 is no limit.

        A tier of None has a value for each key, which is told by `learn` when one appears. Each
        node of an `Adaptive` one has a value that moves by itself.
        The keys of tier ``fair_by`` take turns, by what they have had of the rate ``fair_cost``,
        or else of the widest slots.
        """
        rates = [value for value in values if isinstance(value, Rate)]
        with_slots = [index for index, value in enumerate(values) if not isinstance(value, Rate)]
        widest = with_slots[-1] if with_slots else None
        self.tiers = tuple(
            RateTier(index, value)
            if isinstance(value, Rate)
            else TierNodes(index, value, NumberedNode if index == widest else Node)
            for index, value in enumerate(values)
        )
        self.tables = tuple(tier.nodes for tier in self.tiers)
        # Of a path without keys, which stay forever; None until it is asked for.
        self.fixed_nodes: list[Any] | None = None
        self.holders: dict[Hashable, C] = {}
        cost_tier = widest if fair_cost is None else fair_cost
        fair = None if fair_by is None else FairOrder(fair_by, cost_tier)
        self.queue: PathQueue[C] = PathQueue(widest, fair, has_rates=bool(rates))
        # Those of the queue, which are looked at often.
        self.waiting, self.groups = self.queue.waiting, self.queue.groups
        self.refills = self.queue.refills
        self.recent: Any = EndedClaims(rates)  # or what a driver has instead
        self.deadlines: Deadlines | None = None
        self.closed = False
        self.has_adaptive = any(isinstance(value, Adaptive) for value in values)
        self.paused = False  # whether a tier has pauses
        self.attention = not QUICK_LANE or bool(rates) or self.has_adaptive
        self.unbalanced: set[Node] = set()  # mostly, too many slots of them are held

    # ------------------------------------------------------------ the verbs

    def request(
        self,
        claim: C,
        path: Path,
        now: float = 0.0,
        *,
        wait_until: float | None = None,
        weight: float = 1.0,
    ) -> list[C]:
        """Grant ``claim`` what it needs, or let it wait; return who is granted now.

        ``weight`` is that of its key, where keys take turns.

        Raises:
            SemaphoreClosed: nothing is granted any more.
            ValueError: it needs more than there is.
            ValueUnknown: the value of a key has to be learnt first.
        """
        group = self.groups.get(path)
        if group is not None and self._is_behind(claim, group, now):
            self.queue.wait_with(claim, group, now, weight)
            if wait_until is not None:
                self.timed().set(claim.key, wait_until)
            return []
        granted: list[C] = []
        nodes = self.check_request(claim, path, now)  # what is granted next has to be returned
        if self.queue.work or self.refills or self.paused:
            granted = self.settle(now)
        if self._try_nodes(claim, path, nodes, now, weight):
            granted.append(claim)
            return granted
        # From here on nobody gives without looking for those who wait. What was
        # given before that, without looking, is seen by another try.
        try_again = not self.attention  # while it is up, nobody gives without looking
        self.attention = True
        while not (try_again and self._try_nodes(claim, path, nodes, now, weight)):
            try_again = True
            if self.queue.wait(claim, path, nodes, now, weight):
                if wait_until is not None:
                    self.timed().set(claim.key, wait_until)
                if claim.head_start and self.unfinished:
                    granted += self.settle(now)  # it may be the head of its path now, and fit
                return granted
        self._lower_attention()
        granted.append(claim)
        return granted

    def try_request(self, claim: C, path: Path, now: float = 0.0, weight: float = 1.0) -> bool:
        """Grant ``claim`` what it needs if rule 2 allows it; else take nothing."""
        nodes = self.check_request(claim, path, now)
        return self._try_nodes(claim, path, nodes, now, weight)

    def _try_nodes(self, claim: C, path: Path, nodes: list[Any], now: float, weight: float) -> bool:
        turn, ticket = None, self.queue.next_ticket(now)
        if self.groups:
            turn = self.queue.turn_of_newcomer(claim.head_start, path, ticket)
            group = self.groups.get(path)
            if group is not None and group.turn < turn:
                return False
        needs = claim.needs
        for node in nodes:
            need = 1 if needs is None else needs[node.tier]
            if not node.has_room(need, now):
                return False
            if turn is not None:
                first = node.first_parked()
                if first is not None and first.turn < turn:
                    return False
        number = take_all(claim, nodes, self.queue.widest, now)
        if number is None:
            return False
        claim.nodes = nodes
        self.queue.last_ticket = ticket
        if turn is not None:
            self.queue.count_grant(claim, path, ticket, weight, now)
        self._file(claim, number, now)
        return True

    def _is_behind(self, claim: C, group: Group, now: float) -> bool:
        """Whether all that can be done is to wait behind others of the same path.

        It is a shorter way to what the rest of `request` does.
        """
        queue = self.queue
        if claim.head_start or queue.work:
            return False
        # Most ranks are not above the last ticket, and then the next one need not be known.
        if group.rank > queue.last_ticket and group.rank >= queue.next_ticket(now):
            return False
        if self.paused:  # it may be over
            return False
        if self.refills and self.queue.next_refill() <= now:
            return False
        needs = claim.needs
        return needs is None or needs == group.needs or self.unfit(needs, group.path) is None

    def check_request(self, claim: C, path: Path, now: float) -> list[Any]:
        """Raise what `request` raises, or return the nodes of a path."""
        if self.closed:
            raise SemaphoreClosed("the ledger is closed")
        nodes = self._nodes(path, now)
        needs = claim.needs
        if needs is not None and self.unfit(needs, path) is not None:
            raise ValueError(f"{needs} needed of {path}: that can never be granted")
        return nodes

    def learn(self, tier: int, key: Hashable, value: int, now: float = 0.0) -> None:
        """Make a key known, with ``value`` unless it has one; it is idle then."""
        which = self.tiers[tier]
        if key not in which.nodes:
            which.make(key, now, value)

    def unfit(self, needs: Sequence[int], path: Path) -> TierNodes | None:
        """The first tier that can never give that much to a path."""
        for tier, key, need in zip(self.tiers, path, needs, strict=True):
            if need > tier.most(key):
                return tier
        return None

    def release(self, key: Hashable, now: float = 0.0) -> list[C]:
        """End a holder's claim; an ended or unknown one is left alone."""
        claim = self.holders.pop(key, None)
        if claim is not None:
            self._free(claim, now)
        return self._serve(now)

    def cancel(self, key: Hashable, now: float = 0.0) -> list[C]:
        """Take a waiter out; one that does not wait is left alone."""
        return self.cancel_all([key], now)

    def cancel_all(self, keys: Iterable[Hashable], now: float = 0.0) -> list[C]:
        """Take several waiters out, and only then see who is granted."""
        for key in keys:
            claim = self.waiting.get(key)
            if claim is not None:
                self._leave(claim, now)
        return self._serve(now)

    def resize(
        self,
        tier: int,
        value: int | Rate,
        key: Hashable = None,
        now: float = 0.0,
        *,
        one: bool = False,
    ) -> tuple[list[C], list[C]]:
        """Change the value of a tier, or with ``one`` that of one key.

        Returns the waiters that can never fit now, and who is granted now.
        """
        if self.tiers[tier].adaptive is not None:
            assert isinstance(value, int)
            return [], self.freeze(tier, value, key, now, one=one)
        self.attention = True
        nodes = self.tiers[tier].change(value, key, now, one=one)
        self.unbalanced.update(node for node in nodes if isinstance(node, Node))
        if isinstance(value, Rate):
            self.recent.remember_longer(value)
        refused = [
            claim
            for claim in self.waiting.values()
            if claim.needs is not None and self.unfit(claim.needs, claim.group.path) is not None
        ]
        for claim in refused:
            self._leave(claim, now)
        self.look_after(nodes)
        return refused, self.settle(now)

    def freeze(
        self, tier: int, value: int | None, key: Hashable, now: float, *, one: bool
    ) -> list[C]:
        """Keep the value of an adaptive tier, or with ``one`` that of one key: who is granted now.

        Raises:
            ValueError: it is outside min and max.
        """
        nodes = self.tiers[tier].freeze(value, key, now, one=one)
        for node in nodes:
            self._follow(node)
        self.look_after(nodes)
        return self.settle(now)

    def _follow(self, node: Node) -> None:
        """Take the limit that the adaptation of a node has now."""
        assert node.adaptation is not None
        node.value = node.adaptation.limit
        self.unbalanced.add(node)
        self.attention = True

    def _count_end(self, claim: C, now: float) -> None:
        """A hold ends, and with that the values of adaptive nodes may move."""
        held_us, outcome, retry_after_us = self._ending_of(claim, now)
        now_us = microseconds(now)
        for node in claim.nodes:
            if node.adaptation is not None:
                slots = 1 if claim.needs is None else claim.needs[node.tier]
                if node.adaptation.end(now_us, held_us, outcome, retry_after_us, slots):
                    self._follow(node)

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

    def pause(self, tier: int, until: float, key: Hashable = None) -> None:
        """Have no room until then for anybody in a tier, or in one key of it, by rule 10."""
        self.attention = self.paused = True
        for node in self.tiers[tier].pause(key, until):
            self.queue.look_when_pause_ends(node)

    def end_pauses(self, now: float = 0.0) -> list[C]:
        """End all pauses at once; return who is granted now."""
        self._end_pauses(NEVER)
        return self.settle(now)

    def _end_pauses(self, now: float) -> None:
        for tier in self.tiers:
            for node in tier.end_pauses(now):
                self.queue.look_at(node)
        self.paused = any(tier.pauses for tier in self.tiers)

    def charge(self, key: Hashable, costs: Mapping[int, int], now: float = 0.0) -> list[C]:
        """Correct what a holder, or one that has ended lately, took of rates, by their tiers.

        What it took too much goes back, what it took too little becomes debt. Who is granted
        now is returned.

        Raises:
            LookupError: nobody knows it, or not any more.
        """
        self.recent.forget_old(now)
        claim = self.holders.get(key)
        ended = self.recent.get(key) if claim is None else None
        known = claim if claim is not None else ended
        if known is None or known.needs is None or (ended is not None and ended.until <= now):
            raise LookupError(key)
        path = _path_of(known)
        needs = [*known.needs]
        for index, actual in costs.items():
            self._charge_node(index, path[index], actual - needs[index], now)
            needs[index] = actual
        known.needs = (*needs,)
        return self._serve(now)

    def undo_grant(self, key: Hashable, now: float = 0.0) -> list[C]:
        """Take back a grant that nobody has seen, or will see; who is granted now.

        What it took of rates goes back, as if it had never been granted. One that was ended
        by somebody else meanwhile keeps that, as every holder does.
        """
        claim = self.holders.pop(key, None)
        if claim is not None:
            self._free(claim, now)
        elif self.queue.widest is not None:
            return self._serve(now)
        ended = self.recent.pop(key, None)
        if ended is not None and ended.needs is not None:
            for index, tier in enumerate(self.tiers):
                if isinstance(tier, RateTier):
                    self._charge_node(index, _path_of(ended)[index], -ended.needs[index], now)
        return self._serve(now)

    def _charge_node(self, index: int, key: Hashable, units: int, now: float) -> None:
        tier = self.tiers[index]
        node = tier.nodes.get(key) or tier.make(key, now)  # it may have been full, and forgotten
        node.charge(units, now)
        self.queue.look_at(node)

    def is_full(self, now: float) -> bool:
        """Whether everything that was taken of rates has come back."""
        rates = [tier for tier in self.tiers if isinstance(tier, RateTier)]
        return not any(node.used > now for tier in rates for node in tier.nodes.values())

    def refill_tier(self, tier: int, key: Hashable = None, now: float = 0.0) -> list[C]:
        """Forgive the debt of a key of a rate, or fill its bucket: who is granted now."""
        node = self.tiers[tier].nodes.get(key)
        if node is not None:
            node.fill(now)
            self.queue.look_at(node)
        return self._serve(now)

    def next_deadline(self) -> float:
        earliest = super().next_deadline()
        if self.refills:
            earliest = min(earliest, self.queue.next_refill())
        return min(earliest, self.next_pause_end()) if self.paused else earliest

    def next_pause_end(self) -> float:
        """When the first of the pauses ends; `NEVER` if there are none."""
        return min((min(tier.pauses.values(), default=NEVER) for tier in self.tiers), default=NEVER)

    def look_after(self, nodes: Iterable[BaseNode]) -> None:
        """See to nodes that got slots, or another limit; grants nothing."""
        for node in nodes:
            if self.unbalanced and isinstance(node, Node) and node in self.unbalanced:
                node.balance()
                if node.is_balanced:
                    self.unbalanced.discard(node)
            if node.waiting:
                self.queue.look_at(node)
        if not self.groups:
            self._lower_attention()

    def settle(self, now: float = 0.0) -> list[C]:
        """Go on with what is unfinished, by rule 4, and return who is granted."""
        if self.paused:
            self._end_pauses(now)
        granted = self.queue.settle(now)
        for claim in granted:
            self._file(claim, claim._slot_number, now)
        if not self.groups:
            self._lower_attention()
        return granted

    @property
    def unfinished(self) -> bool:
        """Whether `settle` has to be called again."""
        return bool(self.queue.work)

    # ---------------------------------------------------------- the own steps

    def _nodes(self, path: Path, now: float) -> list[Any]:
        try:
            return [nodes[key] for nodes, key in zip(self.tables, path, strict=True)]
        except KeyError:
            nodes = [
                tier.nodes.get(key) or tier.make(key, now)
                for tier, key in zip(self.tiers, path, strict=True)
            ]
            if all(key is None for key in path):
                self.fixed_nodes = nodes
            return nodes

    def give(self, claim: C, now: float = 0.0) -> list[C]:
        """Take back the slots of a claim that the caller took out of ``holders``."""
        self._free(claim, now)
        return self._serve(now)

    def _serve(self, now: float) -> list[C]:
        """Go on if there is something to go on with."""
        return self.settle(now) if self.queue.work or self.refills or self.paused else []

    def _file(self, claim: C, number: int, now: float) -> None:
        if self.queue.widest is not None:
            BaseLedger._file(self, claim, number, now)
            return
        # Of rates alone nothing is held.
        claim._slot_number = number
        if self.deadlines is not None:
            self.deadlines.discard(claim.key)
        self.recent.remember(claim, now)

    def _free(self, claim: C, now: float) -> None:
        if self.deadlines is not None:
            self.deadlines.discard(claim.key)
        if self.refills is not None:
            self.recent.remember(claim, now)
        for node in claim.nodes:
            if node.rate is not None:
                continue  # what was taken of a rate comes back by time
            node.used = now
            if claim.needs is None:
                node.put_back_one(claim._slot_number)
            else:
                number = claim._slot_number
                ranges = claim.ranges or (range(number, number + 1),)  # or of the rated lane
                node.put_back(claim.needs[node.tier], ranges)
                if not node.is_balanced:
                    self.unbalanced.add(node)
                    self.attention = True
        if self.has_adaptive:
            self._count_end(claim, now)
        self.look_after(claim.nodes)

    def _lower_attention(self) -> None:
        if self.refills is not None or self.has_adaptive:
            return  # what comes back by time comes back under the lock, and so does what is timed
        if not self.groups and not self.unbalanced and not self.closed and not self.paused:
            self.attention = not QUICK_LANE

    def _leave(self, claim: C, now: float) -> None:
        if self.deadlines is not None:
            self.deadlines.discard(claim.key)
        self.queue.leave(claim, now)
        self._lower_attention()


def _path_of(claim: PathClaim | EndedClaim) -> Path:
    if isinstance(claim, EndedClaim):
        return claim.path
    return tuple([node.key for node in claim.nodes])
