"""ProcessBackend: a limit for the processes of one machine.

It knows the file behind an instance, makes acquisitions, and hands on what is asked of it. The
ledger in the file (`_state`) decides who gets something; `_operations` changes the file.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core import events
from slotwise._core.adaptive import Change, Outcome, check_outcome
from slotwise._core.arguments import MOST_SLOTS, check_count
from slotwise._core.control import Verb, Where
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.limit import require_asyncio
from slotwise._core.messages import fixed_value
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
from slotwise._core.redaction import redact
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.twins import is_blocking
from slotwise._wait import clock
from slotwise.errors import SemaphoreClosed
from slotwise.processes import _log, _views
from slotwise.processes import _operations as operations
from slotwise.processes import _process as processes
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._attachment import Attachment
from slotwise.processes._claims import Request
from slotwise.processes._filenames import (
    PRIVATE_SUFFIX,
    PRIVATE_TIERS_SUFFIX,
    SUFFIX,
    TIERS_SUFFIX,
    locate,
    true_path,
)
from slotwise.processes._state import Declared, State
from slotwise.processes._wait_for_grant import try_request, wait_for_grant

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
        *("__weakref__", "_by_key", "_cancel_task_after_ttl", "_generation_key", "_has_weights"),
        *("_holds_nothing", "_idle", "_idle_in", "_is_keyed", "_max_idle_keys", "_options"),
        *("_overload", "_ttl", "attachment", "declared", "generation"),
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
        self._has_weights = any(tier.weight_of is not None for tier in tiers)
        self._holds_nothing = all(isinstance(tier.value, Rate) for tier in tiers)
        self._ttl = ttl
        self._cancel_task_after_ttl = cancel_task_after_ttl
        self._max_idle_keys = max_idle_keys
        self._overload = overload
        self._options = options_of(tiers)  # of adaptive ones
        self._idle_in: object = None
        self.grace = 0.0
        self.reported_as = name
        if is_semaphore(tiers):
            suffix = PRIVATE_SUFFIX if name is None else SUFFIX
        else:
            suffix = PRIVATE_TIERS_SUFFIX if name is None else TIERS_SUFFIX
        self._attach(locate(directory), name, suffix)

    def _attach(self, path: str, name: str | None, suffix: str) -> None:
        """Find its file; without a name, it is a private one."""
        stored_name = name or f"private-{os.urandom(8).hex()}"
        stored_name.encode()  # a ValueError here, and not in the middle of a change
        self.attachment = Attachment(path, stored_name, suffix)
        self._generation_key = true_path(path), stored_name, suffix
        self.generation = processes.generations.current(self._generation_key)
        if name is None:  # its file is deleted by the process that made it
            made_in = self.attachment.made_in
            collected = processes.on_collected
            finalizer = weakref.finalize(self, collected, path, stored_name, suffix, made_in)
            finalizer.atexit = False  # LocalProcess.on_exit does that

    def accept_any(self) -> None:
        """Use a semaphore whatever its value is."""
        self.declared, self._options = None, UNKNOWN_OPTIONS

    def __repr__(self) -> str:
        words = ", ".join(tier.words for tier in self._specs)
        return redact(
            f"<ProcessBackend {self.attachment.name!r} of {words}, {self.attachment.directory}>"
        )

    @property
    def state(self) -> State | None:
        """Its state, as this process last read it."""
        return self.attachment.state

    @property
    def value(self) -> int:
        """How many slots a semaphore has, as this process last saw it."""
        state = self.state
        if state is not None and state.accepts(self.declared):
            value: int = state.value_at(0)
            return value
        return self._specs[0].slots

    @property
    def reported_name(self) -> str | None:
        return self.attachment.file().public_name

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
        acquisition = self._request(path, timeout, label, needs)
        return wait_for_grant(self.attachment, self.declared, acquisition)

    async def try_acquire(
        self, path: Path, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult | None:
        acquisition = self._request(path, None, label, needs)
        return await try_request(self.attachment, self.declared, acquisition)

    def _request(
        self, path: Path, timeout: float | None, label: str | None, needs: Needs | None
    ) -> ProcessAcquisition:
        idle = self._idle_keys() if self._is_keyed else None
        values = () if idle is None else self._values_of(path, idle)
        weight = weight_for(self._specs, path) if self._has_weights else 1.0
        wanted = Request(path, needs, values, head_start_of(needs), weight)
        file = self.attachment.file()
        acquisition_id = f"{file.process.owner}-{file.process.next_number()}"
        now = clock.now()
        if events.hooks:
            self._tell_requested(acquisition_id, needs, now, path)
        acquisition = ProcessAcquisition(
            acquisition_id, file, wanted, self._ttl, timeout, label, now
        )
        if self._options is not None:
            acquisition._outcomes = Outcomes(self._options)
        if isinstance(needs, RankedNeeds) and needs.replaces:
            if self._options is not None and self.declared is not None:
                raise not_replaceable(self._title)
            acquisition.replaces = True
        acquisition.attachment = self.attachment
        acquisition.generation = self.generation
        acquisition.grace = self.grace
        acquisition.idle = idle
        acquisition.make_closed_error = self._make_closed_error
        acquisition.overload = self._overload
        acquisition.specs = self._specs
        if self._cancel_task_after_ttl:
            acquisition.task = _waiting_task()
        return acquisition

    def _values_of(self, path: Path, idle: IdleKeys) -> tuple[tuple[int, int], ...]:
        """Ask for the values of keys, where each has its own and it is not remembered.

        Before anything is locked: the user's function may do anything. The file has the values
        of keys that are in use, which stay.
        """
        values = []
        for tier in self._by_key:
            key = path[tier]
            assert key is not None
            value = idle.value_of(tier, key)
            if value is None:
                value = _check_value(self._specs[tier].ask(key))
            values.append((tier, value))
        return tuple(values)

    def _idle_keys(self) -> IdleKeys:
        """Return the keys that this object has used, in this process."""
        if self._idle_in is not processes.fork_epoch:
            self._idle = IdleKeys(self._specs, self._max_idle_keys)
            self._idle_in = processes.fork_epoch
        return self._idle

    # ------------------------------------------------------------- releasing

    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        """A signal handler that raises meanwhile doesn't prevent it."""
        acquisition_id = acquisition_id_of(acquisition_id)
        if outcome is not None:
            check_outcome(outcome)
        if self._holds_nothing or processes.is_inherited(acquisition_id):
            return False  # the parent process holds it, or nobody
        holder = self._before_release(acquisition_id)
        released = await self.attachment.call(operations.release, acquisition_id, outcome)
        self._after_release(acquisition_id, holder, released=released)
        return released

    def _before_release(self, acquisition_id: str) -> ProcessAcquisition | None:
        """Return the holder, if it is in this process; its task is not cancelled any more."""
        file = self.attachment.file()
        file.process.ttl_cancels.keep_task(acquisition_id)
        return file.claims.by_id.get(acquisition_id)

    def _after_release(
        self, acquisition_id: str, holder: ProcessAcquisition | None, *, released: bool
    ) -> None:
        if not released:
            _log.released_nothing(self.attachment.file(), acquisition_id)
            return
        if holder is not None:
            _log.released(holder)
        if events.hooks and self._options is not None:
            for index, key, change in self.attachment.file().take_changes():
                self._tell_adapted(index, key, change.new, change.reason)

    # ------------------------------------------------------------ inspecting

    async def look(self, read: Callable[[State], T], at_most: float | None = None) -> T:
        """Return what ``read`` finds; reading the file may take ``at_most`` seconds."""
        return await self.attachment.call(operations.inspect, read, self.declared, at_most=at_most)

    async def stats(self) -> dict[str, TierStats]:
        declared, idle = self._specs, self._idle_keys()
        return await self.look(lambda state: _views.stats_of(state, declared, idle))

    async def stats_of(self, path: Path) -> PathStats:
        closed_here = self.generation.closed
        return await self.look(
            partial(
                _views.path_stats_of, declared=self.declared, path=path, closed_here=closed_here
            )
        )

    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        return await self.attachment.call(operations.estimate, Request(path, needs), self)

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
        return await self.attachment.call(operations.kick, acquisition_id)

    async def close(self) -> None:
        if self.generation.closed:
            return
        attachment = self.attachment
        file = processes.open_file(attachment.directory, attachment.name, attachment.suffix)
        ids = () if file is None else list(file.claims.by_id)
        processes.generations.close(self._generation_key, ids)
        if file is not None:
            file.fail_closed()

    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        if verb == "forget":
            return await self.attachment.call(operations.forget)
        if verb == "settle":
            from slotwise.processes._settling import settle

            acquisition_id, costs = args
            check_costs(self._specs, costs, self._title)
            return await settle(self.attachment, acquisition_id, costs, self._title)
        if verb == "resize":
            args = (_check_value(args[0]),)
        return await self.attachment.call(operations.control, verb, where, args, self)

    def index_of(self, where: Where) -> int:
        """Return which tier a verb is about: without a tier, that of a semaphore."""
        return 0 if where[0] is None else self._indexes[where[0]]

    def forget_idle(self, tier: str, older_than: float, keep_at_most: int | None = None) -> int:
        """Forget idle keys that this object remembers; the file has none."""
        return self._idle_keys().forget(self._indexes[tier], older_than, keep_at_most)


def _waiting_task() -> asyncio.Task[Any] | None:
    """Return the task that acquires; None if a plain thread does."""
    if is_blocking():
        return None
    import asyncio

    return asyncio.current_task(require_asyncio())


def _check_value(value: int | Rate) -> Any:
    if isinstance(value, Rate) or value == 0:
        return value
    return check_count("value", value, most=MOST_SLOTS)
