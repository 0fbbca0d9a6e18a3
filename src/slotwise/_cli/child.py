"""The process of the command that ``slotwise run`` runs: start it, signal it, see how it ends.

It stays in slotwise's process group and has stdin, stdout, stderr, the terminal and further
open files as if slotwise were not there. On Linux it does not outlive slotwise.

It is forked before anything else is done, and becomes the command when there is a slot
for it: drivers have threads, and a fork of a process with threads copies locks that no
thread will ever release, and files that a thread is about to close.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as shells say it

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class CannotStart(Exception):
    """The command could not be started; ``code`` is what a shell would exit with."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


class Child:
    """A process that waits to become ``command``, then that command, then its exit code.

    Create it while this process has one thread, in the thread that lives longest: Linux
    kills it when the *thread* ends that forked it. ``mask`` has the signals that are
    blocked in the command.
    """

    def __init__(self, command: Sequence[str], mask: set[int]) -> None:
        self.command = command
        self.stopped = False
        self.exit_code: int | None = None  # as a shell counts: 128 + n for signal n
        parent = os.getpid()
        environment, self._environment = os.pipe()  # closed without one: there is no command to run
        self._error, error = os.pipe()  # the errno if it could not be started; closed by exec
        # Signals that are sent before it is the command are pending until then.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._environment)
                os.close(self._error)
                _become(command, mask, parent, environment, error)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(environment)
        os.close(error)

    def start(self, environment: Mapping[str, str]) -> None:
        """Become the command.

        Raises:
            CannotStart: it does not exist, or can't be executed.
        """
        try:
            with os.fdopen(self._environment, "wb") as pipe:
                pipe.write(json.dumps(dict(environment)).encode())
        except BrokenPipeError:
            raise CannotStart("the process for it was killed", NOT_EXECUTABLE) from None
        with os.fdopen(self._error, "rb") as pipe:
            number = pipe.read()
        if number:
            os.waitpid(self.pid, 0)
            raise _cannot_start(self.command[0], int(number))

    def dismiss(self) -> None:
        """End it without running the command."""
        os.close(self._environment)
        os.close(self._error)
        os.waitpid(self.pid, 0)

    def poll(self) -> int | None:
        """Update its state; return the signal that has stopped it since the last call."""
        stopped_by = None
        while self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                self.stopped, stopped_by = True, os.WSTOPSIG(status)
            elif os.WIFCONTINUED(status):
                self.stopped, stopped_by = False, None
            else:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = 128 - code if code < 0 else code
        return stopped_by

    def send(self, number: int) -> None:
        """Send it a signal; PermissionError if it runs as another user by now."""
        if self.exit_code is None:  # else its pid may belong to another process
            os.kill(self.pid, number)


def _become(
    command: Sequence[str], mask: set[int], parent: int, environment_fd: int, error_fd: int
) -> NoReturn:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the kernel was told
        os._exit(1)
    with os.fdopen(environment_fd, "rb") as pipe:
        environment = pipe.read()
    if not environment:
        os._exit(0)
    # Undo what Python has changed for itself, and our handlers. Signals that slotwise was
    # started with as ignored stay ignored.
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvpe(command[0], list(command), json.loads(environment))  # noqa: S606
    except (OSError, ValueError) as error:  # an empty word raises ValueError
        reason = getattr(error, "errno", None) or errno.ENOENT
        os.write(error_fd, str(reason).encode())
    os._exit(1)


def _cannot_start(name: str, number: int) -> CannotStart:
    code = NOT_EXECUTABLE
    if number in (errno.ENOENT, errno.ENOTDIR):
        code = NOT_FOUND
        reason = "not found; check its name and PATH"
        if "/" in name and os.path.lexists(name):
            reason = "the interpreter in its first line does not exist"
    elif number == errno.EACCES:
        reason = f"{os.strerror(number)}; is it a file, and chmod +x?"
    elif number == errno.ENOEXEC:
        reason = "neither a program for this machine nor a script that begins with #!"
    else:
        reason = os.strerror(number)
    return CannotStart(f"{name!r} can't be started: {reason}", code)
