"""Wait until a request is granted, times out or is cancelled.

A task sleeps on a future, a thread on a lock; `_local_claims` wakes both. The ledger in the
semaphore's file decides who is granted what.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from slotwise._core.limit import require_asyncio
from slotwise._core.messages import no_thread
from slotwise._core.twins import is_blocking
from slotwise._wait import clock
from slotwise._wait.wakers import block_on, thread_waker
from slotwise.processes import _log, _messages, _operations
from slotwise.processes._acquisition import MakeWaker, ProcessAcquisition
from slotwise.processes._attachment import (
    INLINE_LOCK_TIMEOUT,
    NO_WAIT_LOCK_TIMEOUT,
    Attachment,
)
from slotwise.processes._errors import Busy, Missing, Retired
from slotwise.processes._in_thread import in_thread

# How much longer than for a slot a caller with a short timeout waits for the lock.
_EXTRA = 0.2


async def wait_for_grant(
    attachment: Attachment, declared: Any, acquisition: ProcessAcquisition
) -> ProcessAcquisition:
    """Request slots of a semaphore of that value, and wait; return the acquisition.

    Raises:
        AcquireTimeout: its timeout passed first.
        BackendError: the file can't be used, or it would have to wait and no thread can be started
            that could end the wait.
    """
    make_waker = thread_waker if is_blocking() else require_asyncio().create_future
    lock_timeout = _lock_timeout(acquisition.timeout)
    try:
        if not await _request(attachment, declared, acquisition, make_waker, lock_timeout):
            await _wait(acquisition)
        elif acquisition.file.woken and not is_blocking():
            await acquisition.file.woken.let_pass()
        _log.acquired(acquisition)
    except Busy as error:
        raise _timed_out_locked(acquisition, error) from None
    except BaseException as error:  # cancelled, or garbage-collected together with its event loop
        _clean_up(acquisition, error)
        raise
    return acquisition


async def try_request(
    attachment: Attachment, declared: Any, acquisition: ProcessAcquisition
) -> ProcessAcquisition | None:
    """Request slots without waiting for them; return the acquisition if they were granted.

    Raises:
        BackendError: the file can't be used, or another process kept its lock for a second.
    """
    lock_timeout = NO_WAIT_LOCK_TIMEOUT
    try:
        granted = await _request(attachment, declared, acquisition, None, lock_timeout)
        if granted and acquisition.file.woken and not is_blocking():
            await acquisition.file.woken.let_pass()
        _tried(acquisition, granted)
    except Busy as error:
        raise _try_locked(acquisition, error) from None
    except BaseException as error:
        _clean_up(acquisition, error)
        raise
    return acquisition if granted else None


def _tried(acquisition: ProcessAcquisition, granted: bool) -> None:
    if granted:
        _log.acquired(acquisition)
    else:
        _log.refused(acquisition, None, waits=False)


def _try_locked(acquisition: ProcessAcquisition, error: Busy) -> Exception:
    busy = _messages.busy(acquisition.file.path, error)
    _log.refused(acquisition, busy, waits=False)
    return busy


def _request_here(
    attachment: Attachment,
    declared: Any,
    acquisition: ProcessAcquisition,
    make_waker: MakeWaker | None,
    lock_timeout: float | None,
) -> bool:
    """Request slots; return False if they aren't granted yet.

    Raises:
        BackendError: it would have to wait, and no thread can be started that could end the wait.
    """
    timeout = acquisition.timeout
    if timeout == 0:
        make_waker = None
    file, waits = acquisition.file, make_waker is not None
    failure = file.process.wakeups.start() or clock.timekeeper.start()
    if failure is not None:  # nobody could end its wait
        make_waker = None
    while True:
        try:
            granted = _operations.request(file, acquisition, declared, make_waker, lock_timeout)
        except Retired:
            acquisition.file = file = attachment.file()
        except Missing:
            raise _messages.unknown(attachment.directory, attachment.name) from None
        else:
            break
    if timeout == 0 and not granted:
        raise _messages.timed_out(acquisition, file.current_state())
    if failure is not None and waits and not granted:
        raise no_thread(failure)
    return granted


async def _request(
    attachment: Attachment,
    declared: Any,
    acquisition: ProcessAcquisition,
    make_waker: MakeWaker | None,
    lock_timeout: float | None,
) -> bool:
    """Like `_request_here`; in a thread if an event loop would have to wait long for the file."""
    if is_blocking():
        return _request_here(attachment, declared, acquisition, make_waker, lock_timeout)
    require_asyncio()  # before anything is changed: the thread may be needed
    try:
        return _request_here(attachment, declared, acquisition, make_waker, INLINE_LOCK_TIMEOUT)
    except Busy:
        return await in_thread(
            partial(_request_here, attachment, declared, acquisition, make_waker, lock_timeout),
            partial(_clean_up, acquisition),
        )


async def _wait(acquisition: ProcessAcquisition) -> None:
    waker: Any = acquisition.waker
    try:
        clock.require_timers()
        if is_blocking():
            block_on(waker)
        else:
            await waker
    finally:
        acquisition.file.woken.discard(waker)
    if acquisition.failure is not None:
        raise acquisition.failure


def _clean_up(acquisition: ProcessAcquisition, error: BaseException | None = None) -> None:
    """Leave nothing of a request whose caller will see ``error`` and not its outcome."""
    if acquisition.requested and acquisition.failure is None:
        acquisition.file.withdraw(acquisition)
    if error is not None:
        _log.refused(acquisition, error, waits=acquisition.timeout != 0)


def _timed_out_locked(acquisition: ProcessAcquisition, error: Busy) -> Exception:
    file, timeout = acquisition.file, acquisition.timeout or 0.0
    timed_out = _messages.timed_out_locked(acquisition.title, timeout, file.path, error)
    _log.refused(acquisition, timed_out, waits=True)
    return timed_out


def _lock_timeout(timeout: float | None) -> float | None:
    """Return how long to wait for the file's lock: a little longer than for the slot."""
    if timeout is None:
        return None
    return max(
        timeout, min(timeout + _EXTRA, NO_WAIT_LOCK_TIMEOUT) if timeout else NO_WAIT_LOCK_TIMEOUT
    )
