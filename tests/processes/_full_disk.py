"""What happens on a full file system: to be run in a directory on a tiny one.

python -m tests.processes._full_disk DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from slotwise import BackendError, SemaphoreStats
from slotwise.processes import ProcessSemaphore


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1024))
        except OSError:
            pass


def refusal(semaphore: ProcessSemaphore, label: str | None = None) -> str:
    try:
        semaphore.acquire_sync(label=label)
    except BackendError as error:
        return str(error)
    raise AssertionError("there was space left")


def main(directory: Path) -> None:
    old = ProcessSemaphore(name="old", value=2, directory=directory)
    held = old.acquire_sync()
    fill(directory / "filler")

    # An existing semaphore still works, for any number of changes.
    for _ in range(500):
        old.release_sync(old.acquire_sync())

    # A change that doesn't fit fails, and changes nothing.
    told = refusal(old, "x" * 100_000)
    assert "/old." in told, told
    assert "disk is full" in told, told
    assert old.stats_sync() == SemaphoreStats(1, 2)
    assert old.release_sync(held) is True
    assert old.stats_sync() == SemaphoreStats(0, 2)

    # A new semaphore can't be created.
    new = ProcessSemaphore(name="new", value=1, directory=directory)
    assert "disk is full" in refusal(new)

    # With free space again, it can.
    (directory / "filler").unlink()
    assert new.release_sync(new.acquire_sync()) is True
    print("ok")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
