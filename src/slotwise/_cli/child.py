"""The command that ``slotwise run`` runs: how it is started, and how it ended.

It stays in slotwise's process group and has its stdin, stdout, stderr, terminal and
further open files as if slotwise were not there. On Linux it does not outlive slotwise.

Its process is forked before anything else is done, and becomes the command when there is
a slot for it: drivers have threads, and to fork a process that has threads is to copy
locks that nobody will ever open, and files that somebody is about to close.
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

    Make it while this process has one thread, in the thread that lives longest: Linux
    ends it together with the *thread* that made it. ``mask`` are the signals that are to
    be blocked in the command.
    """

    def __init__(self, command: Sequence[str], mask: set[int]) -> None:
        self.command = command
        self.stopped = False
        self.exit_code: int | None = None  # as a shell counts: 128 + n for signal n
        parent = os.getpid()
        order, self._order = os.pipe()  # the environment; its end means that all is off
        self._trouble, trouble = os.pipe()  # why it could not be started; closed by exec
        # What it is sent before it is the command waits until then.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._order)
                os.close(self._trouble)
                _become(command, mask, parent, order, trouble)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(order)
        os.close(trouble)

    def start(self, environment: Mapping[str, str]) -> None:
        """Become the command.

        Raises:
            CannotStart: it is not there, or can't be executed.
        """
        try:
            with os.fdopen(self._order, "wb") as order:
                order.write(json.dumps(dict(environment)).encode())
        except BrokenPipeError:
            raise CannotStart("the process for it was killed", NOT_EXECUTABLE) from None
        with os.fdopen(self._trouble, "rb") as trouble:
            number = trouble.read()
        if number:
            os.waitpid(self.pid, 0)
            raise _cannot_start(self.command[0], int(number))

    def dismiss(self) -> None:
        """There will be nothing to do for it."""
        os.close(self._order)
        os.close(self._trouble)
        os.waitpid(self.pid, 0)

    def look(self) -> int | None:
        """Learn what has become of it; the signal that has stopped it since the last look."""
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
        """Send it a signal; PermissionError if it has become somebody else's process."""
        if self.exit_code is None:  # else its pid may be a stranger's by now
            os.kill(self.pid, number)


def _become(
    command: Sequence[str], mask: set[int], parent: int, order: int, trouble: int
) -> NoReturn:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before this could be noticed
        os._exit(1)
    with os.fdopen(order, "rb") as pipe:
        environment = pipe.read()
    if not environment:
        os._exit(0)
    # What Python has changed for itself, and our handlers; what slotwise was started with
    # as ignored stays so.
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvpe(command[0], list(command), json.loads(environment))  # noqa: S606
    except (OSError, ValueError) as error:  # an empty word, for one, is no OSError
        reason = getattr(error, "errno", None) or errno.ENOENT
        os.write(trouble, str(reason).encode())
    os._exit(1)


def _cannot_start(name: str, number: int) -> CannotStart:
    code = NOT_EXECUTABLE
    if number in (errno.ENOENT, errno.ENOTDIR):
        code = NOT_FOUND
        reason = "it was not found; check its name, and PATH"
        if "/" in name and os.path.lexists(name):
            reason = "the interpreter in its first line is not there"
    elif number == errno.EACCES:
        reason = f"{os.strerror(number)}; is it a file, and chmod +x?"
    elif number == errno.ENOEXEC:
        reason = "it is no program for this machine, and no script that begins with #!"
    else:
        reason = os.strerror(number)
    return CannotStart(f"{name!r} can't be started: {reason}", code)
