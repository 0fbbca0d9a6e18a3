"""List the holders and waiters of a semaphore of this process.

This only reads what the tracker has anyway: the quick lane keeps no records for it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import chain

from slotwise._core.results import Claimant
from slotwise._wait import clock
from slotwise._wait.section import lock
from slotwise.memory._acquisition import MemoryClaim, id_of, id_of_block
from slotwise.memory._tracker import Tracker


def holders(tracker: Tracker) -> list[Claimant]:
    """The acquisitions, the oldest grant first; then the blocks that have none."""
    with lock:
        # Named semaphores share their table of holders.
        everybody = list(tracker.holders.values())
        claims = [claim for claim in everybody if claim.semaphore._tracker is tracker]
        blocks = _numbers_of_blocks(tracker, claims)
    return [
        *[_show(claim, claim._slot_number) for claim in claims],
        *[_show_block(id_of_block(str(number)), number) for number in blocks],
    ]


def waiters(tracker: Tracker) -> list[Claimant]:
    """In the order of the queue."""
    with lock:
        line = [future for future in list(tracker.line) if not future.done()]
        claims = list(tracker.waiting.values())
    return [
        *[_show_block(id_of_block(f"waiting-{id(future):x}"), None) for future in line],
        *[_show(claim, None) for claim in claims],
    ]


def _numbers_of_blocks(tracker: Tracker, claims: Iterable[MemoryClaim]) -> list[int]:
    """The slot numbers that are held by blocks without an acquisition: all that are left over."""
    left_over = set(range(1, tracker.top + 1))
    left_over.difference_update(tracker.free, chain(*tracker.reserve))
    for claim in claims:
        left_over.difference_update(claim.numbers)
    return sorted(left_over)


def _show(claim: MemoryClaim, slot_number: int | None) -> Claimant:
    since = getattr(claim, "since", None)
    return Claimant(
        id_of(claim.key),  # type: ignore[arg-type] # the keys of claims are numbers
        claim.slots,
        None if since is None else datetime.now(UTC) - timedelta(seconds=clock.now() - since),
        socket.gethostname(),
        os.getpid(),
        claim.label,
        slot_number,
    )


def _show_block(acquisition_id: str, slot_number: int | None) -> Claimant:
    return Claimant(
        acquisition_id, 1, None, socket.gethostname(), os.getpid(), slot_number=slot_number
    )
