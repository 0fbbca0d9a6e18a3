"""Something else is in the place of the directory or of a file, or the umask is unusual."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import _fresh_processes

from slotwise import BackendError
from slotwise.processes import ProcessSemaphore
from slotwise.processes._filenames import filename_of
from slotwise.processes._locked_file import LockedFile

Make = Callable[..., ProcessSemaphore]

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_nothing_is_written_elsewhere_while_directories_are_swapped(
    make: Make, directory: Path
) -> None:
    """The directory that was checked is used, whatever is at its path an instant later."""
    victim, loose, link = (directory.with_suffix(end) for end in (".victim", ".loose", ".link"))
    for path in (directory, victim, loose):
        path.mkdir(mode=0o700)
    loose.chmod(0o777)
    link.symlink_to(victim)
    make(name="known").acquire_sync()
    program = [sys.executable, "-m", "tests.processes._swap", directory, link, loose]
    with _fresh_processes.Popen(
        program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as swapping:
        assert swapping.stdin is not None
        assert swapping.stdout is not None
        assert swapping.stdout.readline() == "begun\n"
        for number in range(300):
            try:
                make(name=f"name {number}").acquire_sync(timeout=30)
                ProcessSemaphore.existing("known", directory=directory).stats_sync()
                ProcessSemaphore.names(directory)
            except (BackendError, LookupError):
                pass  # refused, or it did not exist at that instant
        swapping.stdin.close()
        assert int(swapping.stdout.read()) > 0
    assert [*victim.iterdir(), *loose.iterdir()] == []
    make(name="afterwards").acquire_sync(timeout=30)
    assert "afterwards" in ProcessSemaphore.names(directory)


@pytest.mark.parametrize("kind", ["link", "loose"])
def test_a_directory_that_is_swapped_right_after_it_was_checked_gets_nothing(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    victim, decoy = directory.with_suffix(".victim"), directory.with_suffix(".decoy")
    victim.mkdir(mode=0o700)
    if kind == "link":
        decoy.symlink_to(victim)
    else:
        victim.rename(decoy)
        decoy.chmod(0o777)
    make(name="known").acquire_sync()

    open_checked = LockedFile.open

    def swap_first(file: LockedFile, **options: Any) -> bool:
        directory.rename(directory.with_suffix(".aside"))
        decoy.rename(directory)
        monkeypatch.undo()
        return open_checked(file, **options)

    monkeypatch.setattr(LockedFile, "open", swap_first)
    with pytest.raises(BackendError, match=r"symbolic link|others can write to it"):
        make(name="new").acquire_sync(timeout=30)
    assert [*directory.iterdir()] == []


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_socket(path: Path) -> None:
    short = Path(tempfile.mkdtemp())  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(short / "s"))
    (short / "s").rename(path)
    short.rmdir()


def put_link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("put", [put_fifo, put_socket, put_link, Path.mkdir])
@pytest.mark.parametrize("name", ["s", "long " * 100])
def test_what_is_not_a_regular_file_is_refused_and_the_rest_is_served(
    make: Make, directory: Path, put: Callable[[Path], None], name: str
) -> None:
    make(name="other").acquire_sync()
    path = directory / filename_of(name)
    put(path)
    semaphore = make(name=name)
    for call in (semaphore.acquire_sync, semaphore.try_acquire_sync, semaphore.stats_sync):
        with pytest.raises(BackendError, match="remove it") as caught:
            call()
        assert str(caught.value).startswith(f"{path}: ")
    assert ProcessSemaphore.names(directory) == sorted(["other", name])
    assert [*ProcessSemaphore.get_acquired_stats_sync(directory=directory)] == ["other"]
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert semaphore.acquire_sync(timeout=30).slot_number == 1


USES_ALL = """
import os, sys, threading
from slotwise import AcquireTimeout
from slotwise.processes import ProcessSemaphore, _wakeups
if os.getuid() == 0 and sys.argv[2] == "other":
    os.setgid(12345); os.setuid(12345)
os.umask(int(sys.argv[3], 8))
s = ProcessSemaphore(name="s", value=1, directory=sys.argv[1])
a = s.acquire_sync(timeout=30)
child = os.fork()
if not child:  # another process with the same files
    try:
        s.acquire_sync(timeout=0.01)
    except AcquireTimeout:
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert s.release_sync(a) is True
print(ProcessSemaphore.names(sys.argv[1]))
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that other users can reach."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("user", ["same", "other"])
@pytest.mark.parametrize("umask", ["077", "000"])
def test_it_works_under_any_umask(open_to_all: Path, user: str, umask: str) -> None:
    """Even one that removes the owner's permissions; root would not notice."""
    if user == "other" and os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    directory = open_to_all / "slots"
    done = _fresh_processes.run(
        [sys.executable, "-W", "ignore", "-c", USES_ALL, str(directory), user, umask],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("['s']\n", "")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / filename_of("s")).stat().st_mode & 0o777 == 0o600
