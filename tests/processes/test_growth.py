"""Names that come and go leave no files and no descriptors behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import _fresh_processes
from tests.processes._inside import limit_of, sweep_soon
from tests.redis._server import wait_until

from slotwise.processes import ProcessSemaphore
from slotwise.processes._filenames import filename_of
from slotwise.processes._operations import release

Make = Callable[..., ProcessSemaphore]

ROOT = Path(__file__).parents[2]
LONG = 30.0


def files(directory: Path) -> list[Path]:
    return [*directory.glob("*.slots"), *directory.glob("*.private")]


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def use(semaphore: ProcessSemaphore) -> None:
    with semaphore.cm(timeout=LONG):
        pass


def test_names_not_used_for_a_minute_are_deleted_as_others_are_created(
    make: Make, directory: Path
) -> None:
    for number in range(200):  # more than stay open
        use(make(name=f"old {number}"))
    old = files(directory)
    assert len(old) == 200
    for path in old:
        age(path, 20)
    for number in range(5):
        use(make(name=f"young {number}"))
    assert len(files(directory)) == 205, "not yet"
    for path in old:
        age(path, 61)
    for number in range(200):
        use(make(name=f"new {number}"))
    assert [path for path in old if path.exists()] == []
    assert len(files(directory)) == 205, "and none of the others"


def test_an_idle_process_deletes_its_files_by_itself(make: Make, directory: Path) -> None:
    semaphore = make()
    use(semaphore)
    age(directory / filename_of("s"), 61)
    sweep_soon(semaphore)
    wait_until(lambda: files(directory) == [], "no file", within=LONG)
    use(semaphore)
    assert len(files(directory)) == 1


def test_files_of_held_resized_or_closed_semaphores_stay(make: Make, directory: Path) -> None:
    held, resized, closed = (make(name=name) for name in ("held", "resized", "closed"))
    acquired = held.acquire_sync()
    resized.resize_sync(3)
    use(closed)
    closed.close_everywhere_sync("for the night")
    for path in files(directory):
        age(path, 3600)
    for number in range(10):
        use(make(name=f"new {number}"))
    assert {*ProcessSemaphore.names(directory)} >= {"held", "resized", "closed"}
    assert held.release_sync(acquired) is True


def test_a_release_of_an_unknown_id_creates_no_file(make: Make, directory: Path) -> None:
    semaphore = make()
    assert semaphore.release_sync("p1-1") is False
    assert files(directory) == []


def test_a_timer_creates_no_file(make: Make, directory: Path) -> None:
    semaphore = make(ttl=0.05)
    acquired = semaphore.acquire_sync()
    (directory / filename_of("s")).unlink()
    assert acquired.lost.wait(LONG)
    assert files(directory) == []


def test_private_files_are_deleted_at_exit_whatever_their_ttls(directory: Path) -> None:
    program = (
        "import sys; from slotwise.processes import ProcessSemaphore\n"
        "for _ in range(200):\n"
        "    semaphore = ProcessSemaphore(value=1, ttl=0.05, directory=sys.argv[1])\n"
        "    semaphore.acquire_sync()\n"
    )
    _fresh_processes.run(
        [sys.executable, "-c", program, str(directory)], check=True, timeout=60, capture_output=True
    )
    assert [*directory.iterdir()] == []


def test_the_file_of_a_private_semaphore_is_deleted_with_its_last_holder(
    make: Make, directory: Path
) -> None:
    semaphore = make(name=None)
    acquired = semaphore.acquire_sync()
    limit = limit_of(semaphore)
    del semaphore
    gc.collect()
    assert len(files(directory)) == 1, "it is held"
    limit.change(release, limit, acquired.acquisition_id, None)
    del acquired
    gc.collect()
    assert files(directory) == []


def test_fifos_are_in_a_subdirectory_without_other_files(make: Make, directory: Path) -> None:
    """Creating a name notifies all processes, and must not list all files for that."""
    semaphore = make()
    use(semaphore)
    assert [path.is_fifo() for path in (directory / "wake").iterdir()] == [True]
    assert limit_of(semaphore).journal.process.wakeups.other_owners() == set()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_files_descriptors_threads_and_memory_do_not_grow(directory: Path) -> None:
    """For two minutes, with idle names kept for a tenth of the usual time."""
    program = [sys.executable, "-m", "tests.processes._changing_names", str(directory), "120", "6"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
