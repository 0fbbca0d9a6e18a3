"""ProcessBackend: a limit for the processes of one machine.

It knows the `SharedLimit` behind an instance, makes acquisitions, and hands on what is asked of
it. The ledger (`_state`) decides who gets something; `_operations` has what a change does.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core import events
from slotwise._core.adaptive import Change, Outcome, check_outcome
from slotwise._core.arguments import MOST_SLOTS, check_count
from slotwise._core.at_once import DONE
from slotwise._core.control import WHOLE, Verb, Where
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.limit import require_asyncio
from slotwise._core.messages import fixed_value, unknown_acquisition
from slotwise._core.outcomes import UNKNOWN_OPTIONS, Outcomes, not_replaceable
from slotwise._core.overload import Overload
from slotwise._core.path_backend import PathBackend, Timeout
from slotwise._core.paths import (
    Needs,
    Path,
    PathStats,
    RankedNeeds,
    TierSpec,
    TierStats,
    check_costs,
    head_start_of,
    is_semaphore,
    options_of,
    weight_for,
)
from slotwise._core.rates import Rate
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.running_loop import running_loop
from slotwise._core.twins import is_blocking, run_here
from slotwise.errors import SemaphoreClosed, UnknownSemaphore
from slotwise.processes import _log, _views
from slotwise.processes import _operations as operations
from slotwise.processes import _process as processes
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._claims import Request
from slotwise.processes._filenames import (
    PRIVATE_SUFFIX,
    PRIVATE_TIERS_SUFFIX,
    SUFFIX,
    TIERS_SUFFIX,
    locate,
    true_path,
)
from slotwise.processes._journal import Busy
from slotwise.processes._limit import LOCK_TIMEOUT, Interrupted, SharedLimit
from slotwise.processes._messages import busy
from slotwise.processes._snapshots import write_value
from slotwise.processes._state import Declared, State
from slotwise.processes._wait_for_grant import (
    INLINE_LOCK_TIMEOUT,
    NO_WAIT_LOCK_TIMEOUT,
    call_limit,
    get_grant,
)

if TYPE_CHECKING:
    import asyncio

    from slotwise._core.stats import Claimant

T = TypeVar("T")


class ProcessBackend(PathBackend):
    """A `PathBackend` for all processes of one user on one machine.

    Objects of one name and directory share their tiers, in any process, and must agree about
    them. ``name=None`` makes private ones, for this process and those that it forks.

    Args:
        tiers: narrow to wide; or that of a semaphore.
        name: the name that objects share.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took the slots.
        max_idle_keys: how many idle keys of each tier this object remembers.
        overload: which newcomers it refuses at once.
        directory: the directory for the files.
        closed_error: makes what acquiring raises once it is closed.
    """

    __slots__ = (
        *("__weakref__", "_by_key", "_cancel_task_after_ttl", "_fork_epoch", "_generation_key"),
        *("_holds_nothing", "_idle", "_is_keyed", "_limit", "_made_in", "_max_idle_keys"),
        *("_options", "_overload", "_suffix", "_ttl", "declared", "directory", "generation"),
        "name",
    )

    scope = "process"

    declared: Declared  # the tiers it was made with; None accepts any value of a semaphore

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        *,
        name: str | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        max_idle_keys: float = inf,
        overload: Overload | None = None,
        directory: str | os.PathLike[str] | None = None,
        closed_error: Callable[..., SemaphoreClosed] = SemaphoreClosed,
    ) -> None:
        super().__init__(tiers, closed_error)
        self.declared = self._specs
        for tier in tiers:
            _check_value(tier.value)
        self._by_key = [index for index, tier in enumerate(tiers) if tier.by_key]
        self._is_keyed = any(tier.keyed for tier in tiers)
        self._holds_nothing = all(isinstance(tier.value, Rate) for tier in tiers)
        self._ttl = ttl
        self._cancel_task_after_ttl = cancel_task_after_ttl
        self._max_idle_keys = max_idle_keys
        self._overload = overload
        self._options = options_of(tiers)  # of adaptive ones
        self._fork_epoch: object = None  # in which it was used last
        self.grace = 0.0
        self.reported_as = name
        if is_semaphore(tiers):
            suffix = PRIVATE_SUFFIX if name is None else SUFFIX
        else:
            suffix = PRIVATE_TIERS_SUFFIX if name is None else TIERS_SUFFIX
        self._suffix = suffix
        self.directory = locate(directory)
        # Private ones have a name too, by which their file is found.
        self.name = name or f"private-{os.urandom(8).hex()}"
        self.name.encode()  # a ValueError here, and not in the middle of a change
        self._made_in = processes.fork_epoch
        self._generation_key = true_path(self.directory), self.name, suffix
        self.generation = processes.generations.current(self._generation_key)
        if name is None:  # its file is deleted by the process that made it
            where = self.directory, self.name, suffix, self._made_in
            finalizer = weakref.finalize(self, processes.on_collected, *where)
            finalizer.atexit = False  # LocalProcess.on_exit does that

    def accept_any(self) -> None:
        """Use a semaphore whatever its value is."""
        self.declared, self._options = None, UNKNOWN_OPTIONS

    def limit(self) -> SharedLimit:
        """Return what is behind it; another one after a fork."""
        epoch = processes.fork_epoch
        if self._fork_epoch is not epoch:
            process = processes.process_for(self.directory)
            self._limit: SharedLimit = process.limit(self.name, self._suffix)
            self._idle = IdleKeys(self._specs, self._max_idle_keys)
            self._fork_epoch = epoch  # only now: other threads may be here, too
            if self._limit.public_name is None and self._made_in is epoch:
                process.private[self.name] = self._suffix
        return self._limit

    @property
    def state(self) -> State | None:
        """Its state, as this process last read it."""
        return None if self._fork_epoch is None else self._limit.state

    @property
    def value(self) -> int:
        """How many slots a semaphore has, as this process last saw it."""
        state = self.state
        if state is not None and state.accepts(self.declared):
            value: int = state.value_at()
            return value
        return self._specs[0].slots

    @property
    def reported_name(self) -> str | None:
        return self.limit().public_name

    @property
    def _reported(self) -> tuple[str | None, str]:
        return self.reported_as, self.scope

    def _slot_values(self) -> dict[str, int]:
        if is_semaphore(self._specs):
            return {self._specs[0].name: self.value}
        return super()._slot_values()

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        return await self.begin(path, timeout, label, needs)

    def begin(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> Coroutine[Any, Any, ProcessAcquisition]:
        return get_grant(self._request(path, timeout, label, needs))

    async def try_acquire(
        self, path: Path, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult | None:
        acquisition = await get_grant(self._request(path, None, label, needs), waits=False)
        return None if acquisition.fencing_token is None else acquisition

    def _request(
        self, path: Path, timeout: float | None, label: str | None, needs: Needs | None
    ) -> ProcessAcquisition:
        limit = self.limit()
        values = self._values_of(path) if self._by_key else ()
        weight = weight_for(self._specs, path)
        wanted = Request(path, needs, values, head_start_of(needs), weight)
        journal = limit.journal
        acquisition_id, (now, _) = f"{journal.owner}-{journal.next_number()}", journal.times()
        if events.hooks:
            self._tell_requested(acquisition_id, needs, now, path)
        acquisition = ProcessAcquisition(acquisition_id, self, limit, wanted, timeout, label, now)
        if self._options is not None:
            acquisition._outcomes = Outcomes(self._options)
        if isinstance(needs, RankedNeeds) and needs.replaces:
            if self._options is not None and self.declared is not None:
                raise not_replaceable(self._title)
            acquisition.replaces = True
        if self._cancel_task_after_ttl and not is_blocking():
            import asyncio  # a plain thread doesn't need it

            acquisition.task = asyncio.current_task(require_asyncio())
        return acquisition

    def _values_of(self, path: Path) -> tuple[tuple[int, int], ...]:
        """Ask for the values of keys, where each has its own and it is not remembered.

        Before anything is locked: the user's function may do anything. The journal has the values
        of keys that are in use, which stay.
        """
        values = []
        for tier in self._by_key:
            key = path[tier]
            assert key is not None
            value = self._idle.value_of(tier, key)
            if value is None:
                value = _check_value(self._specs[tier].ask(key))
            values.append((tier, value))
        return tuple(values)

    async def _call(
        self,
        work: Callable[..., T],
        *args: Any,
        declared: Declared = None,
        at_most: float = LOCK_TIMEOUT,
    ) -> T:
        """Run ``work`` in a change of the limit.

        Raises:
            BackendError: another process kept the lock for that long.
            UnknownSemaphore: it doesn't exist, and nothing is declared.
        """
        limit = self.limit()
        call = partial(limit.change, work, limit, *args, declared=declared)
        try:
            if is_blocking():
                return call(lock_timeout=at_most)
            # Without a thread, a slot is released all the same: that blocks the loop for a moment.
            here = partial(call, lock_timeout=NO_WAIT_LOCK_TIMEOUT)
            return await call_limit(call, at_most, otherwise=here)
        except Busy as error:
            raise busy(limit.journal.place, error) from None

    # ------------------------------------------------------------- releasing

    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        acquisition_id = acquisition_id_of(acquisition_id)
        if outcome is not None:
            check_outcome(outcome)
        if self._holds_nothing or processes.is_inherited(acquisition_id):
            return False  # the parent process holds it, or nobody
        claims = self.limit().claims
        claims.ttl_cancels.keep_task(acquisition_id)  # if it is in this process
        holder = claims.by_id.get(acquisition_id)
        try:
            released = await self._call(operations.release, acquisition_id, outcome)
        except Interrupted:  # this thread is in the middle of a change, which does it when it ends
            released = self.limit().end_later(acquisition_id)
        except UnknownSemaphore:
            released = False
        if not released:
            _log.released_nothing(self.limit(), acquisition_id)
        elif holder is not None:
            _log.released(holder)
        if released and events.hooks and self._options is not None:
            moved = self.limit().moved
            while moved:
                index, key, change = moved.popleft()
                self._tell_adapted(index, key, change.new, change.reason)
        return released

    # ------------------------------------------------------------ inspecting

    async def look(
        self, read: Callable[[State, float], T], at_most: float = NO_WAIT_LOCK_TIMEOUT
    ) -> T:
        """Return what ``read`` finds; getting at it may take ``at_most`` seconds."""
        return await self._call(operations.look, read, declared=self.declared, at_most=at_most)

    async def stats(self) -> dict[str, TierStats]:
        idle = self._idle_keys()
        return await self.look(partial(_views.stats_of, declared=self._specs, idle=idle))

    async def stats_of(self, path: Path) -> PathStats:
        closed_here = self.generation.closed
        return await self.look(
            partial(
                _views.path_stats_of, declared=self.declared, path=path, closed_here=closed_here
            )
        )

    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        wanted = Request(path, needs)
        return await self._call(operations.estimate, wanted, self, declared=self.declared)

    async def holders(self) -> list[Claimant]:
        return await self.look(_views.holders_of)

    async def waiters(self) -> list[Claimant]:
        return await self.look(_views.waiters_of)

    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        index = self._indexes[tier]
        found = await self.look(partial(_views.changes_of, index=index, key=key))
        if found is None and self._specs[index].adaptive is None:
            raise fixed_value(self._title)
        return found or []  # nobody has used it yet

    # ----------------------------------------------------------- controlling

    async def kick(self, acquisition_id: str) -> bool:
        try:
            return await self._call(operations.kick, acquisition_id)
        except UnknownSemaphore:
            return False

    async def close(self) -> None:
        if not self.generation.closed:
            limit = processes.known_limit(self.directory, self.name, self._suffix)
            ids = () if limit is None else list(limit.claims.by_id)
            processes.generations.close(self._generation_key, ids)
            if limit is not None:
                limit.fail_closed()

    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        if verb == "forget":
            return await self._call(
                operations.delete,
                lambda state, now: state.is_idle(now) and not state.can_be_settled(now),
            )
        if verb == "settle":
            check_costs(self._specs, args[1], self._title)
        if verb == "resize":
            known = self.declared or ()
            is_plain = is_semaphore(known) and not known[0].rules
            args = write_value(_check_value(args[0])), known[0].slots if is_plain else None
        declared = self.declared if verb in (*operations.NEED_OPEN, "close_everywhere") else None
        try:
            return await self._call(operations.control, verb, where, args, self, declared=declared)
        except UnknownSemaphore:  # nobody has used it: there is nothing to refill or reopen
            if verb == "settle":
                raise unknown_acquisition(self._title, args[0]) from None
            return None

    def settle_soon(self, acquisition_id: str, costs: dict[str, int]) -> Awaitable[None]:
        """State what an acquisition really took, for a caller that may await it or not.

        It is done when this returns, unless an event loop would have to wait for the lock.
        """
        check_costs(self._specs, costs, self._title)
        args = "settle", WHOLE, (acquisition_id, costs), self
        limit = self.limit()
        try:
            limit.change(operations.control, limit, *args, lock_timeout=INLINE_LOCK_TIMEOUT)
        except UnknownSemaphore:
            raise unknown_acquisition(self._title, acquisition_id) from None
        except Busy:
            settle = partial(self._apply, "settle", WHOLE, acquisition_id, costs)
            loop = running_loop()
            if loop is not None:
                task: asyncio.Task[None] = loop.create_task(settle())
                # Nobody has to await it.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
                return task
            run_here(settle)
        return DONE

    def _idle_keys(self) -> IdleKeys:
        """Return the keys that this object has used, in this process."""
        self.limit()
        return self._idle

    def forget_idle(self, tier: str, older_than: float, keep_at_most: int | None = None) -> int:
        """Forget idle keys that this object remembers; the file has none."""
        return self._idle_keys().forget(self._indexes[tier], older_than, keep_at_most)


def _check_value(value: int | Rate) -> Any:
    if isinstance(value, Rate) or value == 0:
        return value
    return check_count("value", value, most=MOST_SLOTS)
