"""Claim: one request for slots, from its arrival to its end.

What a ledger knows of it is in mixins without slots of their own: a driver's claim may be what its
caller gets as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any, Protocol

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


class SlotClaim:
    """A request for slots of one semaphore."""

    __slots__ = NO_SLOTS

    named: bool = True
    replaces: bool = False
    head_start: int = 0

    key: Any
    ttl: float | None
    _slot_number: int
    slots: int
    arrived: float  # when it began to wait
    ranges: Sequence[range]  # of its numbers, lowest first, once it holds several slots

    @property
    def slot_number(self) -> int:
        """The lowest of the slot numbers that it was granted."""
        return self._slot_number

    @property
    def numbers(self) -> tuple[int, ...]:
        """The slot numbers it was granted, lowest first."""
        return (self._slot_number,) if self.slots == 1 else (*chain(*self.ranges),)


class Claim(SlotClaim):
    """A request for any number of slots of one semaphore, with or without a ttl."""

    __slots__ = ("_slot_number", "arrived", "key", "ranges", "slots", "ttl")

    slots: int
    ttl: float | None
    ranges: Sequence[range]

    def __init__(self, key: Hashable, slots: int = 1, ttl: float | None = None) -> None:
        self.key = key
        self.slots = slots
        self.ttl = ttl


class LineGrant(SlotClaim):
    """The grant of a slot to a ticket of the line, or with number 0 its refusal."""

    __slots__ = ("_slot_number", "key")

    named = False
    slots = 1
    ttl = None

    def __init__(self, ticket: Hashable, number: int) -> None:
        self.key = ticket
        self._slot_number = number
