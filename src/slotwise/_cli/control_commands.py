"""Change limits: ``slotwise resize``, ``freeze``, ``refill``, ``kick``, ``close`` and so on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from slotwise._admin import tier_view
from slotwise._admin.backends import NotFound, find_holder, open_backend
from slotwise._admin.hints import command_hint
from slotwise._cli import tier_flags
from slotwise._cli.commands import Command
from slotwise._cli.flags import RATE, Parser, UsageError, count, rate, some_seconds
from slotwise._cli.output import Declined, duration, printable, units
from slotwise._cli.status import describe_claimant
from slotwise._core.arguments import check_reason
from slotwise._core.control import WHOLE
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate
from slotwise._core.stats import age
from slotwise.errors import SlotwiseError


class _ResizeParser(Parser):
    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse a value: a tier may have 0 slots, which means unlimited, or a rate."""
        given = super().parse(words)
        try:
            if "/" in given.value:
                given.value = rate(given.value, given.burst)
            elif given.burst is not None:
                self.error(f"--burst is that of a rate: N must be {RATE}")
            elif given.value == "0" and given.tier is not None:
                given.value = 0
            else:
                given.value = count(given.value)
        except argparse.ArgumentTypeError as error:
            self.error(f"N {error}")
        return given


def _resize_parser() -> Parser:
    parser = _ResizeParser(
        "resize",
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
    )
    parser.add_name("the semaphore, or the tiers")
    parser.add_argument(
        "value", metavar="N", help="how many slots from now on; or a rate, such as 600/60s or 10/s"
    )
    tier_flags.add_tier_flags(parser)
    parser.add_argument(
        "--burst", type=count, metavar="B", help="the most of a rate that is saved up [as it was]"
    )
    parser.add_url()
    return parser


def resize(given: argparse.Namespace) -> int:
    """Give a semaphore or a tier another value; waiters are served at once if it grows."""
    found = tier_flags.find(given)
    if isinstance(found, FoundTiers):
        return _resize_tier(found, given)
    if isinstance(given.value, Rate):
        raise UsageError(f"{given.name!r} is a semaphore: N is a number of slots")
    before = found.stats_sync().max_slots
    found.resize_sync(given.value)
    _print(f"{given.name!r} has {_count(given.value, 'slot')} now, {before} before")
    return 0


def _resize_tier(found: FoundTiers, given: argparse.Namespace) -> int:
    tier, key = tier_flags.chosen_tier(found, given), given.key
    if tier is None and len(found.specs) == 1:
        [tier] = found.specs
    if tier is None:
        names = ", ".join(spec.name for spec in found.specs)
        raise UsageError(f"{given.name!r} has the tiers {names}: choose one with --tier")
    if isinstance(tier.value, Rate) is not isinstance(given.value, Rate):
        what = f"a rate, and takes {RATE}" if isinstance(tier.value, Rate) else "not a rate"
        raise UsageError(f"tier {tier.name!r} is {what}")
    if tier.by_key and key is None:
        raise UsageError(f"each key of {tier.name!r} has its own value: choose one with --key")
    [view] = [each for each in tier_view.view(found).tiers if each.spec is tier]
    before = next((each.value for each in view.keys if each.key == key), view.total.value)
    if isinstance(given.value, Rate) and given.burst is None:  # not the default of a new rate
        given.value = Rate(given.value.count, per=given.value.per, burst=before)
    found.paths._control_sync("resize", (tier.name, key), given.value)
    if isinstance(given.value, Rate):
        rate = f"burst {before}" if tier.keyed else view.rate
        _print(f"{_subject(tier, given)} has {given.value} now, {rate} before")
        return 0
    now = _count(given.value, "slot") if given.value else "no limit"
    known = "" if tier.by_key and not before else f", {before or 'no limit'} before"
    _print(f"{_subject(tier, given)} has {now} now{known}")
    return 0


def _pause_parser() -> Parser:
    parser = Parser(
        "pause",
        details="Waiters and newcomers wait in line until then, and holders keep their slots.\n"
        "If there are several pauses, the one that ends last counts; 'slotwise open' ends them.\n"
        "Tiers are paused all together, or with --tier and --key one key of them.",
        examples="  slotwise pause crm 10m\n"
        "  slotwise pause model-api 30 --tier tenant --key acme\n"
        "  slotwise show crm            for how long it is paused\n"
        "  slotwise open crm            continues at once",
    )
    parser.add_name("the semaphore, or the tiers")
    parser.add_argument(
        "seconds", metavar="TIME", type=some_seconds, help="how long, such as 30 (seconds), 10m, 1h"
    )
    tier_flags.add_tier_flags(parser)
    parser.add_url()
    return parser


def pause(given: argparse.Namespace) -> int:
    """Grant nothing for a while to anybody who shares the limit."""
    found = tier_flags.find(given)
    subject = repr(given.name)
    if isinstance(found, FoundTiers):
        tier = tier_flags.chosen_tier(found, given)
        if tier is not None and tier.keyed and given.key is None:
            raise UsageError(
                f"each key of {tier.name!r} is paused separately: choose one with --key"
            )
        if tier is not None and given.key is not None:
            subject = _subject(tier, given)
            found.paths._control_sync("pause", (tier.name, given.key), given.seconds)
        else:
            whole = found.specs[-1].name, None  # the widest tier is of every path
            found.paths._control_sync("pause", whole, given.seconds)
        left = given.seconds
    else:
        found.pause_sync(given.seconds)
        left = max(found.stats_sync().paused_for, given.seconds)
    flags = ["--tiers"] if given.tier is not None or given.key is not None else []
    undo = command_hint("open", given.name, *flags, url=given.url)
    _print(f"{subject} is paused for {duration(left)}; '{undo}' ends it")
    return 0


def _freeze_parser() -> Parser:
    parser = Parser(
        "freeze",
        details="The value of an adaptive limit stays there; 'slotwise resize' does the same. N\n"
        "has to be within its minimum and maximum. In a keyed tier, without --key, all keys stay\n"
        "where they are, and those that come later where they start, or all at N.",
        examples="  slotwise freeze backend          where it is\n"
        "  slotwise freeze backend 12\n"
        "  slotwise freeze model-api 4 --tier tenant --key acme\n"
        "  slotwise show backend            how it moved, and why\n"
        "  slotwise thaw backend",
    )
    parser.add_name("the semaphore, or the tiers")
    parser.add_argument(
        "value", metavar="N", nargs="?", type=count, help="the value from now on [the current one]"
    )
    tier_flags.add_tier_flags(parser)
    parser.add_url()
    return parser


def freeze(given: argparse.Namespace) -> int:
    """Keep an adaptive value.

    Raises:
        NotFound: there is no such name, or it has a fixed value.
        ValueError: the value is outside the minimum and the maximum.
    """
    found = tier_flags.find(given)
    if isinstance(found, FoundTiers):
        tier = _adaptive_tier(found, given)
        if given.value is not None and tier.adaptive is not None:
            tier.adaptive.check_value(given.value)
        found.paths._control_sync("freeze", (tier.name, given.key), given.value)
        _print(f"{_subject(tier, given)} stays {_where(given)}")
        return 0
    _steer(found.freeze_sync, given, given.value)
    _print(f"{given.name!r} stays at {_count(found.stats_sync().max_slots, 'slot')}")
    return 0


def _thaw_parser() -> Parser:
    parser = Parser(
        "thaw",
        details="The value moves again, from where it is.",
        examples="  slotwise thaw backend\n  slotwise thaw model-api --tier tenant --key acme",
    )
    parser.add_name("the semaphore, or the tiers")
    tier_flags.add_tier_flags(parser)
    parser.add_url()
    return parser


def thaw(given: argparse.Namespace) -> int:
    """Let an adaptive value move again; as `freeze`."""
    found = tier_flags.find(given)
    if isinstance(found, FoundTiers):
        tier = _adaptive_tier(found, given)
        tier_view.view(found).only(tier.name, given.key)  # otherwise there is nothing to thaw
        found.paths._control_sync("thaw", (tier.name, given.key))
        _print(f"{_subject(tier, given)} moves again")
        return 0
    _steer(found.thaw_sync, given)
    _print(f"{given.name!r} moves again, from {_count(found.stats_sync().max_slots, 'slot')}")
    return 0


def _steer(do: Callable[..., None], given: argparse.Namespace, *args: int | None) -> None:
    try:
        do(*args)
    except TypeError:  # its message is for programmers
        raise NotFound(f"{given.name!r} has a fixed value: 'slotwise resize' changes it") from None


def _adaptive_tier(found: FoundTiers, given: argparse.Namespace) -> TierSpec:
    """Return the tier that the flags name, or the only adaptive one."""
    adaptive = [spec for spec in found.specs if spec.adaptive is not None]
    tier = tier_flags.chosen_tier(found, given)
    if tier is None and len(adaptive) == 1:
        return adaptive[0]
    if tier is None:
        names = ", ".join(spec.name for spec in adaptive) or "none"
        raise UsageError(f"choose a tier of {given.name!r} with --tier; adaptive ones: {names}")
    if tier.adaptive is None:
        raise NotFound(
            f"tier {tier.name!r} of {given.name!r} has a fixed value: 'slotwise resize' changes it"
        )
    return tier


def _subject(tier: TierSpec, given: argparse.Namespace) -> str:
    if given.key is not None:
        return f"{tier.name} {given.key!r} of {given.name!r}"
    return f"{'each ' if tier.keyed else ''}{tier.name} of {given.name!r}"


def _where(given: argparse.Namespace) -> str:
    return "where it is" if given.value is None else f"at {_count(given.value, 'slot')}"


def _refill_parser() -> Parser:
    parser = Parser(
        "refill",
        details="The debt is forgiven and the whole burst is available; waiters get it at once.\n"
        "--tier may be left out where only one tier has a rate.",
        examples="  slotwise refill model-api --tier tokens\n"
        "  slotwise refill model-api --tier tokens --key acme\n"
        "  slotwise refill crm         a RateLimit",
    )
    parser.add_name("the tiers")
    tier_flags.add_tier_flags(parser)
    parser.add_url()
    return parser


def refill(given: argparse.Namespace) -> int:
    """Fill a rate, or one key of it; what is owed is forgiven.

    Raises:
        NotFound: there are no such tiers, or no such rate.
    """
    found = tier_flags.find_tiers(given)
    rates = [spec for spec in found.specs if isinstance(spec.value, Rate)]
    if given.tier is None:
        if len(rates) != 1:
            names = ", ".join(spec.name for spec in rates) or "none"
            raise UsageError(f"choose a rate of {given.name!r} with --tier; there are: {names}")
        given.tier = rates[0].name
    tier = tier_flags.chosen_tier(found, given)
    if tier not in rates:
        raise NotFound(f"tier {given.tier!r} of {given.name!r} has no rate")
    if tier.keyed and given.key is None:
        raise UsageError(f"each key of {tier.name!r} has its own rate: choose one with --key")
    [view] = [each for each in tier_view.view(found).tiers if each.spec is tier]
    rows = [each for each in view.keys if each.key == given.key] if tier.keyed else [view.total]
    before = rows[0].level if rows else None
    found.paths._control_sync("refill", (tier.name, given.key))
    known = "it was full before" if before is None else f"{units(before)} were left before"
    _print(f"{tier.node(given.key)} of {given.name!r} is full now; {known}")
    return 0


def _close_parser() -> Parser:
    parser = Parser(
        "close",
        details="Waiters and newcomers are rejected: 'slotwise run' exits with 75 and prints the\n"
        "reason. Holders keep their slots. It stays closed when the last of them has left.\n"
        "Tiers are closed all together.",
        examples="  slotwise close deploy --reason 'freeze until Monday'\n"
        "  slotwise show deploy        who still holds\n"
        "  slotwise open deploy        lets everybody in again\n"
        "  slotwise close deploy --yes       in scripts",
    )
    parser.add_name("the semaphore, or the tiers")
    parser.add_argument("--reason", metavar="TEXT", help="shown to everyone who is rejected")
    tier_flags.add_tiers_flag(parser)
    parser.add_yes()
    parser.add_url()
    return parser


def close(given: argparse.Namespace) -> int:
    """Reject waiters and newcomers, wherever they are, until ``slotwise open``.

    Raises:
        Declined: the answer was no; nothing has changed.
    """
    name = given.name
    found = tier_flags.find(given, suggest=False)
    flags = ["--tiers"] if given.tiers else []
    undo = f"'{command_hint('open', name, *flags, url=given.url)}'"
    if isinstance(found, FoundTiers):
        waiting, held = found.waiters, _count(found.holders, "acquisition")
    else:
        stats = found.stats_sync()
        waiting, held = stats.waiting, _count(stats.acquired_slots, "slot")
    if not given.yes:
        waiters = _count(waiting, "waiter")
        _ask(f"Close {name!r}, rejecting {waiters} now and all newcomers until {undo}?")
    if isinstance(found, FoundTiers):
        found.paths._control_sync("close_everywhere", WHOLE, check_reason(given.reason))
    else:
        found.close_everywhere_sync(given.reason)
    _print(f"{name!r} is closed: rejected {_count(waiting, 'waiter')}, {held} still held")
    _print(f"{undo} undoes it")
    return 0


def _open_parser() -> Parser:
    parser = Parser("open", examples="  slotwise open deploy")
    parser.add_name("the semaphore, or the tiers")
    tier_flags.add_tiers_flag(parser)
    parser.add_url()
    return parser


def reopen(given: argparse.Namespace) -> int:
    """Undo `close` and `pause`."""
    found = tier_flags.find(given)
    if isinstance(found, FoundTiers):
        was_closed = found.closure is not None
        was_paused = bool(tier_view.view(found).paused())
        found.paths._control_sync("reopen")
    else:
        stats = found.stats_sync()
        was_closed, was_paused = stats.closed, stats.paused_for > 0
        found.reopen_sync()
    before = "" if was_closed else ", and was not closed"
    _print(f"{given.name!r} is open" + (", and its pause is over" if was_paused else before))
    return 0


def _forget_parser() -> Parser:
    parser = Parser(
        "forget",
        details="The next 'slotwise run' recreates it with its own --limit. Those that are held\n"
        "or waited for are left alone (exit code 1), and so are tiers with a rate that is not\n"
        "full, or whose acquisitions can still be settled.",
        examples="  slotwise forget old-job\n"
        "  slotwise forget model-api --tiers\n"
        "  slotwise ls --json | jq -r '.[] | select(.held == 0) | .name' |\n"
        "      xargs -rn 1 slotwise forget",
    )
    parser.add_name("the semaphore, or the tiers")
    tier_flags.add_tiers_flag(parser)
    parser.add_url()
    return parser


def forget(given: argparse.Namespace) -> int:
    """Delete a semaphore or tiers that nobody uses.

    Raises:
        NotFound: there is none of that name.
        InUse: somebody holds it, or waits; or a rate is not full.
    """
    if not open_backend(given.url).forget(given.name, only_tiers=given.tiers):
        flags = ["--tiers"] if given.tiers else []
        show = command_hint("show", given.name, *flags, url=given.url)
        raise InUse(f"{given.name!r} is in use; '{show}' lists by whom. Nothing was done")
    _print(f"forgot {given.name!r}")
    return 0


class InUse(SlotwiseError):
    """The semaphore is held or waited for, or a rate of the tiers is not full."""


def _kick_parser() -> Parser:
    parser = Parser(
        "kick",
        details="'slotwise run' ends its command with all it has started, then releases its\n"
        "slots. From any other holder the next waiter gets them at once, perhaps before that\n"
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
    """End somebody's acquisition; ``slotwise run`` then ends its command.

    Raises:
        NotFound: no holder has that id.
        Declined: the answer was no.
    """
    name, held_of, holder = find_holder(open_backend(given.url), given.id)
    keys = "".join(f" {tier}={key!r}" for tier, key in holder.keys.items())
    words = (
        f"{describe_claimant(holder)}, which has held {_count(holder.slots, 'slot')} of"
        f" {name!r}{keys} for {duration(age(holder.since)) or 'an unknown time'}"
    )
    if not given.yes:
        _ask(f"Kick {words}?")
    if not held_of.kick_sync(given.id):
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
    "pause": Command(_pause_parser, pause),
    "freeze": Command(_freeze_parser, freeze),
    "thaw": Command(_thaw_parser, thaw),
    "refill": Command(_refill_parser, refill),
    "kick": Command(_kick_parser, kick),
    "close": Command(_close_parser, close),
    "open": Command(_open_parser, reopen),
    "forget": Command(_forget_parser, forget),
}
