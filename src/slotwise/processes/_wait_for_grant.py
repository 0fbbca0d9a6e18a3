"""Wait until a request is granted, times out or is cancelled; and for the lock of a journal.

A task sleeps on a future, a thread on a lock; `_local_claims` wakes both. The ledger decides who
is granted what.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core.limit import require_asyncio
from slotwise._core.messages import no_thread
from slotwise._core.twins import is_blocking
from slotwise._wait import clock
from slotwise._wait.threads import start_thread
from slotwise._wait.wakers import block_on, thread_waker
from slotwise.processes import _log, _messages, _operations
from slotwise.processes._acquisition import MakeWaker, ProcessAcquisition
from slotwise.processes._journal import Busy

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

# How long a coroutine waits for the lock before it leaves that to a thread.
INLINE_LOCK_TIMEOUT = 0.002
# How long a caller waits for it that doesn't wait for a slot: no change takes that long.
NO_WAIT_LOCK_TIMEOUT = 1.0

# How much longer than for a slot a caller with a short timeout waits for the lock.
_EXTRA = 0.2


async def get_grant(acquisition: ProcessAcquisition, *, waits: bool = True) -> ProcessAcquisition:
    """Request slots, and wait for them; return the acquisition.

    Without ``waits``, it may have been granted nothing.

    Raises:
        AcquireTimeout: its timeout passed first.
        BackendError: the journal can't be used; or it would have to wait, and no thread can be
            started that could end the wait.
    """
    limit = acquisition.limit
    make_waker: MakeWaker | None = None
    lock_timeout: float | None = NO_WAIT_LOCK_TIMEOUT
    if waits:
        make_waker = thread_waker if is_blocking() else require_asyncio().create_future
        lock_timeout = _lock_timeout(acquisition.timeout)
    request = partial(_request, acquisition, make_waker)
    undo = partial(_clean_up, acquisition)
    try:
        granted = await call_limit(request, lock_timeout, undo)
        if waits and not granted:
            await _wait(acquisition)
        elif granted and limit.woken and not is_blocking():
            await limit.woken.let_pass()
        if granted or waits:
            _log.acquired(acquisition)
        else:
            _log.refused(acquisition, None, waits=False)
    except Busy as error:
        busy: Exception = _messages.busy(limit.journal.place, error)
        if waits:
            busy = _messages.timed_out_locked(acquisition, str(busy))
        _log.refused(acquisition, busy, waits=waits)
        raise busy from None
    except BaseException as error:  # cancelled, or garbage-collected together with its event loop
        _clean_up(acquisition)
        _log.refused(acquisition, error, waits=acquisition.timeout != 0)
        raise
    return acquisition


def _request(
    acquisition: ProcessAcquisition, make_waker: MakeWaker | None, lock_timeout: float | None
) -> bool:
    """Request slots; return False if they aren't granted yet.

    Raises:
        BackendError: it would have to wait, and no thread can be started that could end the wait.
    """
    limit, timeout = acquisition.limit, acquisition.timeout
    waits = make_waker is not None and timeout != 0
    failure = limit.journal.listen() or clock.timekeeper.start()
    granted = limit.change(
        *(_operations.request, limit, acquisition),
        make_waker if waits and failure is None else None,
        declared=acquisition.backend.declared,
        lock_timeout=lock_timeout,
    )
    if timeout == 0 and not granted:
        raise _messages.timed_out(acquisition, limit.current_state(), limit.now)
    if waits and failure is not None and not granted:
        raise no_thread(failure)
    return granted


async def _wait(acquisition: ProcessAcquisition) -> None:
    waker: Any = acquisition.waker
    try:
        clock.require_timers()
        if is_blocking():
            block_on(waker)
        else:
            await waker
    finally:
        acquisition.limit.woken.discard(waker)
    if acquisition.failure is not None:
        raise acquisition.failure


def _clean_up(acquisition: ProcessAcquisition) -> None:
    """Leave nothing of a request whose caller will not see its outcome."""
    if acquisition.requested and acquisition.failure is None:
        acquisition.limit.withdraw(acquisition)


def _lock_timeout(timeout: float | None) -> float | None:
    """Return how long to wait for the lock: a little longer than for the slot."""
    if timeout is None:
        return None
    return max(timeout, min(timeout + _EXTRA if timeout else 1.0, NO_WAIT_LOCK_TIMEOUT))


async def call_limit(
    call: Callable[..., T],
    at_most: float | None,
    undo: Callable[[], object] = bool,
    otherwise: Callable[[], T] | None = None,
) -> T:
    """Call with a ``lock_timeout``; in a thread if an event loop would have to wait for long.

    Args:
        call: makes a change.
        at_most: how long to wait for the lock.
        undo: called after it if this was cancelled in the meantime.
        otherwise: called here instead if no thread can be started.

    Raises:
        Busy: another process had the lock for that long.
        BackendError: no thread can be started.
    """
    if is_blocking():
        return call(lock_timeout=at_most)
    require_asyncio()  # before anything is changed: the thread may be needed
    try:
        return call(lock_timeout=INLINE_LOCK_TIMEOUT)
    except Busy:
        return await in_thread(partial(call, lock_timeout=at_most), undo, otherwise)


async def in_thread(
    call: Callable[[], T],
    undo: Callable[[], object] = bool,
    otherwise: Callable[[], T] | None = None,
) -> T:
    """Return the result of ``call``, made in a thread of its own; see `call_limit`.

    Not in a pool: any number of calls may be waiting for a lock, and none of them may keep the
    interpreter from exiting.
    """
    loop = require_asyncio()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(settle: Callable[[], None]) -> None:
        undo() if future.done() else settle()

    def run() -> None:
        try:
            settle = partial(future.set_result, call())
        except BaseException as error:
            settle = partial(future.set_exception, error)
        try:
            loop.call_soon_threadsafe(deliver, settle)
        except RuntimeError:  # the loop is closed
            undo()

    failures: list[RuntimeError] = []
    start_thread("file-lock", run, on_failure=failures.append)
    if failures and otherwise is not None:
        return otherwise()
    if failures:
        raise no_thread(str(failures[0]))
    return await future
