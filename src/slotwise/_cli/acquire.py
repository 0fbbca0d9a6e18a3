"""``slotwise acquire`` and ``slotwise release``: hold slots between two lines of a script.

A process in the background holds them, and watches the script: when that ends, however it ends, the
slots are released.
"""

from __future__ import annotations

import argparse
import os
import select
from contextlib import suppress

from slotwise._cli import slot_flags
from slotwise._cli.flags import URL, Command, Flag, whole_number
from slotwise._cli.output import print_error, print_line
from slotwise._cli.signals import NOT_ENDING, SignalQueue, readable
from slotwise._cli.slot_flags import OWN_FAILURE, Slot, TimeLeft
from slotwise.errors import SlotwiseError

_POLL = 0.5  # seconds between two checks of a process whose end the system does not report

_EXAMPLES = """\
  id=$(slotwise acquire backup --limit 1 --for-pid $$) || exit
  ...                                    # one script at a time is here
  slotwise release "$id"                 # or let it end with the script

  slotwise acquire nightly --no-wait --quiet || exit 0   # the rest of this script, once
  slotwise acquire build --limit 50% --wait 10m --ttl 1h

exit code:
  0    the slots are held; their id, and nothing else, is on stdout
  75   no slot in time, or the semaphore is closed (--busy-exit)
  125  slotwise itself failed, there is no process PID, or it has ended
  130  Ctrl-C ended the wait (128+n: signal n did)"""


def acquire(given: argparse.Namespace) -> int:
    """Hold slots for another process; print the id."""
    slot_flags.check(given)
    pid = os.getppid() if given.for_pid is None else given.for_pid
    try:
        script = _WatchedProcess(pid)
    except (OSError, OverflowError):
        return _failed(f"there is no process {pid}")
    if script.has_ended():  # a zombie
        return _failed(f"process {pid} has ended")
    outcome, telling = os.pipe()
    printed, confirming = os.pipe()
    holder = os.fork()
    if holder == 0:
        os.close(outcome)
        os.close(confirming)
        try:
            _Holder(given, script, telling, printed).run()
        finally:
            os._exit(0)  # never return to the caller, which may be more than a command line
    os.close(telling)
    os.close(printed)
    with os.fdopen(confirming, "wb", buffering=0) as confirmation:
        with os.fdopen(outcome, encoding="utf-8") as pipe:
            code, _, acquisition_id = pipe.read().partition(" ")
        if not code:
            whose = f"process {pid}" if script.has_ended() else "what would hold the slots"
            return _failed(f"{whose} has ended")
        why_not = None
        try:
            if acquisition_id:
                print_line(acquisition_id)
        except OSError as error:
            why_not = error.strerror
        if why_not is None:
            with suppress(BrokenPipeError):  # nothing is held any more
                confirmation.write(b"1")
    if why_not is None:
        return int(code)
    os.waitpid(holder, 0)
    return _failed(f"nothing is held: can't write the id to stdout: {why_not}")


def _failed(why: str) -> int:
    print_error("acquire", why)
    return OWN_FAILURE


class _WatchedProcess:
    """The process that slots are held for.

    Raises:
        OSError: there is none of that pid.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = -1
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(pid)
        else:
            os.kill(max(pid, 1), 0)

    def fileno(self) -> int:
        """Return a descriptor that is readable when it has ended; -1 if there is none."""
        return self._pidfd

    def has_ended(self) -> bool:
        if self._pidfd >= 0:
            return bool(readable(self._pidfd, timeout=0))
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


class _Holder:
    """What the process in the background does.

    The outcome goes to ``telling``. Something comes from ``printed`` when the id has been printed;
    if that ends first, nobody knows the id, and so nobody could release it.
    """

    def __init__(
        self, given: argparse.Namespace, script: _WatchedProcess, telling: int, printed: int
    ) -> None:
        self._given = given
        self._script = script
        self._telling = telling
        self._printed = printed

    def run(self) -> None:
        """Return when nothing is held any more."""
        os.setsid()  # no terminal's Ctrl-C or end is meant for it
        self._close_files()
        self._signals = SignalQueue()
        given = self._given
        try:
            time_left = TimeLeft(given.wait)
            semaphore = slot_flags.semaphore_of(given, given.ttl, time_left)
            slot_flags.check_nested(semaphore, given.slots, time_left)
            label = given.label or f"for pid {self._script.pid}"
            slot = Slot(semaphore, given.slots, time_left, label)
            if not self._wait(slot):
                slot.cancel()
                return
            acquired = slot.result()
            slot_flags.warn_if_resized("acquire", given, semaphore)
        except Exception as error:
            self._tell(str(slot_flags.explain("acquire", given, error)))
            return
        self._tell(f"0 {acquired.acquisition_id}")
        self._hold(slot)

    def _wait(self, slot: Slot) -> bool:
        """Wait for the slot, or its refusal; return False if nobody is left to be told."""
        slot.start()
        poller = self._poller(slot)
        poller.register(self._telling, 0)  # an error: whoever waits for the outcome has ended
        while not slot.is_decided:
            ready = {fd for fd, _ in poller.poll(_POLL * 1000)}
            if slot.fileno() in ready:
                slot.poll()
            elif self._telling in ready or self._is_over():
                return False
        return True

    def _hold(self, slot: Slot) -> None:
        os.chdir("/")
        poller = self._poller(slot)
        poller.register(self._printed, select.POLLIN)
        while slot.lost_reason is None and not self._is_over():
            timeout = None if self._script.fileno() >= 0 else _POLL * 1000
            ready = {fd for fd, _ in poller.poll(timeout)}
            if slot.fileno() in ready:
                slot.poll()
            if self._printed in ready:
                if not os.read(self._printed, 1):
                    break
                poller.unregister(self._printed)
        if slot.lost_reason is None:
            with suppress(SlotwiseError):  # it will expire; nobody can be told
                slot.release()

    def _poller(self, slot: Slot) -> select.poll:
        poller = select.poll()
        for fd in (slot.fileno(), self._signals.fileno(), self._script.fileno()):
            if fd >= 0:
                poller.register(fd, select.POLLIN)
        return poller

    def _is_over(self) -> bool:
        ending = [each for each in self._signals.read() if each.number not in NOT_ENDING]
        return bool(ending) or self._script.has_ended()

    def _tell(self, outcome: str) -> None:
        """Tell the outcome, and let go of stderr as well."""
        with os.fdopen(self._telling, "w", encoding="utf-8") as pipe:
            pipe.write(outcome)
        os.dup2(0, 2)

    def _close_files(self) -> None:
        """Close everything that others may wait to see closed; stderr stays open for errors."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):
            os.dup2(nowhere, fd)
        kept = {0, 1, 2, self._telling, self._printed, self._script.fileno()}
        # Some systems allow a billion, and not every Python closes a range in one call.
        for name in os.listdir("/dev/fd"):  # noqa: PTH208
            if int(name) not in kept:
                with suppress(OSError):
                    os.close(int(name))


def release(given: argparse.Namespace) -> int:
    """Release what `acquire` holds.

    Raises:
        NotFound: nobody holds anything by that id.
    """
    from slotwise._admin.backends import NotFound, find_holder, open_backend

    _, limit, _ = find_holder(open_backend(given.url), given.id)
    if not limit.release_sync(given.id):
        raise NotFound(f"{given.id!r} has ended already")
    return 0


COMMANDS = (
    Command(
        "acquire",
        acquire,
        *slot_flags.flags("it", "release them after this time, such as 600, 10m, 1.5d"),
        Flag(
            "--for-pid",
            type=whole_number,
            metavar="PID",
            help="the process they are held for; $$ is the shell [the one that started slotwise]",
        ),
        URL,
        details="The slots are held until the script ends, even by kill -9, or until\n"
        "'slotwise release' releases them. It waits for them if necessary.",
        examples=_EXAMPLES,
        usage_error=OWN_FAILURE,
    ),
    Command(
        "release",
        release,
        Flag("id", metavar="ID", help="the id that 'slotwise acquire' printed"),
        URL,
        details="It is an error (exit code 1) if the slots were already released, or lost.",
        examples='  slotwise release "$id"',
    ),
)
