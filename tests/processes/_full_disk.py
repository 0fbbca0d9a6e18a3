"""What happens on a file system without file: run in a directory on a tiny one.

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
    raise AssertionError("there was file")


def main(directory: Path) -> None:
    old = ProcessSemaphore(name="old", value=2, directory=directory)
    held = old.acquire_sync()
    fill(directory / "filler")

    # What was made before goes on, for as many changes as anybody likes.
    for _ in range(500):
        old.release_sync(old.acquire_sync())

    # A change that does not fit is refused, and has not happened.
    told = refusal(old, "x" * 100_000)
    assert "/old." in told, told
    assert "disk is full" in told, told
    assert old.stats_sync() == SemaphoreStats(1, 2)
    assert old.release_sync(held) is True
    assert old.stats_sync() == SemaphoreStats(0, 2)

    # A new one can't be made.
    new = ProcessSemaphore(name="new", value=1, directory=directory)
    assert "disk is full" in refusal(new)

    # With file again all is well.
    (directory / "filler").unlink()
    assert new.release_sync(new.acquire_sync()) is True
    print("ok")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
