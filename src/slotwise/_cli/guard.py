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
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from slotwise._cli.child import Child, fork_command
from slotwise._cli.signals import call_c, signalfd

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


_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER

# After this many attempts that found no process to kill, the rest belongs to another user. One
# isn't enough: the kernel may leave a process out of a list while others in it end.
IN_VAIN = 5


def adopt_orphans() -> None:
    """Make descendants of this process its children, from now on, when their parent ends."""
    call_c("prctl", _SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return all descendants of ``pid``, parents first; some of them may be zombies."""
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in _children(parent)]
        found += level
    return found


def signal_descendants(pid: int, number: int) -> tuple[bool, set[int]]:
    """Send a signal to all descendants of ``pid``, including those that are started meanwhile.

    Return whether any process got it, and the pids of another user, which can't be sent it.
    """
    tried: set[int] = set()
    forbidden: set[int] = set()
    was_sent = False
    for _ in range(20):  # bounded, in case it starts processes faster than we find them
        new = [child for child in descendants(pid) if child not in tried]
        if not new:
            break
        for child in new:
            try:
                if not _send(pid, child, number):
                    continue
                was_sent = True
            except PermissionError:
                forbidden.add(child)
            except OSError:  # it has ended
                pass
            tried.add(child)
    return was_sent, forbidden


def _send(ancestor: int, pid: int, number: int) -> bool:
    """Send a signal to a descendant of ``ancestor``; ProcessLookupError if it has ended.

    Return False if it isn't a descendant at the moment: the pid was reused, or its parent has
    just ended, perhaps of the same signal, and it will next be found as a child of ``ancestor``.
    """
    fd = os.pidfd_open(pid)
    try:
        state, parent = _status(pid)
        if state == b"Z":
            raise ProcessLookupError
        while parent not in (0, ancestor):
            _, parent = _status(parent)
        if parent == 0:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    finally:
        os.close(fd)


def state_of(pid: int) -> bytes:
    """Return the kernel's letter for the state of a process; Z if that is unknown."""
    return _status(pid)[0]


def _status(pid: int) -> tuple[bytes, int]:
    """Return the kernel's letter for the state of a process, and its parent's pid, or 0."""
    try:
        stat = _read(f"/proc/{pid}/stat")
        state, parent = stat.rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):  # it has ended
        return b"Z", 0
    return state, int(parent)


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return
    for thread in threads:
        try:
            yield from map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
        except OSError:
            pass


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib takes longer to import
        return file.read()
