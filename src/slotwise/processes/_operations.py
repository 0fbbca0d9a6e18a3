"""Request, release, kick, resize, close and inspect: each operation is one change of the file.

The ledger in the state decides who gets a slot. The operations first check whether the
caller may ask at all, and remove the claims of dead processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core.adaptive import Outcome
from slotwise._core.control import Verb, Where
from slotwise._core.messages import fixed_value, limit_full
from slotwise._core.overload import Overload, too_late
from slotwise._core.paths import is_semaphore
from slotwise._ledger.times import microseconds
from slotwise.errors import BackendError
from slotwise.processes import _log, _newcomers
from slotwise.processes._acquisition import MakeWaker, ProcessAcquisition
from slotwise.processes._claims import Request
from slotwise.processes._errors import Busy, Interrupted, Missing, Retired
from slotwise.processes._local_claims import AfterUnlock
from slotwise.processes._messages import is_stopped
from slotwise.processes._semaphore_file import LOCK_TIMEOUT, SemaphoreFile
from slotwise.processes._state import Declared, State
from slotwise.processes._values import write_value

if TYPE_CHECKING:
    from slotwise.processes._backend import ProcessBackend

T = TypeVar("T")

_LOCK_TIMEOUT_IF_STOPPED = 1.0  # seconds: no change takes that long


# ------------------------------------------------------------------- requesting


def request(
    file: SemaphoreFile,
    acquisition: ProcessAcquisition,
    declared: Declared,
    make_waker: MakeWaker | None,
    lock_timeout: float | None,
) -> bool:
    """Request slots; return True if they were granted, False if it waits or would have to.

    ``make_waker`` makes what it sleeps on; with None it doesn't wait.
    """
    # A slot in a file that nobody else finds would belong to a second semaphore.
    return file.change(
        _request,
        declared,
        lock_timeout,
        file,
        acquisition,
        declared,
        make_waker,
        in_place=True,
    )


def _request(
    after: AfterUnlock,
    file: SemaphoreFile,
    acquisition: ProcessAcquisition,
    declared: Declared,
    make_waker: MakeWaker | None,
) -> bool:
    state = file.current_state()
    wanted = acquisition.wanted
    claims = file.claims
    if not (
        _newcomers.takes_at_once(
            state, wanted, declared
        )  # the usual case: there is nothing else to check
        and acquisition.generation.admits(claims.by_id.__contains__)
        and acquisition.overload is None
    ) and not _may_request(after, file, state, acquisition, declared, make_waker):
        return False
    timeout = acquisition.timeout
    if make_waker is not None and timeout is not None:
        acquisition.wait_until = after.now + timeout
    acquisition_id = acquisition._acquisition_id
    acquisition.begin()
    claims.by_id[acquisition_id] = acquisition
    arguments = [
        acquisition_id,
        wanted.written,
        acquisition.ttl,
        acquisition.wait_until,
        file.process.pid,
        acquisition.label,
    ]
    if acquisition.grace:
        arguments.append(acquisition.grace)
    try:
        file.write(after, "replace" if acquisition.replaces else "request", *arguments)
    except BaseException:
        if not acquisition.holds:
            claims.by_id.pop(acquisition_id, None)
            acquisition.end()
        raise
    if not acquisition.holds and make_waker is not None:
        acquisition.waker = make_waker()
        claims.waiting += 1
        file.process.wakeups.watch(state.owners)
    return acquisition.holds


def _may_request(
    after: AfterUnlock,
    file: SemaphoreFile,
    state: State,
    acquisition: ProcessAcquisition,
    declared: Declared,
    make_waker: MakeWaker | None,
) -> bool:
    """Check a request; return False if it would have to wait, and doesn't want to.

    Raises:
        SemaphoreClosed, LimitFull, ValueConflict, ValueError: it can't be granted, or not now.
    """
    wanted = acquisition.wanted
    if not _newcomers.is_free(state, wanted, declared, after.now):
        file.drop_dead(after)
        if (
            make_waker is None
            and not _newcomers.is_free(state, wanted, declared, after.now)
            and not (acquisition.replaces and _replaces_at_once(state, wanted))
        ):
            _admit(file, state, acquisition, declared, after.now)
            return False
    _admit(file, state, acquisition, declared, after.now)
    if acquisition.overload is not None and make_waker is not None and not acquisition.replaces:
        _refuse_overload(state, acquisition, acquisition.overload, declared, after.now)
    _declare(file, state, declared, after)
    return True


def _replaces_at_once(state: State, wanted: Request) -> bool:
    """Return whether there is somebody to replace, and none of them has a grace period."""
    replaced = state.replaceable(1 if wanted.needs is None else wanted.needs[0])
    return bool(replaced) and not any(claim.grace for claim in replaced)


def _admit(
    file: SemaphoreFile,
    state: State,
    acquisition: ProcessAcquisition,
    declared: Declared,
    now: float,
) -> None:
    """Raise if it can never be granted."""
    if not acquisition.generation.admits(file.claims.by_id.__contains__):
        raise acquisition.closed_error()
    if state.closed:
        raise acquisition.closed_error(state.closure)
    if declared is not None and not state.accepts(declared) and not state.is_idle(now):
        raise _newcomers.conflict(state, declared)
    never = _newcomers.never_fits(state, acquisition.wanted, declared, file.public_name)
    if never is not None:
        raise never


def _refuse_overload(
    state: State,
    acquisition: ProcessAcquisition,
    overload: Overload,
    declared: Declared,
    now: float,
) -> None:
    """Raise if it would have to wait, and may not."""
    state.times_all = state.times_all or overload.sheds
    wanted = acquisition.wanted
    if _newcomers.is_free(state, wanted, declared, now):
        return
    at_nodes = _newcomers.waiting_at(state, wanted)
    waiting, timeout = overload.exceeded(len(state.waiting), at_nodes), None
    if waiting is None and not overload.sheds:
        return
    estimate = _newcomers.estimate(state, wanted, now)
    if waiting is None:
        waiting, timeout = max(at_nodes), acquisition.timeout
        if not too_late(estimate, timeout):
            return
    full = _newcomers.fullness(state, wanted, now)
    raise limit_full(acquisition.title, full, waiting=waiting, estimate=estimate, timeout=timeout)


def _declare(file: SemaphoreFile, state: State, declared: Declared, after: AfterUnlock) -> None:
    """Write the values that the caller declares, if the limit is idle and has others."""
    declaration = _newcomers.declaration(state, declared, after.now)
    if declaration is not None:
        file.write(after, "declare", declaration)


# -------------------------------------------------------------------- releasing


def release(
    file: SemaphoreFile,
    acquisition_id: str,
    outcome: Outcome | None = None,
    lock_timeout: float | None = LOCK_TIMEOUT,
) -> bool:
    """End a hold; return False if it had ended before."""
    try:
        return file.change(_release, None, lock_timeout, file, acquisition_id, outcome)
    except Interrupted:  # this thread is in the middle of a change, which does it when it ends
        return file.withdraw_later(acquisition_id)
    except Missing:
        return False
    except (BackendError, Busy, Retired):
        raise
    except BaseException:  # a signal handler raised: it is still released
        acquisition = file.claims.by_id.get(acquisition_id)
        if acquisition is not None and acquisition.holds:
            file.claims.by_id.pop(acquisition_id, None)  # so that it isn't reported as lost
            acquisition.end()
            file.withdraw_id(acquisition_id)
            _log.released(acquisition)
        raise


def _release(
    after: AfterUnlock, file: SemaphoreFile, acquisition_id: str, outcome: Outcome | None
) -> bool:
    state = file.current_state()
    if acquisition_id not in state.holders:
        return False
    by_id = file.claims.by_id
    acquisition = by_id.get(acquisition_id)
    try:
        by_id.pop(acquisition_id, None)  # so that it isn't reported as lost
        if state.has_adaptive or (acquisition is not None and acquisition._outcomes is not None):
            ending = _end_adaptive(after, file, state, acquisition, outcome)
            file.write(after, "release", acquisition_id, *ending)
        else:
            file.write(after, "release", acquisition_id)
    except BaseException:
        if acquisition is not None:
            by_id[acquisition_id] = acquisition
        raise
    if acquisition is not None:
        acquisition.end()
    return True


def _end_adaptive(
    after: AfterUnlock,
    file: SemaphoreFile,
    state: State,
    acquisition: ProcessAcquisition | None,
    outcome: Outcome | None,
) -> tuple[Any, ...]:
    """Pause what its service asked to; return what the record of the release has to say."""
    ending = _ending(acquisition, outcome, after.now) if state.has_adaptive else ()
    outcomes = None if acquisition is None else acquisition._outcomes
    if acquisition is not None and outcomes is not None and not state.closed:
        acquisition._state_outcome(outcome)
        seconds = outcomes.pauses_for if state.has_adaptive else 0.0
        for tier, key in acquisition.paused() if seconds else ():  # before anybody else is served
            file.write(after, "pause", tier, key, after.now + seconds)
    return ending


def _ending(
    acquisition: ProcessAcquisition | None, outcome: Outcome | None, now: float
) -> tuple[Outcome, int | None, int]:
    """Return how a hold ended, how long it was, and the service's retry_after.

    Its process knows when it learnt of the grant, which is when its work began.
    """
    outcomes = None if acquisition is None else acquisition._outcomes
    if acquisition is None or outcomes is None:
        return outcome or "ok", None, 0
    held_us = max(microseconds(now) - microseconds(acquisition.granted_at), 0)
    return outcome or outcomes.outcome, held_us, microseconds(outcomes.retry_after)


def kick(
    file: SemaphoreFile, acquisition_id: str, lock_timeout: float | None = LOCK_TIMEOUT
) -> bool:
    """End a hold of any process, or begin its grace; return False if it had ended before."""

    def work(after: AfterUnlock) -> bool:
        if acquisition_id not in file.current_state().holders:
            return False
        file.write(after, "kick", acquisition_id)
        return True

    try:
        return file.change(work, None, lock_timeout)
    except Missing:
        return False


# ------------------------------------------------------------------ controlling

# Refused while the limit is closed, and declare it if it was idle.
_NEED_OPEN = ("resize", "pause", "freeze", "thaw")


def control(
    file: SemaphoreFile,
    verb: Verb,
    where: Where,
    args: Sequence[Any],
    backend: ProcessBackend,
    lock_timeout: float | None = LOCK_TIMEOUT,
) -> Any:
    """Write the record of a verb; return what `Controlled._apply` has to.

    A limit that nobody has used has nothing to refill or reopen.
    """

    def work(after: AfterUnlock) -> Any:
        state = file.current_state()
        if verb in _NEED_OPEN:
            _may_change(file, state, verb, backend, after)
        if verb == "close_everywhere":
            file.drop_dead(after)
            file.write(after, verb, *args)
        elif verb == "reopen":
            if state.closed or state.paused:
                file.write(after, verb)
        elif verb == "refill":
            index = state.index_of_rate(where[0])
            if index is not None:
                file.write(after, verb, index, where[1])
        else:
            index = backend.index_of(where)
            record = _of_record(verb, args, backend, after)
            if record is not None:
                file.write(after, verb, index, where[1], *record)
            if verb == "freeze":
                return state.value_at(index, where[1])
        return None

    needed = verb in _NEED_OPEN or verb == "close_everywhere"
    try:
        return file.change(work, backend.declared if needed else None, lock_timeout)
    except Missing:
        return None


def _may_change(
    file: SemaphoreFile, state: State, verb: Verb, backend: ProcessBackend, after: AfterUnlock
) -> None:
    """Raise if a limit can't be changed like that now; declare it, if nobody uses it.

    Any instance may resize or pause a semaphore in use, whatever value it was made with.
    """
    declared = backend.declared
    if backend.generation.closed or state.closed:
        raise backend._closed_error(None if backend.generation.closed else state.closure)
    moves = verb in ("freeze", "thaw")
    if moves or not is_semaphore(state.specs) or state.is_idle(after.now):
        _declare(file, state, declared, after)
    if moves and not state.has_adaptive:
        raise fixed_value(backend._title)


def _of_record(
    verb: Verb, args: Sequence[Any], backend: ProcessBackend, after: AfterUnlock
) -> Sequence[Any] | None:
    """Return what the record of a verb says besides the tier and its key; None writes none."""
    if verb == "pause":
        [seconds] = args
        return (after.now + seconds,) if seconds > 0 else None
    if verb == "resize":
        [value] = args
        declared = backend.declared
        is_known = declared is not None and is_semaphore(declared) and not declared[0].rules
        return write_value(value), *((declared[0].slots,) if declared and is_known else ())
    return args


def charge(
    file: SemaphoreFile,
    acquisition_id: str,
    costs: Mapping[str, int],
    lock_timeout: float | None = LOCK_TIMEOUT,
) -> bool:
    """Correct what an acquisition took of rates; return False if it can't be any more."""
    try:
        return file.change(
            lambda after: file.charge(acquisition_id, costs, after), None, lock_timeout
        )
    except Missing:
        return False


def finish_pending(file: SemaphoreFile, lock_timeout: float | None = LOCK_TIMEOUT) -> None:
    """Do what was left to the next change."""
    try:
        file.change(lambda _: None, None, lock_timeout)
    except Missing:
        pass


# ------------------------------------------------------------------- inspecting


def estimate(
    file: SemaphoreFile,
    wanted: Request,
    backend: ProcessBackend,
    lock_timeout: float | None = LOCK_TIMEOUT,
) -> float | None:
    """Return when a newcomer would be granted what it wants; None if unknown.

    If it is in use with other values, those count, as for whoever inspects it.
    """
    declared = backend.declared

    def work(after: AfterUnlock) -> float | None:
        file.drop_dead(after)
        state = file.current_state()
        is_accepted = state.accepts(declared)
        is_declared_anew = not is_accepted and state.is_idle(after.now)
        if declared is not None and not is_declared_anew and not state.is_same_shape(declared):
            raise _newcomers.conflict(state, declared)
        counting = declared if is_accepted or is_declared_anew else None
        never = _newcomers.never_fits(state, wanted, counting, file.public_name)
        if never is not None:
            raise never
        if backend.generation.closed:
            return None
        return 0.0 if is_declared_anew else _newcomers.estimate(state, wanted, after.now)

    return file.change(work, declared, lock_timeout)


def inspect(
    file: SemaphoreFile,
    read: Callable[..., T],
    declared: Declared,
    lock_timeout: float | None = LOCK_TIMEOUT,
) -> T:
    """Return what ``read`` finds in the state, without dead processes and expired claims.

    A stopped process that has the file's lock isn't waited for: there is no telling how long it
    takes.
    """

    def work(after: AfterUnlock) -> T:
        file.drop_dead(after)
        return read(file.current_state())

    if lock_timeout is None or lock_timeout <= _LOCK_TIMEOUT_IF_STOPPED:
        return file.change(work, declared, lock_timeout)
    try:
        return file.change(work, declared, _LOCK_TIMEOUT_IF_STOPPED)
    except Busy as busy:
        if busy.pid is not None and is_stopped(busy.pid):
            raise
    return file.change(work, declared, lock_timeout - _LOCK_TIMEOUT_IF_STOPPED)


# ---------------------------------------------------------------- deleting files


def delete_if_idle(file: SemaphoreFile, *, forget: bool = False) -> None:
    """Delete the file if nobody uses it and, unless ``forget``, it has nothing to remember."""

    def is_unused(state: State, now: float) -> bool:
        return state.is_idle(now) and (forget or not state.remembers(now))

    _delete_if(file, is_unused)


def delete_private(file: SemaphoreFile, *, at_exit: bool) -> None:
    """Delete the file if nobody uses it; ``at_exit`` doesn't count this process."""
    ignored = {file.process.owner} if at_exit else set()
    _delete_if(file, lambda state, _: state.owners.keys() <= ignored)


def forget(file: SemaphoreFile, lock_timeout: float | None = LOCK_TIMEOUT) -> bool:
    """Delete the file, with all that it remembers; return False if somebody uses it."""

    def is_unused(state: State, now: float) -> bool:
        return state.is_idle(now) and not state.can_be_settled(now)

    return _delete_if(file, is_unused, lock_timeout)


def _delete_if(
    file: SemaphoreFile,
    is_unused: Callable[[State, float], bool],
    lock_timeout: float | None = 0.0,
) -> bool:
    def work(after: AfterUnlock) -> bool:
        file.drop_dead(after)
        unused = is_unused(file.current_state(), after.now)
        if unused:
            file.remove()
        return unused

    return file.change(work, None, lock_timeout)
