"""ProcessSemaphore: the public class of the driver for the processes of one machine.

It checks arguments. What it shares with tiers is in `_limit`. The ledger in the semaphore's
file decides who gets a slot; `_operations` changes that file, and `_wait_for_grant` waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from slotwise._core.adaptive import Adaptive, Change
from slotwise._core.arguments import (
    UNSET,
    Shed,
    Unset,
    WaitOrReplace,
    check_count,
    check_label,
    check_on_full,
    check_timeout,
    check_value,
)
from slotwise._core.control import Where
from slotwise._core.copying import Recipe
from slotwise._core.messages import fixed_value
from slotwise._core.outcomes import UNKNOWN_OPTIONS, Outcomes, not_replaceable
from slotwise._core.priorities import check_priority
from slotwise._core.redaction import redact
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore
from slotwise._core.twins import run_here
from slotwise._wait import clock
from slotwise.processes import _inspect
from slotwise.processes import _operations as operations
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._filenames import PRIVATE_SUFFIX, SUFFIX, locate
from slotwise.processes._in_thread import in_thread
from slotwise.processes._limit import ProcessLimit
from slotwise.processes._state import RankedSlots, State

if TYPE_CHECKING:
    from slotwise._core.stats import Claimant, SemaphoreStats

T = TypeVar("T")

# Compared by identity, which is quick and tells it from False and 0.0.
_NO_PRIORITY = 0


class ProcessSemaphore(ProcessLimit, Semaphore):
    """A semaphore for all processes of one user on one machine.

    Instances with the same name and directory are one semaphore, in any process.
    ``name=None`` makes a private one, for this process and those that it forks: it isn't
    listed, and leaves nothing behind.

    Args:
        value: how many slots there are, up to 2**53; or an `Adaptive`, which finds the number.
        name: the name that instances share.
        max_acquire_time: the longest wait in seconds; None waits forever.
        ttl: the longest hold in seconds; then the slot is freed, whoever holds it.
        cancel_task_after_ttl: also cancel the task that took the slot.
        max_waiting: how many may wait, in all processes; beyond it, newcomers that would have to
            wait get a LimitFull. None lets any number wait.
        shed: "deadline" also refuses callers whose timeout is shorter than the expected wait
            (see `Limit.estimate`); None, the default, refuses nobody for that.
        directory: the directory for the files; by default that of SLOTWISE_DIR, or else one
            for this user in the system's temporary directory.
    """

    __slots__ = ("_attachment", "_declared", "_generation", "_generation_key")

    _scope = "process"

    _declared: int | Adaptive | None  # the value it was made with; None accepts any

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
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(name, max_acquire_time, ttl, cancel_task_after_ttl, max_waiting, shed)
        if isinstance(value, Adaptive):
            self._declared = value
        else:
            self._declared = check_value(value)
        self._kick_grace = 0.0
        self._attach(locate(directory), self._name, PRIVATE_SUFFIX if name is None else SUFFIX)

    @classmethod
    def existing(
        cls,
        name: str,
        *,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        max_waiting: int | None = None,
        shed: Shed | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> ProcessSemaphore:
        """Return the semaphore of that name, whatever its value.

        Raises:
            UnknownSemaphore: there is none.
        """
        semaphore = cls(
            value=1,
            name=name,
            max_acquire_time=max_acquire_time,
            ttl=ttl,
            cancel_task_after_ttl=cancel_task_after_ttl,
            max_waiting=max_waiting,
            shed=shed,
            directory=directory,
        )
        return semaphore._open_existing()

    def _open_existing(self, at_most: float | None = None) -> Self:
        """Use the value that the semaphore has; ``at_most`` is how long reading it may take.

        Raises:
            UnknownSemaphore: there is none.
            BackendError: it can't be read, or not in time.
        """
        assert self._name is not None
        self._declared = None
        _inspect.check_exists(self._attachment.directory, self._name)
        run_here(partial(self._inspect, _inspect.stats_of, at_most))
        return self

    @classmethod
    def names(cls, directory: str | os.PathLike[str] | None = None) -> list[str]:
        """Return the names of all semaphores in the directory, sorted, idle ones too."""
        return _inspect.names(locate(directory))

    def __repr__(self) -> str:
        name, directory = self._attachment.name, self._attachment.directory
        return redact(f"<ProcessSemaphore {name!r} value={self.value}, {directory}>")

    @property
    def _base(self) -> type[ProcessSemaphore]:
        return ProcessSemaphore

    def _arguments(self) -> dict[str, Any]:
        return {"value": self._declared, **super()._arguments(), "directory": self.directory}

    def _recipe(self) -> Recipe | None:
        recipe = super()._recipe()
        if recipe is None or self._declared is not None:
            return recipe
        options = {**recipe.options, "value": 1}  # for an `existing` one, whatever its value
        return Recipe(recipe.base, recipe.args, options, {"_declared": None})

    @property
    def value(self) -> int:
        """How many slots there are, as this process last saw it."""
        state = self._state
        if state is not None and state.accepts(self._declared):
            return state.value
        declared = self._declared
        return declared.start if isinstance(declared, Adaptive) else declared or 1

    @property
    def resized(self) -> bool:
        """Whether ``resize()`` has changed the value since it was created, as last seen here.

        Of an adaptive one, whether it is frozen.
        """
        state = self._state
        return state is not None and state.is_resized

    @property
    def _state(self) -> State | None:
        return cast("State | None", self._attachment.state)

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        on_full: WaitOrReplace = "wait",
        priority: float = 0,
    ) -> AcquisitionResult:
        """Wait for ``slots`` slots, in the order of arrival over all processes.

        As in `Limit.acquire`. Also raises a BackendError, with the remedy, if the file can't be
        used.
        """
        return await self._acquire(self._new(slots, timeout, label, on_full, priority))

    async def try_acquire(
        self, slots: int = 1, *, label: str | None = None, priority: float = 0
    ) -> AcquisitionResult | None:
        return await self._try(self._new(slots, None, label, priority=priority))

    def _new(
        self,
        slots: int,
        timeout: float | Unset | None,
        label: str | None,
        on_full: WaitOrReplace = "wait",
        priority: float = 0,
    ) -> ProcessAcquisition:
        if slots != 1 or type(slots) is not int:  # True equals 1, but is not a number of slots
            check_count("slots", slots)
        head_start = 0 if priority is _NO_PRIORITY else check_priority(priority)
        if head_start:
            slots = ranked = RankedSlots(slots)
            ranked.head_start = head_start
        seconds = self._max_acquire_time if timeout is UNSET else check_timeout(timeout, None)
        if label is not None:
            label = check_label(label)
        acquisition = self._new_acquisition(slots, seconds, label, ProcessAcquisition)
        declared = self._declared
        if not isinstance(declared, int):
            if declared is not None and on_full != "wait" and check_on_full(on_full):
                raise not_replaceable(self._title)
            acquisition._outcomes = Outcomes(UNKNOWN_OPTIONS if declared is None else declared)
        acquisition.grace = self._kick_grace
        acquisition.overload = self._overload
        if on_full != "wait":
            acquisition.replaces = check_on_full(on_full)
        return acquisition

    # ------------------------------------------------------------ inspecting

    async def _locked(self) -> bool:
        return await self._inspect(self._is_locked)

    def _is_locked(self, state: State) -> bool:
        closed = state.closed or self._generation.closed
        full = state.in_use >= state.value
        return closed or full or bool(state.waiting) or state.paused_for(clock.now()) > 0

    async def estimate(self, slots: int = 1) -> float | None:
        wanted = check_count("slots", slots)
        return await self._attachment.call(operations.estimate, wanted, self)

    async def stats(self) -> SemaphoreStats:
        return self._with_totals(await self._inspect(_inspect.stats_of))

    async def holders(self) -> list[Claimant]:
        """Return who holds slots now, in all processes, the longest first."""
        return await self._inspect(_inspect.holders_of)

    async def _holders_within(self, at_most: float | None) -> list[Claimant]:
        return await self._inspect(_inspect.holders_of, at_most)

    async def waiters(self) -> list[Claimant]:
        """Return who waits now, in all processes, in the order of the queue."""
        return await self._inspect(_inspect.waiters_of)

    @classmethod
    async def get_acquired_stats(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        directory: str | os.PathLike[str] | None = None,
    ) -> dict[str, SemaphoreStats]:
        """Return the statistics of the semaphores in a directory, fullest first.

        Idle ones are left out unless they are asked for by name. Files that can't be read are
        left out too, and named in a WARNING.

        Args:
            names: only these; unknown ones are left out.
            limit: the largest number of semaphores to return.
            directory: as for the constructor.
        """
        return await in_thread(partial(cls.get_acquired_stats_sync, names, limit, directory))

    @classmethod
    def get_acquired_stats_sync(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        directory: str | os.PathLike[str] | None = None,
    ) -> dict[str, SemaphoreStats]:
        """Like `get_acquired_stats`."""
        return _inspect.get_acquired_stats(locate(directory), names, limit)

    # ----------------------------------------------------------- controlling

    def _located(self, where: Where) -> tuple[Sequence[Any], Sequence[Any]]:  # noqa: ARG002
        return (), ()

    def _resized(self, where: Where, value: int) -> Sequence[Any]:  # noqa: ARG002
        declared = self._declared
        return value, None if isinstance(declared, Adaptive) else declared

    # -------------------------------------------------------------- adapting

    async def changes(self) -> list[Change]:
        return await self._inspect(self._read_changes)

    def _read_changes(self, state: State) -> list[Change]:
        if state.adaptation is not None:
            return [*state.adaptation.changes]
        if isinstance(self._declared, Adaptive):
            return []  # nobody has used it yet
        raise fixed_value(self._title)

    def _tell_new(self, acquisition_id: str, wanted: int, now: float) -> None:
        self._tell_requested(acquisition_id, wanted, now)

    def _tell_moved(self) -> None:
        for _, _, change in self._attachment.file().take_changes():
            self._tell_adapted(change.new, change.reason)
