"""Atomic paths as one would explain them: plain lists, every waiter looked at every time.

Slow, with nothing kept that could be computed, and no bound on the work of a call.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count, islice

Node = tuple[int, Hashable]  # (tier, key)


@dataclass
class Request:
    """Somebody who holds or waits."""

    key: Hashable
    path: tuple[Hashable, ...]
    ttl: float | None = None
    needs: tuple[int, ...] | None = None  # None: one slot of each
    deadline: float | None = None
    ticket: int = 0
    numbers: list[int] = field(default_factory=list)  # in the widest tier
    parked: Node | None = None
    keeps: list[Node] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        return list(enumerate(self.path))

    def need(self, node: Node) -> int:
        return 1 if self.needs is None else self.needs[node[0]]


class PathModel:
    """What a ledger of paths must do, said as simply as possible."""

    def __init__(self, values: tuple[int, ...], patience: int) -> None:
        self.values = list(values)
        self.own_values: dict[Node, int] = {}
        self.patience = patience
        self.tickets = 0
        self.holding: list[Request] = []
        self.waiting: list[Request] = []  # in the order of arrival

    # -------------------------------------------------------------- looking

    def value(self, node: Node) -> int:
        return self.own_values.get(node, self.values[node[0]])

    def held(self, node: Node) -> int:
        return sum(request.need(node) for request in self.holding if node in request.nodes)

    def keeper(self, node: Node) -> Request | None:
        return next((request for request in self.waiting if node in request.keeps), None)

    def has_room(self, node: Node, request: Request) -> bool:
        keeper = self.keeper(node)
        kept = 0 if keeper is None or keeper is request else keeper.need(node)
        needed = self.held(node) + kept + request.need(node)
        return self.value(node) == 0 or needed <= self.value(node)

    def is_blocked(self, node: Node, request: Request) -> bool:
        """Whether an older head is parked there that there is too little for."""
        ticket = request.ticket or self.tickets + 1  # that of a newcomer
        first = next((head for head in self.heads() if head.parked == node), None)
        return first is not None and first.ticket < ticket and not self.has_room(node, first)

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
        """The first of every path, the oldest first."""
        heads: dict[tuple[Hashable, ...], Request] = {}
        for request in self.waiting:
            heads.setdefault(request.path, request)
        return list(heads.values())

    def next_deadline(self) -> float:
        deadlines = [request.deadline for request in self.holding + self.waiting]
        return min((when for when in deadlines if when is not None), default=float("inf"))

    # ------------------------------------------------------------ the verbs

    def request(self, request: Request, now: float, wait_until: float | None) -> list[Hashable]:
        if self.try_request(request, now):
            return [request.key]
        first = next((other for other in self.heads() if other.path == request.path), None)
        request.parked = self.lacks(request) if first is None else None
        self.tickets += 1
        request.ticket = self.tickets
        request.deadline = wait_until
        self.waiting.append(request)
        return []

    def try_request(self, request: Request, now: float) -> bool:
        if any(other.path == request.path for other in self.waiting):
            return False
        if self.lacks(request) is not None:
            return False
        self.tickets += 1
        request.ticket = self.tickets
        self._seat(request, now)
        return True

    def release(self, key: Hashable, now: float) -> list[Hashable]:
        self.holding = [request for request in self.holding if request.key != key]
        return self._grant(now)

    def cancel(self, key: Hashable, now: float) -> list[Hashable]:
        return self.cancel_all([key], now)

    def cancel_all(self, keys: list[Hashable], now: float) -> list[Hashable]:
        self._leave([request for request in self.waiting if request.key in keys])
        return self._grant(now)

    def expire(self, now: float) -> tuple[list[Hashable], list[Hashable], list[Hashable]]:
        def due(requests: list[Request]) -> list[Request]:
            return [one for one in requests if one.deadline is not None and one.deadline <= now]

        holders, waiters = due(self.holding), due(self.waiting)
        self.holding = [request for request in self.holding if request not in holders]
        self._leave(waiters)
        return [one.key for one in holders], [one.key for one in waiters], self._grant(now)

    def resize(
        self, tier: int, value: int, key: Hashable, one: bool, now: float
    ) -> tuple[list[Hashable], list[Hashable]]:
        if one:
            self.own_values[tier, key] = value
        else:
            self.values[tier] = value
        refused = [request for request in self.waiting if self.can_never_fit(request)]
        self._leave(refused)
        return [request.key for request in refused], self._grant(now)

    # ------------------------------------------------------------- the rules

    def _leave(self, leaving: list[Request]) -> None:
        """Those behind a head that leaves take its place, and nothing that was kept for it."""
        for request in leaving:
            self.waiting.remove(request)
            self._pass_place_on(request)

    def _pass_place_on(self, request: Request) -> None:
        if request.parked is not None:
            for other in self.waiting:
                if other.path == request.path:
                    other.parked = request.parked
                    break

    def _seat(self, request: Request, now: float) -> None:
        widest = request.nodes[-1]
        others = [other for other in self.holding if other.nodes[-1] == widest]
        taken = {number for other in others for number in other.numbers}
        free = (number for number in count(1) if number not in taken)
        request.numbers = list(islice(free, request.need(widest)))
        request.deadline = None if request.ttl is None else now + request.ttl
        request.keeps = []
        self.holding.append(request)

    def _grant(self, now: float) -> list[Hashable]:
        """As long as a node has room for the oldest head there, examine the oldest such head."""
        granted: list[Hashable] = []
        while True:
            head = next((one for one in self.heads() if self._can_be_examined(one)), None)
            if head is None:
                return granted
            lacking = self.lacks(head)
            if lacking is None:
                self.waiting.remove(head)
                self._seat(head, now)
                granted.append(head.key)
                following = next((one for one in self.waiting if one.path == head.path), None)
                if following is not None:
                    following.parked = self.lacks(following) or head.parked
            else:
                narrower = head.nodes[: lacking[0]]
                head.keeps = [node for node in head.keeps if node in narrower]
                if self.tickets - head.ticket > self.patience:
                    self._keep(head, narrower)
                head.parked = lacking

    def _can_be_examined(self, head: Request) -> bool:
        assert head.parked is not None
        return self.has_room(head.parked, head) and not self.is_blocked(head.parked, head)

    def _keep(self, head: Request, narrower: list[Node]) -> None:
        for node in narrower:
            if self.value(node) == 0:
                continue
            if self.keeper(node) is None:
                head.keeps.append(node)
            elif self.keeper(node) is not head:
                return
