"""What there is and who is there, for people who ask: names, counts, holders, waiters."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from slotwise._core.results import Claimant, SemaphoreStats
from slotwise.processes._folder import SUFFIX, file_name, name_in
from slotwise.processes._messages import unknown
from slotwise.processes._process import process_for
from slotwise.processes._state import Entry, State


def check_exists(folder: Path, name: str) -> None:
    if not os.path.lexists(folder) or not process_for(folder).folder.has(file_name(name)):
        raise unknown(folder, name)


def names(folder: Path) -> list[str]:
    """The names of all semaphores in a folder, which need not be there."""
    if not os.path.lexists(folder):
        return []
    process = process_for(folder)
    files = [
        entry.name
        for entry in process.folder.entries()
        if entry.name.endswith(SUFFIX)
        and _size(entry)  # an empty one was opened by somebody who only looked
    ]
    found = (name_in(file) or process.name_of(file) for file in files)
    return sorted(name for name in found if name is not None)


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # gone meanwhile
        return 0


def lock_holder(folder: Path, name: str) -> int | None:
    """The pid of the process that is changing a semaphore right now; None if none is.

    Others change it for microseconds. One that is found again and again is stopped, or stuck.
    """
    return process_for(folder).room(name).lock_holder()


def count(state: State) -> SemaphoreStats:
    reason = None if state.closure is None else state.closure.reason
    return SemaphoreStats(state.in_use, state.value, len(state.waiting), state.closed, reason)


def holders(state: State) -> list[Claimant]:
    return [_show(entry, entry.granted_us, entry._slot_number) for entry in state.holders.values()]


def waiters(state: State) -> list[Claimant]:
    return [_show(entry, entry.asked_us, None) for entry in state.waiting.values()]


def _show(entry: Entry, since_us: int, slot_number: int | None) -> Claimant:
    return Claimant(
        entry.acquisition_id,
        entry.slots,
        datetime.fromtimestamp(since_us / 1e6, UTC),
        socket.gethostname(),
        entry.pid,
        entry.label,
        slot_number,
    )
