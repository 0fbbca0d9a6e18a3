"""Atomic paths as one would explain them: plain lists, every waiter looked at every time.

Slow, with nothing kept that could be computed, and no bound on the work of a call.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

Node = tuple[int, Hashable]  # (tier, key)


@dataclass
class Request:
    """Somebody who holds or waits."""

    key: Hashable
    path: tuple[Hashable, ...]
    ttl: float | None = None
    deadline: float | None = None
    ticket: int = 0
    number: int = 0
    parked: Node | None = None
    keeps: list[Node] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        return list(enumerate(self.path))


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
        return sum(node in request.nodes for request in self.holding)

    def keeper(self, node: Node) -> Request | None:
        return next((request for request in self.waiting if node in request.keeps), None)

    def has_slot(self, node: Node, request: Request | None) -> bool:
        keeper = self.keeper(node)
        kept = keeper is not None and keeper is not request
        return self.value(node) == 0 or self.held(node) + kept < self.value(node)

    def lacks(self, request: Request) -> Node | None:
        return next((node for node in request.nodes if not self.has_slot(node, request)), None)

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
        self.tickets += 1
        request.ticket = self.tickets
        request.deadline = wait_until
        first = next((other for other in self.heads() if other.path == request.path), None)
        request.parked = self.lacks(request) if first is None else None
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

    def resize(self, tier: int, value: int, key: Hashable, one: bool, now: float) -> list[Hashable]:
        if one:
            self.own_values[tier, key] = value
        else:
            self.values[tier] = value
        return self._grant(now)

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
        taken = [other.number for other in self.holding if other.nodes[-1] == widest]
        request.number = next(n for n in range(1, len(taken) + 2) if n not in taken)
        request.deadline = None if request.ttl is None else now + request.ttl
        request.keeps = []
        self.holding.append(request)

    def _grant(self, now: float) -> list[Hashable]:
        """As long as there is a slot where a head is parked, examine the oldest such head."""
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
        return self.has_slot(head.parked, None)

    def _keep(self, head: Request, narrower: list[Node]) -> None:
        for node in narrower:
            if self.value(node) == 0:
                continue
            if self.keeper(node) is None:
                head.keeps.append(node)
            elif self.keeper(node) is not head:
                return
