"""PathBackend: the interface of a driver that can acquire several tiers together.

Nothing here decides who gets a slot: in this process `_ledger.paths` does, on a
Redis server the scripts that mirror it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from slotwise._core import events
from slotwise._core.adaptive import Change, Outcome
from slotwise._core.closing import Closure
from slotwise._core.limit import AcquiringContext, AcquisitionContext, refuse_to_block_a_loop
from slotwise._core.messages import closed_error
from slotwise._core.paths import (
    Needs,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    keys_by_name,
    needs_by_name,
    slot_values,
    slots_needed,
    subject_of,
    title_of,
)
from slotwise._core.rates import Rate
from slotwise._core.results import AcquisitionResult, Claimant, SemaphoreStats
from slotwise._core.totals import with_totals
from slotwise.errors import AcquireTimeout, BackendError, SemaphoreClosed

# How long to wait, in seconds: 0 does not wait, None waits forever.
Timeout: TypeAlias = float | None


class PathBackend(ABC):
    """Slots of several tiers, acquired together.

    The caller checks paths, names and numbers, and that a blocking call doesn't block an event
    loop. Each coroutine has a twin for plain threads.

    Args:
        tiers: narrow to wide.
        closed_error: makes what acquiring raises once it is closed.
    """

    __slots__ = ("_indexes", "_make_closed_error", "_specs")

    _does_io: bool = True  # as of a `Limit`
    scope: str  # as events name it

    def __init__(
        self, tiers: Sequence[TierSpec], closed_error: Callable[..., SemaphoreClosed]
    ) -> None:
        self._specs = tuple(tiers)
        self._indexes = {spec.name: index for index, spec in enumerate(self._specs)}
        self._make_closed_error = closed_error

    @property
    @abstractmethod
    def reported_name(self) -> str | None:
        """Its name in events."""

    @property
    def _title(self) -> str:
        """Its name in messages."""
        return title_of(self._specs, self.reported_name)

    def _closed_error(self, closure: Closure | None = None) -> SemaphoreClosed:
        """Return the error of closed tiers, closed everywhere if there is a ``closure``."""
        subject = subject_of(self._specs, self.reported_name)
        return closed_error(subject, closure, self._make_closed_error)

    def _index_to_pause(self, tier: str | None) -> int:
        """Return which tier to pause: without one, the widest, which pauses all."""
        return len(self._specs) - 1 if tier is None else self._indexes[tier]

    def with_totals(self, stats: SemaphoreStats) -> SemaphoreStats:
        return with_totals(stats, self.scope, self.reported_name)

    # --------------------------------------------------------------- telling

    def _tell_requested(
        self, acquisition_id: str, needs: Needs | None, now: float, path: Sequence[object], /
    ) -> None:
        """Tell the hooks that a request begins."""
        values = slot_values(self._specs)
        if len(values) < len(self._specs):
            events.note_rates(self.reported_name, self.scope, self)
        events.requested(
            *(acquisition_id, self.reported_name, self.scope, now),
            slots=slots_needed(self._specs, needs),
            keys=keys_by_name(self._specs, path),
            values=values,
            holds=bool(values),
            needs=needs_by_name(self._specs, needs),
        )

    def _tell_resized(self, value: int | Rate, tier: str, key: str | None) -> None:
        """Tell the hooks that this process changed the value of a tier, or of one key of it."""
        events.resized_tier(self.reported_name, self.scope, value, tier, key)

    def _tell_adapted(self, index: int, key: str | None, value: int, reason: str) -> None:
        """Tell the hooks that the value of a tier, or of one key of it, moved by itself."""
        if events.hooks:
            tier = self._specs[index]
            keys = {tier.name: key} if tier.keyed and key is not None else {}
            events.resized(
                *(self.reported_name, self.scope, value),
                tier=tier.name,
                keys=keys,
                adapted=reason,
            )

    def _tell_steered(
        self,
        kind: events.Kind,
        tier: str | None = None,
        key: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Tell the hooks that it, or a tier of it, was paused, reopened, frozen or thawed here."""
        events.steered(kind, self.reported_name, self.scope, tier, key, seconds=seconds)

    # ------------------------------------------------------------- acquiring

    def cm(
        self,
        path: Path,
        timeout: float | None = None,
        label: str | None = None,
        needs: Needs | None = None,
    ) -> AcquisitionContext:
        """Return a context manager for one acquisition."""
        return PathContext(self, path, timeout, label, needs)

    def begin(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> Awaitable[AcquisitionResult]:
        """Like `acquire`, for a caller that awaits it at once.

        What it has requested before that is withdrawn only by awaiting it. So it needs no coroutine
        of its own: each that waits is one more for the garbage collector.
        """
        return self.acquire(path, timeout, label, needs)

    @abstractmethod
    async def acquire(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        """Wait for slots of every tier, by the rules of `slotwise._ledger.paths`.

        A wait that is cancelled or times out takes nothing. ``timeout`` 0 does
        not wait, None waits forever. `holders` and `waiters` show ``label``. ``needs`` None
        is one slot of each tier.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first; it tells which tier was full.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: a tier is in use with another value (where others share it).
            ValueError: it needs more than a tier has, now or after a resize.
        """

    @abstractmethod
    def acquire_sync(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        """Like `acquire`, blocking this thread."""

    async def try_acquire(
        self, path: Path, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult | None:
        """Take slots of every tier if that needs no wait; else return None."""
        try:
            return await self._acquire_at_once(path, label, needs)
        except BackendError:
            raise  # even if it is a timeout: nobody knows whether there was a slot
        except AcquireTimeout:
            return None

    def try_acquire_sync(
        self, path: Path, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult | None:
        try:
            return self._acquire_at_once_sync(path, label, needs)
        except BackendError:
            raise
        except AcquireTimeout:
            return None

    async def _acquire_at_once(
        self, path: Path, label: str | None, needs: Needs | None
    ) -> AcquisitionResult:
        """Acquire without waiting for others; a server has longer to answer than with ``acquire``.

        Raises:
            AcquireTimeout: a tier was full.
        """
        return await self.acquire(path, timeout=0, label=label, needs=needs)

    def _acquire_at_once_sync(
        self, path: Path, label: str | None, needs: Needs | None
    ) -> AcquisitionResult:
        return self.acquire_sync(path, timeout=0, label=label, needs=needs)

    @abstractmethod
    async def release(self, acquisition_id: str, *, outcome: Outcome | None = None) -> bool:
        """Release all tiers at once; False if the acquisition had ended before."""

    @abstractmethod
    def release_sync(self, acquisition_id: str, *, outcome: Outcome | None = None) -> bool: ...

    @abstractmethod
    def release_on_exit(self, acquired: AcquisitionResult) -> Awaitable[object]:
        """Release for a block that is left; see `Limit._release_on_exit`."""

    @abstractmethod
    def release_on_exit_sync(self, acquired: AcquisitionResult) -> None: ...

    @abstractmethod
    async def stats(self) -> dict[str, TierStats]:
        """How full the tiers are, by name, narrow to wide."""

    @abstractmethod
    def stats_sync(self) -> dict[str, TierStats]: ...

    @abstractmethod
    async def stats_of(self, path: Path) -> PathStats:
        """How full the tiers of one path are."""

    @abstractmethod
    def stats_of_sync(self, path: Path) -> PathStats: ...

    @abstractmethod
    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        """In about how many seconds a newcomer would get a path; None if unknown."""

    @abstractmethod
    def estimate_sync(self, path: Path, needs: Needs | None = None) -> float | None: ...

    @abstractmethod
    async def holders(self) -> list[Claimant]:
        """Return who holds slots now, the longest first."""

    @abstractmethod
    def holders_sync(self) -> list[Claimant]: ...

    @abstractmethod
    async def waiters(self) -> list[Claimant]:
        """Return who waits now, in the order of arrival."""

    @abstractmethod
    def waiters_sync(self) -> list[Claimant]: ...

    @abstractmethod
    async def kick(self, acquisition_id: str) -> bool:
        """End somebody's acquisition; False if it had ended."""

    @abstractmethod
    def kick_sync(self, acquisition_id: str) -> bool: ...

    @abstractmethod
    async def resize(self, tier: str, value: int | Rate, key: str | None = None) -> None:
        """Change the value of a tier, or of one key of it, while it is in use."""

    @abstractmethod
    def resize_sync(self, tier: str, value: int | Rate, key: str | None = None) -> None: ...

    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        """Return how the value of an adaptive tier, or of one key of it, has moved."""
        return self.changes_sync(tier, key)

    @abstractmethod
    def changes_sync(self, tier: str, key: str | None = None) -> list[Change]: ...

    async def freeze(self, tier: str, value: int | None = None, key: str | None = None) -> None:
        """Keep the value of an adaptive tier, of all its keys, or of one."""
        self.freeze_sync(tier, value, key)

    @abstractmethod
    def freeze_sync(self, tier: str, value: int | None = None, key: str | None = None) -> None: ...

    async def thaw(self, tier: str, key: str | None = None) -> None:
        """Let it move again."""
        self.thaw_sync(tier, key)

    @abstractmethod
    def thaw_sync(self, tier: str, key: str | None = None) -> None: ...

    @abstractmethod
    async def pause(self, seconds: float, tier: str | None = None, key: str | None = None) -> None:
        """Grant nothing for that long, of all tiers or of one key of a tier."""

    @abstractmethod
    def pause_sync(
        self, seconds: float, tier: str | None = None, key: str | None = None
    ) -> None: ...

    async def settle(self, acquisition_id: str, costs: Mapping[str, int]) -> None:
        """State what an acquisition has taken of rates, by their tiers' names.

        Raises:
            LookupError: the acquisition is unknown, or no longer known.
        """
        self.settle_sync(acquisition_id, costs)

    @abstractmethod
    def settle_sync(self, acquisition_id: str, costs: Mapping[str, int]) -> None: ...

    async def refill(self, tier: str, key: str | None = None) -> None:
        """Forgive the debt of a rate, or of one key of it, and fill it."""
        self.refill_sync(tier, key)

    @abstractmethod
    def refill_sync(self, tier: str, key: str | None = None) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """Close all objects of the name that this process has made so far.

        Their waiters and newcomers fail with SemaphoreClosed; holders may still release.
        An object made afterwards works once the earlier holders of this process have left.
        """

    @abstractmethod
    def close_sync(self) -> None: ...

    @abstractmethod
    async def close_everywhere(self, reason: str | None = None) -> None:
        """Fail the waiters and newcomers of the name, wherever they are, until `reopen`."""

    @abstractmethod
    def close_everywhere_sync(self, reason: str | None = None) -> None: ...

    @abstractmethod
    async def reopen(self) -> None:
        """Undo `close_everywhere`, and end pauses; what was closed by `close` stays closed."""

    @abstractmethod
    def reopen_sync(self) -> None: ...

    def _forget_sync(self) -> bool:
        """Forget the name, with all that is remembered of it; False if it is in use.

        Only for tiers that were found by their name.
        """
        raise NotImplementedError

    async def forget_idle(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        """Forget keys of a keyed tier that nobody holds or waits for; return how many.

        Those that have been idle for ``older_than`` seconds, and of the others the
        longest idle, until at most ``keep_at_most`` idle ones are left. No driver does I/O for it:
        only this process remembers idle keys.
        """
        return self.forget_idle_sync(tier, older_than, keep_at_most)

    @abstractmethod
    def forget_idle_sync(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int: ...


class PathContext(AcquiringContext):
    """A context manager for one acquisition of a path, of any backend."""

    __slots__ = ("_path",)

    _limit: Any  # PathBackend
    _timeout: Timeout

    def __init__(
        self,
        paths: PathBackend,
        path: Path,
        timeout: Timeout,
        label: str | None,
        needs: Needs | None,
    ) -> None:
        self._limit = paths
        self._path = path
        self._timeout = timeout
        self._label = label
        self._slots = needs
        self._entered = False
        self._acquired = None

    async def __aenter__(self) -> AcquisitionResult:
        self._enter()
        paths: PathBackend = self._limit
        acquired = await paths.begin(self._path, self._timeout, self._label, self._slots)
        self._acquired = acquired
        return acquired

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._limit.release_on_exit(self._leave(exc_info))

    def __enter__(self) -> AcquisitionResult:
        refuse_to_block_a_loop("'with'")
        self._enter()
        paths: PathBackend = self._limit
        acquired = paths.acquire_sync(self._path, self._timeout, self._label, self._slots)
        self._acquired = acquired
        return acquired

    def __exit__(self, *exc_info: Any) -> None:
        self._limit.release_on_exit_sync(self._leave(exc_info))
