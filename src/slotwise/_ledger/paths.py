"""PathLedger: grant what a request needs of every tier at one instant, or nothing.

A *path* is one key for each tier, narrow to wide; a *node* is one key of one
tier, with a value and a count of what is held. A request needs one slot of each
node of its path, or more of some; nothing is held while waiting.
Every request that is granted or waits gets a ticket on arrival: the time in
microseconds, or the last ticket plus one if that is larger. (The quick lane, see below,
gives no tickets: nobody waits then, so nobody can be passed.) Each waiter has a
*turn* (rule 9). "Before", "after" and "first" refer to turns; without fair order
and head starts, that is the order of arrival.

1. A node *has room* for a request if the sum of what is held, what is kept for others
   (rule 5) and what the request needs there doesn't exceed its value. A request *fits*
   if every node of its path has room for it and none of them is *blocked* by a head
   that is parked there (rule 3), comes before it, and needs more than there is room for.
   (A node that keeps slots for a request isn't blocked for it.) A request that doesn't
   fit *lacks* the first node, narrow to wide, that has no room or is blocked. A node
   without a limit always has room. A request that needs more than a value is refused on
   arrival, or when the value shrinks below its need.
2. A newcomer that fits is granted at once, unless an earlier turn waits for the very
   same path, or an earlier turn at a node of its path still has to be looked at
   (rule 4). So requests for one path are granted in the order of their turns, and a
   head that needs more than is free at a node is passed only by requests that don't
   need that node or whose turn comes first.
3. Otherwise it waits. The waiters of one path form a *group*, in the order of their
   turns; other groups are affected only by its head. A group is *parked* at one node,
   the first that its head lacks (or one that is unfinished): waiters are found by what
   they lack, and never scanned.
4. A node that gets slots, or loses a head that was parked there, is *looked at*: for as
   long as it has room for the first head parked there, that head is examined. Of
   several such nodes, the one whose first head has the earliest turn is looked at
   first. A head that fits is granted; its group is then parked where the next head
   lacks something, or stays here if that one lacks nothing, until its turn comes.
   A head that doesn't fit is parked at the node it lacks. At most `LOOKS` heads are
   examined in one call; the rest is *unfinished*, and the next call of any kind
   continues with it before anything else.
5. Nobody starves. A head is *overdue* once more than `PATIENCE` later requests have been
   granted, which means that they have passed it. (Later requests that still wait don't
   count: thousands of waiters behind a head don't make it overdue.) When an overdue head
   is examined and lacks a node, its needs are *kept* for it at each narrower node with a
   limit, from the narrowest on, up to the first node that keeps slots for another head:
   a node keeps for one head at a time. That head takes the kept slots when it is
   granted, and gives them up if it leaves. Only after a shrink can a head lack a node
   that keeps slots for it, or a narrower one; from that node on, nothing is kept for it
   any longer.
6. A node that grows is looked at. After a shrink, nothing is granted there until it fits.
7. A waiter that stops waiting, for whatever reason, leaves its group at once. An object
   that is closed cancels its own waiters; `close` is for the whole ledger.

8. A node with a *rate* is a bucket instead of slots: what is taken comes back with time,
   up to the burst, and not by a release. All rules apply: the node has room for a request
   if its contents, less what is kept for others, are at least the cost; a head that lacks
   only time is parked there, blocks newcomers there, and is looked at exactly when there
   is enough for it. The real cost is stated afterwards (`charge`): a surplus goes back,
   and a shortfall becomes debt, during which the node has no room for anybody. Bound:
   with a rate of r per second and burst b, the grants of any period t, corrected by what
   was settled in it, take at most r * t + b.

9. A *turn* is (tag, rank). The *rank* of a request is its ticket less its head start,
   in microseconds. Of two equal ranks, the one without a head start is first, then the
   older. Bound: a waiter that has waited longer than the difference between the two head
   starts is not passed by a later request for the same nodes; without head starts, no
   waiter is. A newcomer's ticket is always after all others, so a head start moves only
   the request that has it.
   The *tag* is 0 in FIFO order. In fair order each key of one tier has one, by start-time
   fair queueing. Let V be the largest tag granted so far (the virtual time), c what a
   request takes of the widest slots, or reserves of the rate that counts, and w the
   weight of its key.
      A key that begins to wait gets the tag max(V, its last tag), which its head has.
      At each grant of the key, V becomes max(V, tag), and then the key's tag becomes
      max(V, tag + c / w), which its next head has.
      If a head leaves without a grant, the next head has the same tag.
      When the last waiter has gone, V is 0 and all tags are forgotten; grants while nobody
      waits don't count. So a key gets no credit for a time without requests, and no debt
      for what it took while nobody else wanted it.
   Requests of one key are ordered by rank: a head start never moves a key.
   Bound: for two keys f and g that wait all the time for the same node and lack nothing
   else, the work granted since then differs by |W_f/w_f - W_g/w_g| <= c_f/w_f + c_g/w_g
   at most, where c is the largest request of each. So a key that arrives is served before
   any other has had more than one request on top of its share; a head is passed by at most
   w_g/w_f * c_f/c_g + 1 requests of each other key g.
   It is work-conserving: nothing that a head could use is left idle for the sake of
   another key, except by rules 1 and 5, in which a large head collects what it needs.
   A key that is held up by a limit of its own saves the turn of one request, and no more;
   after that it starts at V again.

10. A key of a tier can be *paused* until a time, and so can a whole tier, including keys
   that appear meanwhile. A paused node has no room for anybody; when the pause ends, it is
   looked at. Holders keep their slots, released slots go to the first waiter after the
   pause, and of several pauses the one that ends last counts. As after a shrink, a head can
   then lack a node that keeps slots for it.

Why nobody starves, however much it needs: a head that slots are kept for waits only for
wider tiers, so there is no circle of waiters, and what is kept is not lost again. The
widest tier keeps nothing, and needn't: the first head parked there gets everything that
comes back until it has enough. Of the heads that slots are kept for, one that waits for
the widest tier is granted once the heads before it there are, then one that waits for the
tier below, and so on down to the narrowest; then slots are kept for the next overdue
head. The bound: an overdue head is granted at the latest when it has been offered room
where it is parked once more than it has tiers. And a slot of a wide tier is never kept
for a request that lacks a narrower one: a user's second upload never holds up another
user. The price: slots of a node are idle while they are too few for the first head parked
there, for at most as long as the longest hold there.

Nothing here waits, wakes, locks or knows the time. Callers hold a lock, except on
the *quick lane*: while nobody waits, slots that have been used before are taken
and given back by single operations on lists and dicts, each atomic in CPython:

    take    if not (ledger.attention or ledger.line):   # one slot of each
                for nodes, key in zip(ledger.tables, path):
                    number = heappop(nodes[key].free)   # KeyError, IndexError: undo, ask `request`
                if ledger.attention: undo               # it was raised meanwhile
                ledger.holders[claim.key] = claim       # or remember the number
    queue   if not ledger.attention:                    # one node, one thread: see `line`
                ledger.line.append(ticket)
                if (somebody has the lock or node.free or ledger.attention
                        or node.circulating < node.value):
                    ledger.serve(now)                   # under the lock
    give    ledger.holders.pop(key, None)               # None: has ended already
            if ledger.attention or ledger.line:
                ledger.give(claim, now)                 # under the lock
            else:
                for node in claim.nodes:
                    node.used = now
                    heappush(node.free, number)
                if ledger.attention or ledger.line:
                    ledger.look_after(claim.nodes)      # under the lock, and serve
    undo    is like give

It is safe because the two sides check in opposite order. A waiter shows itself (in ``line``, or by
raising ``attention``) before it checks ``free`` a last time, and a giver fills ``free`` before it
checks for waiters: whatever the interleaving, at least one of them sees the other, so a slot is
never free while somebody waits. A taker that checked before somebody queued came before it, or
gives back what it took. A thread that has the lock may have numbers in hand that it will put back,
so a waiter also checks the lock. A node is forgotten, and a ledger retired, by taking all slots
away, so that a taker that has just found it gets none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from slotwise._core.adaptive import Adaptive, Outcome
from slotwise._core.control import Verb
from slotwise._core.rates import Rate
from slotwise._ledger.deadlines import NEVER, Deadlines
from slotwise._ledger.ended_claims import EndedClaims
from slotwise._ledger.fair import FairOrder
from slotwise._ledger.path_nodes import (
    FIRST,
    BaseNode,
    BasePathClaim,
    Group,
    LineGrant,
    Node,
    Path,
)
from slotwise._ledger.path_queue import PathQueue, take_all
from slotwise._ledger.rate_nodes import RateNode, RateTier
from slotwise._ledger.slots import QUICK_LANE
from slotwise._ledger.tier_nodes import TierNodes
from slotwise._ledger.times import microseconds
from slotwise.errors import SemaphoreClosed

C = TypeVar("C", bound=BasePathClaim)

_numbered = partial(Node, is_numbered=True)  # of the widest tier with slots

_NO_ENDED_CLAIMS = EndedClaims(())  # shared by ledgers without rates, and so never changed

# What a ledger has that nobody has opened the line of. Shared and therefore never changed.
_NO_LINE: deque[Any] = deque(maxlen=0)


class PathLedger(Generic[C]):
    """Holders and waiters of paths, by the rules above."""

    __slots__ = (
        "attention",
        "closed",
        "deadlines",
        "fixed_nodes",
        "groups",
        "has_adaptive",
        "has_quick_lane",
        "holders",
        "line",
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
    #   P3  a group is parked at a node of its path that has no room for its head, or where an
    #       earlier head is parked, or that is unfinished; so no waiter fits, unless something
    #       is unfinished
    #   P4  a node keeps slots for at most one overdue head, as many as that head needs; unless
    #       a value was changed, the head lacks something wider, and every narrower node with a
    #       limit keeps for it too
    #   P5  the head of a group is its waiter with the earliest turn
    #   P6  attention is up while anybody waits, a node is unbalanced, or the ledger is closed
    #       or paused
    #   P7  nobody waits on a closed ledger
    #   P8  the holders of a widest node have different numbers, each the lowest at its grant
    #   P9  a bucket is never more than full; one that a head waits for is looked at when time
    #       has made room for that head
    #   P10 a node is paused until the last pause of its key and its tier ends
    #   P11 while there is a line, the node has no room
    # `tests/ledger/invariants.py` is the same in code.

    def __init__(
        self,
        values: Sequence[int | Rate | Adaptive | None],
        fair_by: int | None = None,
        fair_cost: int | None = None,
        holders: dict[Hashable, C] | None = None,
    ) -> None:
        """Make a ledger with one tier for each of ``values``, narrow to wide; 0 means unlimited.

        A tier of None has a value for each key, which `learn` states when a key appears. In an
        `Adaptive` tier, the value of each node moves by itself.
        The keys of tier ``fair_by`` take turns, by their use of the rate ``fair_cost``, or else
        of the widest slots. ``holders`` is the table to keep the holders in.
        """
        rates = [value for value in values if isinstance(value, Rate)]
        widest = None
        for index, value in enumerate(values):
            if not isinstance(value, Rate):
                widest = index
        tiers: list[TierNodes] = []
        for index, value in enumerate(values):
            if isinstance(value, Rate):
                tiers.append(RateTier(index, value))
            else:
                tiers.append(TierNodes(index, value, _numbered if index == widest else Node))
        self.tiers = tuple(tiers)
        self.tables = tuple([tier.nodes for tier in tiers])
        # The nodes of the path without keys, which stay forever; None until one is requested.
        self.fixed_nodes: list[Any] | None = None
        self.holders: dict[Hashable, C] = {} if holders is None else holders
        # Of one tier without keys: tickets that want one slot each and come before all who wait.
        # A driver may put anything here; it is opened for one thread at a time, see `open_line`.
        # Ended tickets are handed out too: the driver gives their slots back.
        self.line: deque[Any] = _NO_LINE
        cost_tier = widest if fair_cost is None else fair_cost
        fair = None if fair_by is None else FairOrder(fair_by, cost_tier)
        self.has_adaptive = any(tier.adaptive is not None for tier in tiers)
        self.queue: PathQueue[C] = PathQueue(widest, fair, has_rates=bool(rates))
        self.queue.is_simple = self.queue.is_simple and not self.has_adaptive
        # The queue's own, one attribute nearer: they are read at every step.
        self.waiting, self.groups = self.queue.waiting, self.queue.groups
        self.refills = self.queue.refills
        # What ended claims took of rates; or what a driver has instead.
        self.recent: Any = EndedClaims(rates) if rates else _NO_ENDED_CLAIMS
        self.deadlines: Deadlines | None = None
        self.closed = False
        self.paused = False  # whether a tier has pauses
        # Else attention never falls: buckets are refilled, and holds are timed, under the lock.
        self.has_quick_lane = QUICK_LANE and not rates and not self.has_adaptive
        self.attention = not self.has_quick_lane
        self.unbalanced: set[Node] = set()  # mostly nodes that hold too many slots

    @property
    def max_slots(self) -> int:
        """The value of the widest tier with a limit."""
        values = (
            tier.value_of(None) for tier in reversed(self.tiers) if not isinstance(tier, RateTier)
        )
        return next((value for value in values if value), 0)

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
        """Grant ``claim`` what it needs, or let it wait; return the claims granted now.

        ``weight`` is the weight of its key in fair order.

        Raises:
            SemaphoreClosed: the ledger is closed.
            ValueError: it needs more than a tier can ever give.
            ValueUnknown: the value of a key has to be learned first.
        """
        group = self.groups.get(path)
        if group is not None and self._is_behind(claim, group, now):
            self.queue.wait_with(claim, group, now, weight)
            if wait_until is not None:
                self.timed().set(claim.key, wait_until)
            return []
        nodes = self.check_request(claim, path, now)  # what is granted next has to be returned
        granted = self._serve_if_needed(now)
        # First: while attention is up, whoever gives slots back looks for waiters.
        self.attention = True
        while not self._try_nodes(claim, path, nodes, now, weight):
            if self.line:
                granted += self.serve(now)
                self.attention = True
            if self.queue.wait(claim, path, nodes, now, weight):
                if wait_until is not None:
                    self.timed().set(claim.key, wait_until)
                if claim.head_start and self.unfinished:
                    granted += self.serve(now)  # it may be the head of its path now, and fit
                return granted
        self._lower_attention()
        granted.append(claim)
        return granted

    def try_request(self, claim: C, path: Path, now: float = 0.0, weight: float = 1.0) -> bool:
        """Grant ``claim`` what it needs if rule 2 allows it; else take nothing."""
        nodes = self.check_request(claim, path, now)
        return self._try_nodes(claim, path, nodes, now, weight)

    def _try_nodes(self, claim: C, path: Path, nodes: list[Any], now: float, weight: float) -> bool:
        if self.line and claim.head_start != FIRST:
            return False
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
        if self.unbalanced:
            self.look_after(nodes)  # it may have got the last that was out of circulation
        return True

    def take_at_once(self, claim: C, path: Path, now: float) -> bool:
        """`try_request` in few steps where there are rates and nobody waits; False to ask that.

        All nodes are known, and a number of each slot node is free; there is one. The claim has
        no ttl.
        """
        needs: Any = claim.needs
        if needs is None or self.waiting or self.closed or self.paused:
            return False
        nodes: Any = self.fixed_nodes
        if nodes is None:
            nodes = [table.get(key) for table, key in zip(self.tables, path, strict=True)]
            if None in nodes:
                return False
        at = int(now * 1_000_000 + 0.5)  # `microseconds`, inlined
        number = taken = 0
        for node in nodes:
            need, rate = needs[taken], node.rate
            if rate is None:
                if need != 1 or not node.free:
                    break
                number = heappop(node.free)
            else:
                # `RateNode.has_room` and `RateNode.take`, inlined.
                level = node.level
                elapsed, node.at = at - node.at, at
                if elapsed > 0:
                    level += elapsed * rate.gain
                    if level > rate.full:
                        level = rate.full
                needed = need * rate.unit
                if needed > level:
                    node.level = level
                    break
                node.level = level - needed
            taken += 1
        else:
            claim.nodes, claim._slot_number = nodes, number
            if self.queue.widest is None:
                self.recent.remember(claim, now)
            else:
                self.holders[claim.key] = claim
            return True
        for node, need in zip(nodes[:taken], needs, strict=False):
            if node.rate is None:
                heappush(node.free, number)
            else:
                node.level += need * node.rate.unit
        return False

    def give_at_once(self, claim: C, now: float) -> bool:
        """`give` in few steps for what `take_at_once` took, while nobody waits; else False."""
        if claim.ranges or self.waiting or self.unbalanced or self.deadlines is not None:
            return False
        number = claim._slot_number
        for node in claim.nodes:
            if node.rate is None:
                node.used = now
                heappush(node.free, number)
        self.recent.remember(claim, now)
        return True

    def _is_behind(self, claim: C, group: Group, now: float) -> bool:
        """Whether it can only wait behind others of the same path.

        A shortcut: the rest of `request` would come to the same result.
        """
        queue = self.queue
        if claim.head_start or queue.work:
            return False
        # Most ranks are not above the last ticket; then the next one need not be computed.
        if group.rank > queue.last_ticket and group.rank >= queue.next_ticket(now):
            return False
        if self.paused:  # it may be over
            return False
        if self.refills and self.queue.next_refill() <= now:
            return False
        needs = claim.needs
        return needs is None or needs == group.needs or self.unfit(needs, group.path) is None

    def check_request(self, claim: C, path: Path, now: float) -> list[Any]:
        """Return the nodes of a path, or raise what `request` raises."""
        if self.closed:
            raise SemaphoreClosed("the ledger is closed")
        nodes = self.fixed_nodes or self._nodes(path, now)
        needs = claim.needs
        if needs is not None and self.unfit(needs, path) is not None:
            raise ValueError(f"{needs} needed of {path}: that can never be granted")
        return nodes

    def learn(self, tier: int, key: Hashable, value: int, now: float = 0.0) -> None:
        """Make an idle node for a key, with ``value``; one that exists is left alone."""
        which = self.tiers[tier]
        if key not in which.nodes:
            which.make(key, now, value)

    def unfit(self, needs: Sequence[int], path: Path) -> TierNodes | None:
        """Return the first tier that can never give ``needs`` to a path, or None."""
        for tier, key, need in zip(self.tiers, path, needs, strict=True):
            if need > tier.most(key):
                return tier
        return None

    def release(self, key: Hashable, now: float = 0.0) -> list[C]:
        """End a holder's claim; an ended or unknown one is left alone."""
        claim = self.holders.pop(key, None)
        return self._serve_if_needed(now) if claim is None else self.give(claim, now)

    def cancel(self, key: Hashable, now: float = 0.0) -> list[C]:
        """End a wait; a claim that doesn't wait is left alone."""
        return self.cancel_all([key], now)

    def cancel_all(self, keys: Iterable[Hashable], now: float = 0.0) -> list[C]:
        """End several waits, and only then grant what that has freed."""
        for key in keys:
            claim = self.waiting.get(key)
            if claim is not None:
                self._leave(claim, now)
        return self._serve_if_needed(now)

    def control(
        self, verb: Verb, tier: int, key: Hashable, args: Sequence[Any], now: float
    ) -> tuple[list[C], list[C]]:
        """Change a tier, or one key of it, by a verb with its arguments.

        Return the waiters that can never fit any more, and the claims granted now.
        """
        one = key is not None
        refused: list[C] = []
        granted: list[C] = []
        match verb, *args:
            case "resize", value:
                refused, granted = self.resize(tier, value, key, now, one=one)
            case "freeze", value:
                granted = self.freeze(tier, value, key, now, one=one)
            case ("thaw",):
                self.tiers[tier].thaw(key, now, one=one)
            case "pause", seconds if seconds > 0:
                self.pause(tier, now + seconds, key)
            case ("refill",):
                granted = self.refill_tier(tier, key, now)
        return refused, granted

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

        Return the waiters that can never fit any more, and the claims granted now.
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
        return refused, self.serve(now)

    def freeze(
        self, tier: int, value: int | None, key: Hashable, now: float, *, one: bool
    ) -> list[C]:
        """Freeze an adaptive tier at a value, or with ``one`` one key; return who is granted now.

        Raises:
            ValueError: the value is outside min and max.
        """
        nodes = self.tiers[tier].freeze(value, key, now, one=one)
        for node in nodes:
            self._follow(node)
        self.look_after(nodes)
        return self.serve(now)

    def _follow(self, node: Node) -> None:
        """Give a node the value that its adaptation has arrived at."""
        assert node.adaptation is not None
        node.value = node.adaptation.limit
        self.unbalanced.add(node)
        self.attention = True

    def _count_end(self, claim: C, now: float) -> None:
        """Tell the adaptive nodes of a claim that its hold has ended: their values may move."""
        held_us, outcome, retry_after_us = self._ending_of(claim, now)
        now_us = microseconds(now)
        for node in claim.nodes:
            if node.adaptation is not None:
                slots = 1 if claim.needs is None else claim.needs[node.tier]
                if node.adaptation.end(now_us, held_us, outcome, retry_after_us, slots):
                    self._follow(node)

    def _ending_of(self, claim: C, now: float) -> tuple[int, Outcome, int]:
        return claim.ending(now)

    def close(self, now: float = 0.0) -> list[C]:
        """Refuse newcomers from now on; return the waiters, which all fail."""
        self.closed = self.attention = True
        waiters: list[Any] = [*self._serve_line(now)] if self.line else []
        waiters += self.waiting.values()
        self.cancel_all([*self.waiting], now)
        return waiters

    def timed(self) -> Deadlines:
        """The deadlines, made on first use."""
        if self.deadlines is None:
            self.deadlines = Deadlines()
        return self.deadlines

    def deadline_of(self, key: Hashable) -> float | None:
        """When a holder's ttl or a waiter's patience ends; None if it doesn't."""
        return None if self.deadlines is None else self.deadlines.get(key)

    def expire(self, now: float) -> tuple[list[C], list[C], list[C]]:
        """End all whose deadline has come; return holders, waiters, and who is granted now."""
        holders, waiters = [], []
        if self.deadlines is not None:
            for key in self.deadlines.pop_due(now):
                claim = self.holders.pop(key, None)
                if claim is not None:
                    holders.append(claim)
                    self._free(claim, now)
                elif key in self.waiting:
                    waiters.append(self.waiting[key])
                    self._leave(waiters[-1], now)
        # Only now, when no waiter is left whose own time is up, is anything granted.
        return holders, waiters, self.serve(now)

    def retire(self) -> bool:
        """Close for good if nobody holds or waits; False, and no change, otherwise.

        Of one tier without keys. Afterwards nobody on the quick lane can take anything either.
        """
        node = self.node()
        if self.line or self.waiting or self.closed or self.paused:
            return False
        self.attention = True
        if not node.retire(0.0):
            self._lower_attention()
            return False
        self.closed = True
        return True

    def node(self, now: float = 0.0) -> Any:
        """Return the only node of a ledger of one tier without keys, made by the first call."""
        if self.fixed_nodes is None:
            self.fixed_nodes = [self.tiers[0].make(None, now)]
        return self.fixed_nodes[0]

    def reopen(self) -> None:
        """Undo `close`. Nobody waits, so nobody is granted anything."""
        self.closed = False
        self._lower_attention()

    def pause(self, tier: int, until: float, key: Hashable = None) -> None:
        """Grant nothing in a tier, or in one key of it, until a time: rule 10."""
        self.attention = self.paused = True
        for node in self.tiers[tier].pause(key, until):
            self.queue.look_when_pause_ends(node)

    def end_pauses(self, now: float = 0.0) -> list[C]:
        """End all pauses at once; return who is granted now."""
        self._end_pauses(NEVER)
        return self.serve(now)

    def _end_pauses(self, now: float) -> None:
        for tier in self.tiers:
            for node in tier.end_pauses(now):
                self.queue.look_at(node)
        self.paused = any(tier.pauses for tier in self.tiers)

    def charge(self, key: Hashable, costs: Mapping[int, int], now: float = 0.0) -> list[C]:
        """Correct what a claim took of rates: ``costs`` has the real cost by tier.

        The claim may have ended lately. A surplus goes back, a shortfall becomes debt. Return
        who is granted now.

        Raises:
            LookupError: the claim is unknown, or ended too long ago.
        """
        self.recent.forget_old(now)
        claim = self.holders.get(key)
        ended = self.recent.get(key) if claim is None else None
        known = claim if claim is not None else ended
        if known is None or known.needs is None or (ended is not None and ended.until <= now):
            raise LookupError(key)
        path = known.path
        needs = [*known.needs]
        for index, actual in costs.items():
            self._charge_node(index, path[index], actual - needs[index], now)
            needs[index] = actual
        known.needs = (*needs,)
        return self._serve_if_needed(now)

    def undo_grant(self, key: Hashable, now: float = 0.0) -> list[C]:
        """Take back a grant that was never delivered; return who is granted now.

        What it took of rates goes back, as if it had never been granted. If somebody else has
        ended the hold meanwhile, nothing goes back, as for every holder.
        """
        claim = self.holders.pop(key, None)
        if claim is not None:
            self._free(claim, now)
        elif self.queue.widest is not None:
            return self._serve_if_needed(now)
        ended = self.recent.pop(key, None)
        if ended is not None and ended.needs is not None:
            for index, tier in enumerate(self.tiers):
                if isinstance(tier, RateTier):
                    self._charge_node(index, ended.path[index], -ended.needs[index], now)
        return self._serve_if_needed(now)

    def _charge_node(self, index: int, key: Hashable, units: int, now: float) -> None:
        tier = self.tiers[index]
        node = tier.nodes.get(key) or tier.make(key, now)  # forgotten, once it was full again
        node.charge(units, now)
        self.queue.look_at(node)

    def is_full(self, now: float) -> bool:
        """Whether everything that was taken of rates has come back."""
        rates = [tier for tier in self.tiers if isinstance(tier, RateTier)]
        return not any(node.used > now for tier in rates for node in tier.nodes.values())

    def refill_tier(self, tier: int, key: Hashable = None, now: float = 0.0) -> list[C]:
        """Fill the bucket of a key of a rate, debt included; return who is granted now."""
        node = self.tiers[tier].nodes.get(key)
        if isinstance(node, RateNode):
            node.fill(now)
            self.queue.look_at(node)
        return self._serve_if_needed(now)

    def next_deadline(self) -> float:
        """When something changes with time alone; `NEVER` if nothing does."""
        earliest = self.next_end()
        if self.refills:
            earliest = min(earliest, self.queue.next_refill())
        return min(earliest, self.next_pause_end()) if self.paused else earliest

    def next_end(self) -> float:
        """When `expire` has to be called next; `NEVER` if there are no deadlines."""
        return NEVER if self.deadlines is None else self.deadlines.earliest()

    def next_pause_end(self) -> float:
        """Return when the first pause ends; `NEVER` if there is none."""
        return min((min(tier.pauses.values(), default=NEVER) for tier in self.tiers), default=NEVER)

    def look_after(self, nodes: Iterable[BaseNode]) -> None:
        """Balance nodes that got slots or another value, and have them looked at; grant nothing."""
        for node in nodes:
            if self.unbalanced and isinstance(node, Node) and node in self.unbalanced:
                node.balance()
                if node.is_balanced:
                    self.unbalanced.discard(node)
            if node.waiting:
                self.queue.look_at(node)
        if not self.groups:
            self._lower_attention()

    def serve(self, now: float = 0.0) -> list[C]:
        """Continue with what is unfinished, by rule 4, and return who is granted."""
        if self.paused:
            self._end_pauses(now)
        in_line: list[Any] = self._serve_line(now) if self.line else []
        if in_line and self.unbalanced:
            self.look_after((self.node(),))  # they may have got the last out of circulation
        granted = self.queue.serve(now) if not self.line and self.queue.has_work else []
        for claim in granted:
            self._file(claim, claim._slot_number, now)
        if not self.groups:
            self._lower_attention()
        return in_line + granted if in_line else granted

    def _serve_line(self, now: float) -> list[LineGrant]:
        """Hand free slots to those in the line; once it is closed, refuse them by the number 0."""
        line, node, granted = self.line, self.node(), []
        while self.closed and line:
            granted.append(LineGrant(line.popleft(), 0))
        while line and node.has_room(1, now):
            # Users of the quick lane may be taking and handing over meanwhile.
            number = node.take_one()
            if number is None:
                continue
            try:
                granted.append(LineGrant(line.popleft(), number))
            except IndexError:
                node.put_back_one(number)
        return granted

    def open_line(self) -> None:
        """Let one thread use the line without the lock; nobody must be in it."""
        if self.line is _NO_LINE:
            self.line = deque()

    @property
    def unfinished(self) -> bool:
        """Whether `serve` has to be called again; those behind a line wait for that."""
        return bool(self.queue.work) and not self.line

    # -------------------------------------------------------- steps of the verbs

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
        """Take back the slots of a claim that the caller has removed from ``holders``."""
        if len(claim.nodes) == 1 and self.can_hand_over():
            self._put_back(claim, now)
            return self.hand_over(claim.nodes[0], now)
        self._free(claim, now)
        return self._serve_if_needed(now)

    def give_number(self, number: int, now: float = 0.0) -> list[C]:
        """Take back a slot that has no claim, of one tier without keys."""
        node = self.node()
        node.put_back_one(number)
        if self.can_hand_over():
            return self.hand_over(node, now)
        if not node.is_balanced:
            self.unbalanced.add(node)
            self.attention = True
        self.look_after((node,))
        return self._serve_if_needed(now)

    def can_hand_over(self) -> bool:
        """Whether `hand_over` may be called, with one tier: nothing is special or unfinished."""
        queue = self.queue
        return queue.is_simple and not (
            queue.several or queue.work or self.paused or self.unbalanced or self.line
        )

    def hand_over(self, node: Any, now: float) -> list[C]:
        """`look_after` the only tier's node, and `serve`, in fewer steps: for most releases."""
        if self.unbalanced:  # by that
            self.look_after((node,))
            return self._serve_if_needed(now)
        granted = self.queue.hand_over(node)
        for each in granted:
            if each.ttl is None and self.deadlines is None and each.named:
                self.holders[each.key] = each  # `_file` for most claims, inlined
            else:
                self._file(each, each._slot_number, now)
        if not self.groups:
            self._lower_attention()
        return granted

    def _serve_if_needed(self, now: float) -> list[C]:
        """`serve`, if anything may be unfinished."""
        needed = self.queue.work or self.refills or self.paused or self.line
        return self.serve(now) if needed else []

    def _file(self, claim: C, number: int, now: float) -> None:
        """Make a claim that got its slots a holder."""
        claim._slot_number = number
        if self.queue.widest is None:  # rates alone: there are no slots to hold
            if self.deadlines is not None:
                self.deadlines.discard(claim.key)
            self.recent.remember(claim, now)
            return
        if claim.named:
            self.holders[claim.key] = claim
        if claim.ttl is not None:
            self.timed().set(claim.key, now + claim.ttl)
        elif self.deadlines is not None:
            self.deadlines.discard(claim.key)  # the end of its wait, if it had one

    def _free(self, claim: C, now: float) -> None:
        self._put_back(claim, now)
        if self.has_adaptive:
            self._count_end(claim, now)
        self.look_after(claim.nodes)

    def _put_back(self, claim: C, now: float) -> None:
        if self.deadlines is not None:
            self.deadlines.discard(claim.key)
        if self.refills is not None:
            self.recent.remember(claim, now)
        needs, number = claim.needs, claim._slot_number
        if needs is None and self.refills is None:  # what follows, in fewer steps
            for node in claim.nodes:
                node.used = now
                if node.circulating <= node.value:
                    heappush(node.free, number)  # `put_back_one` for most nodes, inlined
                else:
                    node.put_back_one(number)
            return
        for node in claim.nodes:
            if node.rate is not None:
                continue  # what was taken of a rate comes back by time
            node.used = now
            if needs is None:
                node.put_back_one(number)
            else:
                ranges = claim.ranges or (range(number, number + 1),)  # `take_at_once` gives none
                node.put_back(needs[node.tier], ranges)
                if not node.is_balanced:
                    self.unbalanced.add(node)
                    self.attention = True

    def _lower_attention(self) -> None:
        if self.has_quick_lane and not (
            self.groups or self.unbalanced or self.closed or self.paused
        ):
            self.attention = False

    def _leave(self, claim: C, now: float) -> None:
        if self.deadlines is not None:
            self.deadlines.discard(claim.key)
        self.queue.leave(claim, now)
        self._lower_attention()
