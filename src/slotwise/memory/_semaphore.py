"""MemorySemaphore: the public class of the memory driver.

It takes slots, waits for them and gives them back. `_attachment` finds the tracker of its
name; the ledger in the tracker decides who gets a slot. The shortcut past both, the ledger's
quick lane, is here for ``async with semaphore:`` and in `_acquisition` for everything else.
"""

from __future__ import annotations

from _thread import get_ident
from asyncio import Future, get_running_loop
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from heapq import heappop, heappush
from logging import DEBUG
from types import TracebackType
from typing import Any, cast

from slotwise._core import events
from slotwise._core.adaptive import Adaptive, Change, Outcome, check_outcome
from slotwise._core.arguments import (
    MOST_SLOTS,
    UNSET,
    Shed,
    Unset,
    WaitOrReplace,
    check_count,
    check_flag,
    check_label,
    check_name,
    check_names,
    check_on_full,
    check_seconds,
    check_value,
)
from slotwise._core.control import Verb, Where
from slotwise._core.limit import AcquisitionContext, Limit
from slotwise._core.locked import KnownAnswer
from slotwise._core.messages import display
from slotwise._core.outcomes import Outcomes, not_replaceable, too_many_for_adaptive
from slotwise._core.overload import overload_of
from slotwise._core.priorities import check_priority
from slotwise._core.results import AcquisitionResult, Claimant, SemaphoreStats, acquisition_id_of
from slotwise._core.semaphore import Semaphore
from slotwise._core.trio_run import running_trio
from slotwise._core.twins import refuse_to_block_a_loop, run_here
from slotwise._wait import clock
from slotwise._wait.at_once import DONE, known
from slotwise._wait.clock import glance
from slotwise._wait.section import exclusive, section
from slotwise._wait.wakers import Waker
from slotwise.memory import _attachment, _inspect, _log
from slotwise.memory._acquisition import (
    BlockWait,
    GeneralMemoryAcquisition,
    MemoryAcquisition,
)
from slotwise.memory._ids import is_id_of_block, key_of, next_key
from slotwise.memory._log import logged, perhaps_wanted
from slotwise.memory._registry import registry
from slotwise.memory._tracker import Tracker
from slotwise.memory._waiting import Waiting, running_task, waiting_loop

# Compared by identity, which is quick and tells them from True and 1.0.
_ONE = 1
_WAIT = "wait"
_NO_PRIORITY = 0


class MemorySemaphore(Waiting[MemoryAcquisition], Semaphore):
    """A semaphore for the tasks and threads of this process.

    Instances of one name are one semaphore, in all threads and event loops.
    ``name=None`` makes a private one.

    Args:
        value: how many slots there are; or an `Adaptive`, which finds the number.
        name: the name that instances share.
        max_acquire_time: the longest wait in seconds; None waits forever.
        ttl: the longest hold in seconds; then the slot is freed, whoever has it.
        cancel_task_after_ttl: also cancel the task that took the slot.
        max_waiting: how many may wait; beyond it, newcomers that would have to wait get a
            LimitFull. None lets any number wait.
        shed: "deadline" also refuses callers whose timeout is shorter than the expected wait
            (see `Limit.estimate`); None, the default, refuses nobody for that.
    """

    __slots__ = (
        "_adaptive",
        "_is_plain",
        "_kick_grace",
        "_lane",
        "_numbers",
        "_reported_name",
        "_tracker",
        "_value",
        "_waits_in_line",
    )

    _does_io = False
    _scope = "memory"

    _kick_grace: float  # not used: whoever is kicked here knows at once
    _reported_name: str | None  # set if it isn't its name
    _release_on_exit = Limit._release_on_exit
    _run = Limit._run
    _tracker: Tracker

    def __init__(
        self,
        value: int | Adaptive,
        *,
        name: str | None = None,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        max_waiting: int | None = None,
        shed: Shed | None = None,
    ) -> None:
        # Names come and go by the hundred thousand, so valid arguments are not checked twice.
        self._adaptive: Adaptive | None = None
        self._value: int
        if type(value) is int and 0 < value <= MOST_SLOTS:
            self._value = value
        elif isinstance(value, Adaptive):
            self._adaptive, self._value = value, value.start
        else:
            value = self._value = check_value(value)
        if name is not None and (type(name) is not str or not name or not name.isascii()):
            name = check_name(name)
        self._name = name
        self._max_acquire_time = max_acquire_time
        if max_acquire_time is not None:
            self._max_acquire_time = check_seconds("max_acquire_time", max_acquire_time)
        self._ttl = ttl
        if ttl is not None:
            self._ttl = check_seconds("ttl", ttl)
        self._cancel_task_after_ttl = cancel_task_after_ttl
        if cancel_task_after_ttl is not False:
            check_flag("cancel_task_after_ttl", cancel_task_after_ttl)
        self._overload = None
        if max_waiting is not None or shed is not None:
            self._overload = overload_of(max_waiting, shed)
        # Whether blocks may wait in the tracker's line, where nobody counts or times them.
        self._waits_in_line = max_acquire_time is None and self._overload is None
        # Whether a block needs no claim: nothing of it can expire, or is timed.
        self._is_plain = ttl is None and self._adaptive is None
        # The slot numbers of `async with` blocks of this instance that need no
        # claim. Nobody sees which block has which, so a stack will do.
        self._numbers: list[int] = []
        self._blocks = None
        if name is None:
            self._attach(Tracker(value))
            return
        exclusive(_attachment.attach, self, name, value)

    def _attach(self, tracker: Tracker) -> None:
        """Use ``tracker`` from now on, *in the section* unless nobody else knows it."""
        if self._ttl is not None:
            tracker.timed()  # what the quick lane gave is noted there without the lock
        self._tracker = tracker
        self._lane = tracker if self._is_plain else _attachment.DETACHED
        if self._overload is not None and self._overload.sheds:
            tracker.time_all_holds()

    @property
    def _reported(self) -> tuple[str | None, str]:
        return getattr(self, "_reported_name", self._name), self._scope

    def _tell_requested(self, acquisition_id: str, slots: int, now: float) -> None:
        """Tell the hooks that a request begins."""
        events.requested(acquisition_id, *self._reported, now, slots=slots, values={"": self.value})

    def _tell_adapted(self, value: int, reason: str) -> None:
        """Tell the hooks that the value has moved by itself."""
        events.adapted(*self._reported, value, reason)

    def __repr__(self) -> str:
        return f"<MemorySemaphore {display(self._name)} value={self.value}>"

    @property
    def _base(self) -> type[MemorySemaphore]:
        return MemorySemaphore

    def _arguments(self) -> dict[str, Any]:
        return {"value": self._adaptive or self._value, **super()._arguments()}

    @property
    def value(self) -> int:
        """How many slots there are."""
        return self._value if self._tracker.retired else self._tracker.value

    # ---------------------------------------------------------------- taking

    def cm(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        on_full: WaitOrReplace = "wait",
        priority: float = 0,
    ) -> AcquisitionContext:
        acquisition: MemoryAcquisition
        if timeout is UNSET:
            timeout = self._max_acquire_time
        else:
            timeout = check_seconds("timeout", timeout, zero=True)
        if (
            self._is_plain
            and slots is _ONE
            and label is None
            and on_full is _WAIT
            and priority is _NO_PRIORITY
        ):
            acquisition = MemoryAcquisition()
        else:
            acquisition = self._general(slots, label, on_full, priority)
        acquisition.key = None
        acquisition.semaphore = self
        acquisition.timeout = timeout
        return acquisition

    def _general(
        self, slots: int, label: str | None, on_full: str, priority: float
    ) -> GeneralMemoryAcquisition:
        """Return an acquisition that has room for all of this."""
        acquisition: GeneralMemoryAcquisition = GeneralMemoryAcquisition()
        acquisition.slots = slots if slots is _ONE else check_count("slots", slots)
        acquisition.label = label if label is None else check_label(label)
        acquisition.ttl = self._ttl
        acquisition.task = None
        acquisition.replaces = replaces = on_full is not _WAIT and check_on_full(on_full)
        acquisition.replaced = ()
        acquisition.head_start = 0
        if priority is not _NO_PRIORITY and not replaces:
            acquisition.head_start = check_priority(priority)
        options = self._adaptive
        acquisition._outcomes = None if options is None else Outcomes(options)
        if options is not None:
            if replaces:
                raise not_replaceable(self._title)
            if slots > options.min:
                raise too_many_for_adaptive(self._title, slots, options)
        return acquisition

    def _tell_changes(self) -> None:
        """Tell the hooks how an adaptive value has moved."""
        tracker = self._tracker
        if tracker.unreported:
            tracker.tell_changes(self._tell_adapted)

    async def acquire(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        on_full: WaitOrReplace = "wait",
        priority: float = 0,
    ) -> AcquisitionResult:
        acquisition: MemoryAcquisition
        acquisition = self.cm(
            slots, timeout=timeout, label=label, on_full=on_full, priority=priority
        )  # type: ignore[assignment]
        acquisition.key = next_key()
        if not acquisition.take():
            await self._acquire(acquisition)
        return acquisition

    async def try_acquire(
        self, slots: int = 1, *, label: str | None = None, priority: float = 0
    ) -> AcquisitionResult | None:
        loop = waiting_loop()
        acquisition: MemoryAcquisition = self.cm(slots, label=label, priority=priority)  # type: ignore[assignment]
        acquisition.key = next_key()
        if acquisition.take():
            return acquisition
        acquisition.timeout = 0
        started = self._begin(acquisition)
        try:
            if not exclusive(lambda: _attachment.current(self).ask_now(acquisition)):
                _log.refused(acquisition, None)
                return None
            _log.acquired(acquisition, self._tracker, started)
        except BaseException as error:
            _log.refused(acquisition, error)
            raise
        if loop is not None and self._tracker.woken.any_of(loop):
            try:
                await self._let_woken_pass(acquisition)
            except BaseException:
                _log.ended(acquisition, "released")
                raise
        return acquisition

    def _acquire(self, acquisition: MemoryAcquisition) -> Coroutine[Any, Any, None]:
        """Get what the quick lane did not give, waiting if need be."""
        # Mostly not a coroutine of its own: each is one more that every wake-up goes through.
        if perhaps_wanted(DEBUG, True) or acquisition.replaces or self._cancel_task_after_ttl:
            return self._acquire_and_tell(acquisition)
        return self._get(acquisition)

    async def _acquire_and_tell(self, acquisition: MemoryAcquisition) -> None:
        """`_acquire` while it is logged, or somebody listens to events."""
        started = self._begin(acquisition)
        try:
            try:
                await self._get(acquisition)
            finally:
                if acquisition.replaces:
                    self._tell_replaced(acquisition)
            _log.acquired(acquisition, self._tracker, started)
        except BaseException as error:
            _log.refused(acquisition, error)
            raise

    def _tell_replaced(self, acquisition: MemoryAcquisition) -> None:
        for each in cast("GeneralMemoryAcquisition", acquisition).replaced:
            self._tracker.tell_kicked(each)

    def _begin(self, acquisition: MemoryAcquisition) -> float:
        """Prepare to ask the ledger; return the time if the acquisition may be logged."""
        if self._cancel_task_after_ttl and acquisition.ttl is not None:
            cast("GeneralMemoryAcquisition", acquisition).task = running_task()
        if not perhaps_wanted(DEBUG, True):
            return 0.0
        _log.acquiring(acquisition, self)
        return clock.now()

    def _ask(self, claim: MemoryAcquisition, make_waker: Callable[[], Waker]) -> bool:
        tracker = self._tracker
        if tracker.retired:
            tracker = _attachment.current(self)
        return tracker.ask(claim, make_waker, self._overload)

    # ---------------------------------------------------------------- giving

    def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> Coroutine[Any, Any, bool]:
        # Not a coroutine that does it once it is awaited: one that nobody awaits has released, too.
        return known(self._release(acquisition_id, outcome))

    def _release(self, acquisition_id: str | AcquisitionResult, outcome: Outcome | None) -> bool:
        if outcome is not None:
            check_outcome(outcome)  # an invalid outcome releases nothing
        if isinstance(acquisition_id, MemoryAcquisition) and acquisition_id.semaphore is self:
            acquisition_id._state_outcome(outcome)
            acquisition: MemoryAcquisition = acquisition_id
            return acquisition.give()
        acquisition_id = acquisition_id_of(acquisition_id)
        key = key_of(acquisition_id)
        if key is None:
            _log.unknown_id(acquisition_id, self._name)
            return False
        holder, tracker = self._holder(key)
        if holder is None:
            tracker.keep_task(key)
            return False
        holder._state_outcome(outcome)
        return holder.give()

    def _holder(self, key: int) -> tuple[MemoryAcquisition | None, Tracker]:
        """Return the acquisition behind a key, if it is one of this semaphore, and its tracker."""
        tracker = _attachment.known(self) or self._tracker
        holder = tracker.holders.get(key)
        # Named semaphores share their table of holders.
        if holder is None or holder.semaphore._tracker is not tracker:
            return None, tracker
        return holder, tracker

    # ------------------------------------------------- `async with semaphore:`

    def __aenter__(self) -> Coroutine[Any, Any, None]:
        tracker = self._lane
        try:  # `_quick_lane.take`, inlined
            if not (tracker.attention or tracker.line or tracker.woken or logged[DEBUG]):
                self._numbers.append(heappop(tracker.free))
                return DONE
        except LookupError:
            pass
        return self._enter()

    async def _enter(self) -> None:
        """Enter a block that the quick lane didn't let in."""
        tracker = self._lane
        try:
            has_to_ask = tracker.attention or logged[DEBUG]
        except KeyError:  # it isn't known whether anything is logged
            has_to_ask = True
        if not has_to_ask:
            future: Future[int] | None = None
            loop = tracker.home.asyncio_loop
            if loop._thread_id == get_ident() and tracker.line:
                if self._waits_in_line and clock.timekeeper.failure is None:
                    future = Future(loop=loop)
            else:
                try:
                    loop = get_running_loop()
                except RuntimeError:
                    loop = running_trio()
                if not tracker.line and (tracker.free or tracker.circulating < tracker.value):
                    number = tracker.take_another(loop)
                    if number:
                        self._numbers.append(number)
                        return
                if (
                    self._waits_in_line
                    and clock.timekeeper.failure is None
                    and tracker.at_home(loop)
                ):
                    future = loop.create_future()
            if future is not None:
                try:
                    tracker.line.append(future)
                    # The last check after queueing, in the ledger's order. `busy` comes first: a
                    # thread in the section may have numbers in hand that it puts back; one that
                    # enters later sees the line before it takes any.
                    if (
                        section.busy
                        or tracker.free
                        or tracker.circulating < tracker.value
                        or loop is not tracker.home.loop
                        or tracker.attention
                    ):
                        tracker.serve_newcomer(future)
                        if future.done():
                            await tracker.woken.let_pass()
                    number = await future
                except BaseException:
                    tracker.leave_line(future)
                    raise
                if tracker.woken:
                    tracker.woken.discard(future)
                if number:
                    self._numbers.append(number)
                    return
        await self._enter_slowly()

    def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        if not self._blocks:
            try:
                number = self._numbers.pop()
            except IndexError:
                pass
            else:
                tracker = self._tracker
                if tracker.line or tracker.attention:  # `_quick_lane.give`, inlined
                    tracker.hand_over(number)
                else:
                    tracker.last_used = glance.time
                    heappush(tracker.free, number)
                    if tracker.line or tracker.attention:
                        tracker.look_after_waiters()
                return DONE
        self._exit(exc_type)
        return DONE

    def __enter__(self) -> None:
        refuse_to_block_a_loop("'with'")
        tracker = self._lane
        try:  # `_quick_lane.take`, inlined
            if not (tracker.attention or tracker.line or tracker.woken or logged[DEBUG]):
                self._numbers.append(heappop(tracker.free))
                return
        except LookupError:
            pass
        if self._blocks_have_claims():
            self._enter_block(self.acquire_sync())
        else:
            wait = BlockWait(self, self._max_acquire_time)
            run_here(partial(self._get, wait))
            self._numbers.append(wait._slot_number)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._blocks:
            try:
                number = self._numbers.pop()
            except IndexError:
                pass
            else:
                tracker = self._tracker
                if tracker.line or tracker.attention:  # `_quick_lane.give`, inlined
                    tracker.hand_over(number)
                else:
                    tracker.last_used = glance.time
                    heappush(tracker.free, number)
                    if tracker.line or tracker.attention:
                        tracker.look_after_waiters()
                return
        self._exit(exc_type)

    async def _enter_slowly(self) -> None:
        """Enter a block that can neither take the quick lane nor wait in its line."""
        if self._blocks_have_claims():
            self._enter_block(await self.acquire())
        else:
            wait = BlockWait(self, self._max_acquire_time)
            await self._get(wait)
            self._numbers.append(wait._slot_number)

    def _blocks_have_claims(self) -> bool:
        """Whether a block must be known by an id: to expire, or to be logged."""
        return not self._is_plain or perhaps_wanted(DEBUG, True)

    def _exit(self, exc_type: type[BaseException] | None) -> None:
        """Leave a block: the caller's latest with a claim, or else one without."""
        acquisition = self._own_block() if self._blocks else None
        if acquisition is None:
            try:
                number = self._numbers.pop()
            except IndexError:
                acquisition = self._leave_block()
        if acquisition is not None:
            acquisition._leave_with(exc_type)
            cast("MemoryAcquisition", acquisition).give()
            return
        self._tracker.hand_over(number)

    # ------------------------------------------------------ looking, steering

    def locked(self) -> KnownAnswer:
        """Return whether a newcomer would have to wait: ``await`` it or use it as a bool."""
        return KnownAnswer(_attachment.is_locked(self))

    async def _locked(self) -> bool:
        return _attachment.is_locked(self)

    async def estimate(self, slots: int = 1) -> float | None:
        """As in `Limit`. Blocks of ``async with semaphore:`` are timed after the first call."""
        check_count("slots", slots)
        return exclusive(_attachment.estimate, self, slots)

    async def stats(self) -> SemaphoreStats:
        return self._with_totals(_attachment.stats_of(self))

    @classmethod
    async def get_acquired_stats(
        cls, names: Iterable[str] | None = None, limit: int = 100
    ) -> dict[str, SemaphoreStats]:
        """Return the statistics of the named semaphores of this process, fullest first.

        Idle ones are left out unless they are asked for by name.

        Args:
            names: only these; unknown ones are left out.
            limit: the largest number of semaphores to return.
        """
        return cls.get_acquired_stats_sync(names, limit)

    @classmethod
    def get_acquired_stats_sync(
        cls, names: Iterable[str] | None = None, limit: int = 100
    ) -> dict[str, SemaphoreStats]:
        """Like `get_acquired_stats`."""
        check_names(names)
        return registry.stats(names, check_count("limit", limit))

    async def holders(self) -> list[Claimant]:
        """Return who holds slots now, the longest first.

        Blocks of ``async with semaphore:`` come last, with their slot number alone: they have no
        acquisition, and no id to kick them by. When a slot was granted is known if it has a ttl, a
        label or several slots, or was waited for.
        """
        tracker = _attachment.known(self)
        return [] if tracker is None else _inspect.holders(tracker)

    async def waiters(self) -> list[Claimant]:
        tracker = _attachment.known(self)
        return [] if tracker is None else _inspect.waiters(tracker)

    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool:
        """End somebody's acquisition; see `Semaphore.kick`.

        Raises:
            ValueError: it is a block of ``async with semaphore:``, which can't be kicked.
        """
        acquisition_id = acquisition_id_of(acquisition_id)
        if is_id_of_block(acquisition_id):
            raise ValueError(
                f"{acquisition_id!r} is a block of 'async with semaphore:', which can't be"
                " kicked; only what acquire() or cm() returned can"
            )
        key = key_of(acquisition_id)
        if key is None:
            return False
        holder, tracker = self._holder(key)
        return holder is not None and tracker.kick(holder)

    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:  # noqa: ARG002 - of tiers
        return _attachment.control(self, verb, args)

    async def changes(self) -> list[Change]:
        return exclusive(lambda: _attachment.current(self).changes())

    async def close(self) -> None:
        if not _attachment.is_ended(self):
            _attachment.close_here(self)
