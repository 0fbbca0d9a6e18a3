"""PathBackend: the interface of a driver that can acquire several tiers together.

Nothing here decides who gets a slot: in this process `_ledger.paths` does, on a
Redis server the scripts that mirror it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from slotwise._core import events
from slotwise._core.adaptive import Change, Outcome
from slotwise._core.closing import Closure
from slotwise._core.control import WHOLE, Verb, Where, tell
from slotwise._core.limit import AcquiringContext, AcquisitionContext
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
from slotwise._core.results import AcquisitionResult
from slotwise._core.twins import run_here, twin
from slotwise.errors import AcquireTimeout, BackendError, SemaphoreClosed

if TYPE_CHECKING:
    from slotwise._core.stats import Claimant, SemaphoreStats

T = TypeVar("T")

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

    __slots__ = ("_indexes", "_make_closed_error", "_specs", "grace", "reported_as")

    _does_io: bool = True  # as of a `Limit`
    scope: str  # as events name it
    reported_as: str | None  # how events name it, where it isn't by `reported_name`
    grace: float  # how long what it acquires keeps its slots after a kick; of semaphores

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

    def with_totals(self, found: SemaphoreStats) -> SemaphoreStats:
        """Return statistics with what this process got of it, if it keeps totals."""
        from slotwise._core import stats  # not needed to acquire

        name, scope = self._reported
        if scope != "memory" and found.scope == "memory":
            found = replace(found, scope=scope)
        totals_of = stats.totals_of
        return found if totals_of is None else replace(found, totals=totals_of(scope, name))

    # --------------------------------------------------------------- telling

    def _tell_requested(
        self, acquisition_id: str, needs: Needs | None, now: float, path: Sequence[object], /
    ) -> None:
        """Tell the hooks that a request begins."""
        values = self._slot_values()
        if len(values) < len(self._specs):
            events.note_rates(*self._reported, self)
        events.requested(
            *(acquisition_id, *self._reported, now),
            slots=slots_needed(self._specs, needs),
            keys=keys_by_name(self._specs, path),
            values=values,
            holds=bool(values),
            needs=needs_by_name(self._specs, needs),
        )

    def _slot_values(self) -> dict[str, int]:
        """Return how many slots the tiers have that have some, by name; 0 means unlimited."""
        return slot_values(self._specs)

    def _tell_adapted(self, index: int, key: str | None, value: int, reason: str) -> None:
        """Tell the hooks that the value of a tier, or of one key of it, moved by itself."""
        tier = self._specs[index]
        keys = {tier.name: key} if tier.keyed and key is not None else {}
        events.adapted(*self._reported, value, reason, tier.name or None, keys)

    @property
    def _reported(self) -> tuple[str | None, str]:
        return self.reported_name, self.scope

    def _run(self, start: Callable[[], Coroutine[Any, Any, T]], *, completes: bool = False) -> T:
        """Run a coroutine of this backend for a plain thread; see `twin`."""
        return run_here(start, completes=completes)

    # ------------------------------------------------------------- acquiring

    def cm(
        self,
        path: Path,
        timeout: float | None = None,
        label: str | None = None,
        needs: Needs | None = None,
    ) -> AcquisitionContext:
        """Return a context manager for one acquisition."""
        return AcquiringContext(self, partial(self.begin, path, timeout, label, needs))

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

    acquire_sync = twin(acquire, waits=True)

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

    try_acquire_sync = twin(try_acquire)

    async def _acquire_at_once(
        self, path: Path, label: str | None, needs: Needs | None
    ) -> AcquisitionResult:
        """Acquire without waiting for others; a server has longer to answer than with ``acquire``.

        Raises:
            AcquireTimeout: a tier was full.
        """
        return await self.acquire(path, timeout=0, label=label, needs=needs)

    @abstractmethod
    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        """Release all tiers at once; False if the acquisition had ended before."""

    release_sync = twin(release, completes=True)

    async def _release_on_exit(self, acquired: AcquisitionResult) -> None:
        """Release for a block that is left; see `Limit._release_on_exit`."""
        await self.release(acquired.acquisition_id)

    _release_on_exit_sync = twin(_release_on_exit, completes=True)

    @abstractmethod
    async def stats(self) -> dict[str, TierStats]:
        """How full the tiers are, by name, narrow to wide."""

    stats_sync = twin(stats)

    @abstractmethod
    async def stats_of(self, path: Path) -> PathStats:
        """How full the tiers of one path are."""

    stats_of_sync = twin(stats_of)

    @abstractmethod
    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        """In about how many seconds a newcomer would get a path; None if unknown."""

    estimate_sync = twin(estimate)

    @abstractmethod
    async def holders(self) -> list[Claimant]:
        """Return who holds slots now, the longest first."""

    holders_sync = twin(holders)

    @abstractmethod
    async def waiters(self) -> list[Claimant]:
        """Return who waits now, in the order of arrival."""

    waiters_sync = twin(waiters)

    @abstractmethod
    async def kick(self, acquisition_id: str) -> bool:
        """End somebody's acquisition; False if it had ended."""

    kick_sync = twin(kick)

    @abstractmethod
    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        """Return how the value of an adaptive tier, or of one key of it, has moved."""

    changes_sync = twin(changes)

    async def control(self, verb: Verb, where: Where = WHOLE, *args: Any) -> Any:
        """Change it for everybody who shares it: the only way from a public method to the rules."""
        result = await self._apply(verb, where, *args)
        if events.hooks:
            tell(verb, where, args, result, *self._reported)
        return result

    control_sync = twin(control)

    @abstractmethod
    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        """Change it by the rules.

        Return the value that it has now for "freeze", and for "forget" whether nobody uses it and
        all that was remembered of it is gone. Limits in memory have no "forget".

        Raises:
            SemaphoreClosed: it is closed, unless that is what the verb is about.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all objects of the name that this process has made so far.

        Their waiters and newcomers fail with SemaphoreClosed; holders may still release.
        An object made afterwards works once the earlier holders of this process have left.
        """

    close_sync = twin(close)

    @abstractmethod
    def forget_idle(self, tier: str, older_than: float, keep_at_most: int | None = None) -> int:
        """Forget keys of a keyed tier that nobody holds or waits for; return how many.

        Those that have been idle for ``older_than`` seconds, and of the others the
        longest idle, until at most ``keep_at_most`` idle ones are left. No driver does I/O for it:
        only this process remembers idle keys.
        """
