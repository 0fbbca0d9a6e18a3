"""The guard: a small process between ``slotwise run`` and its command, on Linux.

It adopts all processes that the command starts and leaves behind, so that they can be found and
ended. If slotwise is killed, the guard outlives it and ends them all, and then releases the slot if
a server keeps it: no server sees a process end. It reports to slotwise when the command stops,
continues or exits, and itself exits when no process is left.

If the guard itself is killed, the kernel kills the command, and slotwise adopts the rest.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Sequence
from typing import NoReturn

from slotwise._cli.child import Child, fork_command
from slotwise._cli.descendants import IN_VAIN, adopt_orphans, signal_descendants, state_of
from slotwise._cli.signals import signalfd

# What is sent through the two pipes: in the first it follows a number, in the second it is a line,
# and any other line is the id of an acquisition.
_STOPPED, _CONTINUED, _EXITED = b"s", b"c", b"e"
_LEAVE_ALONE = b"leave alone"

_PAUSE_MS = 10  # between two searches for what is still to be killed


class GuardedChild(Child):
    """The command as slotwise sees it: the guard starts it, and reports its state.

    ``release`` releases an acquisition by its id, in the guard, if slotwise is killed. What it
    needs to know is in the memory of the guard, where other users can't read it.
    """

    def __init__(
        self,
        command: Sequence[str],
        mask: set[int],
        *,
        only_command: bool,
        release: Callable[[str], object],
    ) -> None:
        self.release = release
        super().__init__(command, mask, only_command=only_command)

    def _fork(self, environment: int, error: int, mask: set[int]) -> None:
        self._reports, reports = os.pipe()
        orders, self._orders = os.pipe()  # closed: slotwise has ended
        self._gone = False
        if not self.only_command:
            adopt_orphans()
        self._guard = os.fork()
        if self._guard == 0:
            try:
                for fd in (self._environment, self._error, self._reports, self._orders):
                    os.close(fd)
                files = (environment, error, reports, orders)
                _Guard(self, mask, files).run()
            finally:
                os._exit(1)
        os.close(reports)
        os.close(orders)
        self.pid = int(os.read(self._reports, 20) or 0)
        # While it waits to be the command, its pid is nobody else's.
        self._pidfd = os.pidfd_open(self.pid) if self.pid else -1
        os.set_blocking(self._reports, False)

    def fileno(self) -> int:
        return -1 if self._gone else self._reports

    def _reap(self) -> None:
        os.set_blocking(self._reports, True)
        while os.read(self._reports, 4096):  # closed: no process is left
            pass
        self.leave_alone()
        os.waitpid(self._guard, 0)

    def poll(self) -> int | None:
        stopped_by = None
        while not self._gone:
            try:
                reports = os.read(self._reports, 4096)
            except BlockingIOError:
                break
            if not reports:
                self._gone = True
                self._reap()
                if self.exit_code is None:  # the guard was killed, and the command with it
                    self.exit_code = 128 + signal.SIGKILL
                    signal_descendants(os.getpid(), signal.SIGKILL)
            for report in reports.split():
                kind, number = report[-1:], int(report[:-1])
                if kind == _STOPPED:
                    self.stopped, stopped_by = True, number
                elif kind == _CONTINUED:
                    self.stopped, stopped_by = False, None
                else:
                    self.exit_code, stopped_by = number, None
        return stopped_by

    def is_stopped(self) -> bool:
        # Not what was reported: it may have been continued since. Other users' processes may be
        # hidden, and then the report is all there is.
        return state_of(self.pid) not in (b"R", b"S", b"D")

    @property
    def all_ended(self) -> bool:
        return self._gone

    def leave_alone(self) -> None:
        self._order(_LEAVE_ALONE)

    def release_if_killed(self, acquisition_id: str) -> None:
        self._order(acquisition_id.encode())

    def _order(self, line: bytes) -> None:
        try:
            os.write(self._orders, line + b"\n")
        except BrokenPipeError:  # it has ended
            pass

    def send(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:  # it has ended
            pass

    def send_all(self, number: int) -> bool:
        if self.only_command:
            self.send(number)
            return True
        was_sent, forbidden = signal_descendants(self._guard, number)
        if self.pid in forbidden:
            raise PermissionError
        return was_sent


class _Guard:
    """What the guard does, in its own process; all signals are blocked in it."""

    def __init__(
        self, child: GuardedChild, mask: set[int], files: tuple[int, int, int, int]
    ) -> None:
        self._only_command = child.only_command
        self._release = child.release
        self._acquisition_id = ""  # what a server has to be told of if slotwise is killed
        environment, error, self._reports, self._orders = files
        if not self._only_command:
            adopt_orphans()
        own = (self._reports, self._orders)
        self._pid = fork_command(
            *(child.command, mask, environment, error, own),
            ignores_children=child._ignores_children,
        )
        self._is_running = True
        os.close(environment)
        os.close(error)
        os.write(self._reports, b"%d\n" % self._pid)
        # Whoever reads what the command writes must not wait for the guard.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)

    def run(self) -> NoReturn:
        ended = signalfd([signal.SIGCHLD])
        self._ended = select.poll()
        poller = select.poll()
        for each in (self._ended, poller):
            each.register(ended, select.POLLIN)
        poller.register(self._orders, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == self._orders:
                    self._obey()
                else:
                    os.read(fd, 128)
            if not self._reap():
                self._exit()

    def _obey(self) -> None:
        """Read what slotwise orders; its end is an order too."""
        orders = os.read(self._orders, 4096)
        if not orders:
            self._kill_all()
            self._release_slot()
        for order in orders.splitlines():
            if order == _LEAVE_ALONE:
                os._exit(0)
            self._acquisition_id = order.decode()

    def _exit(self) -> NoReturn:
        """Exit, as no process is left; one that would have to release the slot waits for slotwise.

        While slotwise waits for a slot, its end is seen by the process of the command first.
        """
        os.close(self._reports)
        while self._acquisition_id:
            self._obey()
        os._exit(0)

    def _release_slot(self) -> NoReturn:
        try:
            if self._acquisition_id:
                self._release(self._acquisition_id)
        finally:
            os._exit(0)

    def _reap(self) -> bool:
        """Reap the processes that have ended; return False if none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return False
            if pid == 0:
                return self._is_running or not self._only_command
            if pid != self._pid:
                continue
            if os.WIFSTOPPED(status):
                self._report(_STOPPED, os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                self._report(_CONTINUED, 0)
            else:
                self._is_running = False
                code = os.waitstatus_to_exitcode(status)
                self._report(_EXITED, 128 - code if code < 0 else code)

    def _report(self, kind: bytes, number: int) -> None:
        try:
            os.write(self._reports, b"%d%b\n" % (number, kind))
        except OSError as error:
            if error.errno != errno.EPIPE:  # slotwise has ended, which the other pipe tells too
                raise

    def _kill_all(self) -> None:
        """Kill what is left, at once: somebody else may have the slot already."""
        if self._is_running:
            os.kill(self._pid, signal.SIGKILL)
        in_vain = 0
        while in_vain < IN_VAIN and self._reap():
            if not self._only_command:
                was_sent, _ = signal_descendants(os.getpid(), signal.SIGKILL)
                in_vain = 0 if was_sent else in_vain + 1
            self._ended.poll(_PAUSE_MS)
