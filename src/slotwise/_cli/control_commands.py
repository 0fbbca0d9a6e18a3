"""``slotwise resize``, ``kick``, ``close``, ``open`` and ``forget``: change a semaphore."""

from __future__ import annotations

import argparse
import shlex
import sys

from slotwise._cli.backends import NotFound, find_holder, open_backend
from slotwise._cli.commands import Command
from slotwise._cli.flags import Parser, count
from slotwise._cli.output import Declined, age, duration, printable
from slotwise._cli.status import who
from slotwise.errors import SlotwiseError


def _resize_parser() -> Parser:
    parser = Parser(
        "resize",
        details="Programs that were started with another limit go on, with this one.",
        examples="  slotwise resize api 20      more: waiters get them at once\n"
        "  slotwise resize api 2       fewer: no holder is ended, nothing is granted until it fits",
    )
    parser.add_name()
    parser.add_argument("value", metavar="N", type=count, help="how many slots from now on")
    parser.add_url()
    return parser


def resize(given: argparse.Namespace) -> int:
    """Give a semaphore another value; waiters are served at once if it grows."""
    semaphore = open_backend(given.url).find(given.name)
    before = semaphore.stats_sync().max_slots
    semaphore.resize_sync(given.value)
    _print(f"{given.name!r} has {_count(given.value, 'slot')} now, {before} before")
    return 0


def _close_parser() -> Parser:
    parser = Parser(
        "close",
        details="Waiters and newcomers are rejected: 'slotwise run' exits with 75 and tells the\n"
        "reason. Holders keep their slots. It stays closed when the last of them has left.",
        examples="  slotwise close deploy --reason 'freeze until Monday'\n"
        "  slotwise show deploy        who still holds\n"
        "  slotwise open deploy        lets everybody in again\n"
        "  slotwise close deploy --yes       in scripts",
    )
    parser.add_name()
    parser.add_argument("--reason", metavar="TEXT", help="what those who are rejected are told")
    parser.add_yes()
    parser.add_url()
    return parser


def close(given: argparse.Namespace) -> int:
    """Reject waiters and newcomers, wherever they are, until ``slotwise open``.

    Raises:
        Declined: it was not agreed to; nothing has changed.
    """
    name = given.name
    semaphore = open_backend(given.url).find(name)
    stats = semaphore.stats_sync()
    undo = f"'slotwise open {shlex.quote(name)}'"
    if not given.yes:
        waiters = _count(stats.waiting, "waiter")
        _ask(f"Close {name!r}, rejecting {waiters} now and all newcomers until {undo}?")
    semaphore.close_everywhere_sync(given.reason)
    held = _count(stats.acquired_slots, "slot")
    _print(f"{name!r} is closed: rejected {_count(stats.waiting, 'waiter')}, {held} still held")
    _print(f"{undo} undoes it")
    return 0


def _open_parser() -> Parser:
    parser = Parser("open", examples="  slotwise open deploy")
    parser.add_name()
    parser.add_url()
    return parser


def reopen(given: argparse.Namespace) -> int:
    """Undo `close`."""
    semaphore = open_backend(given.url).find(given.name)
    was_closed = semaphore.stats_sync().closed
    semaphore.reopen_sync()
    _print(f"{given.name!r} is open" + ("" if was_closed else ", and was not closed"))
    return 0


def _forget_parser() -> Parser:
    parser = Parser(
        "forget",
        details="The next 'slotwise run' makes it anew, with its own --limit. Those that are held\n"
        "or waited for are left alone (exit code 1).",
        examples="  slotwise forget old-job\n"
        "  slotwise ls --json | jq -r '.[] | select(.held == 0) | .name' |\n"
        "      xargs -rn 1 slotwise forget",
    )
    parser.add_name()
    parser.add_url()
    return parser


def forget(given: argparse.Namespace) -> int:
    """Delete a semaphore that nobody holds or waits for.

    Raises:
        NotFound: there is none of that name.
        InUse: somebody holds it, or waits.
    """
    if not open_backend(given.url).forget(given.name):
        raise InUse(f"{given.name!r} is in use; 'slotwise show' lists by whom. Nothing was done")
    _print(f"forgot {given.name!r}")
    return 0


class InUse(SlotwiseError):
    """The semaphore is held or waited for."""


def _kick_parser() -> Parser:
    parser = Parser(
        "kick",
        details="'slotwise run' ends its command with all that it has started, and then gives the\n"
        "slots back. From any other holder the next waiter gets them at once, perhaps before that\n"
        "holder has noticed: fencing tokens are for that.",
        examples="  slotwise show backup                    lists the ids\n"
        "  slotwise kick pef2e9eb1a04049f-1        asks, as it can't be undone\n"
        "  slotwise kick pef2e9eb1a04049f-1 --yes  in scripts",
    )
    parser.add_argument("id", metavar="ID", help="the acquisition, as 'slotwise show' lists it")
    parser.add_yes()
    parser.add_url()
    return parser


def kick(given: argparse.Namespace) -> int:
    """End somebody's acquisition. ``slotwise run`` ends its command then.

    Raises:
        NotFound: no holder has that id.
        Declined: it was not agreed to.
    """
    semaphore, holder = find_holder(open_backend(given.url), given.id)
    words = (
        f"{who(holder)}, which has held {_count(holder.slots, 'slot')} of"
        f" {semaphore.name!r} for {duration(age(holder.since)) or 'an unknown time'}"
    )
    if not given.yes:
        _ask(f"Kick {words}?")
    if not semaphore.kick_sync(given.id):
        raise NotFound(f"{given.id!r} has ended already; nothing was kicked")
    _print(f"kicked {words}")
    return 0


def _ask(question: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Declined("without a terminal to ask on, --yes is required")
    sys.stderr.write(f"{printable(question)} [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("declined; nothing was done")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _print(words: str) -> None:
    sys.stdout.write(f"{printable(words)}\n")
    sys.stdout.flush()


COMMANDS = {
    "resize": Command(_resize_parser, resize),
    "kick": Command(_kick_parser, kick),
    "close": Command(_close_parser, close),
    "open": Command(_open_parser, reopen),
    "forget": Command(_forget_parser, forget),
}
