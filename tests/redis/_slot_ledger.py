"""The rules of the semaphore scripts, in Python: what they are compared with.

They are those of one node of `slotwise._ledger.paths`, written for semaphores alone, as the
scripts are as long as semaphores and tiers have each their own.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from tests._inside import give_number
from tests.redis._slot_base import BaseLedger, Deadlines

from slotwise._core.adaptive import Outcome
from slotwise._ledger.deadlines import NEVER
from slotwise._ledger.ranges import ranges_of
from slotwise._ledger.replacing import longest_holders
from slotwise._ledger.slots import QUICK_LANE, NumberedSlots
from slotwise._ledger.times import microseconds
from slotwise.errors import SemaphoreClosed

if TYPE_CHECKING:
    from tests.redis._slot_ranks import Ranks

    from slotwise._ledger.adaptation import Adaptation

C = TypeVar("C", bound="SlotClaim")

NO_SLOTS: tuple[str, ...] = ()


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

    def ending(self, _now: float) -> tuple[int, Outcome, int]:
        return 0, "ignored", 0

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


# What a ledger starts with, since most semaphores never queue anybody. Shared and
# therefore never changed, only replaced.
_NO_LINE: deque[Any] = deque(maxlen=0)
_NOBODY: OrderedDict[Hashable, Any] = OrderedDict()


class Ledger(NumberedSlots, BaseLedger[C]):
    """The holders with their slot numbers, and the waiters in the order of arrival."""

    __slots__ = (
        "attention",
        "circulating",
        "closed",
        "deadlines",
        "former_values",
        "free",
        "holders",
        "line",
        "ranks",
        "reserve",
        "top",
        "value",
        "waiting",
    )

    # Between any two calls:
    #   I1  circulating - len(free) slots are held, in_use
    #   I2  if anyone waits, in the line or behind it, the first of them does not fit, or the
    #       ledger is paused
    #   I3  in_use exceeds value only after a shrink, and nothing is granted then
    #   I4  free, reserve and the held numbers are disjoint parts of 1..top
    #   I5  attention is up if there are waiting claims, if closed or paused, while a shrink
    #       is not done, and while there are numbers in reserve
    #   I6  nobody waits on a closed ledger
    #   I7  only holders and waiters have deadlines
    #   I8  while it is paused no number is free: all that nobody holds are in reserve
    # `invariants.check` is these, as code.

    # How its value adapts, if it does; subclasses that may adapt have the slot.
    adaptation: Adaptation | None = None

    def __init__(self, value: int, holders: dict[Hashable, C] | None = None) -> None:
        """A ledger of ``value`` slots, all free.

        ``holders``: a table to keep the holders in. Drivers with very many
        ledgers share one between them; keys are unique, and no rule here goes
        through the table.
        """
        NumberedSlots.__init__(self, value)
        self.closed = False
        # What it was made with and has been resized from, the oldest first.
        self.former_values: tuple[int, ...] = ()
        self.holders: dict[Hashable, C] = {} if holders is None else holders
        # Tickets that want one slot each and come before all waiting claims. A
        # driver may put anything here; it is opened for one thread at a time,
        # see `open_line`. Ended tickets are handed out too: the driver gives
        # their slots back.
        self.line: deque[Any] = _NO_LINE
        self.waiting: OrderedDict[Hashable, C] = _NOBODY  # in the order of arrival
        # While somebody waits, and one of them came with a head start: who is next.
        self.ranks: Ranks | None = None
        self.deadlines: Deadlines | None = None
        self.attention = not QUICK_LANE

    # ------------------------------------------------------------ its value

    def accepts(self, value: Any) -> bool:
        """Return whether somebody who declares ``value`` may use it; None matches any value.

        It may be a value from before a resize.
        """
        return value is None or value == self.value or value in self.former_values

    @property
    def max_slots(self) -> int:
        return self.value

    @property
    def is_resized(self) -> bool:
        """Whether it has another value than the one it was made with."""
        return bool(self.former_values) and self.former_values[0] != self.value

    def start_anew(self, value: int, now: float = 0.0) -> None:
        """Take ``value`` as the one it was made with. Nobody must hold or wait."""
        self.resize(value, now)
        self.former_values = ()

    # ------------------------------------------------------------ the verbs

    def request(self, claim: C, now: float = 0.0, *, wait_until: float | None = None) -> list[C]:
        """Grant ``claim`` its slots, or queue it; return who is granted now.

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
        if claim.head_start or self.ranks is not None:
            self._rank(claim, now)
        claim.arrived = now
        waiting[claim.key] = claim
        if wait_until is not None:
            self.timed().set(claim.key, wait_until)
        self.attention = True
        if self.ranks is not None:
            return self.serve(now)  # it may be the first now, and fit
        # A giver on the quick lane may have come between the check of `free` and the flag, or a
        # pause be over.
        deadlines = self.deadlines
        if self.free or (deadlines is not None and deadlines.paused_until):
            return self.serve(now)
        return []

    def try_request(self, claim: C, now: float = 0.0) -> bool:
        """Grant ``claim`` its slots if that passes nobody; else change nothing."""
        if self.closed:
            raise SemaphoreClosed("the ledger is closed")
        if claim.slots > self.value:
            raise ValueError(_never(claim.slots, self.value))
        if self.line or (self.waiting and not self._comes_first(claim, now)):
            return False
        if self.paused_until:
            if now < self.paused_until:
                return False
            if not self.waiting:  # else `serve` ends it, and serves them
                self._end_pause()
        if not self._try_grant(claim, now):
            return False
        if self.attention and not self.waiting:
            self._lower_attention()  # it may have got the last of the reserve
        return True

    def request_first(
        self, claim: C, now: float = 0.0, *, wait_until: float | None = None
    ) -> list[C]:
        """Grant ``claim`` its slots although others wait, or queue it in front of them.

        It comes behind others that were queued like that. Return who is granted now.
        """
        if self.try_grant_first(claim, now):
            return [claim, *self.serve(now)]
        if self.waiting is _NOBODY:
            self.waiting = OrderedDict()
        waiting = self.waiting
        if self.ranks is not None:
            self.ranks.add(claim, now)
        claim.arrived = now
        ahead = [key for key, _ in takewhile(lambda item: item[1].replaces, waiting.items())]
        waiting[claim.key] = claim
        for key in (claim.key, *reversed(ahead)):
            waiting.move_to_end(key, last=False)
        if wait_until is not None:
            self.timed().set(claim.key, wait_until)
        self.attention = True
        return self.serve(now)

    def try_grant_first(self, claim: C, now: float) -> bool:
        """Grant ``claim`` its slots if that many are free, whoever waits; serve nobody else."""
        if self.paused_until > now:
            return False
        if self.reserve or self.circulating > self.value:
            self._rebalance_if_needed()  # what has just come back may be the lowest
        return self._try_grant(claim, now)

    def to_replace(self, holders: Iterable[C], slots: int) -> list[C]:
        """Choose whose slots a claim for ``slots`` takes over: the first of ``holders``.

        None of them, if all together don't have enough, or while nothing is granted. Free slots
        are left to the waiters.
        """
        if self.paused_until:
            return []
        missing = slots + self.in_use - self.value
        if self.line or self.waiting:
            missing = max(missing, slots)
        return longest_holders(holders, missing)

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
        self._free(claim, now)
        return self.serve(now)

    def give_number(self, number: int, now: float = 0.0) -> list[C]:
        """Take back one slot by its number."""
        self._put_back(number)
        return self.serve(now)

    def _free(self, claim: C, now: float) -> None:
        if claim.slots == 1:
            self._put_back(claim.slot_number)
        else:
            self._put_back_ranges(claim.ranges)
        if self.adaptation is not None:
            held_us, outcome, retry_after_us = self._ending_of(claim, now)
            now_us = microseconds(now)
            if self.adaptation.end(now_us, held_us, outcome, retry_after_us, claim.slots):
                self._follow()

    def _follow(self) -> None:
        """Take over the limit that the adaptation has now; the caller then serves."""
        assert self.adaptation is not None
        self.value = self.adaptation.limit
        self._rebalance()

    def _put_back(self, number: int) -> None:
        # Like `NumberedSlots._put_back`, while it is paused too: a taker on the quick lane that
        # checked before the pause must not find the number.
        deadlines = self.deadlines
        if (
            self.closed
            or self.circulating > self.value
            or (deadlines is not None and deadlines.paused_until)
        ):
            self._put_aside(range(number, number + 1))
        else:
            heappush(self.free, number)

    def _put_aside(self, numbers: range) -> None:
        self.attention = True
        super()._put_aside(numbers)

    def cancel(self, key: Hashable, now: float = 0.0) -> list[C]:
        """Remove a waiter from the queue; one that does not wait is left alone."""
        claim = self.waiting.get(key)
        if claim is None:
            return []
        self._leave(claim, now)
        return self.serve(now)

    def _leave(self, claim: C, now: float) -> None:
        del self.waiting[claim.key]
        if self.deadlines is not None:
            self.deadlines.discard(claim.key)

    def resize(
        self, value: int, now: float = 0.0, *, declared: int | None = None
    ) -> tuple[list[C], list[C]]:
        """Change the value; return the waiters that can never fit now, and who is granted now.

        ``declared`` is the value that the caller knows.
        """
        known = (self.value,) if declared is None else (self.value, declared)
        self.former_values = (*dict.fromkeys((*self.former_values, *known)),)
        return self.adapt(value, now)

    def adapt(self, value: int, now: float = 0.0) -> tuple[list[C], list[C]]:
        """Change an adaptive value; return what `resize` does.

        Nobody declares such a value, so the former one is not remembered.
        """
        self.value = value
        refused = [claim for claim in self.waiting.values() if claim.slots > value]
        for claim in refused:
            self._leave(claim, now)
        self._rebalance()
        return refused, self.serve(now)

    @property
    def paused_until(self) -> float:
        """Until when nothing is granted; 0.0 if it isn't paused."""
        return 0.0 if self.deadlines is None else self.deadlines.paused_until

    def pause(self, until: float) -> None:
        """Grant nothing until then; if there are several pauses, the one that ends last counts.

        Holders stay, waiters and newcomers wait in line. `expire` ends it, at `next_deadline`.
        """
        self.attention = True
        deadlines = self.timed()
        deadlines.paused_until = max(deadlines.paused_until, until)
        self._put_free_aside()

    def _end_pause(self) -> None:
        assert self.deadlines is not None
        self.deadlines.paused_until = 0.0
        self._rebalance()

    def next_deadline(self) -> float:
        deadlines = self.deadlines
        if deadlines is None:
            return NEVER
        return min(deadlines.earliest(), deadlines.paused_until or NEVER)

    def close(self) -> list[C]:
        """Refuse newcomers from now on; return the waiters, who all fail.

        Holders stay until they leave; what they give back is granted to nobody.
        """
        self.closed = self.attention = True
        waiters = list(self.waiting.values())
        self.waiting, self.ranks = _NOBODY, None
        if self.deadlines is not None:
            for claim in waiters:
                self.deadlines.discard(claim.key)
        return self.serve() + waiters

    def reopen(self, now: float = 0.0) -> list[C]:
        """Undo `close` and `pause`: slots are granted again. Return who is granted now."""
        self.closed = False
        if self.deadlines is not None:
            self.deadlines.paused_until = 0.0
        self._rebalance()
        return self.serve(now)

    def retire(self) -> bool:
        """Close for good if nobody holds or waits; False, and no change, otherwise.

        Afterwards the quick lane can't take anything either, so the caller may
        forget the ledger without anybody being left in it.
        """
        if self.line or self.waiting or self.closed or self.paused_until:
            return False
        self.attention = True
        if not self._take_everything():
            self._lower_attention()
            return False
        self.closed = True
        return True

    def serve(self, now: float = 0.0) -> list[C]:
        """Hand free slots to the waiters, strictly in order, and return those that got some.

        Every method ends with it. A closed ledger refuses the waiters in the line; a paused
        one grants nothing, until the first call after the pause.
        """
        line = self.line
        granted: list[Any] = []
        deadlines = self.deadlines
        is_paused = False
        if deadlines is not None and deadlines.paused_until:
            is_paused = deadlines.paused_until > now
            if not is_paused:
                self._end_pause()
        if self.closed:
            self._put_free_aside()
            while line:
                granted.append(LineGrant(line.popleft(), 0))
            return granted
        if is_paused:
            self._put_free_aside()
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
            if self.ranks is not None:
                claim = self.ranks.first(waiting)[1]
                if not self._try_grant(claim, now):
                    break
                del waiting[claim.key]
                granted.append(claim)
                continue
            key, claim = waiting.popitem(last=False)
            if not self._try_grant(claim, now):
                # The head does not fit, so nobody passes it: a stream of small
                # requests would otherwise starve a large one forever.
                waiting[key] = claim
                waiting.move_to_end(key, last=False)
                break
            granted.append(claim)
        if not waiting:
            self.ranks = None
            self._lower_attention()
        return granted

    def open_line(self) -> None:
        """Let one thread use the line without the lock; nobody must be in it."""
        if self.line is _NO_LINE:
            self.line = deque()

    # ----------------------------------------------------------------- steps

    def first_waiting(self) -> C:
        """Return which of the waiting claims is next; there are some."""
        if self.ranks is not None:
            claim: C = self.ranks.first(self.waiting)[1]
            return claim
        return next(iter(self.waiting.values()))

    def in_turn(self) -> list[C]:
        """The waiting claims, in the order in which they are served."""
        return [*self.waiting.values()] if self.ranks is None else self.ranks.in_turn(self.waiting)

    def _rank(self, claim: C, now: float) -> None:
        """Note the rank of a claim that is about to wait."""
        if self.ranks is None:
            self.ranks = _ranks(self.waiting)
        self.ranks.add(claim, now)

    def _comes_first(self, claim: C, now: float) -> bool:
        """Whether a newcomer comes before all waiters, by its head start or theirs."""
        if claim.replaces:
            return False  # it replaces a holder, and leaves free slots to the waiters
        if self.ranks is None:
            if claim.head_start <= 0:
                return False
            self.ranks = _ranks(self.waiting)
        return self.ranks.rank_of_newcomer(claim, now) < self.ranks.first(self.waiting)[0]

    def _try_grant(self, claim: C, now: float) -> bool:
        """Turn ``claim`` into a holder if its slots are free."""
        if claim.slots == 1:
            number: int | None
            try:
                number = heappop(self.free)
            except IndexError:
                number = self._take_one()
                if number is None:
                    return False
        else:
            claim.ranges = ranges = self._take(claim.slots)
            if not ranges:
                return False
            number = ranges[0].start
        self._file(claim, number, now)
        return True

    def _rebalance(self) -> None:
        self.attention = True
        super()._rebalance()

    def reset(self) -> None:
        """Forget everybody, and open it; the value stays, and so do those from before a resize."""
        former_values = self.former_values
        Ledger.__init__(self, self.value)
        self.former_values = former_values

    def restore_holders(self, held: Iterable[tuple[C, Sequence[int], float | None]]) -> None:
        """Fill a new ledger: claims with the numbers that they had, and when their ttl ends."""
        numbers_held: set[int] = set()
        for claim, numbers, deadline in held:
            give_number(claim, numbers[0])
            claim.ranges = ranges_of(numbers)
            numbers_held.update(numbers)
            self.holders[claim.key] = claim
            if deadline is not None:
                self.timed().set(claim.key, deadline)
        if numbers_held:
            self.restore_numbers(ranges_of(numbers_held))
            self._lower_attention()

    def restore_waiting(
        self,
        waiting: Sequence[tuple[C, float, float | None]],
        tickets: Sequence[int] | None,
        last_ticket: int,
    ) -> None:
        """Let claims wait again: each with its time of arrival and its deadline, in their order.

        ``tickets`` are those of `Ranks`, if somebody had a head start.

        Raises:
            ValueError: one of them could have been granted its slots.
        """
        if not waiting:
            return
        self.waiting = OrderedDict()
        for claim, arrived, wait_until in waiting:
            claim.arrived = arrived
            self.waiting[claim.key] = claim
            if wait_until is not None:
                self.timed().set(claim.key, wait_until)
        if tickets is not None:
            from tests.redis._slot_ranks import Ranks

            self.ranks = Ranks.restore([claim for claim, *_ in waiting], tickets, last_ticket)
        self.attention = True
        if self.closed or self.serve():
            raise ValueError("a waiter could have been granted its slots, or refused")

    def _lower_attention(self) -> None:
        """Open the quick lane again, if nothing needs the lock; no claim waits."""
        if not self.reserve and self.circulating <= self.value and not self.paused_until:
            self.attention = not QUICK_LANE


def _ranks(waiting: OrderedDict[Hashable, Any]) -> Ranks:
    from tests.redis._slot_ranks import Ranks  # few have a head start

    return Ranks(waiting)


def _never(slots: int, value: int) -> str:
    return f"{slots} slots asked of {value}: that can never be granted"
