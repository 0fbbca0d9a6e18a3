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
from slotwise._core.results import Claimant
from slotwise._wait import clock
from slotwise._wait.section import lock
from slotwise.memory._acquisition import MemoryAcquisition
from slotwise.memory._ids import id_of, id_of_block
from slotwise.memory._path_acquisition import MemoryPathAcquisition
from slotwise.memory._path_tracker import PathTracker
from slotwise.memory._quick_lane import Snapshot
from slotwise.memory._tracker import Tracker


def holders(tracker: Tracker) -> list[Claimant]:
    """Return the acquisitions, the oldest grant first; then the blocks without one."""
    with lock:
        slots = Snapshot(tracker)
    show = _Show()
    return [
        *[show.claim(claim, claim._slot_number) for claim in slots.claims()],
        *[
            show.block(id_of_block(str(number)), number)
            for number in sorted(slots.numbers_without_claim())
        ],
    ]


def waiters(tracker: Tracker) -> list[Claimant]:
    """Return the waiters in the order of the queue."""
    with lock:
        line = list(tracker.line)
        claims = tracker.in_turn()
    show = _Show()
    return [
        *[
            show.block(id_of_block(f"waiting-{id(future):x}"), None)
            for future in line
            if not future.done()
        ],
        *[show.claim(claim, None) for claim in claims],
    ]


def holders_of_paths(tracker: PathTracker) -> list[Claimant]:
    """Return the acquisitions of tiers, the oldest grant first."""
    with lock:
        acquisitions = list(tracker.holders.values())
    show = _Show()
    return [
        show.path(acquisition, tracker.specs, acquisition._slot_number)
        for acquisition in acquisitions
    ]


def waiters_for_paths(tracker: PathTracker) -> list[Claimant]:
    """Return the waiters in the order of arrival."""
    with lock:
        acquisitions = [
            (acquisition, acquisition.group.parked_at) for acquisition in tracker.waiting.values()
        ]
    show = _Show()
    return [
        show.path(acquisition, tracker.specs, None, None if node is None else node.tier)
        for acquisition, node in acquisitions
    ]


class _Show:
    """Makes what is shown of a claim or a block; what they share is looked up once."""

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._pid = os.getpid()
        self._began = datetime.now(UTC) - timedelta(seconds=clock.now())  # when the clock was 0

    def _since(self, claim: MemoryAcquisition | MemoryPathAcquisition) -> datetime | None:
        since: float | None = getattr(claim, "since", None)  # not known on the quick lane
        return None if since is None else self._began + timedelta(seconds=since)

    def claim(self, claim: MemoryAcquisition, slot_number: int | None) -> Claimant:
        return Claimant(
            id_of(claim.key),  # type: ignore[arg-type] # the keys of claims are numbers
            claim.slots,
            self._since(claim),
            self._host,
            self._pid,
            claim.label,
            slot_number,
            ttl=claim.ttl,
        )

    def block(self, acquisition_id: str, slot_number: int | None) -> Claimant:
        return Claimant(acquisition_id, 1, None, self._host, self._pid, slot_number=slot_number)

    def path(
        self,
        acquisition: MemoryPathAcquisition,
        specs: Sequence[TierSpec],
        slot_number: int | None,
        lacks: int | None = None,
    ) -> Claimant:
        return Claimant(
            acquisition.acquisition_id,
            slots_needed(specs, acquisition.needs),
            self._since(acquisition),
            self._host,
            self._pid,
            getattr(acquisition, "label", None),
            slot_number,
            keys=keys_by_name(specs, acquisition.path),
            needs=needs_by_name(specs, acquisition.needs),
            lacks=None if lacks is None else specs[lacks].name,
            ttl=acquisition.ttl,
        )
