"""The rules of a semaphore: strict FIFO, never over the value, nothing lost.

Nothing here waits, wakes, locks or knows the time: callers pass ``now`` and are
told which claims are granted.

Most verbs must not run at the same time as any other: callers take a lock. The
exception is the *quick lane*, for one slot and no ttl. Its steps are single
operations on a list, dict or deque, each atomic in CPython:

    take    if not ledger.line and not ledger.attention:
                number = heappop(ledger.free)       # IndexError: ask `request`
                ledger.holders[claim.key] = claim   # or remember the number
    queue   if not ledger.attention:                # one thread only, see `line`
                ledger.line.append(ticket)
                if (somebody has the lock or ledger.free or ledger.attention
                        or ledger.circulating < ledger.value):
                    ledger.settle(now)              # under the lock
    give    ledger.holders.pop(key, None)           # None: has ended already
            if ledger.attention:
                ledger.give_number(number, now)     # under the lock
            else:
                heappush(ledger.free, number)
                if ledger.line or ledger.attention:
                    ledger.settle(now)              # under the lock

It is safe because the sides look in opposite order. Who queues shows itself
(in ``line``, or by raising ``attention``) before it looks at ``free`` a last
time, and a giver fills ``free`` before it looks for them: whatever the
interleaving, at least one of them sees the other, so a slot is never free while
somebody waits. A taker that looked before somebody queued came before it. Who
has the lock may have numbers in hand that it will put back, so who queues also
looks at the lock; and a giver looks at ``attention`` beforehand, so that what
comes back after a shrink or a close is never shown to a taker that looked long ago.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

from slotwise._core.results import AcquisitionResult
from slotwise._ledger.deadlines import NEVER, Deadlines
from slotwise._ledger.ranges import Ranges, ranges_of
from slotwise.errors import SemaphoreClosed

# Elsewhere list and heap operations are not atomic: there `attention` never
# falls, and every caller takes its lock.
QUICK_LANE = (
    sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
)


class Claim(AcquisitionResult):
    """One request for slots, from its arrival to its end.

    Once it is granted it is also what the caller gets: the AcquisitionResult.
    Drivers subclass it to keep a waker, a task or a label beside it.
    """

    __slots__ = ("key", "ranges", "slots", "ttl")

    # Whether it stands among the holders while it holds. A driver may have
    # claims that nobody can name, and remember their numbers by itself.
    named: ClassVar[bool] = True

    key: Hashable  # what the ledger files it under
    slots: int
    ttl: float | None
    ranges: Sequence[range]  # of its numbers, lowest first, once it holds several slots

    def __init__(self, key: Hashable, slots: int = 1, ttl: float | None = None) -> None:
        self.key = key
        self.slots = slots
        self.ttl = ttl

    @property
    def acquisition_id(self) -> str:
        return str(self.key)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The slot numbers it was granted, lowest first."""
        return (self._slot_number,) if self.slots == 1 else (*chain(*self.ranges),)


class LineGrant(Claim):
    """The grant of a slot to a ticket of the line, or with number 0 its refusal."""

    __slots__ = ()

    named = False
    slots = 1
    ttl = None

    def __init__(self, ticket: Hashable, number: int) -> None:
        self.key = ticket
        self._slot_number = number


C = TypeVar("C", bound=Claim)

# What a ledger starts with, since most semaphores never queue anybody and are
# never shrunk. Shared and therefore never changed, only replaced.
_NO_LINE: deque[Any] = deque(maxlen=0)
_NOBODY: OrderedDict[Hashable, Any] = OrderedDict()
_NO_NUMBERS = Ranges()

# How many numbers come into circulation at once, and what is handled one by one: with
# so many the quick lane is worth it, and nobody notices the time.
_FEW = 1024


class Ledger(Generic[C]):
    """Who holds which slot numbers, and who waits, in the order of arrival."""

    __slots__ = (
        "attention",
        "circulating",
        "closed",
        "deadlines",
        "free",
        "holders",
        "line",
        "reserve",
        "top",
        "value",
        "waiting",
    )

    # Between any two calls:
    #   I1  circulating - len(free) slots are held, in_use
    #   I2  if anyone waits, in the line or behind it, the first of them does not fit
    #   I3  in_use exceeds value only after a shrink, and nothing is granted then
    #   I4  free, reserve and the held numbers are disjoint parts of 1..top
    #   I5  attention is up if there are waiting claims, if closed, while a shrink
    #       is not done, and while there are numbers in reserve
    #   I6  nobody waits on a closed ledger
    #   I7  only holders and waiters have deadlines
    # `invariants.check` is these, as code.

    def __init__(self, value: int, holders: dict[Hashable, C] | None = None) -> None:
        """A ledger of ``value`` slots, all free.

        ``holders``: a table to keep the holders in. Drivers with very many
        ledgers share one between them; keys are unique, and no rule here goes
        through the table.
        """
        self.value = value
        self.free: list[int] = [1]
        self.circulating = 1
        self.top = 1
        self.reserve = _NO_NUMBERS
        self.holders: dict[Hashable, C] = {} if holders is None else holders
        # Tickets that want one slot each and come before all waiting claims. A
        # driver may put anything here; it is opened for one thread at a time,
        # see `open_line`. Ended tickets are handed out too: the driver gives
        # their slots back.
        self.line: deque[Any] = _NO_LINE
        self.waiting: OrderedDict[Hashable, C] = _NOBODY
        self.deadlines: Deadlines | None = None
        self.closed = False
        self.attention = not QUICK_LANE

    @property
    def in_use(self) -> int:
        """How many slots are held."""
        return self.circulating - len(self.free)

    # ------------------------------------------------------------ the verbs

    def request(self, claim: C, now: float = 0.0, *, wait_until: float | None = None) -> list[C]:
        """Grant ``claim`` its slots, or queue it; who is granted now is returned.

        ``wait_until`` is the deadline of a claim that has to queue.

        Raises:
            ValueError: it asks for more slots than there are.
            SemaphoreClosed: nothing is granted any more.
        """
        waiting = self.waiting
        if not waiting:
            if self.try_request(claim, now):
                return [claim]
            if waiting is _NOBODY:
                self.waiting = waiting = OrderedDict()
        elif claim.slots > self.value:
            raise ValueError(_never(claim.slots, self.value))
        waiting[claim.key] = claim
        if wait_until is not None:
            self.timed().set(claim.key, wait_until)
        self.attention = True
        # A quick giver may have come between the look at `free` and the flag.
        return self.settle(now) if self.free else []

    def try_request(self, claim: C, now: float = 0.0) -> bool:
        """Grant ``claim`` its slots if that passes nobody; else change nothing."""
        if self.closed:
            raise SemaphoreClosed("the ledger is closed")
        if claim.slots > self.value:
            raise ValueError(_never(claim.slots, self.value))
        if self.line or self.waiting or not self._seat(claim, now):
            return False
        if self.attention:
            self._lower_attention()  # it may have got the last of the reserve
        return True

    def release(self, key: Hashable, now: float = 0.0) -> list[C]:
        """End a holder's claim; an ended or unknown one is left alone."""
        claim = self.holders.pop(key, None)
        if claim is None:
            return []
        if self.deadlines is not None:
            self.deadlines.discard(key)
        return self.give(claim, now)

    def give(self, claim: C, now: float = 0.0) -> list[C]:
        """Take back the slots of a claim that the caller took out of ``holders``."""
        self._put_back_all(claim)
        return self.settle(now)

    def give_number(self, number: int, now: float = 0.0) -> list[C]:
        """Take back one slot by its number."""
        self._put_back(number)
        return self.settle(now)

    def _put_back_all(self, claim: C) -> None:
        if claim.slots == 1:
            self._put_back(claim._slot_number)
            return
        for numbers in claim.ranges:
            if len(numbers) > _FEW:
                self._put_aside(numbers)
            else:
                for number in numbers:
                    self._put_back(number)

    def _put_back(self, number: int) -> None:
        """To ``free``, unless nobody may have it now: a late quick taker could pop it there."""
        if self.closed or self.circulating > self.value:
            self._put_aside(range(number, number + 1))
        else:
            heappush(self.free, number)

    def _put_aside(self, numbers: range) -> None:
        """Take numbers that nobody holds out of circulation."""
        self.attention = True
        if self.reserve is _NO_NUMBERS:
            self.reserve = Ranges()
        self.reserve.add(numbers)
        self.circulating -= len(numbers)

    def cancel(self, key: Hashable, now: float = 0.0) -> list[C]:
        """Take a waiter out of the queue; one that does not wait is left alone."""
        if key not in self.waiting:
            return []
        del self.waiting[key]
        if self.deadlines is not None:
            self.deadlines.discard(key)
        return self.settle(now)

    def renew(self, key: Hashable, deadline: float) -> bool:
        """Move the deadline of a holder or waiter; False if it is neither."""
        if key not in self.holders and key not in self.waiting:
            return False
        self.timed().set(key, deadline)
        return True

    def expire(self, now: float) -> tuple[list[C], list[C], list[C]]:
        """End all whose deadline has come: the holders, the waiters, and who is granted now."""
        holders, waiters = [], []
        if self.deadlines is not None:
            for key in self.deadlines.pop_due(now):
                claim = self.holders.pop(key, None)
                if claim is not None:
                    holders.append(claim)
                elif key in self.waiting:
                    waiters.append(self.waiting.pop(key))
        # Only now, when no waiter is left whose own time is up, is anything granted.
        for claim in holders:
            self._put_back_all(claim)
        return holders, waiters, self.settle(now)

    def resize(self, value: int, now: float = 0.0) -> tuple[list[C], list[C]]:
        """Change the value: the waiters that can never fit now, and who is granted now."""
        self.value = value
        refused = [claim for claim in self.waiting.values() if claim.slots > value]
        for claim in refused:
            del self.waiting[claim.key]
            if self.deadlines is not None:
                self.deadlines.discard(claim.key)
        self._rebalance()
        return refused, self.settle(now)

    def close(self) -> list[C]:
        """Refuse newcomers from now on: the waiters, who all fail, are returned.

        Holders stay until they leave; what they give back is granted to nobody.
        """
        self.closed = self.attention = True
        waiters = list(self.waiting.values())
        self.waiting = _NOBODY
        if self.deadlines is not None:
            for claim in waiters:
                self.deadlines.discard(claim.key)
        return self.settle() + waiters

    def reopen(self, now: float = 0.0) -> list[C]:
        """Undo `close`: newcomers are granted slots again. Who is granted now is returned."""
        self.closed = False
        self._rebalance()
        return self.settle(now)

    def retire(self) -> bool:
        """Close for good if nobody holds or waits; False, and no change, otherwise.

        Afterwards the quick lane can't take anything either, so the caller may
        forget the ledger without anybody being left in it.
        """
        if self.line or self.waiting or self.closed:
            return False
        self.attention = True
        taken = self._drain()
        if len(taken) < self.circulating:
            for number in taken:
                heappush(self.free, number)
            self._lower_attention()
            return False
        self.circulating = 0
        self.closed = True
        return True

    def settle(self, now: float = 0.0) -> list[C]:
        """Hand what is free to those who wait, strictly in order, and return who got it.

        Every verb ends with it. On a closed ledger it refuses who is in the line.
        """
        line = self.line
        granted: list[Any] = []
        if self.closed:
            self._put_free_aside()
            while line:
                granted.append(LineGrant(line.popleft(), 0))
            return granted
        if self.reserve or self.circulating > self.value:
            self._rebalance_if_needed()
        while line and (self.free or self._mint()):
            # Users of the quick lane may be taking and handing over meanwhile.
            try:
                number = heappop(self.free)
            except IndexError:
                continue
            try:
                granted.append(LineGrant(line.popleft(), number))
            except IndexError:
                heappush(self.free, number)
        waiting = self.waiting
        while waiting and not line and (self.free or self.circulating < self.value):
            key, claim = waiting.popitem(last=False)
            if not self._seat(claim, now):
                # The head does not fit, so nobody passes it: a stream of small
                # requests would otherwise starve a large one for ever.
                waiting[key] = claim
                waiting.move_to_end(key, last=False)
                break
            granted.append(claim)
        if not waiting:
            self._lower_attention()
        return granted

    def open_line(self) -> None:
        """Let one thread use the line without the lock; nobody must be in it."""
        if self.line is _NO_LINE:
            self.line = deque()

    def timed(self) -> Deadlines:
        """The deadlines, made on first use."""
        if self.deadlines is None:
            self.deadlines = Deadlines()
        return self.deadlines

    def next_deadline(self) -> float:
        """When `expire` has to be called next; `NEVER` if nobody's time runs."""
        return NEVER if self.deadlines is None else self.deadlines.earliest()

    # -------------------------------------------------------------- numbers

    def _seat(self, claim: C, now: float) -> bool:
        """Turn ``claim`` into a holder if its slots are free."""
        if claim.slots == 1:
            try:
                number = heappop(self.free)
            except IndexError:
                if not self._mint():
                    return False
                return self._seat(claim, now)
        else:
            claim.ranges = ranges = self._take(claim.slots)
            if not ranges:
                return False
            number = ranges[0].start
        claim._slot_number = number
        if claim.named:
            self.holders[claim.key] = claim
        if claim.ttl is not None:
            self.timed().set(claim.key, now + claim.ttl)
        elif self.deadlines is not None:
            self.deadlines.discard(claim.key)  # the end of its wait, if it had one
        return True

    def _take(self, slots: int) -> Sequence[range]:
        """That many numbers, lowest first; none at all if there are not enough."""
        if slots > self.value - self.in_use:
            return ()
        taken: list[int] = []
        try:
            while len(taken) < slots:
                taken.append(heappop(self.free))
        except IndexError:
            pass
        missing = slots - len(taken)
        if missing > self.value - self.circulating:  # a taker on the quick lane was faster
            for number in taken:
                heappush(self.free, number)
            return ()
        ranges = ranges_of(taken)
        if missing:
            for numbers in self._draw(missing):
                ranges.add(numbers)
        return ranges

    def _draw(self, how_many: int) -> list[range]:
        """Bring that many numbers into circulation, the lowest that are not: they are returned.

        A signal handler may raise between any two steps. What it interrupts is then
        lost; in another order of the steps it would be handed out twice.
        """
        self.circulating += how_many
        drawn = self.reserve.take_lowest(how_many)
        fresh = how_many - sum(map(len, drawn))
        if fresh:
            self.top += fresh
            drawn.append(range(self.top - fresh + 1, self.top + 1))
        return drawn

    def _mint(self) -> bool:
        """Bring more numbers into circulation, the lowest first, if the value allows.

        Fresh ones come in doubling batches: a semaphore of a million slots
        does not start with a list of a million numbers. One by one, so that a signal
        handler that raises in between costs one of them and not the batch.
        """
        missing = self.value - self.circulating
        if missing <= 0:
            return False
        if self.reserve:
            heappush(self.free, self._draw(1)[0].start)
            return True
        for number in range(self.top + 1, self.top + 1 + min(missing, self.circulating or 1, _FEW)):
            self.circulating += 1
            self.top = number
            heappush(self.free, number)
        return True

    def _drain(self) -> list[int]:
        """Empty ``free``, whatever takers of the quick lane do meanwhile; lowest first."""
        return [*iter(self._pop_free, None)]

    def _put_free_aside(self) -> None:
        for number in iter(self._pop_free, None):
            self._put_aside(range(number, number + 1))

    def _pop_free(self) -> int | None:
        try:
            return heappop(self.free)
        except IndexError:
            return None

    def _rebalance_if_needed(self) -> None:
        """Look, while numbers are in reserve or a shrink is not done, whether they have to move."""
        reserve = self.reserve
        if (
            self.circulating > self.value
            or max(self.free, default=0) > reserve[0].start
            or reserve[-1].stop > self.top
            or (self.circulating < self.value and reserve.total <= _FEW)
        ):
            self._rebalance()

    def _rebalance(self) -> None:
        """Circulate what is held and, beside it, the lowest numbers that fit the value.

        Numbers left over rest in ``reserve`` until the value grows or a higher
        number comes back, so that newcomers get numbers from 1 to the value. So do the
        lowest ones if they are very many: they are brought back as they are needed.
        """
        self.attention = True
        self._put_free_aside()
        reserve = self.reserve
        if reserve and reserve[-1].stop > self.top:
            # Nobody has those, nor any above them: they are drawn anew when they are needed.
            self.top = reserve[-1].start - 1
            del reserve[-1]
        if reserve.total <= _FEW:
            while reserve and self.circulating < self.value:
                heappush(self.free, self._draw(1)[0].start)
        if not reserve:
            self.reserve = _NO_NUMBERS

    def _lower_attention(self) -> None:
        """Let the quick lane run again, if nothing needs a careful look; no claim waits."""
        if not self.reserve and self.circulating <= self.value:
            self.attention = not QUICK_LANE


def _never(slots: int, value: int) -> str:
    return f"{slots} slots asked of {value}: that can never be granted"
