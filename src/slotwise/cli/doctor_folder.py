"""The check-up of a folder: every question ``slotwise doctor`` asks of ``process://``."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from slotwise.cli.doctor import FAILED, OK, WARNING, Check, some
from slotwise.errors import SlotwiseError
from slotwise.processes import ProcessSemaphore
from slotwise.processes.folder import FIFO_SUFFIX, SUFFIX, file_name, locate, prepare, trouble

_LITTLE = 10_000_000  # bytes of free space that soon are none
_TOO_LITTLE = 1_000_000
_ELSEWHERE = "make room, or set SLOTWISE_DIR to a folder elsewhere"

# Tries the lock that another process has, as that process's end is seen by its lock.
_TRY = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(3)
"""
_REFUSED = 3


def examine(directory: str | None) -> Iterator[Check]:
    folder = locate(directory)
    try:
        if not os.path.lexists(folder):
            yield _parent(folder)
            return
        prepare(folder)
    except SlotwiseError as error:
        yield Check("folder", FAILED, *_split(error))
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    yield Check("folder", OK, f"{folder}, yours, mode {mode:o}")
    try:
        yield _locks(folder)
    except OSError as error:
        yield Check("writing", FAILED, *_split(trouble(error, folder)))
        return
    yield _space(folder)
    yield from _semaphores(folder)
    yield _leftovers(folder)
    yield _take_and_give(folder)


def _split(error: BaseException) -> tuple[str, str | None]:
    """What is wrong, and behind the last colon what helps: `folder.trouble` says it so."""
    found, _, remedy = str(error).rpartition(": ")
    return (found, remedy) if found else (remedy, None)


def _parent(folder: Path) -> Check:
    parent = folder.parent
    if not parent.is_dir():
        found = f"{folder} can't be made, as {parent} is not there"
        return Check("folder", FAILED, found, f"mkdir -p {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        found = f"{folder} can't be made, as {parent} can't be written"
        return Check("folder", FAILED, found, "set SLOTWISE_DIR to a folder of your own")
    return Check("folder", OK, f"{folder} is not there yet; the first semaphore makes it")


def _locks(folder: Path) -> Check:
    """Write a file and lock it; another process must be refused that lock."""
    with tempfile.NamedTemporaryFile(prefix=".doctor-", dir=folder) as file:
        file.write(bytes(4096))
        file.flush()
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise
            return Check("locks", FAILED, *_split(trouble(error, folder)))
        tried = subprocess.run(  # noqa: S603
            [sys.executable, "-S", "-c", _TRY, file.name], stderr=subprocess.DEVNULL, check=False
        )
    if tried.returncode == _REFUSED:
        return Check("locks", OK, "files can be written and locked")
    found = f"two processes could lock one file at the same time in {folder}"
    return Check("locks", FAILED, found, "set SLOTWISE_DIR to a folder on a local disk")


def _space(folder: Path) -> Check:
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    words = f"{free / 1e6:,.0f} MB free"
    if free < _TOO_LITTLE:
        return Check("space", FAILED, words, _ELSEWHERE)
    if found.f_files and found.f_favail == 0:
        return Check("space", FAILED, "no inode is free", _ELSEWHERE)
    return Check(
        "space", WARNING if free < _LITTLE else OK, words, _ELSEWHERE if free < _LITTLE else None
    )


def _semaphores(folder: Path) -> Iterator[Check]:
    """Read every semaphore; reading one buries those of its holders that have died."""
    files = [*folder.glob(f"*{SUFFIX}")]
    names = ProcessSemaphore.names(folder)
    broken = 0
    for name in names:
        try:
            ProcessSemaphore.existing(name, directory=folder).stats_sync()
        except SlotwiseError as error:
            broken += 1
            yield Check("semaphores", FAILED, *_split(error))
    if len(names) < len(files):
        broken += 1
        known = {file_name(name) for name in names}
        strange = [path.name for path in files if path.name not in known]
        found = f"it can't be told whose these are: {some(strange)}"
        remedy = f"delete them from {folder} if nobody uses them"
        yield Check("semaphores", FAILED, found, remedy)
    if not broken:
        yield Check("semaphores", OK, f"{len(names)}, all of them can be read")


def _leftovers(folder: Path) -> Check:
    dead = [path.name for path in folder.glob(f"*{FIFO_SUFFIX}") if not _is_read(path)]
    if dead:
        found = f"{len(dead)} fifos of processes that ended without clean-up: {some(dead)}"
        return Check("leftovers", OK, f"{found}; the next process that waits removes them")
    return Check("leftovers", OK, "none")


def _is_read(fifo: Path) -> bool:
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno != errno.ENXIO
    return True


def _take_and_give(folder: Path) -> Check:
    """What all of this is for: take a slot of a new semaphore, and give it back."""
    name = f"slotwise-doctor-{secrets.token_hex(8)}"
    semaphore = ProcessSemaphore(name=name, value=1, directory=folder)
    started = time.perf_counter()
    try:
        semaphore.release_sync(semaphore.acquire_sync(timeout=5))
    except SlotwiseError as error:
        return Check("a slot", FAILED, *_split(error))
    finally:
        (folder / file_name(name)).unlink(missing_ok=True)
    taken = (time.perf_counter() - started) * 1000
    return Check("a slot", OK, f"taken and given back in {taken:.1f} ms")
