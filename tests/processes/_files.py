"""Close the files of a directory after a test, or hundreds of tests would have theirs open."""

from __future__ import annotations

from pathlib import Path

from slotwise.processes import _process as process_module


def close_files(directory: Path) -> None:
    process = process_module._processes.get(directory)
    if process is not None:
        for file in list(process.files.values()):
            if not process.retire(file):  # it is held: nobody is to look after it any more
                file.abandon()
                process.files.pop(file.claims.key, None)
