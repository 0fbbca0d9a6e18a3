"""``slotwise run``: hold a slot while a command runs.

Nothing but the standard library is imported: shell loops pay for the start of this with
every turn.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from slotwise import _urls
from slotwise._cli.child import CannotStart, Child
from slotwise._cli.commands import Command
from slotwise._cli.flags import Parser, count, seconds, some_seconds
from slotwise._cli.output import NOT_TEXT, print_error, resize_command
from slotwise._cli.signals import ReceivedSignal, SignalQueue
from slotwise._cli.status import status_while_waiting
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore
from slotwise.errors import (
    AcquireTimeout,
    BackendError,
    SemaphoreClosed,
    SlotwiseError,
    ValueConflict,
)

NO_SLOT, ENDED_BY_US, OWN_FAILURE = 75, 124, 125

# Numbers that no signal has: what else can be received while the command runs.
_LOST, _GRACE_OVER = -1, -2

_JOB_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_NOT_ENDING = {signal.SIGCHLD, signal.SIGCONT, signal.SIGWINCH, signal.SIGURG}

_EXAMPLES = """\
  slotwise run backup --limit 1 -- ./backup.sh          one at a time; others wait
  slotwise run nightly --limit 1 --no-wait -- ./job     skip this one if it still runs
  slotwise run gpu --limit 4 --slots 2 -- python train.py
  slotwise run api --limit 10 --wait 30 --ttl 600 --label "$USER" -- ./call-api
  ls *.png | xargs -P 32 -I{} slotwise run convert --limit 4 -- convert {} {}.jpg
  slotwise run deploy --limit 1 --url redis://cache:6379 -- ./deploy   a fleet's limit

exit code:
  CMD's own, or 128+n when signal n ended it; 127 not found, 126 not executable
  75   no slot in time, or the semaphore is closed: CMD was not started
  124  CMD was ended by slotwise: its ttl was over, it was kicked, or its slot was lost
  125  slotwise itself failed: CMD was not started
  130  Ctrl-C ended the wait (128+n: signal n did)

CMD finds SLOTWISE_ACQUISITION_ID, SLOTWISE_SLOT_NUMBER and SLOTWISE_FENCING_TOKEN
in its environment. When its slot ends it gets a TERM, and a KILL after the grace; the slot
is free from the TERM on, so the next one may run beside CMD during the grace."""


class _RunParser(Parser):
    """The flags of `run`, with CMD behind ``--``."""

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        own, command = list(words), []
        if "--" in own:
            at = own.index("--")
            own, command = own[:at], own[at + 1 :]
        given = super().parse(own)
        if not command:
            self.error("the command is missing: put it at the end, behind --")
        if not given.name:
            self.error("NAME must not be empty")
        if given.slots > given.limit:
            self.error(f"--slots {given.slots} is more than --limit {given.limit} ever gives")
        given.command = command
        if given.no_wait:
            given.wait = 0.0
        return given

    def refuse_extra(self, extra: Sequence[str]) -> NoReturn:
        self.error(f"put -- before the command: -- {' '.join(extra)}")

    def hint(self, flag: str) -> str:
        return super().hint(flag) or "; those of CMD go behind --"


def _parser() -> Parser:
    parser = _RunParser(
        "run",
        usage="slotwise run NAME --limit N [--slots n] [--ttl S] [--wait S | --no-wait]\n"
        "                    [--label TEXT] [--grace S] [--url URL] -- CMD...",
        details="It waits for the slot if need be.",
        examples=_EXAMPLES,
    )
    parser.add_name("the semaphore; made if there is none")
    add = parser.add_argument
    add(
        "--limit",
        required=True,
        type=count,
        metavar="N",
        help="how many may run at once; a value set by 'slotwise resize' wins",
    )
    add("--slots", type=count, default=1, metavar="n", help="how many slots CMD takes [1]")
    add("--ttl", type=some_seconds, metavar="S", help="end CMD after S seconds; free its slot")
    waits = parser.add_mutually_exclusive_group()
    waits.add_argument(
        "--wait", type=seconds, metavar="S", help="wait at most S seconds for a slot [no limit]"
    )
    waits.add_argument(
        "--no-wait", action="store_true", help="don't wait at all: the same as --wait 0"
    )
    add("--label", metavar="TEXT", help="what others see in 'slotwise show', and while they wait")
    add(
        "--grace",
        type=seconds,
        default=5.0,
        metavar="S",
        help="seconds between TERM and KILL when CMD is ended [5]",
    )
    parser.add_url()
    return parser


def run(given: argparse.Namespace) -> int:
    """Hold a slot while the command runs, and return the exit code."""
    logging.getLogger("slotwise").propagate = False
    try:
        return asyncio.run(_run(given))
    except _Interrupted as interrupted:
        print_error("run", f"interrupted while waiting for {given.name!r}")
        return 128 + interrupted.number
    except BackendError as error:  # also if it timed out: whether there was a slot is not known
        print_error("run", error)
        return OWN_FAILURE
    except (AcquireTimeout, SemaphoreClosed) as error:
        print_error("run", error)
        return NO_SLOT
    except CannotStart as error:
        print_error("run", error)
        return error.code
    except ValueConflict as error:
        remedy = resize_command(given.name, given.limit, given.url)
        print_error("run", f"{given.name!r} is in use with {_slots(error.value)}: {remedy}")
        return OWN_FAILURE
    except UnicodeError:
        print_error("run", NOT_TEXT)
        return OWN_FAILURE
    except (SlotwiseError, ValueError, TypeError, ImportError, OSError) as error:
        print_error("run", error)
        return OWN_FAILURE
    except Exception as error:
        print_error("run", f"this is a bug, please report it: {type(error).__name__}: {error}")
        return OWN_FAILURE


def _slots(count: int | None) -> str:
    return "1 slot" if count == 1 else f"{count} slots"


class _Interrupted(Exception):
    """A signal ended the wait."""

    def __init__(self, number: int) -> None:
        self.number = number


async def _run(given: argparse.Namespace) -> int:
    url = given.url or _urls.url_of_environment() or "process://"
    if _urls.scheme_of(url) == "memory":
        raise ValueError(
            "memory:// ends with this process; use process:// for this machine or redis://"
        )
    with SignalQueue().open() as received:
        child = Child(given.command, received.mask_before)
        try:
            semaphore = _urls.semaphore(given.name, given.limit, url, ttl=given.ttl)
            acquired = await _wait(semaphore, given, received)
        except BaseException:
            child.dismiss()
            raise
        try:
            if semaphore.value != given.limit:
                print_error(
                    "run",
                    f"{given.name!r} was resized to {semaphore.value}: --limit {given.limit}"
                    f" is ignored",
                )
            child.start({**os.environ, **_environment_of(acquired)})
            return await _supervise(child, acquired, given.grace, received)
        finally:
            try:
                await semaphore.release(acquired)
            except SlotwiseError as error:
                print_error("run", f"the slot could not be released, and will expire: {error}")


async def _wait(
    semaphore: Semaphore, given: argparse.Namespace, received: SignalQueue
) -> AcquisitionResult:
    """Acquire a slot. Whatever ends the wait, neither a slot nor a waiter is left behind."""
    acquiring: asyncio.Future[AcquisitionResult] = asyncio.ensure_future(
        semaphore.acquire(given.slots, timeout=given.wait, label=given.label)
    )
    receiving = asyncio.ensure_future(received.next())
    ended_by = None
    with status_while_waiting(semaphore):
        while not acquiring.done() and ended_by is None:
            await asyncio.wait((acquiring, receiving), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                number = receiving.result().number
                receiving = asyncio.ensure_future(received.next())
                if number == signal.SIGTSTP:
                    received.stop_here(number)
                elif number not in _NOT_ENDING:
                    ended_by = number
        receiving.cancel()
        if ended_by is None:
            ended_by = next(
                (a.number for a in received.pending() if a.number not in _NOT_ENDING), None
            )
        if ended_by is None:
            return await acquiring
        acquiring.cancel()
        with suppress(SlotwiseError, asyncio.CancelledError):
            await semaphore.release(await acquiring)  # granted at the same moment
    raise _Interrupted(ended_by)


async def _supervise(
    child: Child, acquired: AcquisitionResult, grace: float, received: SignalQueue
) -> int:
    """Pass signals on until the command ends; end it if the acquisition ends first."""
    loop = asyncio.get_running_loop()
    reporting = asyncio.ensure_future(_report_loss(acquired, received))
    ended_by_us = False
    try:
        while True:
            event = await received.next()
            stopped_by = child.poll()
            if child.exit_code is not None:
                return ENDED_BY_US if ended_by_us else child.exit_code
            if stopped_by in _JOB_STOPS:
                # The shell watches slotwise alone, and has to see that the job stops.
                received.stop_here(stopped_by)
            elif event.number == _LOST:
                ended_by_us = True
                _send(child, signal.SIGTERM)
                _send(child, signal.SIGCONT)  # a stopped process would not get the other
                loop.call_later(grace, received.put, ReceivedSignal(_GRACE_OVER))
                print_error("run", f"{acquired.lost.reason}: ending {child.command[0]!r}")
            elif event.number == _GRACE_OVER:
                _send(child, signal.SIGKILL)
            elif event.number == signal.SIGCONT:
                if child.stopped:
                    _send(child, signal.SIGCONT)
            elif event.number != signal.SIGCHLD and not (
                event.to_all or event.sender == child.pid  # it knows what it has sent
            ):
                _send(child, event.number)
    finally:
        reporting.cancel()


async def _report_loss(acquired: AcquisitionResult, received: SignalQueue) -> None:
    await acquired.lost
    received.put(ReceivedSignal(_LOST))


def _send(child: Child, number: int) -> None:
    try:
        child.send(number)
    except PermissionError:
        name = signal.Signals(number).name
        print_error("run", f"pid {child.pid} runs as another user and can't be sent {name}")


def _environment_of(acquired: AcquisitionResult) -> dict[str, str]:
    """Return what is added to the environment of the command."""
    more = {
        "SLOTWISE_ACQUISITION_ID": acquired.acquisition_id,
        "SLOTWISE_SLOT_NUMBER": str(acquired.slot_number),
    }
    if acquired.fencing_token is not None:
        more["SLOTWISE_FENCING_TOKEN"] = str(acquired.fencing_token)
    return more


COMMANDS = {"run": Command(_parser, run, OWN_FAILURE)}
