"""Read what there is in a directory: names, statistics, holders, waiters."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from slotwise._core.arguments import check_count, check_name
from slotwise._core.results import Claimant, SemaphoreStats
from slotwise.errors import BackendError, UnknownSemaphore
from slotwise.processes import _log, _operations
from slotwise.processes._attachment import Attachment
from slotwise.processes._filenames import SUFFIX, filename_of, name_from
from slotwise.processes._messages import unknown
from slotwise.processes._process import process_for
from slotwise.processes._state import ProcessClaim, State


def check_exists(directory: Path, name: str) -> None:
    if not os.path.lexists(directory) or not process_for(directory).directory.has(
        filename_of(name)
    ):
        raise unknown(directory, name)


def names(directory: Path) -> list[str]:
    """Return the names of all semaphores in a directory, which may not exist."""
    if not os.path.lexists(directory):
        return []
    process = process_for(directory)
    filenames = [
        entry.name
        for entry in process.directory.entries()
        if entry.name.endswith(SUFFIX) and _size(entry)  # an empty one has no state yet
    ]
    found = (name_from(filename) or process.name_of(filename) for filename in filenames)
    return sorted(name for name in found if name is not None)


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # it is gone
        return 0


def get_acquired_stats(
    directory: Path, wanted: Iterable[str] | None, limit: int
) -> dict[str, SemaphoreStats]:
    """Return the statistics of semaphores in a directory; see ProcessSemaphore."""
    if isinstance(wanted, str):
        raise TypeError(f"names must be several names, not the str {wanted!r}")
    check_count("limit", limit)
    found = {}
    for name in names(directory) if wanted is None else dict.fromkeys(wanted):
        check_name(name)
        try:
            check_exists(directory, name)
            stats = Attachment(directory, name).call(_operations.inspect, stats_of, None)
        except UnknownSemaphore:
            continue
        except BackendError as error:  # the others can be read all the same
            _log.unreadable(name, error)
            continue
        if wanted is not None or stats.acquired_slots or stats.waiting:
            found[name] = stats
    fullest_first = sorted(
        found.items(), key=lambda item: (-item[1].acquired_percent, -item[1].waiting, item[0])
    )
    return dict(fullest_first[:limit])


def lock_holder(directory: Path, name: str) -> int | None:
    """Return the pid of the process that is changing a semaphore right now, if there is one.

    A change takes microseconds. A process that is found again and again is stopped, or stuck.
    """
    return process_for(directory).file(name).lock_holder()


def stats_of(state: State) -> SemaphoreStats:
    reason = None if state.closure is None else state.closure.reason
    return SemaphoreStats(state.in_use, state.value, len(state.waiting), state.closed, reason)


def holders_of(state: State) -> list[Claimant]:
    return [
        _claimant(claim, claim.granted_us, claim._slot_number) for claim in state.holders.values()
    ]


def waiters_of(state: State) -> list[Claimant]:
    return [_claimant(claim, claim.requested_us, None) for claim in state.waiting.values()]


def _claimant(claim: ProcessClaim, since_us: int, slot_number: int | None) -> Claimant:
    return Claimant(
        claim.acquisition_id,
        claim.slots,
        datetime.fromtimestamp(since_us / 1e6, UTC),
        socket.gethostname(),
        claim.pid,
        claim.label,
        slot_number,
    )
