"""Parse the flags of every command, with argparse.

A `Command` has its flags as data; those that several commands share are here. A mistake raises
`UsageError`, which `main` turns into one line and an exit code.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from slotwise._cli.commands import SUMMARIES, USAGE
from slotwise._core.arguments import MOST_SECONDS, MOST_SLOTS


class UsageError(Exception):
    """The command line can't be understood; the message says why."""


class Flag:
    """A flag or an argument, in the words of argparse."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.names = names
        self.options = options

    def add_to(self, parser: Any) -> None:
        parser.add_argument(*self.names, **self.options)


class Either(Flag):
    """Flags that exclude each other."""

    def __init__(self, *flags: Flag) -> None:
        self._flags = flags

    def add_to(self, parser: Any) -> None:
        group = parser.add_mutually_exclusive_group()
        for flag in self._flags:
            flag.add_to(group)


class Command:
    """A command: its function, its flags, its help, and its exit code for wrong usage."""

    def __init__(
        self,
        name: str,
        main: Callable[[argparse.Namespace], int],
        *flags: Flag,
        details: str = "",
        examples: str = "",
        usage: str | None = None,
        usage_error: int = USAGE,
        kind: Callable[..., Parser] | None = None,
    ) -> None:
        self.name = name
        self.main = main
        self.usage_error = usage_error
        self._flags = flags
        self._kind = kind or Parser
        self._help = details, examples, usage

    def parser(self) -> Parser:
        parser = self._kind(self.name, *self._help)
        for flag in self._flags:
            flag.add_to(parser)
        return parser


class Parser(argparse.ArgumentParser):
    """The flags and arguments of one command."""

    def __init__(self, command: str, details: str, examples: str, usage: str | None = None) -> None:
        super().__init__(
            prog=f"slotwise {command}",
            usage=usage,
            description=f"{SUMMARIES[command]}.\n\n{details}".rstrip(),
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=_formatter,
            allow_abbrev=False,
            exit_on_error=False,
        )

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the parsed words; SystemExit after ``--help``.

        Raises:
            UsageError: they can't be understood.
        """
        self._refuse_unknown_flags(words)
        try:
            given, extra = self.parse_known_args(words)
        except argparse.ArgumentError as error:
            self.error(_sentence(error))
        extra = [word for word in extra if word != "--"]
        if extra:
            self.refuse_extra(extra)
        return given

    def refuse_extra(self, extra: Sequence[str]) -> NoReturn:
        self.error(f"unexpected argument: {extra[0]!r}")

    def _refuse_unknown_flags(self, words: Sequence[str]) -> None:
        # If --limt was typed, argparse would complain that --limit is missing.
        for word in words:
            if word == "--":
                return
            flag = word.partition("=")[0]
            if not flag.startswith("-") or flag in self._option_string_actions:
                continue
            # Values, by argparse's own rules.
            if flag == "-" or flag[1].isdigit() or " " in word:
                continue
            self.error(f"unknown flag {flag}{self.hint(flag)}")

    def hint(self, flag: str) -> str:
        """Return a hint for the message about an unknown flag."""
        from slotwise._cli.other_words import suggest_flag  # seldom needed, and slow to import

        arguments = (each.metavar for each in self._actions if not each.option_strings)
        return suggest_flag(flag, [*self._option_string_actions, *map(str, arguments)])

    def error(self, message: str) -> NoReturn:
        _, required, names = message.partition("arguments are required: ")
        if required:
            missing = names.split(", ")
            message = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        raise UsageError(message)

    def print_help(self, file: Any = None) -> None:
        """Print the help; unlike argparse's, this raises if the output can't be written."""
        (file or sys.stdout).write(self.format_help())


def _formatter(prog: str) -> argparse.HelpFormatter:
    # Given a width, argparse doesn't import shutil to find one.
    columns = os.environ.get("COLUMNS", "")
    try:
        width = int(columns) if columns.isdecimal() else os.get_terminal_size().columns
    except OSError:
        width = 80
    return argparse.RawDescriptionHelpFormatter(prog, width=width - 2)


def _sentence(error: argparse.ArgumentError) -> str:
    name, message = error.argument_name, error.message
    for begins, words in _SENTENCES.items():
        if name is not None and message.startswith(begins):
            return words.format(name=name, message=message)
    return message if name is None else f"{name}: {message}"


_SENTENCES = {
    "expected one argument": "{name} needs a value",
    "ignored explicit argument": "{name} takes no value",
    "must ": "{name} {message}",  # from the types below
    "not allowed ": "{name} is {message}",
}


# --------------------------------------------------------------------- types of values


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def _whole(least: int, most: int) -> Callable[[str], int]:
    """Return the type of numbers from ``least`` to ``most``."""

    def parse(text: str) -> int:
        given = whole_number(text)
        if given < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text}")
        if given > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}, not {text}")
        return given

    return parse


count = _whole(1, MOST_SLOTS)  # of slots
port = _whole(0, 65535)  # 0 is any free one
exit_code = _whole(0, 255)


#: what messages call a duration
DURATION = "a time such as 5 (seconds), 250ms, 10m, 1h or 1.5d"

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}  # "ms" before "s"


def duration(text: str) -> float | None:
    """Return the seconds of ``90``, ``250ms``, ``10m``, ``1h`` or ``1.5d``, or None."""
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    try:
        given = float(text.removesuffix(unit)) * UNITS.get(unit, 1.0)
    except ValueError:
        return None
    return given if math.isfinite(given) else None


def _time(bounds: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Return the type of times within ``bounds``."""

    def parse(text: str) -> float:
        given = duration(text)
        if given is None or not fits(given):
            raise argparse.ArgumentTypeError(f"must be {DURATION}, {bounds}, not {text!r}")
        return given

    return parse


_MOST_DAYS = MOST_SECONDS / UNITS["d"]

seconds = _time("0 or more", lambda given: given >= 0)
some_seconds = _time(
    f"more than 0 and at most {_MOST_DAYS:.0f}d", lambda given: 0 < given <= MOST_SECONDS
)
interval = _time("at least 0.1 s", lambda given: given >= 0.1)  # between two samples


# ---------------------------------------------------------------------- shared flags

NAME = Flag("name", metavar="NAME", help="the semaphore, or the tiers")
ID = Flag("id", metavar="ID", help="the acquisition, as 'slotwise show' lists it")
TIERS = Flag(
    "--tiers", action="store_true", help="the tiers NAME, if a semaphore has that name too"
)
TIER = Flag("--tier", metavar="T", help="one of the tiers")
KEY = Flag("--key", metavar="K", help="one key of a keyed tier")
YES = Flag("--yes", "-y", action="store_true", help="don't ask")
JSON = Flag("--json", action="store_true", help="print JSON, for programs")
HOST = Flag("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
URL = Flag(
    "--url",
    metavar="URL",
    help="process://, process:///directory or redis://... [$SLOTWISE_URL, else process://]",
)


def port_flag(default: int) -> Flag:
    words = f"port to listen on; 0: any [{default}]"
    return Flag("--port", type=port, default=default, metavar="P", help=words)
