"""Request, release, kick, control and look: what is done in one change of a limit.

Each is called by `SharedLimit.change`, and may call its `write`. The ledger in the state decides
who gets a slot; here it is checked first whether the caller may ask at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core.adaptive import Outcome
from slotwise._core.control import Verb, Where
from slotwise._core.messages import (
    fixed_value,
    unknown_acquisition,
)
from slotwise._core.paths import (
    is_semaphore,
)
from slotwise._ledger.path_fullness import has_room_at_once
from slotwise._ledger.times import microseconds
from slotwise.processes._acquisition import MakeWaker, ProcessAcquisition
from slotwise.processes._claims import Request
from slotwise.processes._limit import SharedLimit
from slotwise.processes._snapshots import write_specs
from slotwise.processes._state import Declared, State
from slotwise.processes._views import oldest_holders_of

if TYPE_CHECKING:
    from slotwise.processes._backend import ProcessBackend

T = TypeVar("T")


# ------------------------------------------------------------------- requesting


def request(
    limit: SharedLimit, acquisition: ProcessAcquisition, make_waker: MakeWaker | None
) -> bool:
    """Request slots; return True if they were granted, False if it waits or would have to.

    ``make_waker`` makes what it sleeps on; with None it doesn't wait.
    """
    if not _may_request(limit, acquisition, waits=make_waker is not None):
        return False
    timeout = acquisition.timeout
    if make_waker is not None and timeout is not None:
        acquisition.wait_until = limit.now + timeout
    acquisition_id = acquisition._acquisition_id
    backend = acquisition.backend
    acquisition.begin(backend._idle_keys() if backend._is_keyed else None)
    limit.claims.by_id[acquisition_id] = acquisition
    try:
        limit.write(
            "replace" if acquisition.replaces else "request",
            *(acquisition_id, acquisition.wanted.written, acquisition.ttl),
            *(acquisition.wait_until, limit.journal.pid, acquisition.label),
            *((acquisition.grace,) if acquisition.grace else ()),
        )
    except BaseException:
        limit.claims.leave(acquisition)
        raise
    if not acquisition.holds and make_waker is not None:
        acquisition.waker = make_waker()
        limit.claims.sleeping.add(acquisition_id)
        limit.journal.watch(limit.current_state().owners)
    return acquisition.holds


def _may_request(limit: SharedLimit, acquisition: ProcessAcquisition, *, waits: bool) -> bool:
    """Check a request; return False if it would have to wait, and doesn't want to.

    Raises:
        SemaphoreClosed, LimitFull, ValueConflict, ValueError: it can't be granted, or not now.
    """
    state, wanted = limit.current_state(), acquisition.wanted
    backend = acquisition.backend
    declared, overload = backend.declared, backend._overload
    is_free = _is_free(state, wanted, declared, limit.now)
    if not is_free:
        limit.drop_dead()
        is_free = _is_free(state, wanted, declared, limit.now)
    if not backend.generation.admits(limit.claims.by_id.__contains__):
        raise backend._closed_error()
    if state.closed:
        raise backend._closed_error(state.closure)
    declaration = _declaration(state, declared, limit.now)
    asked = state if declaration is None else _as_declared(state, declared)
    never = asked.never_fits(limit.public_name, wanted.path, wanted.needs, wanted.values)
    if never is not None:
        raise never
    if not waits and not is_free:
        if not acquisition.replaces:
            return False
        replaced = state.replaceable(1 if wanted.needs is None else wanted.needs[0])
        if not replaced or any(claim.grace for claim in replaced):
            return False
    if overload is not None and waits and not acquisition.replaces:
        state.times_all = state.times_all or overload.sheds
        if not is_free:
            oldest = partial(oldest_holders_of, state)
            full = state.too_full(
                *(backend._title, overload, wanted.path, wanted.needs),
                *(acquisition.timeout, limit.now, oldest),
            )
            if full is not None:
                raise full
    if declaration is not None:
        limit.write("declare", declaration)
    return True


def _is_free(state: State, wanted: Request, declared: Declared, now: float) -> bool:
    """Return whether a newcomer would be granted what it wants at once."""
    if not state.accepts(declared):
        return state.is_idle(now) and not state.paused
    if not state.attention and not state.holders:  # the usual case: nobody is there
        return True
    path, needs = wanted.path, wanted.needs
    turn = state.queue.turn_of_newcomer(wanted.head_start, path, state.queue.next_ticket(now))
    group = state.groups.get(path)
    if group is not None and group.turn < turn:
        return False
    for tier, key in zip(state.tiers, path, strict=True):
        node = tier.nodes.get(key)
        if tier.paused_until(key) > now:
            return False
        if node is not None:
            need = 1 if needs is None else needs[tier.index]
            if not has_room_at_once(node, need, now, turn):
                return False
    return True


def _as_declared(state: State, declared: Declared) -> State:
    """Return an idle limit as it will be for somebody who declares it anew."""
    return state if declared is None else State(state.name, declared, state.boot)


def _declaration(state: State, declared: Declared, now: float) -> list[list[Any]] | None:
    """Return what "declare" has to tell an idle limit first; None for nothing.

    Raises:
        ValueConflict: it is in use with other values.
    """
    if declared is None or state.accepts(declared):
        return None
    if not state.is_idle(now):
        raise state.conflict(state.name, declared)
    return write_specs(declared)


# -------------------------------------------------------------------- releasing


def release(limit: SharedLimit, acquisition_id: str, outcome: Outcome | None) -> bool:
    """End a hold; return False if it had ended before."""
    state = limit.current_state()
    if acquisition_id not in state.holders:
        return False
    acquisition = limit.claims.by_id.get(acquisition_id)
    if state.has_adaptive or (acquisition is not None and acquisition._outcomes is not None):
        ending = _end_adaptive(limit, acquisition, outcome)
        limit.write("release", acquisition_id, *ending)
    else:
        limit.write("release", acquisition_id)
    return True


def _end_adaptive(
    limit: SharedLimit, acquisition: ProcessAcquisition | None, outcome: Outcome | None
) -> tuple[Any, ...]:
    """Pause what its service asked to; return what the record of the release has to say.

    That is how the hold ended, how long it was, and the service's retry_after. Its process knows
    when it learnt of the grant, which is when its work began.
    """
    state = limit.current_state()
    outcomes = None if acquisition is None else acquisition._outcomes
    if acquisition is None or outcomes is None:
        return outcome or "ok", None, 0
    if not state.closed:
        acquisition._state_outcome(outcome)
        # Before anybody else is served.
        for seconds, name, key in acquisition.pauses() if state.has_adaptive else ():
            limit.write("pause", name, key, seconds)
    if not state.has_adaptive:
        return ()
    held_us = max(microseconds(limit.now) - microseconds(acquisition.granted_at), 0)
    return outcome or outcomes.outcome, held_us, microseconds(outcomes.retry_after)


def kick(limit: SharedLimit, acquisition_id: str) -> bool:
    """End a hold of any process, or begin its grace; return False if it had ended before."""
    if acquisition_id not in limit.current_state().holders:
        return False
    limit.write("kick", acquisition_id)
    return True


# ------------------------------------------------------------------ controlling

# Refused while the limit is closed, and declare it if it was idle.
NEED_OPEN = ("resize", "pause", "freeze", "thaw")


def control(
    limit: SharedLimit, verb: Verb, where: Where, args: Sequence[Any], backend: ProcessBackend
) -> Any:
    """Write the record of a verb; return what `PathBackend._apply` has to."""
    state = limit.current_state()
    if verb in NEED_OPEN:
        if backend.generation.closed or state.closed:
            raise backend._closed_error(None if backend.generation.closed else state.closure)
        # Any instance may resize or pause a semaphore in use, whatever value it was made with.
        moves = verb in ("freeze", "thaw")
        if moves or not is_semaphore(state.specs) or state.is_idle(limit.now):
            declaration = _declaration(state, backend.declared, limit.now)
            if declaration is not None:
                limit.write("declare", declaration)
        if moves and not state.has_adaptive:
            raise fixed_value(backend._title)
    if verb == "settle" and not state.can_settle(args[0], limit.now):
        raise unknown_acquisition(backend._title, args[0])
    limit.write(verb, *where, *args)
    return state.value_at(*where) if verb == "freeze" else None


# ------------------------------------------------------------------- looking


def look(limit: SharedLimit, read: Callable[[State, float], T]) -> T:
    """Return what ``read`` finds in the state now, without dead processes and expired claims."""
    limit.drop_dead()
    return read(limit.current_state(), limit.now)


def estimate(limit: SharedLimit, wanted: Request, backend: ProcessBackend) -> float | None:
    """Return when a newcomer would be granted what it wants; None if unknown.

    If it is in use with other values, those count, as for whoever inspects it.
    """
    limit.drop_dead()
    state, declared = limit.current_state(), backend.declared
    is_declared_anew = not state.accepts(declared) and state.is_idle(limit.now)
    if declared is not None and not is_declared_anew and not state.is_same_shape(declared):
        raise state.conflict(state.name, declared)
    asked = _as_declared(state, declared) if is_declared_anew else state
    never = asked.never_fits(limit.public_name, wanted.path, wanted.needs, wanted.values)
    if never is not None:
        raise never
    if backend.generation.closed or state.closed:
        return None
    if is_declared_anew and not state.paused:
        return 0.0
    return state.estimate(wanted.path, wanted.needs, limit.now)


# ------------------------------------------------------------------ deleting


def delete(limit: SharedLimit, is_unused: Callable[[State, float], bool]) -> bool:
    """Delete the journal, with all that it remembers, if it is unused; return whether it was."""
    unused = look(limit, is_unused)
    if unused:
        limit.journal.remove()
    return unused
