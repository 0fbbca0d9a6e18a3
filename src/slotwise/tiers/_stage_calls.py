"""Call the semaphores of staged tiers: for a coroutine or for a thread, one by one or all at once.

What is called, and what follows from the replies, is in `_staged`. Where a server answers, the
calls are made at once: ten tiers then take as long as one, however slow it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from slotwise._core.limit import INSPECT_LIMIT
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore
from slotwise._wait import clock
from slotwise._wait.at_once import call, run_at_once
from slotwise.errors import BackendError

T = TypeVar("T")

# Semaphores, and the acquisition of each, or its id.
A = TypeVar("A", AcquisitionResult, str)
HeldStages = list[tuple[Semaphore, A]]

# How long a release that could not be looked up is repeated in the background: the process that
# holds it may be alive, so silence does not free it.
_REPEAT_FOR = 60.0

# How a semaphore is released by a block that is left: it raises nothing if the server is away.
ON_EXIT = "_release_on_exit"


class ServerThread(Protocol):
    """Runs coroutines that talk to a server, while a calling thread waits."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...

    def run_to_completion(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T: ...

    def start_release(
        self, attempt: Callable[[], Coroutine[Any, Any, T]], seconds: float
    ) -> Future[T]: ...


# Returns the thread for calls to a server, or is None if there is no server.
FindThread = Callable[[], ServerThread] | None

# Makes a coroutine that looks at semaphores; with ``sync=True`` it never suspends.
Look = Callable[..., Coroutine[Any, Any, T]]


async def call_all(sync: bool, targets: Sequence[Semaphore], verb: str) -> list[Any]:
    """Call a verb of several semaphores, at once if they are on a server; return the replies.

    Raises:
        BaseException: the first error; on a server when all calls have ended.
    """
    if sync or not any(target._has_a_server for target in targets):
        return [await call(sync, target, verb) for target in targets]
    calls = [getattr(target, verb)() for target in targets]
    replies = await asyncio.gather(*calls, return_exceptions=True)
    _raise_errors_in(replies)
    return replies


async def look(find_thread: FindThread, what: Look[T]) -> T:
    """Look at semaphores; a server has to answer all calls together within the limit.

    Raises:
        BackendError: it did not, or it can't be used.
    """
    if find_thread is None:
        return await what(sync=False)
    try:
        async with asyncio.timeout(INSPECT_LIMIT) as limit:
            return await what(sync=False)
    except TimeoutError:
        if not limit.expired():
            raise
        raise BackendError(
            f"the server is slow: its answers about all tiers took longer than {INSPECT_LIMIT} s"
        ) from None


def look_sync(find_thread: FindThread, what: Look[T]) -> T:
    """Like `look`, for a thread."""
    if find_thread is None:
        return run_at_once(what(sync=True))
    return find_thread().run(look(find_thread, what))


async def release_elsewhere(
    find_thread: Callable[[], ServerThread],
    attempt: Callable[[], Coroutine[Any, Any, T]],
    seconds: float,
) -> T:
    """Release what has to be looked up on the server first, all of it within ``seconds``.

    Raises:
        BackendError: it is not known whether the server has done it. It is attempted again in the
            background, whatever becomes of the caller.
    """
    first = asyncio.wrap_future(find_thread().start_release(attempt, _REPEAT_FOR))
    first.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        async with asyncio.timeout(seconds) as limit:
            return await asyncio.shield(first)
    except TimeoutError:
        if not limit.expired():
            raise
        raise BackendError(
            f"the server did not confirm the release within {seconds:g} s; it continues in the"
            " background"
        ) from None


async def end_all(
    held: HeldStages[A],
    verb: str,
    *,
    sync: bool,
    find_thread: FindThread,
    seconds: float | None = None,
) -> bool:
    """End all in the order in which they were acquired, whatever happens meanwhile.

    ``seconds`` is how long that may take in total, for a verb that wants to know it.
    Returns whether any was still held.
    """
    if find_thread is None or len(held) < 2:
        return await _end_in_turn(held, verb, sync=sync, seconds=seconds)
    limit = () if seconds is None else (seconds,)
    if sync:
        return find_thread().run_to_completion(lambda: _end_at_once(held, verb, limit))
    return await _end_at_once(held, verb, limit)


async def _end_at_once(held: HeldStages[A], verb: str, limit: tuple[float, ...]) -> bool:
    """End all on a server, which gets the calls in this order."""
    calls = [getattr(semaphore, verb)(acquired, *limit) for semaphore, acquired in held]
    # A caller that is cancelled before they have begun must not cancel them.
    replies = await asyncio.shield(asyncio.gather(*calls, return_exceptions=True))
    _raise_errors_in(replies)
    return any(replies)


async def _end_in_turn(
    held: Sequence[tuple[Semaphore, A]], verb: str, *, sync: bool, seconds: float | None
) -> bool:
    if not held:
        return False
    (semaphore, acquired), *others = held
    started, limit = clock.now(), () if seconds is None else (seconds,)
    try:
        ended = await call(sync, semaphore, verb, acquired, *limit)
    finally:
        if seconds is not None:
            seconds = max(seconds - (clock.now() - started), 0.0)
        ended_others = await _end_in_turn(others, verb, sync=sync, seconds=seconds)
    return bool(ended or ended_others)


def _raise_errors_in(replies: list[Any]) -> None:
    """Raise the first error, if there is any; the others are notes on it if they differ."""
    errors = [reply for reply in replies if isinstance(reply, BaseException)]
    if errors:
        first, *others = errors
        for words in dict.fromkeys(map(str, others)):
            if words != str(first):
                first.add_note(words)
        raise first
