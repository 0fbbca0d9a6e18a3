"""Limit: the interface of everything that can be acquired.

Code that only acquires and releases takes a Limit: a semaphore is one, and so is a path
through tiers. Granting slots and waiting for them is up to the drivers.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core import messages
from slotwise._core.adaptive import Outcome
from slotwise._core.arguments import UNSET, Unset
from slotwise._core.copying import Recipe, same_when_copied
from slotwise._core.locked import KnownAnswer, LockedAnswer
from slotwise._core.results import AcquisitionResult
from slotwise._core.running_loop import running_loop
from slotwise._core.twins import refuse_to_block_a_loop, twin

if TYPE_CHECKING:
    import asyncio

    from slotwise._core.explain import Explanation
    from slotwise._core.path_backend import PathBackend
    from slotwise._core.paths import Path
    from slotwise._core.stats import SemaphoreStats

T = TypeVar("T")

# The longest that leaving a `with` block waits for a server to confirm the release.
EXIT_LIMIT = 0.5
# How long trying waits for a server's answer; a second is promised.
TRY_LIMIT = 0.9
# How long after its timeout, 0 included, a call waits for a server's answer; 0.2 s is promised.
TIMEOUT_LIMIT = 0.15


def require_asyncio() -> asyncio.AbstractEventLoop:
    """Return the running event loop; say what to do where there is none, as under trio."""
    loop = running_loop()
    if loop is None:
        raise messages.needs_asyncio()
    return loop


@same_when_copied
class Limit(ABC):
    """Anything that can be acquired: a semaphore, or a path through tiers.

    Every coroutine has a twin whose name ends in ``_sync``, for plain
    threads. Slots taken by one may be released by the other, from any task,
    thread or event loop.
    """

    __slots__ = ("__weakref__", "_blocks")

    _backend: PathBackend  # where it is acquired
    _path: Path  # what of it

    def __init__(self) -> None:
        # The acquisitions of `async with limit:` blocks, latest last, by task or thread.
        self._blocks: dict[object, list[AcquisitionResult]] | None = None

    @property
    def _title(self) -> str:
        """Its name in messages."""
        return self._backend._title

    @property
    def _does_io(self) -> bool:
        """Whether try_acquire_sync(), release_sync() and locked_sync() do I/O.

        Then they may block for as long as that takes.
        """
        return self._backend._does_io

    def _recipe(self) -> Recipe | None:
        """Return how to make an object of the same limit; None if it is private."""
        return None

    def _run(self, start: Callable[[], Coroutine[Any, Any, T]], *, completes: bool = False) -> T:
        """Run a coroutine of this limit for a plain thread; see `twin`."""
        return self._backend._run(start, completes=completes)

    # ------------------------------------------------------------- acquiring

    @abstractmethod
    async def acquire(
        self, slots: int = 1, *, timeout: float | Unset | None = UNSET, label: str | None = None
    ) -> AcquisitionResult:
        """Wait for ``slots`` slots, in the order of arrival.

        A wait that is cancelled or times out takes no slot.

        Args:
            slots: how many; all are granted together or none is.
            timeout: the longest wait in seconds; 0 does not wait, None waits
                forever. Left out, it is the limit's ``max_acquire_time``.
            label: what the slots are for; ``holders()`` and ``waiters()`` show it.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first.
            LimitFull: it would have to wait, and ``max_waiting`` others do.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: the name is in use with another value.
            ValueError: ``slots`` is more than the limit has.
        """

    acquire_sync = twin(acquire, waits=True)

    @abstractmethod
    async def try_acquire(
        self, slots: int = 1, *, label: str | None = None
    ) -> AcquisitionResult | None:
        """Take ``slots`` slots if they are free and nobody waits for them; else return None."""

    try_acquire_sync = twin(try_acquire)

    # ------------------------------------------------------------- releasing

    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        """Release an acquisition, by its id or its result; False if it had ended.

        Calling it again does no harm: an ended acquisition stays ended, and
        nobody else's slot is freed. ``outcome`` is how the work ended, for adaptive values: "ok",
        "dropped" or "ignored"; None is what the acquisition was told, or else "ok".
        """
        return await self._backend.release(acquisition_id, outcome=outcome)

    release_sync = twin(release, completes=True)

    # ------------------------------------------------------------ inspecting

    def locked(self) -> LockedAnswer:
        """Whether a newcomer would have to wait; ``await`` it.

        A driver that knows it at once answers ``bool()`` as well; elsewhere ``bool()``
        raises a TypeError, so that a forgotten ``await`` is never taken for a yes.
        """
        return LockedAnswer(self._locked()) if self._does_io else KnownAnswer(self.locked_sync())

    async def _locked(self) -> bool:
        return (await self._backend.stats_of(self._path)).locked

    locked_sync = twin(_locked)

    def _fixed_value(self) -> int:
        """Return how many can hold it at once, which bounds the work that needs it.

        Raises:
            TypeError: it has no such number.
        """
        raise TypeError(f"bounded work needs limit=: {self._title} has no fixed value")

    async def stats(self) -> SemaphoreStats:
        """Return how many slots are held, and how many requests wait.

        Of a path through tiers, those of the tier with the fewest free slots.
        """
        return self._backend.with_totals((await self._backend.stats_of(self._path)).tightest())

    stats_sync = twin(stats)

    @abstractmethod
    async def estimate(self, slots: int = 1) -> float | None:
        """Return in about how many seconds a newcomer would be served, after those who wait now.

        0.0 if it would be at once; None if that isn't known, because no hold has ended since
        somebody waited. It is an estimate, not a bound.
        """

    estimate_sync = twin(estimate)

    @abstractmethod
    async def explain(
        self, acquisition_or_id: str | AcquisitionResult | None = None
    ) -> Explanation:
        """Explain why an acquisition of any process waits; None asks for a newcomer."""

    explain_sync = twin(explain)

    # ----------------------------------------------------------- controlling

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Grant nothing for ``seconds``, to anybody who shares the limit.

        Newcomers and waiters wait in line meanwhile, and trying gets None; holders keep what they
        have. If there are several pauses, the one that ends last counts, so 0 changes nothing.
        ``reopen()`` of a semaphore or of tiers ends a pause early.

        Raises:
            SemaphoreClosed: it is closed.
        """

    pause_sync = twin(pause)

    # ------------------------------------------------------ context managers

    @abstractmethod
    def cm(
        self, slots: int = 1, *, timeout: float | Unset | None = UNSET, label: str | None = None
    ) -> AcquisitionContext:
        """Return a context manager for one acquisition; entering it returns the result.

        ``async with`` waits in the event loop; plain ``with`` blocks a thread
        that has none. The arguments are those of `acquire`.
        """

    def hold(
        self, slots: int = 1, *, timeout: float | Unset | None = UNSET, label: str | None = None
    ) -> AcquisitionContext:
        """`cm`, by the name that reads well: ``async with limit.hold() as acquired:``."""
        return self.cm(slots, timeout=timeout, label=label)

    async def __aenter__(self) -> None:
        self._enter_block(await self.acquire())

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        acquired = self._leave_block()
        acquired._leave_with(exc_type)
        await self._release_on_exit(acquired)

    def __enter__(self) -> None:
        refuse_to_block_a_loop("'with'")
        self._enter_block(self.acquire_sync())

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        acquired = self._leave_block()
        acquired._leave_with(exc_type)
        self._release_on_exit_sync(acquired)

    async def _release_on_exit(self, acquired: AcquisitionResult) -> None:
        """Release for a block that is left.

        The work is done: a driver whose server doesn't answer waits for at most `EXIT_LIMIT`,
        raises nothing, and continues in the background.
        """
        await self._backend._release_on_exit(acquired)

    _release_on_exit_sync = twin(_release_on_exit, completes=True)

    def _enter_block(self, acquired: AcquisitionResult) -> None:
        if self._blocks is None:
            self._blocks = {}
        self._blocks.setdefault(caller(), []).append(acquired)

    def _leave_block(self) -> AcquisitionResult:
        """Return the latest acquisition of a block that the calling task or thread is in."""
        acquired = self._own_block() or self._others_block()
        if acquired is None:
            raise messages.block_not_entered(self._title)
        return acquired

    def _own_block(self) -> AcquisitionResult | None:
        who = caller()
        return self._pop_block(who) if self._blocks and who in self._blocks else None

    def _others_block(self) -> AcquisitionResult | None:
        """Return the acquisition of a block that another task entered.

        That happens when a generator or an exit stack is closed by another task. Prefer a
        task that has ended, else take the latest block.
        """
        if not self._blocks:
            return None
        import asyncio

        callers = [*self._blocks]
        ended = (who for who in callers if isinstance(who, asyncio.Task) and who.done())
        return self._pop_block(next(ended, callers[-1]))

    def _pop_block(self, who: object) -> AcquisitionResult:
        assert self._blocks is not None
        acquisitions = self._blocks[who]
        latest = acquisitions.pop()
        if not acquisitions:
            del self._blocks[who]
        return latest


class AcquisitionContext(ABC):
    """What `Limit.cm` returns: valid for one ``async with`` or one ``with``."""

    __slots__ = ()

    @abstractmethod
    async def __aenter__(self) -> AcquisitionResult: ...

    @abstractmethod
    async def __aexit__(self, *exc_info: Any) -> None: ...

    @abstractmethod
    def __enter__(self) -> AcquisitionResult: ...

    @abstractmethod
    def __exit__(self, *exc_info: Any) -> None: ...


class AcquiringContext(AcquisitionContext):
    """Calls ``begin`` when it is entered, for drivers with no faster way."""

    __slots__ = ("_acquired", "_backend", "_begin")

    def __init__(self, backend: Any, begin: Callable[[], Awaitable[AcquisitionResult]]) -> None:
        self._backend = backend
        self._begin: Callable[[], Any] | None = begin  # None once it is entered
        self._acquired: AcquisitionResult | None = None

    async def __aenter__(self) -> AcquisitionResult:
        acquired: AcquisitionResult = await self._enter()()
        self._acquired = acquired
        return acquired

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._backend._release_on_exit(self._leave(exc_info))

    def __enter__(self) -> AcquisitionResult:
        refuse_to_block_a_loop("'with'")
        acquired: AcquisitionResult = self._backend._run(self._enter())
        self._acquired = acquired
        return acquired

    def __exit__(self, *exc_info: Any) -> None:
        self._backend._release_on_exit_sync(self._leave(exc_info))

    def _enter(self) -> Callable[[], Any]:
        begin, self._begin = self._begin, None
        if begin is None:
            raise messages.context_reused(self._backend._title)
        return begin

    def _leave(self, exc_info: tuple[Any, ...]) -> AcquisitionResult:
        """Return the acquisition of a block that is left with this exception, or normally."""
        acquired = self._acquired
        if acquired is None:
            raise messages.context_not_entered(self._backend._title)
        if exc_info and exc_info[0] is not None:
            acquired._leave_with(exc_info[0])
        return acquired


def caller() -> object:
    """Return the current task, of asyncio or trio, or else the id of the thread."""
    task: object | None = None
    if running_loop() is not None:
        import asyncio  # whoever runs a loop has imported it

        task = asyncio.current_task()
    elif "trio" in sys.modules:
        from slotwise._core.trio_run import running_trio_task

        task = running_trio_task()
    return threading.get_ident() if task is None else task
