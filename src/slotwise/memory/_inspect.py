"""List the holders and waiters of a semaphore of this process.

This only reads what the tracker has anyway: the quick lane keeps no records for it.
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta

from slotwise._core.results import Claimant
from slotwise._wait import clock
from slotwise._wait.section import lock
from slotwise.memory._acquisition import MemoryClaim, id_of, id_of_block
from slotwise.memory._quick_lane import Snapshot
from slotwise.memory._tracker import Tracker


def holders(tracker: Tracker) -> list[Claimant]:
    """The acquisitions, the oldest grant first; then the blocks that have none."""
    with lock:  # only to copy what there is: others are waiting
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
    """In the order of the queue."""
    with lock:
        line = list(tracker.line)
        claims = list(tracker.waiting.values())
    show = _Show()
    return [
        *[
            show.block(id_of_block(f"waiting-{id(future):x}"), None)
            for future in line
            if not future.done()
        ],
        *[show.claim(claim, None) for claim in claims],
    ]


class _Show:
    """What is shown of a claim or a block; what is the same of all is looked up once."""

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._pid = os.getpid()
        self._began = datetime.now(UTC) - timedelta(seconds=clock.now())  # of the clock

    def claim(self, claim: MemoryClaim, slot_number: int | None) -> Claimant:
        since = getattr(claim, "since", None)
        return Claimant(
            id_of(claim.key),  # type: ignore[arg-type] # the keys of claims are numbers
            claim.slots,
            None if since is None else self._began + timedelta(seconds=since),
            self._host,
            self._pid,
            claim.label,
            slot_number,
        )

    def block(self, acquisition_id: str, slot_number: int | None) -> Claimant:
        return Claimant(acquisition_id, 1, None, self._host, self._pid, slot_number=slot_number)
