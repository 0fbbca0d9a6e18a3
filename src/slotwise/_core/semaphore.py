"""Semaphore: the interface that all drivers share, and its context managers.

Nothing here decides who gets a slot, and nothing here waits: drivers do.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar, Self

from slotwise._core.arguments import UNSET, Unset
from slotwise._core.copying import SameWhenCopied, make
from slotwise._core.locked import LockedAnswer
from slotwise._core.results import AcquisitionResult, SemaphoreStats
from slotwise.errors import ContextReused, WouldBlockLoop

# The longest that leaving a `with` block waits for a server to confirm the release.
EXIT_LIMIT = 0.5


def refuse_to_block_a_loop(what: str) -> None:
    """Raise if the calling thread runs an event loop, which a blocking call would stop."""
    if asyncio._get_running_loop() is not None:
        raise WouldBlockLoop(
            f"{what} would block the event loop that runs in this thread;"
            f" use its async twin, or call it in a thread of its own"
        )


class Semaphore(SameWhenCopied, ABC):
    """A named limit with a queue.

    Every coroutine has a twin with ``_sync`` behind its name, for plain
    threads. Slots taken by one may be given back by the other, from any task,
    thread or event loop.

    A copy, or what is unpickled in whatever process, is the semaphore of the same
    name, made with the same arguments. A private one is its own copy, and can't be pickled.
    """

    __slots__ = ("__weakref__", "_blocks")

    # Whether every question takes a round trip to a server.
    _has_a_server: ClassVar[bool] = False

    # Whether try_acquire_sync() and release_sync() have to reach something outside of
    # this process, and may block for as long as that takes.
    _does_io: ClassVar[bool] = True

    def __init__(self) -> None:
        # The acquisitions of `async with semaphore:` blocks, latest last, by who is in them.
        self._blocks: dict[object, list[AcquisitionResult]] | None = None

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The name that instances share, or None."""

    @property
    @abstractmethod
    def value(self) -> int:
        """How many slots there are."""

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """What it was made with."""

    def _remake(self) -> tuple[Callable[..., Self], tuple[Any, ...]] | None:
        return None if self.name is None else (make, (type(self), (), self._arguments()))

    # ---------------------------------------------------------------- taking

    @abstractmethod
    async def acquire(
        self, slots: int = 1, *, timeout: float | Unset | None = UNSET
    ) -> AcquisitionResult:
        """Wait for ``slots`` slots, in the order of arrival.

        A wait that is cancelled or times out takes no slot.

        Args:
            slots: how many; all are granted together or none is.
            timeout: the longest wait in seconds; 0 does not wait, None waits
                for ever. Left out, it is the semaphore's ``max_acquire_time``.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: the name is in use with another value.
            ValueError: ``slots`` is more than the semaphore has.
        """

    @abstractmethod
    def acquire_sync(
        self, slots: int = 1, *, timeout: float | Unset | None = UNSET
    ) -> AcquisitionResult:
        """Like `acquire`, blocking this thread.

        Raises:
            WouldBlockLoop: called in the thread of a running event loop.
        """

    @abstractmethod
    async def try_acquire(self, slots: int = 1) -> AcquisitionResult | None:
        """Take ``slots`` slots if that neither waits nor passes anybody, else give None."""

    @abstractmethod
    def try_acquire_sync(self, slots: int = 1) -> AcquisitionResult | None:
        """Like `try_acquire`; it does not wait for others, so it may be called anywhere.

        A driver with a server needs one round trip to it.
        """

    # ---------------------------------------------------------------- giving

    @abstractmethod
    async def release(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Give an acquisition's slots back, by its id or its result; False if it had ended.

        Calling it again does no harm: an ended acquisition stays ended, and
        nobody else's slot is freed.
        """

    @abstractmethod
    def release_sync(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Like `release`; it does not wait for others, so it may be called anywhere.

        A driver with a server needs one round trip to it.
        """

    # ------------------------------------------------------ looking, steering

    def locked(self) -> LockedAnswer:
        """Whether a newcomer would have to wait; ``await`` it.

        A driver that knows it at once answers ``bool()`` as well; elsewhere ``bool()``
        raises a TypeError, so that a forgotten ``await`` is never taken for a yes.
        """
        return LockedAnswer(self._locked())

    @abstractmethod
    async def _locked(self) -> bool: ...

    @abstractmethod
    def locked_sync(self) -> bool:
        """Like `locked`."""

    @abstractmethod
    async def stats(self) -> SemaphoreStats:
        """How many slots are held, and how many wait."""

    @abstractmethod
    def stats_sync(self) -> SemaphoreStats:
        """Like `stats`."""

    @abstractmethod
    async def resize(self, value: int) -> None:
        """Change the value while the semaphore is in use.

        Growing wakes waiters. After a shrink nothing is granted until what is
        held fits; waiters for more slots than are left fail with ValueError.
        """

    @abstractmethod
    def resize_sync(self, value: int) -> None:
        """Like `resize`."""

    @abstractmethod
    async def close(self) -> None:
        """Close every instance of the name that this process has made so far.

        Their waiters and newcomers fail with SemaphoreClosed; holders may still release.
        An instance made afterwards works once the earlier holders of this process have
        left. Other processes don't notice. Closing again does no harm.
        """

    @abstractmethod
    def close_sync(self) -> None:
        """Like `close`."""

    @abstractmethod
    async def close_everywhere(self, reason: str | None = None) -> None:
        """Close the name for everybody who shares it, until `reopen`.

        Waiters and newcomers fail with SemaphoreClosed, which carries ``reason``, in
        instances made later too; holders may still release. It outlives the last holder.
        """

    @abstractmethod
    def close_everywhere_sync(self, reason: str | None = None) -> None:
        """Like `close_everywhere`."""

    @abstractmethod
    async def reopen(self) -> None:
        """Undo `close_everywhere`, for everybody; an open semaphore is left alone.

        What this process closed by `close` stays closed.
        """

    @abstractmethod
    def reopen_sync(self) -> None:
        """Like `reopen`."""

    # ------------------------------------------------------ context managers

    def cm(self, slots: int = 1, *, timeout: float | Unset | None = UNSET) -> AcquisitionContext:
        """A context manager for one acquisition, whose result it gives.

        ``async with`` waits in the event loop; plain ``with`` blocks a thread
        that has none. The arguments are those of `acquire`.
        """
        return HeldWhileInside(self, slots, timeout)

    async def __aenter__(self) -> None:
        self._enter_block(await self.acquire())

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._release_on_exit(self._leave_block())

    def __enter__(self) -> None:
        self._enter_block(self.acquire_sync())

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release_on_exit_sync(self._leave_block())

    def _release_on_exit(
        self,
        acquired: AcquisitionResult,
        at_most: float = EXIT_LIMIT,  # noqa: ARG002 - for drivers with a server
    ) -> Awaitable[object]:
        """Release for a block that is left.

        The work is done: a driver whose server does not answer waits at most so many
        seconds, raises nothing, and continues in the background.
        """
        return self.release(acquired)

    def _release_on_exit_sync(
        self,
        acquired: AcquisitionResult,
        at_most: float = EXIT_LIMIT,  # noqa: ARG002
    ) -> None:
        self.release_sync(acquired)

    def _enter_block(self, acquired: AcquisitionResult) -> None:
        if self._blocks is None:
            self._blocks = {}
        self._blocks.setdefault(_caller(), []).append(acquired)

    def _leave_block(self) -> AcquisitionResult:
        """The latest acquisition of a block that the calling task or thread is in."""
        acquired = self._own_block() or self._others_block()
        if acquired is None:
            raise block_not_entered(self)
        return acquired

    def _own_block(self) -> AcquisitionResult | None:
        caller = _caller()
        return self._pop_block(caller) if self._blocks and caller in self._blocks else None

    def _others_block(self) -> AcquisitionResult | None:
        """A block that another task entered: its generator is closed here, or its stack.

        That of a task that has ended, if there is one, else the latest.
        """
        if not self._blocks:
            return None
        callers = [*self._blocks]
        ended = (who for who in callers if isinstance(who, asyncio.Task) and who.done())
        return self._pop_block(next(ended, callers[-1]))

    def _pop_block(self, caller: object) -> AcquisitionResult:
        assert self._blocks is not None
        acquisitions = self._blocks[caller]
        latest = acquisitions.pop()
        if not acquisitions:
            del self._blocks[caller]
        return latest


class AcquisitionContext(ABC):
    """What `Semaphore.cm` returns: good for one ``async with`` or one ``with``."""

    __slots__ = ()

    @abstractmethod
    async def __aenter__(self) -> AcquisitionResult: ...

    @abstractmethod
    async def __aexit__(self, *exc_info: Any) -> None: ...

    @abstractmethod
    def __enter__(self) -> AcquisitionResult: ...

    @abstractmethod
    def __exit__(self, *exc_info: Any) -> None: ...


class HeldWhileInside(AcquisitionContext):
    """Acquires through the semaphore's own verbs, for drivers with no faster way."""

    __slots__ = ("_acquired", "_entered", "_semaphore", "_slots", "_timeout")

    def __init__(self, semaphore: Semaphore, slots: int, timeout: float | Unset | None) -> None:
        self._semaphore = semaphore
        self._slots = slots
        self._timeout = timeout
        self._entered = False
        self._acquired: AcquisitionResult | None = None

    async def __aenter__(self) -> AcquisitionResult:
        self._enter()
        self._acquired = await self._semaphore.acquire(self._slots, timeout=self._timeout)
        return self._acquired

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._semaphore._release_on_exit(self._leave())

    def __enter__(self) -> AcquisitionResult:
        self._enter()
        self._acquired = self._semaphore.acquire_sync(self._slots, timeout=self._timeout)
        return self._acquired

    def __exit__(self, *exc_info: Any) -> None:
        self._semaphore._release_on_exit_sync(self._leave())

    def _enter(self) -> None:
        if self._entered:
            raise context_reused(self._semaphore)
        self._entered = True

    def _leave(self) -> AcquisitionResult:
        if self._acquired is None:
            raise context_not_entered(self._semaphore)
        return self._acquired


def context_reused(semaphore: Semaphore) -> ContextReused:
    return ContextReused(
        f"this cm() of {display(semaphore.name)} was entered before;"
        f" call cm() anew for every 'with' block"
    )


def context_not_yet_entered(semaphore: Semaphore) -> ContextReused:
    return ContextReused(
        f"this cm() of {display(semaphore.name)} has no acquisition: it was not entered yet"
    )


def context_not_entered(semaphore: Semaphore) -> ContextReused:
    return ContextReused(f"this cm() of {display(semaphore.name)} was left without being entered")


def block_not_entered(semaphore: Semaphore) -> ContextReused:
    return ContextReused(f"this task or thread is in no 'with' block of {display(semaphore.name)}")


def display(name: str | None) -> str:
    """A semaphore's name, as messages say it."""
    return "a private semaphore" if name is None else repr(name)


def _caller() -> object:
    """The task that runs this, or else the thread."""
    if asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            return task
    return threading.get_ident()
