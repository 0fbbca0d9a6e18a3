"""Atomic paths as one would explain them: plain lists, every waiter looked at every time.

Slow, with nothing kept that could be computed, and no bound on the work of a call.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import count, islice
from math import ceil, floor

from slotwise._core.rates import Rate

Node = tuple[int, Hashable]  # (tier, key)


@lru_cache(1000)  # it is asked for the same moment again and again
def in_microseconds(now: float) -> Fraction:
    return Fraction(round(now * 1_000_000), 1_000_000)


@dataclass
class Request:
    """Somebody who holds or waits."""

    key: Hashable
    path: tuple[Hashable, ...]
    ttl: float | None = None
    needs: tuple[int, ...] | None = None  # None: one slot of each
    deadline: float | None = None
    ticket: int = 0
    passed: int = 0  # how many have been granted that came later
    head_start: int = 0  # in microseconds
    weight: float = 1.0
    numbers: list[int] = field(default_factory=list)  # in the widest tier
    parked: Node | None = None
    keeps: list[Node] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        return list(enumerate(self.path))

    def need(self, node: Node) -> int:
        return 1 if self.needs is None else self.needs[node[0]]

    def rank(self, ticket: int) -> tuple[int, int]:
        """What orders the requests of one key."""
        return ticket - self.head_start, ticket if self.head_start else 0


class PathModel:
    """What a ledger of paths must do, said as simply as possible."""

    def __init__(
        self,
        values: Sequence[int | Rate],
        patience: int,
        now: float = 0.0,
        fair_by: int | None = None,
        fair_cost: int | None = None,
    ) -> None:
        self.values = list(values)
        self.fair_by, self.fair_cost = fair_by, fair_cost
        self.time = 0.0  # the tag of the latest grant
        self.tags: dict[Hashable, float] = {}  # of the next request of each key
        self.weights: dict[Hashable, float] = {}
        self.own_values: dict[Node, int | Rate] = {}
        # What is in the buckets of rates, and since when; one that is not there is full.
        self.buckets: dict[Node, tuple[Fraction, Fraction]] = {}
        self.now = in_microseconds(now)
        self.ended: dict[Hashable, tuple[float, Request]] = {}  # until when it can be corrected
        self.pauses: dict[Node, float] = {}  # with None for the key, of the whole tier
        self.patience = patience
        self.tickets = 0
        self.holding: list[Request] = []
        self.waiting: list[Request] = []  # in the order of arrival

    # -------------------------------------------------------------- looking

    def rule(self, node: Node) -> int | Rate:
        return self.own_values.get(node, self.values[node[0]])

    def value(self, node: Node) -> int:
        rule = self.rule(node)
        return rule.burst if isinstance(rule, Rate) else rule

    def level(self, node: Node) -> Fraction:
        """What is in a bucket now."""
        rate = self.rule(node)
        assert isinstance(rate, Rate)
        level, since = self.buckets.get(node, (Fraction(rate.burst), self.now))
        refilled = level + (self.now - since) * rate.count / Fraction(rate.per)
        return min(refilled, Fraction(rate.burst))

    def charge(self, node: Node, units: Fraction | int) -> None:
        self.buckets[node] = min(self.level(node) - units, Fraction(self.value(node))), self.now

    def held(self, node: Node) -> int:
        return sum(request.need(node) for request in self.holding if node in request.nodes)

    def kept_for(self, node: Node) -> Request | None:
        return next((request for request in self.waiting if node in request.keeps), None)

    def paused_until(self, node: Node) -> float:
        return max(self.pauses.get(which, 0.0) for which in (node, (node[0], None)))

    def has_room(self, node: Node, request: Request) -> bool:
        if self.now < in_microseconds(self.paused_until(node)):
            return False
        overdue = self.kept_for(node)
        kept = 0 if overdue is None or overdue is request else overdue.need(node)
        if isinstance(self.rule(node), Rate):
            return kept + request.need(node) <= self.level(node)
        needed = self.held(node) + kept + request.need(node)
        return self.value(node) == 0 or needed <= self.value(node)

    def is_blocked(self, node: Node, request: Request) -> bool:
        """Whether an older head is parked there that there is too little for."""
        first = next((head for head in self.heads() if head.parked == node), None)
        comes_before = first is not None and self.turn(first) < self.turn(request)
        return comes_before and not self.has_room(node, first)

    def lacks(self, request: Request) -> Node | None:
        for node in request.nodes:
            if not self.has_room(node, request):
                return node
            if node not in request.keeps and self.is_blocked(node, request):
                return node
        return None

    def can_never_fit(self, request: Request) -> bool:
        return any(0 < self.value(node) < request.need(node) for node in request.nodes)

    def heads(self) -> list[Request]:
        """The first of every path, in the order of their turns."""
        heads: dict[tuple[Hashable, ...], Request] = {}
        for request in sorted(self.waiting, key=self.turn):
            heads.setdefault(request.path, request)
        return list(heads.values())

    def turn(self, request: Request) -> tuple[float, int, int]:
        return self.tag(request), *request.rank(request.ticket or self.next_ticket())

    def next_ticket(self) -> int:
        return max(self.tickets + 1, int(self.now * 1_000_000))

    def tag(self, request: Request) -> float:
        """That of the next request of its key."""
        if self.fair_by is None:
            return 0.0
        tag = self.tags.get(request.path[self.fair_by], 0.0)
        if any(self.same_key(other, request) for other in self.waiting):
            return tag  # it was given when its key began to wait, or had its last grant
        return max(self.time, tag)

    def same_key(self, one: Request, other: Request) -> bool:
        return self.fair_by is not None and one.path[self.fair_by] == other.path[self.fair_by]

    def count_grant(self, request: Request) -> None:
        """A grant while somebody waits; those that nobody waits for don't count."""
        for other in self.waiting:
            other.passed += other.ticket < (request.ticket or self.next_ticket())
        if self.fair_by is None:
            return
        start = self.tag(request)
        self.time = max(self.time, start)
        with_slots = [tier for tier, rule in enumerate(self.values) if not isinstance(rule, Rate)]
        tier = self.fair_cost if self.fair_cost is not None else [None, *with_slots][-1]
        cost = 1 if tier is None or request.needs is None else request.needs[tier]
        weight = self.weight_of(request)
        self.tags[request.path[self.fair_by]] = max(self.time, start + cost / weight)

    def weight_of(self, request: Request) -> float:
        """What the last one of its key said who waits or waited, and a newcomer its own."""
        if request not in self.waiting:
            return request.weight
        return self.weights[request.path[self.fair_by or 0]]

    def forget_turns_if_nobody_waits(self) -> None:
        if not self.waiting:
            self.time, self.tags = 0.0, {}

    def next_deadline(self) -> float:
        deadlines = [request.deadline for request in self.holding + self.waiting]
        deadlines += [self.ready_at(head) for head in self.heads()]
        deadlines += self.pauses.values()
        return min((when for when in deadlines if when is not None), default=float("inf"))

    def ready_at(self, head: Request) -> float | None:
        """When the bucket that a head is the first to wait for has enough for it."""
        node = head.parked
        assert node is not None
        rate = self.rule(node)
        if not isinstance(rate, Rate) or self.is_blocked(node, head):
            return None
        overdue = self.kept_for(node)
        kept = 0 if overdue is None or overdue is head else overdue.need(node)
        if kept + head.need(node) > rate.burst:
            return None
        missing = kept + head.need(node) - self.level(node)
        wait = missing * Fraction(rate.per) / rate.count
        return max(ceil((self.now + wait) * 1_000_000) / 1_000_000, self.paused_until(node))

    # ------------------------------------------------------------ the verbs

    def request(self, request: Request, now: float, wait_until: float | None) -> list[Hashable]:
        granted = self._grant(now)
        if self.try_request(request, now):
            # In fair order the grant moves the turns of its key, and others may be first now.
            return [*granted, request.key, *self._grant(now)]
        if self.fair_by is not None:
            key = request.path[self.fair_by]
            self.tags[key] = self.tag(request)
            self.weights[key] = request.weight
        first = next((other for other in self.heads() if other.path == request.path), None)
        request.parked = self.lacks(request) if first is None else None
        self.tickets = request.ticket = self.next_ticket()
        request.deadline = wait_until
        self.waiting.append(request)
        if first is not None and self.turn(request) < self.turn(first):  # by its head start
            first.keeps = []
            request.parked, first.parked = first.parked, None
            request.parked = self.lacks(request) or request.parked
            granted += self._grant(now)
        return granted

    def try_request(self, request: Request, now: float) -> bool:
        self.now = in_microseconds(now)
        others = [other for other in self.waiting if other.path == request.path]
        if any(self.turn(other) < self.turn(request) for other in others):
            return False
        if self.lacks(request) is not None:
            return False
        if self.waiting:
            self.count_grant(request)
        self.tickets = request.ticket = self.next_ticket()
        self._hold(request, now)
        return True

    def release(self, key: Hashable, now: float) -> list[Hashable]:
        self._end([request for request in self.holding if request.key == key], now)
        return self._grant(now)

    def correct(self, key: Hashable, costs: dict[int, int], now: float) -> list[Hashable] | None:
        """State what a request has really taken of rates; None if nobody knows it."""
        self.now = in_microseconds(now)
        held = next((request for request in self.holding if request.key == key), None)
        until, ended = self.ended.get(key, (now, None))
        request = held or (ended if until > now else None)
        if request is None or request.needs is None:
            return None
        needs = list(request.needs)
        for tier, actual in costs.items():
            self.charge(request.nodes[tier], actual - needs[tier])
            needs[tier] = actual
        request.needs = tuple(needs)
        return self._grant(now)

    def undo_grant(self, key: Hashable, now: float) -> list[Hashable]:
        """As if it had not been granted; one that somebody has ended keeps what it took."""
        self.now = in_microseconds(now)
        request = next((request for request in self.holding if request.key == key), None)
        if request is None and all(isinstance(rule, Rate) for rule in self.values):
            until, request = self.ended.get(key, (now, None))
            request = request if until > now else None
        if request is not None:
            self.holding = [each for each in self.holding if each is not request]
            self.ended.pop(key, None)
            for node in request.nodes:
                if isinstance(self.rule(node), Rate):
                    self.charge(node, -request.need(node))
        return self._grant(now)

    def fill(self, node: Node, now: float) -> list[Hashable]:
        self.buckets.pop(node, None)
        return self._grant(now)

    def pause(self, node: Node, until: float) -> None:
        self.pauses[node] = max(until, self.pauses.get(node, 0.0))

    def end_pauses(self, now: float) -> list[Hashable]:
        self.pauses = {}
        return self._grant(now)

    def _end(self, requests: list[Request], now: float) -> None:
        self.holding = [request for request in self.holding if request not in requests]
        rates = [rule for rule in self.values if isinstance(rule, Rate)]
        for request in requests:
            until = now + max([60.0, *(rate.per for rate in rates)])
            self.ended[request.key] = until, request

    def cancel(self, key: Hashable, now: float) -> list[Hashable]:
        return self.cancel_all([key], now)

    def cancel_all(self, keys: list[Hashable], now: float) -> list[Hashable]:
        self._leave([request for request in self.waiting if request.key in keys])
        return self._grant(now)

    def expire(self, now: float) -> tuple[list[Hashable], list[Hashable], list[Hashable]]:
        def due(requests: list[Request]) -> list[Request]:
            return [one for one in requests if one.deadline is not None and one.deadline <= now]

        holders, waiters = due(self.holding), due(self.waiting)
        self._end(holders, now)
        self._leave(waiters)
        return [one.key for one in holders], [one.key for one in waiters], self._grant(now)

    def resize(
        self, tier: int, value: int | Rate, key: Hashable, one: bool, now: float
    ) -> tuple[list[Hashable], list[Hashable]]:
        self.now = in_microseconds(now)
        levels = {
            node: self.level(node)
            for node in self.buckets
            if node[0] == tier and self.level(node) < self.value(node)
        }
        self.buckets = {node: each for node, each in self.buckets.items() if node[0] != tier}
        if one:
            self.own_values[tier, key] = value
        else:
            self.values[tier] = value
        for node, level in levels.items():
            rate = self.rule(node)
            assert isinstance(rate, Rate)
            nearest = Fraction(floor(level * rate.unit + Fraction(1, 2)), rate.unit)
            self.buckets[node] = min(nearest, Fraction(rate.burst)), self.now
        refused = [request for request in self.waiting if self.can_never_fit(request)]
        self._leave(refused)
        return [request.key for request in refused], self._grant(now)

    # ------------------------------------------------------------- the rules

    def _leave(self, leaving: list[Request]) -> None:
        """Those behind a head that leaves take its place, and nothing that was kept for it."""
        for request in leaving:
            self.waiting.remove(request)
            self._pass_place_on(request)
        self.forget_turns_if_nobody_waits()

    def _pass_place_on(self, request: Request) -> None:
        if request.parked is not None:
            for other in self.heads():
                if other.path == request.path:
                    other.parked = request.parked

    def _hold(self, request: Request, now: float) -> None:
        for node in request.nodes:
            if isinstance(self.rule(node), Rate):
                self.charge(node, request.need(node))
        with_slots = [node for node in request.nodes if not isinstance(self.rule(node), Rate)]
        request.keeps = []
        if not with_slots:  # nothing is held
            self._end([request], now)
            return
        widest = with_slots[-1]
        others = [other for other in self.holding if widest in other.nodes]
        taken = {number for other in others for number in other.numbers}
        free = (number for number in count(1) if number not in taken)
        request.numbers = list(islice(free, request.need(widest)))
        request.deadline = None if request.ttl is None else now + request.ttl
        self.holding.append(request)

    def serve(self, now: float) -> list[Hashable]:
        return self._grant(now)

    def _grant(self, now: float) -> list[Hashable]:
        """As long as a node has room for the first head there, examine the first such head."""
        self.now = in_microseconds(now)
        self.pauses = {node: until for node, until in self.pauses.items() if until > now}
        granted: list[Hashable] = []
        while True:
            head = next((one for one in self.heads() if self._can_be_examined(one)), None)
            if head is None:
                return granted
            lacking = self.lacks(head)
            if lacking is None:
                self.count_grant(head)
                self.waiting.remove(head)
                self._hold(head, now)
                granted.append(head.key)
                self.forget_turns_if_nobody_waits()
                following = next((one for one in self.heads() if one.path == head.path), None)
                if following is not None:
                    following.parked = self.lacks(following) or head.parked
            else:
                narrower = head.nodes[: lacking[0]]
                head.keeps = [node for node in head.keeps if node in narrower]
                if head.passed > self.patience:
                    self._keep(head, narrower)
                head.parked = lacking

    def _can_be_examined(self, head: Request) -> bool:
        assert head.parked is not None
        return self.has_room(head.parked, head) and not self.is_blocked(head.parked, head)

    def _keep(self, head: Request, narrower: list[Node]) -> None:
        for node in narrower:
            if self.value(node) == 0:
                continue
            if self.kept_for(node) is None:
                head.keeps.append(node)
            elif self.kept_for(node) is not head:
                return
