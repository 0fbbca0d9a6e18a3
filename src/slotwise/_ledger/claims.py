"""Claim: one request for slots, from its arrival to its end.

Once it is granted, a claim is also what the caller gets: the AcquisitionResult. Drivers subclass it
to add a waker, a task or a label.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import ClassVar

from slotwise._core.results import AcquisitionResult


class BaseClaim(AcquisitionResult):
    """What every ledger knows of a claim."""

    __slots__ = ("key",)

    # Whether it is among the holders while it holds. A driver may have claims
    # that nobody can name, and remember their numbers by itself.
    named: ClassVar[bool] = True
    # Whether it replaces a holder, and so comes before all others.
    replaces: bool = False
    # In microseconds: it comes before claims that arrived less than that much earlier.
    head_start: int = 0

    key: Hashable  # what the ledger files it under
    ttl: float | None

    @property
    def acquisition_id(self) -> str:
        return str(self.key)


class SlotClaim(BaseClaim):
    """A request for slots of one semaphore; what not all have is up to the subclasses.

    A driver makes one for each acquisition, so those that want a single slot have no room for
    more than that.
    """

    __slots__ = ("arrived",)

    slots: int
    arrived: float  # when it began to wait
    ranges: Sequence[range]  # of its numbers, lowest first, once it holds several slots

    @property
    def numbers(self) -> tuple[int, ...]:
        """The slot numbers it was granted, lowest first."""
        return (self._slot_number,) if self.slots == 1 else (*chain(*self.ranges),)


class Claim(SlotClaim):
    """A request for any number of slots of one semaphore, with or without a ttl."""

    __slots__ = ("ranges", "slots", "ttl")

    slots: int
    ttl: float | None
    ranges: Sequence[range]

    def __init__(self, key: Hashable, slots: int = 1, ttl: float | None = None) -> None:
        self.key = key
        self.slots = slots
        self.ttl = ttl


class LineGrant(SlotClaim):
    """The grant of a slot to a ticket of the line, or with number 0 its refusal."""

    __slots__ = ()

    named = False
    slots = 1
    ttl = None

    def __init__(self, ticket: Hashable, number: int) -> None:
        self.key = ticket
        self._slot_number = number
