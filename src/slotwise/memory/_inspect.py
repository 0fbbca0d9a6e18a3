"""List the holders and waiters of a semaphore or of tiers of this process.

This only reads what the tracker has anyway: the quick lane keeps no records for it. Under the
lock it only copies, because there may be very many.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from slotwise._core.paths import TierSpec, keys_by_name, needs_by_name, slots_needed
from slotwise._core.stats import Claimant
from slotwise._ledger.path_nodes import tie_of
from slotwise._wait import clock
from slotwise._wait.section import lock
from slotwise.memory._acquisition import MemoryAcquisition
from slotwise.memory._ids import id_of_block
from slotwise.memory._tracker import Tracker


def holders(tracker: Tracker) -> list[Claimant]:
    """Return the acquisitions, the oldest grant first; then the blocks without one."""
    ledger = tracker.ledger
    with lock:
        claims = tracker.claims()
        node = ledger.node() if tracker.is_semaphore else None
        free = [] if node is None else [range(number, number + 1) for number in node.free]
        known = () if node is None else (*free, *node.reserve)
        numbers = set(range(1, node.top + 1)) if node is not None else set()
    show = _Show(tracker.specs)
    numbers.difference_update(*known, *(claim.numbers for claim in claims if numbers))
    return [
        *[show.claim(claim, claim._slot_number) for claim in claims],
        *[show.block(id_of_block(str(number)), number) for number in sorted(numbers)],
    ]


def waiters(tracker: Tracker) -> list[Claimant]:
    """Return the waiters in the order of the queue."""
    with lock:
        line = list(tracker.ledger.line)
        claims = [(claim, claim.group.parked_at) for claim in tracker.ledger.waiting.values()]
    if tracker.is_semaphore:  # the only queue, so its order is that of the turns
        claims.sort(key=lambda item: (item[0].rank, tie_of(item[0])))
    show = _Show(tracker.specs)
    return [
        *[
            show.block(id_of_block(f"waiting-{id(future):x}"), None)
            for future in line
            if not future.done()
        ],
        *[show.claim(claim, None, None if node is None else node.tier) for claim, node in claims],
    ]


class _Show:
    """Makes what is shown of a claim or a block; what they share is looked up once."""

    def __init__(self, specs: Sequence[TierSpec]) -> None:
        self._specs = specs
        self._host = socket.gethostname()
        self._pid = os.getpid()
        self._began = datetime.now(UTC) - timedelta(seconds=clock.now())  # when the clock was 0

    def claim(
        self, claim: MemoryAcquisition, slot_number: int | None, lacks: int | None = None
    ) -> Claimant:
        specs = self._specs
        since: float | None = getattr(claim, "since", None)  # not known on the quick lane
        return Claimant(
            claim.acquisition_id,
            slots_needed(specs, claim.needs),
            None if since is None else self._began + timedelta(seconds=since),
            self._host,
            self._pid,
            claim.label,
            slot_number,
            keys=keys_by_name(specs, claim.path),
            needs=needs_by_name(specs, claim.needs),
            lacks=None if lacks is None else specs[lacks].name or None,
            ttl=claim.ttl,
        )

    def block(self, acquisition_id: str, slot_number: int | None) -> Claimant:
        return Claimant(acquisition_id, 1, None, self._host, self._pid, slot_number=slot_number)
