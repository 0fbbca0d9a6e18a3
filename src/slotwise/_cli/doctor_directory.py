"""The checks of ``slotwise doctor`` for ``process://``: its directory, and the files in it."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from slotwise._cli.doctor import (
    FAILED,
    OK,
    WARNING,
    Check,
    a_slot,
    first_few,
    problem,
    readable,
)
from slotwise.errors import SlotwiseError, UnknownSemaphore
from slotwise.processes import ProcessSemaphore
from slotwise.processes._directory import OpenDirectory
from slotwise.processes._filenames import SUFFIX, filename_of, locate
from slotwise.processes._inspect import stuck_locks, survey_tiers
from slotwise.processes._messages import NO_SPACE_REMEDY, os_error, stuck_error

_LITTLE = 10_000_000  # bytes of free space that count as little
_TOO_LITTLE = 1_000_000

# Tries a lock that another process has: that is how the end of a process is noticed.
_TRY = """
import fcntl, os, sys
try:
    fd = os.open(sys.argv[1], os.O_RDWR, dir_fd=int(sys.argv[2]))
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(3)
"""
_REFUSED = 3


def examine(given: str | None) -> Iterator[Check]:
    path = locate(given)
    try:
        if not os.path.lexists(path):
            yield _parent(Path(path))
            return
        directory = OpenDirectory(path)
    except SlotwiseError as error:
        yield problem("directory", error, colon=True)
        return
    try:
        yield from _examine(directory)
    finally:
        directory.close()


def _examine(directory: OpenDirectory) -> Iterator[Check]:
    mode = stat.S_IMODE(os.fstat(directory.fd).st_mode)
    yield Check("directory", OK, f"{directory.path}, yours, mode {mode:o}")
    try:
        yield _locks(directory)
    except OSError as error:
        yield problem("writing", os_error(error, directory.path), colon=True)
        return
    yield _space(directory)
    yield from _semaphores(directory)
    found, errors = survey_tiers(None, directory.path)  # ends the holds of dead processes, too
    yield from readable("tiers", len(found), errors, colon=True)
    name = f"slotwise-doctor-{secrets.token_hex(8)}"
    try:
        yield a_slot(ProcessSemaphore(name=name, value=1, directory=directory.path))
    finally:
        directory.unlink(filename_of(name))


def _parent(directory: Path) -> Check:
    parent = directory.parent
    if not parent.is_dir():
        found = f"{directory} can't be created: {parent} does not exist"
        return Check("directory", FAILED, found, f"mkdir -p {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        found = f"{directory} can't be created: {parent} is not writable"
        return Check("directory", FAILED, found, "set SLOTWISE_DIR to a directory of your own")
    return Check("directory", OK, f"{directory} does not exist yet; the first semaphore creates it")


def _locks(directory: OpenDirectory) -> Check:
    """Write a file and lock it; another process must be refused that lock."""
    file = f".doctor-{secrets.token_hex(8)}"
    fd = directory.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.write(fd, bytes(4096))
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise
            return problem("locks", os_error(error, directory.path), colon=True)
        tried = subprocess.run(  # noqa: S603
            [sys.executable, "-S", "-c", _TRY, file, str(directory.fd)],
            stderr=subprocess.DEVNULL,
            pass_fds=[directory.fd],
            check=False,
        )
    finally:
        directory.unlink(file)
        os.close(fd)
    if tried.returncode == _REFUSED:
        return Check("locks", OK, "files can be written and locked")
    found = f"two processes could lock one file at the same time in {directory.path}"
    return Check("locks", FAILED, found, "set SLOTWISE_DIR to a directory on a local disk")


def _space(directory: OpenDirectory) -> Check:
    found = os.statvfs(directory.fd)
    free = found.f_bavail * found.f_frsize
    words, state = f"{free / 1e6:,.0f} MB free", OK
    if found.f_files and found.f_favail == 0:
        words, state = "no free inodes", FAILED
    elif free < _LITTLE:
        state = FAILED if free < _TOO_LITTLE else WARNING
    return Check("space", state, words, None if state == OK else NO_SPACE_REMEDY)


def _semaphores(directory: OpenDirectory) -> Iterator[Check]:
    """Read every semaphore; reading one ends the holds of dead processes."""
    files = [entry.name for entry in directory.entries() if entry.name.endswith(SUFFIX)]
    names = ProcessSemaphore.names(directory.path)
    stuck = stuck_locks(directory.path, names)
    errors: list[SlotwiseError] = [stuck_error(name, pid) for name, pid in stuck.items()]
    for name in {*names} - {*stuck}:
        try:
            ProcessSemaphore.existing(name, directory=directory.path)
        except UnknownSemaphore:
            pass  # removed meanwhile
        except SlotwiseError as error:
            errors.append(error)
    known = {filename_of(name) for name in names}
    strange = [file for file in files if file not in known and directory.has(file)]
    if strange:
        words = f"files of unknown semaphores: {first_few(strange)}"
        errors.append(SlotwiseError(f"{words}: delete them from {directory.path} if unused"))
    yield from readable("semaphores", len(names), errors, colon=True)
