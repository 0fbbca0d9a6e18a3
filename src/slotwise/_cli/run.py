"""``slotwise run``: hold a slot while a command runs.

Only the standard library is imported, and as little of it as possible: a shell loop pays for
the start on every iteration.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from slotwise import _urls
from slotwise._cli import slot_flags
from slotwise._cli.child import CannotStart, Child
from slotwise._cli.flags import URL, Command, Flag, Parser, seconds
from slotwise._cli.output import print_error
from slotwise._cli.signals import NOT_ENDING, SignalQueue, readable
from slotwise._cli.slot_flags import OWN_FAILURE, Slot, TimeLeft
from slotwise._cli.supervise import Supervisor
from slotwise._core.results import AcquisitionResult
from slotwise.errors import SlotwiseError

# Seconds for which the ledger keeps the slot beyond ttl and grace: a KILL takes a moment.
_MARGIN = 0.5

_EXAMPLES = """\
  slotwise run backup --limit 1 -- ./backup.sh          one at a time; others wait
  slotwise run nightly --no-wait --quiet --busy-exit 0 -- ./job   cron: not twice at once
  slotwise run gpu --limit 4 --slots 2 -- python train.py
  slotwise run api --limit 10 --wait 30 --ttl 10m --label "$USER" -- ./call-api
  ls *.png | xargs -P 32 -I{} slotwise run convert --limit 4 -- convert {} {}.jpg
  slotwise run build --limit 50% -- make                on half of the cores
  slotwise run preview --replace -- ./serve             end the one that runs, then start
  slotwise run deploy --limit 1 --url redis://cache:6379 -- ./deploy   a fleet's limit

exit code:
  CMD's own, or 128+n when signal n ended it; 127 not found, 126 not executable
  75   no slot in time, or the semaphore is closed: CMD was not started (--busy-exit)
  124  CMD was ended by slotwise: its ttl was over, it was kicked or replaced, or its slot was lost
  125  slotwise itself failed: CMD was not started
  130  Ctrl-C ended the wait (128+n: signal n did)

CMD finds SLOTWISE_ACQUISITION_ID, SLOTWISE_SLOT_NUMBER and SLOTWISE_FENCING_TOKEN
in its environment. When its slot ends, CMD and all it has started get a TERM, and a KILL
after the grace. A TERM for slotwise is passed on to CMD; what CMD leaves behind is then
ended. A CMD that ends by itself may leave processes behind."""


class _RunParser(Parser):
    """The flags of `run`, with CMD after ``--``."""

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        at = words.index("--") if "--" in words else len(words)
        command = [*words[at + 1 :]]
        self._has_command = bool(command)
        given = super().parse(words[:at])
        if not command:
            self.error("the command is missing: put it at the end, after --")
        slot_flags.check(given)
        given.command = command
        return given

    def refuse_extra(self, extra: Sequence[str]) -> NoReturn:
        self.error(f"put -- before the command: -- {' '.join(extra)}")

    def hint(self, flag: str) -> str:
        near = super().hint(flag)
        if not near:
            return "; those of CMD go after --"
        return near if self._has_command else f"{near} Those of CMD go after --"


def run(given: argparse.Namespace) -> int:
    """Hold a slot while the command runs, and return the exit code."""
    try:
        return _run(given)
    except _WaitInterrupted as interrupted:
        print_error("run", f"interrupted while waiting for {given.name!r}")
        return 128 + interrupted.number
    except CannotStart as error:
        print_error("run", error)
        return error.code
    except Exception as error:
        return slot_flags.explain("run", given, error)


class _WaitInterrupted(Exception):
    """A signal ended the wait."""

    def __init__(self, number: int) -> None:
        self.number = number


def _run(given: argparse.Namespace) -> int:
    signals = SignalQueue()
    child = _child(given, signals)
    try:
        ledger_ttl = None if given.ttl is None else given.ttl + given.grace + _MARGIN
        time_left = TimeLeft(given.wait)
        semaphore = slot_flags.semaphore_of(given, ledger_ttl, time_left)
        slot_flags.check_nested(semaphore, given.slots, time_left)
        semaphore._backend.grace = given.grace + _MARGIN
        slot = Slot(
            *(semaphore, given.slots, time_left, given.label),
            replace=given.replace,
            # Others on this machine see for themselves when a process has ended.
            on_requested=child.release_if_killed if semaphore._has_a_server else None,
        )
        acquired = _wait(slot, signals)
    except BaseException:
        child.dismiss()
        raise
    try:
        slot_flags.warn_if_resized("run", given, semaphore)
        child.start(slot_flags.environment_of(acquired))
        return Supervisor(
            child,
            slot,
            signals,
            ttl=given.ttl,
            grace=given.grace,
            continue_on_loss=given.on_loss == "continue",
        ).run()
    finally:
        try:
            slot.release()
        except SlotwiseError as error:
            print_error("run", f"the slot could not be released, and will expire: {error}")


def _child(given: argparse.Namespace, signals: SignalQueue) -> Child:
    """Fork what becomes the command, while there is only one thread."""
    mask, only_command = signals.mask_before, given.keep_descendants
    if sys.platform != "linux":
        return Child(given.command, mask, only_command=only_command)
    from slotwise._cli.guard import GuardedChild

    def release(acquisition_id: str) -> None:
        """Release what a slotwise that was killed held, or waited for; in the guard."""
        url = given.url or _urls.url_of_environment()
        _urls.semaphore(given.name, 1, url).release_sync(acquisition_id)  # of any value

    return GuardedChild(given.command, mask, only_command=only_command, release=release)


def _wait(slot: Slot, signals: SignalQueue) -> AcquisitionResult:
    """Acquire a slot. Whatever ends the wait, neither a slot nor a waiter is left behind."""
    slot.start()
    if sys.stderr.isatty():
        from slotwise._cli.status import StatusWhileWaiting

        with StatusWhileWaiting(slot.semaphore):
            return _outcome(slot, signals)
    return _outcome(slot, signals)


def _outcome(slot: Slot, signals: SignalQueue) -> AcquisitionResult:
    ended_by = _ended_by(slot, signals)
    if ended_by is None:
        return slot.result()
    slot.cancel()
    raise _WaitInterrupted(ended_by)


def _ended_by(slot: Slot, signals: SignalQueue) -> int | None:
    """Wait until the slot is acquired or refused; return the signal that ends that, if one does."""
    while not slot.is_decided:
        if slot.fileno() in readable(slot.fileno(), signals.fileno()):
            slot.poll()
        for received in signals.read():
            if received.number == signal.SIGTSTP:
                signals.stop_here(received.number)
            elif received.number not in NOT_ENDING:
                return received.number
    return None


COMMANDS = (
    Command(
        "run",
        run,
        *slot_flags.flags("CMD", "end CMD after this time, such as 600, 10m, 1.5d"),
        Flag(
            "--replace",
            action="store_true",
            help="if no slot is free, end the run that has held one longest, with all it has"
            " started, and take its slot; waiters keep waiting",
        ),
        Flag(
            "--grace",
            type=seconds,
            default=5.0,
            metavar="TIME",
            help="time between TERM and KILL when CMD is ended [5s]",
        ),
        Flag(
            "--keep-descendants",
            action="store_true",
            help="end only CMD, and never what it has started",
        ),
        Flag(
            "--on-loss",
            choices=("stop", "continue"),
            default="stop",
            help="what happens to CMD when its slot is lost, as when Redis is away for long [stop]",
        ),
        URL,
        usage="slotwise run NAME [--limit N] [--slots n] [--wait TIME | --no-wait] [--ttl TIME]\n"
        "                    [--replace] [--grace TIME] [--keep-descendants]\n"
        "                    [--on-loss=stop|continue] [--quiet] [--busy-exit N] [--label TEXT]\n"
        "                    [--url URL] -- CMD...",
        details="It waits for the slot if necessary.",
        examples=_EXAMPLES,
        usage_error=OWN_FAILURE,
        kind=_RunParser,
    ),
)
