"""ProcessSemaphore: the public class of the driver for the processes of one machine.

What it does is in `slotwise._core.semaphore`, on a `ProcessBackend` with a single tier.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from slotwise._core.adaptive import Adaptive
from slotwise._core.arguments import Shed, check_count, check_name, check_names, check_value
from slotwise._core.copying import Recipe
from slotwise._core.paths import semaphore_spec
from slotwise._core.redaction import redact
from slotwise._core.semaphore import Semaphore
from slotwise._core.twins import run_here
from slotwise.processes import _inspect, _log
from slotwise.processes._backend import ProcessBackend
from slotwise.processes._filenames import SUFFIX, locate
from slotwise.processes._views import holders_of, stats_of_semaphore
from slotwise.processes._wait_for_grant import NO_WAIT_LOCK_TIMEOUT, in_thread

if TYPE_CHECKING:
    from pathlib import Path

    from slotwise._core.stats import Claimant, SemaphoreStats


class ProcessSemaphore(Semaphore):
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

    __slots__ = ("_backend",)

    _scope = "process"

    _backend: ProcessBackend

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
        self._backend = ProcessBackend(
            [semaphore_spec(value if isinstance(value, Adaptive) else check_value(value))],
            name=self._name,
            ttl=self._ttl,
            cancel_task_after_ttl=cancel_task_after_ttl,
            overload=self._overload,
            directory=directory,
        )

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
        self._backend.accept_any()
        _inspect.check_exists(self._backend.directory, self._name)
        run_here(partial(self._backend.look, stats_of_semaphore, at_most or NO_WAIT_LOCK_TIMEOUT))
        return self

    @classmethod
    def names(cls, directory: str | os.PathLike[str] | None = None) -> list[str]:
        """Return the names of all semaphores in the directory, sorted, idle ones too."""
        return _inspect.names(locate(directory))

    def __repr__(self) -> str:
        backend = self._backend
        return redact(
            f"<ProcessSemaphore {backend.name!r} value={self.value}, {backend.directory}>"
        )

    @property
    def _base(self) -> type[ProcessSemaphore]:
        return ProcessSemaphore

    def _arguments(self) -> dict[str, Any]:
        [spec] = self._backend._specs
        value = spec.adaptive or spec.value
        return {"value": value, **super()._arguments(), "directory": self.directory}

    def _recipe(self) -> Recipe | None:
        recipe = super()._recipe()
        if recipe is None or self._backend.declared is not None:
            return recipe
        # An `existing` one, whatever its value.
        return Recipe(recipe.base, recipe.args, recipe.options, {"_accepts_any": True})

    @property
    def _accepts_any(self) -> bool:
        return self._backend.declared is None

    @_accepts_any.setter
    def _accepts_any(self, _: bool) -> None:
        self._backend.accept_any()

    @property
    def directory(self) -> Path:
        """The directory for the files."""
        from pathlib import Path  # inside, paths are str: it is slow to import

        return Path(self._backend.directory)

    @property
    def value(self) -> int:
        """How many slots there are, as this process last saw it."""
        return self._backend.value

    @property
    def resized(self) -> bool:
        """Whether ``resize()`` has changed the value since it was created, as last seen here.

        Of an adaptive one, whether it is frozen.
        """
        state = self._backend.state
        return state is not None and state.is_resized

    async def _holders_within(self, at_most: float | None) -> list[Claimant]:
        return await self._backend.look(holders_of, at_most or NO_WAIT_LOCK_TIMEOUT)

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
        check_names(names)
        check_count("limit", limit)
        from slotwise._core.stats import fullest  # not needed to acquire

        asked = None if names is None else list(names)
        for name in asked or ():
            check_name(name)
        read = _inspect.read_each(locate(directory), asked, SUFFIX, stats_of_semaphore)
        found, errors = read
        for name, error in errors.items():
            _log.unreadable(name, error)
        return fullest(found, limit, idle_too=names is not None)
