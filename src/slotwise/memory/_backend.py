"""MemoryBackend: a limit of this process.

It makes acquisitions, waits for them in a task or in a plain thread, and hands on what is asked of
it. The ledger in the tracker decides who gets what.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from logging import DEBUG
from typing import Any, cast

from slotwise._core.adaptive import Change, Outcome, check_outcome
from slotwise._core.at_once import known
from slotwise._core.closing import Closure
from slotwise._core.control import Verb, Where
from slotwise._core.messages import unknown_acquisition
from slotwise._core.outcomes import Outcomes, not_replaceable, too_many_for_adaptive
from slotwise._core.overload import Overload
from slotwise._core.path_backend import PathBackend, Timeout
from slotwise._core.paths import (
    SEMAPHORE_PATH,
    Needs,
    Path,
    PathStats,
    RankedNeeds,
    TierSpec,
    TierStats,
    check_costs,
    options_of,
    weight_for,
)
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.stats import Claimant
from slotwise._core.trio_run import running_trio
from slotwise._core.twins import is_blocking
from slotwise._ledger.idle_nodes import forget_idle
from slotwise._ledger.path_nodes import FIRST
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.tier_nodes import ValueUnknown
from slotwise._wait import clock
from slotwise._wait.deliveries import deliver_posted, posted
from slotwise._wait.section import exclusive
from slotwise._wait.wakers import Waker, block_on, thread_waker
from slotwise.errors import SemaphoreClosed
from slotwise.memory import _inspect, _log, _quick_lane
from slotwise.memory._acquisition import GeneralAcquisition, MemoryAcquisition
from slotwise.memory._ids import id_of, key_of, next_key
from slotwise.memory._log import perhaps_wanted
from slotwise.memory._registry import registry
from slotwise.memory._tracker import Tracker, running_task

# How many idle keys are forgotten in one go, so that nobody waits long for the lock.
_AT_ONCE = 1000

# For an object that must not use the quick lane: this ledger never has anything free.
_DETACHED: PathLedger[Any] = PathLedger([1])
_DETACHED.attention = True


class MemoryBackend(PathBackend):
    """A `PathBackend` for the tasks and threads of this process.

    Objects of one name share their slots, and must agree about the tiers.

    Args:
        tiers: narrow to wide; or that of a semaphore.
        name: the name that objects share; None makes private tiers.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took the slots.
        max_idle_keys: keep at most this many idle keys of each keyed tier, those used last; None
            keeps all until `forget_idle` forgets them.
        overload: which newcomers it refuses at once.
        closed_error: makes what is raised once it is closed.
    """

    __slots__ = (
        *("__weakref__", "_cancel_task_after_ttl", "_is_plain", "_options", "_overload", "_ttl"),
        *("free", "lane", "nodes", "tracker"),
    )

    _does_io = False
    scope = "memory"

    tracker: Tracker
    # Whose quick lane is used; and of a semaphore, its only node, and what is free there.
    lane: PathLedger[Any]
    nodes: tuple[Any, ...]
    free: list[int]

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        *,
        name: str | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        max_idle_keys: int | None = None,
        overload: Overload | None = None,
        closed_error: Callable[..., SemaphoreClosed] = SemaphoreClosed,
    ) -> None:
        super().__init__(tiers, closed_error)
        self._ttl = ttl
        self._cancel_task_after_ttl = cancel_task_after_ttl
        self._overload = overload
        self._options = options_of(tiers)  # of adaptive ones
        self.grace = 0.0  # not used: whoever is kicked here knows at once
        self.reported_as = name
        if name is None:
            self.tracker = Tracker(self._specs)
            self._attach()
        else:
            exclusive(self._find, name)
        # Whether an acquisition of one slot has nothing to remember.
        self._is_plain = ttl is None and self._options is None and self.tracker.is_semaphore
        if max_idle_keys is not None:
            self.tracker.bound_idle(max_idle_keys)

    def _find(self, name: str) -> None:
        self.tracker = registry.tracker_for(name, self._specs)
        self._attach()

    def _attach(self) -> None:
        """Use the ledger that the tracker has now, *in the section* unless nobody knows it yet.

        An object that declares another value can't, until it has asked for a slot.
        """
        tracker, ledger = self.tracker, self.tracker.ledger
        self.lane, self.nodes, self.free = _DETACHED, (), []
        if tracker.is_semaphore:
            if not tracker.ledger.accepts(self._specs):
                return
            self.nodes = (ledger.node(),)
            self.free = self.nodes[0].free
        self.lane = ledger
        if self._ttl is not None:
            ledger.timed()  # what the quick lane gave is noted there without the lock
        if self._overload is not None and self._overload.sheds:
            tracker.time_all_holds()

    @property
    def reported_name(self) -> str | None:
        return self.tracker.name

    @property
    def _reported(self) -> tuple[str | None, str]:
        return self.reported_as, self.scope

    @property
    def value(self) -> int:
        """How many slots a semaphore has."""
        tracker = self.tracker
        return tracker.value if tracker.ledger.accepts(self._specs) else self._specs[0].slots

    def _slot_values(self) -> dict[str, int]:
        if self.tracker.is_semaphore:
            return {self._specs[0].name: self.value}
        return super()._slot_values()

    def closed_error(self) -> SemaphoreClosed:
        tracker = self.tracker
        return self._closed_error(None if tracker.ended else tracker.closure)

    # ------------------------------------------------------------------ taking

    def cm(
        self,
        path: Path = SEMAPHORE_PATH,
        timeout: float | None = None,
        label: str | None = None,
        needs: Needs | None = None,
    ) -> MemoryAcquisition:
        """Return a context manager for one acquisition."""
        acquisition: MemoryAcquisition
        if self._is_plain and label is None and needs is None:
            acquisition = MemoryAcquisition()
        else:
            acquisition = GeneralAcquisition()
            acquisition.path = path
            acquisition.ttl = self._ttl
            if label is not None:
                acquisition.label = label
            if needs is not None:
                acquisition.needs = needs
                if isinstance(needs, RankedNeeds) and (needs.replaces or needs.head_start):
                    acquisition.replaces = needs.replaces
                    acquisition.head_start = FIRST if needs.replaces else needs.head_start
            if self._options is not None:
                acquisition._outcomes = Outcomes(self._options)
                if needs is not None and self.tracker.is_semaphore:
                    self._check_adaptive(acquisition)
        acquisition.key = None
        acquisition.backend = self
        acquisition.timeout = timeout
        return acquisition

    def _check_adaptive(self, acquisition: MemoryAcquisition) -> None:
        assert self._options is not None
        if acquisition.replaces:
            raise not_replaceable(self._title)
        if acquisition.slots > self._options.min:
            raise too_many_for_adaptive(self._title, acquisition.slots, self._options)

    def begin(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> Awaitable[AcquisitionResult]:
        acquisition = self.cm(path, timeout, label, needs)
        acquisition.key = next_key()
        if _quick_lane.take(acquisition):
            return known(acquisition)
        return self.get(acquisition)

    async def acquire(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        return await self.begin(path, timeout, label, needs)

    def get(self, acquisition: MemoryAcquisition) -> Coroutine[Any, Any, MemoryAcquisition]:
        """Get what the quick lane did not give, waiting if need be, and return it."""
        # Mostly not a coroutine of its own: each is one more that every wake-up goes through.
        if perhaps_wanted(DEBUG, True) or acquisition.needs or self._cancel_task_after_ttl:
            return self._get_and_tell(acquisition)
        return self._get(acquisition)

    async def _get_and_tell(self, acquisition: MemoryAcquisition) -> MemoryAcquisition:
        """`get` while it is logged, somebody listens to events, or holders may be replaced."""
        started = self._begin_to_ask(acquisition)
        try:
            try:
                await self._get(acquisition)
            finally:
                for each in acquisition.replaced:
                    self.tracker.tell_kicked(each)
            _log.acquired(acquisition, self.tracker, started)
        except BaseException as error:
            _log.refused(acquisition, error)
            raise
        return acquisition

    def _begin_to_ask(self, acquisition: MemoryAcquisition) -> float:
        """Return the time if the acquisition may be logged."""
        if self._cancel_task_after_ttl and acquisition.ttl is not None:
            acquisition.task = running_task()
        if not perhaps_wanted(DEBUG, True):
            return 0.0
        _log.acquiring(acquisition, self)
        return clock.now()

    async def _get(self, claim: MemoryAcquisition) -> MemoryAcquisition:
        """Ask the ledger, and wait if the slots are not free."""
        loop = waiting_loop()
        make_waker = thread_waker if loop is None else loop.create_future
        try:
            granted = self._learning(claim, self._ask, claim, make_waker)
        finally:
            if posted:
                deliver_posted()
        if granted:
            if loop is not None and self.tracker.woken.any_of(loop):
                await self._let_woken_pass(claim)
            return claim
        if claim.timeout == 0:
            raise cast("Exception", claim.failure)
        waker: Any = claim.waker
        try:
            clock.require_timers()
            if loop is None:
                block_on(waker)
            else:
                await waker
        except BaseException:  # cancelled, interrupted, or collected together with its event loop
            self.tracker.withdraw(claim)
            raise
        finally:
            self.tracker.woken.discard(waker)
        if claim.failure is not None:
            raise claim.failure
        return claim

    def _ask(self, claim: MemoryAcquisition, make_waker: Callable[[], Waker]) -> bool:
        tracker = self.tracker if self.lane is self.tracker.ledger else self._admitted()
        return tracker.ask(claim, make_waker, self._overload)

    def _admitted(self) -> Tracker:
        """Return the tracker, *in the section*, once this object may use it.

        Raises:
            ValueConflict: a semaphore is in use with another value.
        """
        tracker = self.tracker
        if self.lane is not tracker.ledger:
            if not tracker.is_open():
                raise self.closed_error()
            tracker.declare(self._specs)
            self._attach()
        return tracker

    def _learning(self, claim: MemoryAcquisition, ask: Callable[..., bool], *args: Any) -> bool:
        """Ask in the section; where keys have their own values, the user's function says them."""
        tracker = self.tracker
        if tracker.ledger.queue.fair is not None:
            claim.weight = weight_for(self._specs, claim.path)
        while True:
            try:
                return exclusive(ask, *args)
            except ValueUnknown as unknown:  # nothing is taken yet
                # The user's function may do anything, so it is not called in the section.
                value = self._specs[unknown.tier].ask(cast("str", unknown.key))
                learn = tracker.ledger.learn
                exclusive(learn, unknown.tier, unknown.key, value, clock.now())

    async def _let_woken_pass(self, claim: MemoryAcquisition) -> None:
        """Let others enter first who were granted their slots before ``claim`` got its own."""
        try:
            await self.tracker.woken.let_pass()
        except BaseException:
            self.tracker.withdraw(claim)
            raise

    running_task = staticmethod(running_task)

    # ------------------------------------------------------------------ giving

    def give(self, acquisition: MemoryAcquisition) -> bool:
        """Give back what an acquisition holds; False if it has ended before."""
        if not _quick_lane.give(acquisition):
            return False
        tracker = self.tracker
        if perhaps_wanted(DEBUG, True) or tracker.unreported:
            _log.released(acquisition, tracker)
            tracker.tell_changes(self._tell_adapted)
        return True

    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        return self.end(acquisition_id, outcome)

    def end(self, acquisition_id: str | AcquisitionResult, outcome: Outcome | None = None) -> bool:
        """Release an acquisition at once; False if it had ended before."""
        if outcome is not None:
            check_outcome(outcome)  # an invalid outcome releases nothing
        holder: MemoryAcquisition | None
        if isinstance(acquisition_id, MemoryAcquisition) and acquisition_id.backend is self:
            holder = acquisition_id
        else:
            acquisition_id = acquisition_id_of(acquisition_id)
            key = key_of(acquisition_id)
            if key is None:
                _log.unknown_id(acquisition_id, self.reported_name)
                return False
            holder = self.tracker.holder(key)
            if holder is None:
                self.tracker.keep_task(key)
                return False
        holder._state_outcome(outcome)
        return holder.backend.give(holder)

    async def kick(self, acquisition_id: str) -> bool:
        holder = self.tracker.holder(key_of(acquisition_id))
        return holder is not None and holder.backend.tracker.kick(holder)

    # ------------------------------------------------------- looking, steering

    async def stats(self) -> dict[str, TierStats]:
        return self.tracker.stats()

    async def stats_of(self, path: Path) -> PathStats:
        return self.tracker.stats_of(path)

    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        return exclusive(self.tracker.estimate, path, needs)

    async def holders(self) -> list[Claimant]:
        return _inspect.holders(self.tracker)

    async def waiters(self) -> list[Claimant]:
        return _inspect.waiters(self.tracker)

    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        return exclusive(self.tracker.changes, self._indexes[tier], key)

    def check_costs(self, costs: Mapping[str, int]) -> None:
        check_costs(self._specs, costs, self._title)

    def charge(self, key: int | None, costs: Mapping[str, int]) -> None:
        """Correct what an acquisition has taken of rates."""
        by_index = {self._indexes[name]: cost for name, cost in costs.items()}
        try:
            self.tracker.change(self.tracker.settle, key, by_index)
        except LookupError:
            title = self._title
            raise unknown_acquisition(title, "" if key is None else id_of(key)) from None

    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        if verb == "settle":
            acquisition_id, costs = args
            self.check_costs(costs)
            key = key_of(acquisition_id)
            if key is None:
                raise unknown_acquisition(self._title, acquisition_id)
            self.charge(key, costs)
            return None
        try:
            return exclusive(self._apply_here, verb, where, args)
        finally:
            deliver_posted()

    def _apply_here(self, verb: Verb, where: Where, args: Sequence[Any]) -> Any:
        tracker = self.tracker
        if verb == "close_everywhere":
            return registry.close_everywhere(tracker, Closure(args[0]))
        if verb == "reopen":
            return registry.reopen(tracker)
        if verb != "refill" and not tracker.is_open():
            raise self.closed_error()
        if verb in ("freeze", "thaw") and tracker.is_semaphore:
            self._admitted()  # which depends on the rules it was made with
        tier, key = where
        index = 0 if tier is None else self._indexes[tier]
        if verb == "resize":
            args = *args, self._specs[index].value
        result = tracker.control(verb, index, key, *args)
        tracker.keep()
        tracker.let_go()
        return result

    async def close(self) -> None:
        """Close all objects of the name that were made so far."""
        if not self.tracker.ended:
            exclusive(self.tracker.end)
            deliver_posted()

    def forget_idle(self, tier: str, older_than: float, keep_at_most: int | None = None) -> int:
        index, forgotten, more = self._indexes[tier], 0, True
        while more:
            now = clock.now()
            some, more = exclusive(
                *(forget_idle, self.tracker.ledger),
                *(index, now, older_than, keep_at_most, _AT_ONCE),
            )
            forgotten += some
        return forgotten


def waiting_loop() -> AbstractEventLoop | None:
    """Return the event loop that the caller waits in; None if it waits by blocking its thread.

    Raises:
        RuntimeError: there is none, and it is no twin for plain threads that calls.
    """
    if is_blocking():
        return None
    try:
        return get_running_loop()
    except RuntimeError:
        return running_trio()
