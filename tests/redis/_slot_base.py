"""BaseLedger: holders, their deadlines, and ending expired claims; see `_slot_ledger`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, MutableMapping
from typing import Any, Generic, TypeVar

from tests._inside import give_number

from slotwise._core.adaptive import Outcome
from slotwise._ledger import deadlines
from slotwise._ledger.deadlines import NEVER

C = TypeVar("C", bound=Any)


class Deadlines(deadlines.Deadlines):
    """Those of a semaphore, with the end of its pause."""

    paused_until = 0.0  # until when the ledger grants nothing; 0.0 if it isn't paused


class BaseLedger(ABC, Generic[C]):
    """Holders and waiters by their keys, some of which have deadlines."""

    # The subclasses have the slots: a class can't inherit from two that have some.
    __slots__ = ()

    holders: dict[Hashable, C]
    waiting: MutableMapping[Hashable, C]
    deadlines: Deadlines | None  # None until somebody has one
    closed: bool
    attention: bool  # while it is up, the quick lane is closed

    def timed(self) -> Deadlines:
        """The deadlines, made on first use."""
        if self.deadlines is None:
            self.deadlines = Deadlines()  # type: ignore[misc] # a slot of the subclasses
        return self.deadlines

    def next_deadline(self) -> float:
        """When `expire` has to be called next; `NEVER` if there are no deadlines."""
        return NEVER if self.deadlines is None else self.deadlines.earliest()

    def deadline_of(self, key: Hashable) -> float | None:
        """When a holder's ttl or a waiter's patience ends; None if it doesn't."""
        return None if self.deadlines is None else self.deadlines.get(key)

    def renew(self, key: Hashable, deadline: float) -> bool:
        """Move the deadline of a holder or waiter; False if it is neither."""
        if key not in self.holders and key not in self.waiting:
            return False
        self.timed().set(key, deadline)
        return True

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

    def _file(self, claim: C, number: int, now: float) -> None:
        """Make a claim that got its slots a holder."""
        give_number(claim, number)
        if claim.named:
            self.holders[claim.key] = claim
        if claim.ttl is not None:
            self.timed().set(claim.key, now + claim.ttl)
        elif self.deadlines is not None:
            self.deadlines.discard(claim.key)  # the end of its wait, if it had one

    @property
    @abstractmethod
    def max_slots(self) -> int:
        """How many slots there are, for logs; 0 if there is no limit."""

    @abstractmethod
    def release(self, key: Hashable, now: float = 0.0) -> list[C]:
        """End a holder's claim; an ended or unknown one is left alone."""

    @abstractmethod
    def cancel(self, key: Hashable, now: float = 0.0) -> list[C]:
        """Remove a waiter from the queue; one that does not wait is left alone."""

    @abstractmethod
    def serve(self, now: float = 0.0) -> list[C]:
        """Hand what is free to the waiters, and return those that were granted."""

    @abstractmethod
    def _free(self, claim: C, now: float) -> None:
        """Take back the slots of a claim that was taken out of ``holders``; grants nothing."""

    def _ending_of(self, claim: C, now: float) -> tuple[int, Outcome, int]:
        """Return how long it was held, how it ended, and how long the service wants no more.

        For adaptive values; times are in microseconds.
        """
        return 0, "ignored", 0

    @abstractmethod
    def _leave(self, claim: C, now: float) -> None:
        """Remove a waiter from the queue; grants nothing."""
