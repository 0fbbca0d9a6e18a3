"""ProcessPaths: paths through tiers for the processes of one machine.

What it shares with semaphores is in `_limit`. The ledger in the file (`_path_state`) decides
who gets a path, by the rules of `slotwise._ledger.paths`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from typing import Any

from slotwise._core import events
from slotwise._core.adaptive import Change
from slotwise._core.arguments import MOST_SLOTS, check_count
from slotwise._core.closing import Closure
from slotwise._core.control import Verb, Where
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.messages import closed_error
from slotwise._core.outcomes import Outcomes, asked_pauses
from slotwise._core.overload import Overload
from slotwise._core.path_backend import PathBackend, Timeout
from slotwise._core.paths import (
    Needs,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    check_costs,
    head_start_of,
    keys_by_name,
    options_of,
    pausing,
    subject_of,
    title_of,
    weight_for,
)
from slotwise._core.rates import Rate
from slotwise._core.redaction import redact
from slotwise._core.results import AcquisitionResult, Claimant
from slotwise.errors import SemaphoreClosed
from slotwise.processes import _operations as operations
from slotwise.processes import _path_inspect
from slotwise.processes import _process as processes
from slotwise.processes._acquisition import ProcessAcquisition
from slotwise.processes._attachment import Attachment
from slotwise.processes._filenames import PRIVATE_TIERS_SUFFIX, TIERS_SUFFIX, locate
from slotwise.processes._limit import ProcessLimit
from slotwise.processes._path_claims import PathRequest
from slotwise.processes._path_values import write_value
from slotwise.processes._settling import settle, settle_soon


class ProcessPathAcquisition(ProcessAcquisition):
    """A request for a path, then a hold on it."""

    __slots__ = ("attachment", "idle", "is_counted", "make_closed_error")

    wanted: PathRequest
    attachment: Attachment  # of the object that was asked
    idle: IdleKeys  # of the object that was asked
    is_counted: bool
    make_closed_error: Callable[..., SemaphoreClosed]

    @property
    def title(self) -> str:
        return title_of(self.idle.tiers, self.file.public_name)

    def closed_error(self, closure: Closure | None = None) -> SemaphoreClosed:
        subject = subject_of(self.idle.tiers, self.file.public_name)
        return closed_error(subject, closure, self.make_closed_error)

    def begin(self) -> None:
        self.requested = True
        if not self.is_counted:
            self.is_counted = True
            path, values = self.wanted.path, self.wanted.values
            self.idle.enter(path)
            if values:
                self.idle.remember([(tier, str(path[tier]), value) for tier, value in values])

    def pauses(self) -> Sequence[events.Pause]:
        return asked_pauses(self._outcomes, self.idle.tiers, self.wanted.path)

    def paused(self) -> Sequence[tuple[Any, ...]]:
        return pausing(self.idle.tiers, self.wanted.path)

    def settle(self, **costs: int) -> Awaitable[None]:
        """State the real costs; written with the release if that comes in the same tick."""
        check_costs(self.idle.tiers, costs, self.title)
        return settle_soon(self.attachment, self.acquisition_id, costs, self.title)

    def _keys(self) -> dict[str, str]:
        return keys_by_name(self.idle.tiers, self.wanted.path)

    def end(self) -> None:
        if self.is_counted:
            self.is_counted = False
            self.idle.leave(self.wanted.path)


class ProcessPaths(ProcessLimit, PathBackend):
    """A `PathBackend` for all processes of one user on one machine.

    Objects of one name and directory share their tiers, in any process, and must agree about
    them. ``name=None`` makes private ones, for this process and those that it forks.

    Args:
        tiers: narrow to wide.
        name: the name that objects share.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took the slots.
        max_idle_keys: how many idle keys of each tier this object remembers.
        overload: which newcomers it refuses at once.
        directory: the directory for the files.
        closed_error: makes what acquiring raises once it is closed.
    """

    __slots__ = (
        *("__weakref__", "_attachment", "_by_key", "_cancel_task_after_ttl", "_declared"),
        *("_generation", "_generation_key", "_has_weights", "_holds_nothing", "_idle", "_idle_in"),
        *("_max_idle_keys", "_options", "_overload", "_ttl"),
    )

    scope = "process"

    _declared: tuple[TierSpec, ...]

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
        self._declared = self._specs
        for tier in tiers:
            _check_value(tier.value)
        self._by_key = [index for index, tier in enumerate(tiers) if tier.by_key]
        self._has_weights = any(tier.weight_of is not None for tier in tiers)
        self._holds_nothing = all(isinstance(tier.value, Rate) for tier in tiers)
        self._ttl = ttl
        self._cancel_task_after_ttl = cancel_task_after_ttl
        self._max_idle_keys = max_idle_keys
        self._overload = overload
        self._options = options_of(tiers)  # of adaptive ones
        self._idle_in: object = None
        suffix = PRIVATE_TIERS_SUFFIX if name is None else TIERS_SUFFIX
        self._attach(locate(directory), name, suffix)

    def __repr__(self) -> str:
        words = ", ".join(tier.words for tier in self._declared)
        return redact(f"<ProcessPaths {self._attachment.name!r} of {words}, {self.directory}>")

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        return await self.begin(path, timeout, label, needs)

    def begin(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> Awaitable[AcquisitionResult]:
        return self._acquire(self._request(path, timeout, label, needs))

    async def try_acquire(
        self, path: Path, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult | None:
        return await self._try(self._request(path, None, label, needs))

    def _request(
        self, path: Path, timeout: float | None, label: str | None, needs: Needs | None
    ) -> ProcessPathAcquisition:
        idle = self._idle_keys()
        values = self._values_of(path, idle) if self._by_key else ()
        weight = weight_for(self._declared, path) if self._has_weights else 1.0
        wanted = PathRequest(path, needs, values, head_start_of(needs), weight)
        acquisition = self._new_acquisition(wanted, timeout, label, ProcessPathAcquisition)
        if self._options is not None:
            acquisition._outcomes = Outcomes(self._options)
        acquisition.idle = idle
        acquisition.attachment = self._attachment
        acquisition.is_counted = False
        acquisition.overload = self._overload
        acquisition.make_closed_error = self._make_closed_error
        return acquisition

    @property
    def reported_name(self) -> str | None:
        return self._attachment.file().public_name

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
                value = _check_value(self._declared[tier].ask(key))
            values.append((tier, value))
        return tuple(values)

    def _idle_keys(self) -> IdleKeys:
        """Return the keys that this object has used, in this process."""
        if self._idle_in is not processes.fork_epoch:
            self._idle = IdleKeys(self._declared, self._max_idle_keys)
            self._idle_in = processes.fork_epoch
        return self._idle

    # ------------------------------------------------------------ inspecting

    async def stats(self) -> dict[str, TierStats]:
        declared, idle = self._declared, self._idle_keys()
        return await self._inspect(lambda state: _path_inspect.stats_of(state, declared, idle))

    async def stats_of(self, path: Path) -> PathStats:
        return await self._inspect(self._read_path(path))

    def _read_path(self, path: Path) -> partial[PathStats]:
        closed_here = self._generation.closed
        return partial(
            _path_inspect.path_stats_of,
            declared=self._declared,
            path=path,
            closed_here=closed_here,
        )

    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        wanted = PathRequest(path, needs)
        return await self._attachment.call(operations.estimate, wanted, self)

    async def holders(self) -> list[Claimant]:
        return await self._inspect(_path_inspect.holders_of)

    async def waiters(self) -> list[Claimant]:
        return await self._inspect(_path_inspect.waiters_of)

    # ----------------------------------------------------------- controlling

    def _located(self, where: Where) -> tuple[Sequence[Any], Sequence[Any]]:
        tier, key = where
        return (self._indexes[str(tier)],), (key,)

    def _resized(self, where: Where, value: int | Rate) -> Sequence[Any]:
        tier, key = where
        return self._indexes[str(tier)], write_value(_check_value(value)), key

    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        if verb != "settle":
            return await super()._apply(verb, where, *args)
        acquisition_id, costs = args
        check_costs(self._declared, costs, self._title)
        await settle(self._attachment, acquisition_id, costs, self._title)
        return None

    # -------------------------------------------------------------- adapting

    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        return await self._inspect(self._read_changes(tier, key))

    def _read_changes(self, tier: str, key: str | None) -> partial[list[Change]]:
        return partial(_path_inspect.changes_of, index=self._indexes[tier], key=key)

    def _tell_new(self, acquisition_id: str, wanted: PathRequest, now: float) -> None:
        self._tell_requested(acquisition_id, wanted.needs, now, wanted.path)

    def _tell_moved(self) -> None:
        if self._options is None:
            return
        for index, key, change in self._attachment.file().take_changes():
            self._tell_adapted(index, key, change.new, change.reason)

    def forget_idle(self, tier: str, older_than: float, keep_at_most: int | None = None) -> int:
        """Forget idle keys that this object remembers; the file has none."""
        return self._idle_keys().forget(self._indexes[tier], older_than, keep_at_most)


def _check_value(value: int | Rate) -> Any:
    if isinstance(value, Rate) or value == 0:
        return value
    return check_count("value", value, most=MOST_SLOTS)
