"""The process of the command that ``slotwise run`` runs: start it, signal it, see how it ends.

The command stays in slotwise's process group, and has the same stdin, stdout, stderr, terminal
and further open files as if slotwise were not there.

Its process is forked before anything else happens, and executes the command once there is a
slot for it: drivers have threads, and a fork of a process with threads copies locks that no
thread will ever release, and files that a thread is about to close.

On Linux `guard` puts a process between slotwise and the command. Elsewhere the command is
slotwise's own child, and its descendants are known by their process group.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from slotwise._cli.signals import call_c, in_foreground

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # the exit codes of shells

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_GO = b"\0"  # before each variable of the environment, so that an empty one means start, too


class CannotStart(Exception):
    """The command could not be started; ``code`` is what a shell would exit with."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


class Child:
    """A process that waits until it may execute ``command``, and then is that command.

    Create it while this process has a single thread, and in the thread that lives longest:
    Linux kills the child when the *thread* that forked it ends. ``mask`` has the signals that
    are blocked in the command. With ``only_command``, descendants of the command are ignored.
    """

    def __init__(self, command: Sequence[str], mask: set[int], *, only_command: bool) -> None:
        self.command = command
        self.only_command = only_command
        self.stopped = False
        self.exit_code: int | None = None  # as a shell counts: 128 + n for signal n
        environment, self._environment = os.pipe()  # EOF alone: don't run the command
        self._error, error = os.pipe()  # the errno if it could not be started; closed by exec
        # While SIGCHLD is ignored, the exit status of a child is lost.
        self._ignores_children = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if self._ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Signals sent to it before it executes the command stay pending until then.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._fork(environment, error, mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(environment)
        os.close(error)

    def _fork(self, environment: int, error: int, mask: set[int]) -> None:
        # The foreground job of a terminal has to stay in its group.
        self._has_group = not self.only_command and not in_foreground()
        ours = (self._environment, self._error)
        self.pid = fork_command(
            *(self.command, mask, environment, error, ours),
            ignores_children=self._ignores_children,
            new_group=self._has_group,
        )

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` is due; -1 if SIGCHLD tells that."""
        return -1

    def start(self, more_environment: Mapping[str, str]) -> None:
        """Let the process execute the command.

        Raises:
            CannotStart: the command does not exist, or can't be executed.
        """
        words = [f"{name}={value}".encode() for name, value in more_environment.items()]
        try:
            with os.fdopen(self._environment, "wb") as pipe:
                pipe.write(_GO + _GO.join(words))
        except BrokenPipeError:
            raise CannotStart("the process for it was killed", NOT_EXECUTABLE) from None
        with os.fdopen(self._error, "rb") as pipe:
            number = pipe.read()
        if number:
            self._reap()
            raise _cannot_start(self.command[0], int(number))

    def dismiss(self) -> None:
        """End the process without running the command."""
        os.close(self._environment)
        os.close(self._error)
        self._reap()

    def _reap(self) -> None:
        os.waitpid(self.pid, 0)

    def poll(self) -> int | None:
        """Update ``stopped`` and ``exit_code``; return the signal that has stopped it since."""
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

    def is_stopped(self) -> bool:
        """Return whether it is stopped right now."""
        self.poll()
        return self.stopped

    @property
    def all_ended(self) -> bool:
        """Whether the command and its descendants have ended, as far as they are known."""
        if self.exit_code is None:
            return False
        if self._has_group:
            try:
                os.killpg(self.pid, 0)
            except OSError:
                return True
        return not self._has_group

    def release_if_killed(self, acquisition_id: str) -> None:
        """Have the acquisition released if slotwise is killed, if there is a guard to do it."""

    def leave_alone(self) -> None:
        """Ignore the descendants of the command, which has ended, from now on."""
        self._has_group = False

    def send(self, number: int) -> None:
        """Send the command a signal; PermissionError if it runs as another user by now."""
        if self.exit_code is None:  # otherwise its pid may belong to another process
            os.kill(self.pid, number)

    def send_all(self, number: int) -> bool:
        """Signal the command and its descendants; return whether any process got the signal.

        PermissionError if the command runs as another user by now; its descendants got it.
        """
        if not self._has_group:
            self.send(number)
            return True
        try:
            os.killpg(self.pid, number)
        except OSError:
            return False
        return True


def fork_command(
    command: Sequence[str],
    mask: set[int],
    environment: int,
    error: int,
    to_close: Sequence[int],
    *,
    ignores_children: bool,
    new_group: bool = False,
) -> int:
    """Fork the process that will execute the command, and return its pid; block all signals first.

    With ``ignores_children`` the command ignores SIGCHLD, as slotwise did when it was started.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            for fd in to_close:
                os.close(fd)
            if new_group:
                os.setpgid(0, 0)
            if ignores_children:
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            _become(command, mask, parent, environment, error)
        finally:
            os._exit(1)
    return pid


def _become(
    command: Sequence[str], mask: set[int], parent: int, environment_fd: int, error_fd: int
) -> NoReturn:
    if sys.platform == "linux":
        call_c("prctl", _SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was told to kill us then
        os._exit(1)
    with os.fdopen(environment_fd, "rb") as pipe:
        environment = pipe.read()
    if not environment:
        os._exit(0)
    for word in environment.removeprefix(_GO).split(_GO):
        name, _, value = word.partition(b"=")
        os.environb[name] = value
    # Undo what Python has changed for itself, and remove our handlers. Signals that were ignored
    # when slotwise was started stay ignored.
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(command[0], list(command))  # noqa: S606
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
