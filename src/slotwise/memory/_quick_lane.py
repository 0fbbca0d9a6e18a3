"""The quick lane: take slots, or give them back, without the lock.

This is the rule; why it is safe beside those who have the lock is explained in
`slotwise._ledger.paths`. Where a call would cost too much, it is inlined for one slot of a
semaphore:

    take_one    `MemorySemaphore.__aenter__` and ``__enter__``, `MemoryAcquisition.__aenter__`
    give_one    `MemorySemaphore.__aexit__` and ``__exit__``, `MemoryAcquisition.__aexit__`

Each copy says so, and ``tests/memory/test_quick_lane_copies.py`` compares it with the rule: the
same checks in the same order, and the same outcome in every state of a tracker.
"""

from __future__ import annotations

from heapq import heappop, heappush
from logging import DEBUG
from typing import TYPE_CHECKING, Any

from slotwise._wait import clock
from slotwise._wait.section import exclusive
from slotwise.memory._log import logged, perhaps_wanted

if TYPE_CHECKING:
    from slotwise.memory._acquisition import MemoryAcquisition
    from slotwise.memory._backend import MemoryBackend


def take_one(backend: MemoryBackend) -> int:
    """Take the lowest slot number of a semaphore that is free; 0 if the tracker has to be asked.

    It has to be asked if anybody waits, if anybody was woken and has not run yet, if
    something else needs the lock, if nothing is free, or if the acquisition is perhaps logged.
    """
    ledger = backend.lane
    try:
        if not (ledger.attention or ledger.line or backend.tracker.woken or logged[DEBUG]):
            number = heappop(backend.free)
            if not ledger.attention:
                return number
            backend.tracker.undo(backend.nodes, number)
    except LookupError:  # nothing is free, or it isn't known whether anything is logged
        return 0
    return 0


def give_one(backend: MemoryBackend, number: int) -> None:
    """Give back a slot of a semaphore that is no longer recorded as held."""
    ledger = backend.lane
    if ledger.line or ledger.attention:
        backend.tracker.hand_over(number)
    else:
        heappush(backend.free, number)
        if ledger.line or ledger.attention:
            backend.tracker.look_around(backend.nodes)


def take(claim: MemoryAcquisition) -> bool:
    """The same for a claim: a slot of each node of its path, or what it needs of rates."""
    backend = claim.backend
    tracker = backend.tracker
    if claim.needs is not None:
        if not tracker.is_rated or claim.ttl is not None or tracker.woken:
            return False
        return not perhaps_wanted(DEBUG, True) and exclusive(tracker.take_now, claim)
    ttl = claim.ttl
    if ttl is not None or claim.label is not None:
        claim.since = clock.now()  # before anybody can see that it holds a slot
        if backend._cancel_task_after_ttl:
            claim.task = backend.running_task()
    if tracker.is_semaphore:
        number = take_one(backend)
        claim.nodes = backend.nodes  # those of now: it may have been made before a new ledger was
    else:
        number = take_path(claim)
    claim._slot_number = number
    if not number:
        return False
    ledger = backend.lane
    ledger.holders[claim.key] = claim
    if ttl is not None:
        deadline = claim.since + ttl
        ledger.deadlines.young[claim.key] = deadline  # type: ignore[union-attr]
        if deadline < tracker.alarm:
            tracker.arm(deadline)
    return True


def take_path(claim: MemoryAcquisition) -> int:
    """`take_one` for tiers: take a slot of each node; return the number in the widest."""
    backend = claim.backend
    ledger, tracker = backend.lane, backend.tracker
    taken: list[Any] = []
    number = 0
    try:
        if ledger.attention or tracker.woken or logged[DEBUG]:
            return 0
        for nodes, key in zip(ledger.tables, claim.path):  # noqa: B905 - it costs, and was checked
            node = nodes[key]
            number = heappop(node.free)
            taken.append(node)
        if not ledger.attention:
            claim.nodes = taken
            return number
    except LookupError:
        pass
    if taken:
        tracker.undo(taken, number)
    return 0


def give(claim: MemoryAcquisition) -> bool:
    """Give back what a claim holds; False if it has ended before."""
    tracker = claim.backend.tracker
    ledger = tracker.ledger
    # The deletion decides between this caller, others that release the same
    # acquisition, and the end of its ttl: exactly one of them frees the slots.
    try:
        del ledger.holders[claim.key]
    except KeyError:
        tracker.keep_task(claim.key)
        return False
    if ledger.line or ledger.attention or claim.needs is not None:
        tracker.take_back(claim)
        return True
    number = claim._slot_number
    if tracker.has_keys:
        now = clock.now()
        for node in claim.nodes:
            node.used = now
            heappush(node.free, number)
    else:
        for node in claim.nodes:
            heappush(node.free, number)
    # Somebody may have come meanwhile.
    if ledger.line or ledger.attention or len(ledger.tables[0]) > tracker.roomy:  # type: ignore[redundant-expr]
        tracker.look_around(claim.nodes)
    deadlines = ledger.deadlines
    if deadlines is not None and deadlines.young.pop(claim.key, None) is None:
        tracker.forget_deadline(claim.key)
    return True
