"""What one process knows of a file: tests have several of them, without several processes."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from slotwise.processes._directory import OpenDirectory
from slotwise.processes._file_journal import FileJournal
from slotwise.processes._locked_file import LockedFile
from slotwise.processes._state import State


class Copy:
    """A journal of a file, and the state that its records have led to."""

    def __init__(
        self, directory: OpenDirectory, filename: str, liveness_byte: int, boot: str = "boot"
    ) -> None:
        self.file = LockedFile(directory, filename, liveness_byte)
        self.file.open(create=True)
        owner = f"p{liveness_byte:x}"
        unused = SimpleNamespace(start=None, watch=None, notify=print)
        process: Any = SimpleNamespace(
            owner=owner, pid=os.getpid(), boot=boot, next_number=None, wakeups=unused
        )
        self.journal = FileJournal(process, self.file, "s", "key")
        self.state: Any = None

    def create(self, state: State) -> None:
        self.journal.create(state.snapshot())
        self.state = state

    def catch_up(self) -> None:
        found = self.journal.read()
        assert found is not None
        snapshot, records = found
        if snapshot is not None:
            self.state = State.restore(snapshot)
        for record in records:
            self.state.apply(record)

    def write(self, record: list[Any]) -> Any:
        events = self.state.apply(record)
        self.journal.append(record, self.state.snapshot)
        return events
