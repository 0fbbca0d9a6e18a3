"""What there is and who is there, for people who ask: names, counts, holders, waiters."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from slotwise.processes.folder import SUFFIX, file_name, name_in, trouble
from slotwise.processes.process import process_for
from slotwise.processes.state import Entry, State
from slotwise.processes.words import unknown
from slotwise.values import Claimant, SemaphoreStats


def check_exists(folder: Path, name: str) -> None:
    if not (folder / file_name(name)).exists():
        raise unknown(folder, name)


def names(folder: Path) -> list[str]:
    """The names of all semaphores in a folder, which need not be there."""
    try:
        files = [file for file in os.listdir(folder) if file.endswith(SUFFIX)]  # noqa: PTH208
    except FileNotFoundError:
        return []
    except OSError as error:
        raise trouble(error, folder) from error
    found = (
        name_in(file) or process_for(folder).name_of(file)
        for file in files
        if _size(folder / file)  # an empty one was opened by somebody who only looked
    )
    return sorted(name for name in found if name is not None)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


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
