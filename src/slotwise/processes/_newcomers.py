"""What a newcomer is told before its request is written: granted, refused, or what it lacks.

Nothing here changes the state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from slotwise._core.messages import (
    NAMED_HOLDERS,
    occupancy,
    oldest_holders,
    rules_conflict,
    value_conflict,
)
from slotwise._core.paths import (
    SEMAPHORE_PATH,
    TierSpec,
    is_semaphore,
    most_of,
    part_of,
    specs_in_use,
    tiers_conflict,
)
from slotwise._ledger import NEVER, path_fullness
from slotwise._ledger.path_estimates import path_in
from slotwise._ledger.path_fullness import has_room_at_once, path_stats
from slotwise.errors import ValueConflict
from slotwise.processes._claims import Request
from slotwise.processes._state import Declared, State
from slotwise.processes._values import write_specs


def takes_at_once(state: State, wanted: Request, declared: Declared) -> bool:
    """Return whether a newcomer is admitted and granted what it wants without any wait.

    For most requests that is quick to tell. False says nothing: the caller checks all rules.
    """
    # Without attention it is open, not paused, has no rates, and nobody waits.
    if state.attention or wanted.needs is not None or declared is not state._accepted:
        return False
    for tier, key in zip(state.tiers, wanted.path, strict=True) if state.holders else ():
        node = tier.nodes.get(key)
        if node is not None and not node.has_room(1, NEVER):
            return False
    return True


def is_free(state: State, wanted: Request, declared: Declared, now: float) -> bool:
    """Return whether a newcomer would be granted what it wants at once."""
    if state.refills is None and not state.holders and not state.waiting and not state.paused:
        return True
    if not state.accepts(declared):
        return state.is_idle(now)
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


def declaration(state: State, declared: Declared, now: float) -> list[list[Any]] | None:
    """Return what "declare" has to tell an idle limit before a request; None for nothing."""
    if declared is None or state.accepts(declared):
        return None
    if not state.is_idle(now):
        raise conflict(state, declared)
    return write_specs(declared)


def conflict(state: State, declared: Sequence[TierSpec]) -> ValueConflict:
    """Return the error of somebody who declares other values than those in use."""
    if not is_semaphore(state.specs):
        used = specs_in_use(state.specs, [tier.value for tier in state.tiers])
        return tiers_conflict(state.name, used, declared)
    [given], [known] = declared, state.specs
    [node] = path_stats(state, SEMAPHORE_PATH, 0.0)
    if known.adaptive is not None or given.adaptive is not None:
        return rules_conflict(state.name, given.adaptive, known.adaptive, node.value)
    return value_conflict(
        state.name, given.slots, value=node.value, held=node.active, waiting=node.waiting
    )


def never_fits(
    state: State, wanted: Request, declared: Declared, name: str | None
) -> ValueError | None:
    """Return the error of a request that can never be granted, if that is so.

    ``name`` is that of the limit, for messages; None if it is private.
    """
    path, needs, values, *_ = wanted
    if needs is None:
        return None
    told = dict(values)
    accepted = declared is None or state.accepts(declared)
    for index, (key, need) in enumerate(zip(path, needs, strict=True)):
        specs = state.specs if accepted or declared is None else declared
        adaptive = specs[index].adaptive
        if adaptive is not None:
            if need > adaptive.min:
                which = part_of(specs, name, index, key)
                return path_fullness.never_fits(which, need, None, adaptive)
            continue
        if accepted:
            value = state.tiers[index].value_of(key)
        else:
            value = None if specs[index].by_key else specs[index].value
        value = told.get(index, 0) if value is None else value
        if value and need > most_of(value):
            which = part_of(specs, name, index, key)
            return path_fullness.never_fits(which, need, value, None)
    return None


def estimate(state: State, wanted: Request, now: float) -> float | None:
    """Return when a newcomer would be granted what it wants; None if unknown."""
    mean = state.holds.mean
    return None if state.closed else path_in(state, wanted.path, wanted.needs, now, mean)


def fullness(state: State, wanted: Request, now: float) -> str:
    """Return which tier has no room, and why, for a caller that got no slot."""
    if not is_semaphore(state.specs):
        return path_fullness.fullness(state, state.specs, wanted.path, wanted.needs, now)
    [node] = path_stats(state, SEMAPHORE_PATH, now)
    return occupancy(
        value=node.value,
        held=node.active,
        waiting=node.waiting,
        oldest=_oldest_holders(state),
        paused_for=node.paused_for,
    )


def _oldest_holders(state: State) -> str:
    host, now = os.uname().nodename, time.time()
    return oldest_holders(
        (host, claim.pid, claim.label, max(now - claim.granted_us / 1e6, 0.0))
        for claim in islice(state.holders.values(), NAMED_HOLDERS)
    )


def waiting_at(state: State, wanted: Request) -> list[int]:
    """Return how many wait for each node of a path."""
    nodes = [tier.nodes.get(key) for tier, key in zip(state.tiers, wanted.path, strict=True)]
    return [0 if node is None else node.waiting for node in nodes]
