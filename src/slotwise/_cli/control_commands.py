"""Change limits: ``slotwise resize``, ``freeze``, ``refill``, ``kick``, ``close`` and so on.

Here is how they are typed. What they do is in `slotwise._admin.verbs`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields

from slotwise._admin import verbs
from slotwise._admin.backends import open_backend
from slotwise._cli.flags import (
    ID,
    KEY,
    NAME,
    TIER,
    TIERS,
    UNITS,
    URL,
    YES,
    Command,
    Flag,
    UsageError,
    count,
    duration,
    some_seconds,
)
from slotwise._cli.output import Declined, print_line, printable
from slotwise._core.rates import Rate

_FIELDS = {field.name for field in fields(verbs.Wanted)}


def _change(verb: str, given: argparse.Namespace) -> int:
    """Make a change, after asking if the command has ``--yes``.

    Raises:
        UsageError, BadRequest: it makes no sense.
        Declined: the answer was no; nothing has changed.
    """
    flags = vars(given)
    if verb == "resize":
        flags["value"] = _value(given)
    if flags.pop("tiers", False):
        flags["kind"] = "tiers"
    wanted = verbs.Wanted(verb=verb, **{name: flags[name] for name in _FIELDS & flags.keys()})
    change = verbs.plan(open_backend(given.url), wanted)
    if not flags.get("yes", True):
        _ask(change.question)
    for line in change.make().split("\n"):
        print_line(line)
    return 0


def _value(given: argparse.Namespace) -> int | Rate:
    """Return a number of slots, which for a tier may be 0 for unlimited, or a rate."""
    text: str = given.value
    try:
        if "/" in text:
            return _rate(text, given.burst)
        if given.burst is not None:
            raise UsageError(f"--burst is that of a rate: N must be {verbs.RATE}")
        return 0 if text == "0" and given.tier is not None else count(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"N {error}") from None


def _rate(text: str, burst: int | None) -> Rate:
    given, _, per = text.partition("/")
    seconds = duration(f"1{per}" if per in UNITS else per)
    try:
        return Rate(int(given), per=seconds or 0.0, burst=burst)
    except (ValueError, OverflowError) as error:
        why = f": {error}" if given.isdecimal() and seconds else ""
        raise argparse.ArgumentTypeError(f"must be {verbs.RATE}, not {text!r}{why}") from None


def _ask(question: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Declined("without a terminal to ask on, --yes is required")
    sys.stderr.write(f"{printable(question)} [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("declined; nothing was done")


def _verb(name: str, *flags: Flag, details: str = "", examples: str = "") -> Command:
    def main(given: argparse.Namespace) -> int:
        return _change(name, given)

    return Command(name, main, *flags, URL, details=details, examples=examples)


COMMANDS = (
    _verb(
        "resize",
        NAME,
        Flag("value", metavar="N", help="how many slots from now on; or a rate: 600/60s or 10/s"),
        TIER,
        KEY,
        Flag("--burst", type=count, metavar="B", help="the most saved up of a rate [as it was]"),
        details="Programs that were started with another limit continue with this one. For tiers,\n"
        "--tier chooses one; for a keyed one, --key changes the value of that key, otherwise that\n"
        "of every key that has no value of its own. 0 means unlimited, for tiers only. A rate is\n"
        "written as a number per time; its burst stays unless --burst is given, and so does what\n"
        "is left of it, cut to that burst.",
        examples="  slotwise resize api 20      more: waiters get them at once\n"
        "  slotwise resize api 2       fewer: no holder is ended, nothing granted until it fits\n"
        "  slotwise resize model-api 50 --tier all\n"
        "  slotwise resize model-api 2 --tier tenant --key acme\n"
        "  slotwise resize model-api 600/60s --tier requests --burst 20\n"
        "  slotwise resize model-api 5000/1h --tier tokens --key acme",
    ),
    _verb(
        "pause",
        NAME,
        Flag(
            "seconds",
            metavar="TIME",
            type=some_seconds,
            help="how long, such as 30 (seconds), 10m, 1h",
        ),
        TIER,
        KEY,
        details="Waiters and newcomers wait in line until then, and holders keep their slots.\n"
        "If there are several pauses, the one that ends last counts; 'slotwise open' ends them.\n"
        "Tiers are paused all together, or with --tier and --key one key of them.",
        examples="  slotwise pause crm 10m\n"
        "  slotwise pause model-api 30 --tier tenant --key acme\n"
        "  slotwise show crm            for how long it is paused\n"
        "  slotwise open crm            continues at once",
    ),
    _verb(
        "freeze",
        NAME,
        Flag(
            "value",
            metavar="N",
            nargs="?",
            type=count,
            help="the value from now on [the current one]",
        ),
        TIER,
        KEY,
        details="The value of an adaptive limit stays there; 'slotwise resize' does the same. N\n"
        "has to be within its minimum and maximum. In a keyed tier, without --key, all keys stay\n"
        "where they are, and those that come later where they start, or all at N.",
        examples="  slotwise freeze backend          where it is\n"
        "  slotwise freeze backend 12\n"
        "  slotwise freeze model-api 4 --tier tenant --key acme\n"
        "  slotwise show backend            how it moved, and why\n"
        "  slotwise thaw backend",
    ),
    _verb(
        "thaw",
        NAME,
        TIER,
        KEY,
        details="The value moves again, from where it is.",
        examples="  slotwise thaw backend\n  slotwise thaw model-api --tier tenant --key acme",
    ),
    _verb(
        "refill",
        NAME,
        TIER,
        KEY,
        details="The debt is forgiven and the whole burst is available; waiters get it at once.\n"
        "--tier may be left out where only one tier has a rate.",
        examples="  slotwise refill model-api --tier tokens\n"
        "  slotwise refill model-api --tier tokens --key acme\n"
        "  slotwise refill crm         a RateLimit",
    ),
    _verb(
        "kick",
        ID,
        YES,
        details="'slotwise run' ends its command with all it has started, then releases its\n"
        "slots. From any other holder the next waiter gets them at once, perhaps before that\n"
        "holder has noticed: fencing tokens are for that.",
        examples="  slotwise show backup                    lists the ids\n"
        "  slotwise kick pef2e9eb1a04049f-1        asks, as it can't be undone\n"
        "  slotwise kick pef2e9eb1a04049f-1 --yes  in scripts",
    ),
    _verb(
        "close",
        NAME,
        Flag("--reason", metavar="TEXT", help="shown to everyone who is rejected"),
        TIERS,
        YES,
        details="Waiters and newcomers are rejected: 'slotwise run' exits with 75 and prints the\n"
        "reason. Holders keep their slots. It stays closed when the last of them has left.\n"
        "Tiers are closed all together.",
        examples="  slotwise close deploy --reason 'freeze until Monday'\n"
        "  slotwise show deploy        who still holds\n"
        "  slotwise open deploy        lets everybody in again\n"
        "  slotwise close deploy --yes       in scripts",
    ),
    _verb("open", NAME, TIERS, examples="  slotwise open deploy"),
    _verb(
        "forget",
        NAME,
        TIERS,
        details="The next 'slotwise run' recreates it with its own --limit. Those that are held\n"
        "or waited for are left alone (exit code 1), and so are tiers with a rate that is not\n"
        "full, or whose acquisitions can still be settled.",
        examples="  slotwise forget old-job\n"
        "  slotwise forget model-api --tiers\n"
        "  slotwise ls --json | jq -r '.[] | select(.held == 0) | .name' |\n"
        "      xargs -rn 1 slotwise forget",
    ),
)
