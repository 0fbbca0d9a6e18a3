"""Claim: one request for slots, from its arrival to its end.

What a ledger knows of it is in mixins without slots of their own: a driver's claim may be what its
caller gets as well.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from slotwise._core.adaptive import Outcome

# Empty, since a class can't inherit from two with slots. Not a literal, which mypy would take for
# the only attributes.
NO_SLOTS: tuple[str, ...] = ()


class BaseClaim(Protocol):
    """What every ledger knows of a claim."""

    # Whether it is among the holders while it holds. A driver may have claims
    # that nobody can name, and remember their numbers by itself.
    named: bool
    # Whether it replaces a holder, and so comes before all others.
    replaces: bool

    @property
    def head_start(self) -> int:
        """In microseconds: it comes before claims that arrived less than that much earlier."""

    key: Any  # what the ledger files it under
    ttl: float | None
    _slot_number: int  # the lowest of those that it was granted

    def ending(self, now: float) -> tuple[int, Outcome, int]:
        """Return how long it was held, how that ended, and for how long the service wants no more.

        For adaptive values; times are in microseconds.
        """


class LineGrant:
    """The grant of a slot to a ticket of the line, or with number 0 its refusal."""

    __slots__ = ("_slot_number", "key")

    named = False

    def __init__(self, ticket: Hashable, number: int) -> None:
        self.key = ticket
        self._slot_number = number

    @property
    def slot_number(self) -> int:
        return self._slot_number

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self._slot_number,)
