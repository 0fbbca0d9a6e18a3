"""Ranks: the order of a semaphore's waiters once one of them has a head start.

A rank is the time of arrival in microseconds, or the last time plus one, less the head start.
Later arrivals have later times, whatever the head starts before them were: a head start moves
only its own claim. So a claim that has waited longer than the difference is never passed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from heapq import heappop, heappush
from math import inf
from typing import Any, Self

from slotwise._ledger.times import microseconds

# Rank; ticket if it has a head start, which lets those without one pass; and its ticket.
Rank = tuple[float, int, int]


class Ranks:
    """A heap of claims by their ranks; some entries are stale."""

    __slots__ = ("_heap", "last_ticket")

    def __init__(self, waiting: Mapping[Hashable, Any]) -> None:
        """Rank the claims that wait already, in the order of arrival."""
        self._heap: list[tuple[Rank, Any]] = []
        self.last_ticket = 0
        for claim in waiting.values():
            self.add(claim, claim.arrived)

    @classmethod
    def restore(cls, claims: Iterable[Any], tickets: Iterable[int], last_ticket: int) -> Self:
        """Return the ranks of claims that had these tickets, and continue after ``last_ticket``."""
        ranks = cls({})
        for claim, ticket in zip(claims, tickets, strict=True):
            ranks.put(claim, ticket)
        ranks.last_ticket = last_ticket
        return ranks

    def tickets(self, waiting: Mapping[Hashable, Any]) -> list[int]:
        """Return the tickets of ``waiting``, in its order."""
        known = {id(claim): rank[2] for rank, claim in self._heap}
        return [known[id(claim)] for claim in waiting.values()]

    def in_turn(self, waiting: Mapping[Hashable, Any]) -> list[Any]:
        """Return the claims that wait, in the order in which they are served."""
        living = [entry for entry in self._heap if waiting.get(entry[1].key) is entry[1]]
        return [claim for _, claim in sorted(living, key=lambda entry: entry[0])]

    def add(self, claim: Any, now: float) -> None:
        """Let one more wait, the last to arrive."""
        rank = self.rank_of_newcomer(claim, now)
        self.last_ticket = rank[2]
        self.put(claim, rank[2])

    def put(self, claim: Any, ticket: int) -> None:
        heappush(self._heap, (self._rank(claim, ticket), claim))

    def rank_of_newcomer(self, claim: Any, now: float) -> Rank:
        return self._rank(claim, max(self.last_ticket + 1, microseconds(now)))

    @staticmethod
    def _rank(claim: Any, ticket: int) -> Rank:
        if claim.replaces:  # it comes before all others
            return -inf, 0, ticket
        return ticket - claim.head_start, ticket if claim.head_start else 0, ticket

    def first(self, waiting: Mapping[Hashable, Any]) -> tuple[Rank, Any]:
        """Return which waiter is first, and its rank."""
        heap = self._heap
        while waiting.get(heap[0][1].key) is not heap[0][1]:
            heappop(heap)
        return heap[0]
