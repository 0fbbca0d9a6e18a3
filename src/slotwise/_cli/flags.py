"""Parse the flags of every command, with argparse.

What a command does with its flags is in its module. A mistake raises `UsageError`, which
`main` turns into one line and an exit code.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from slotwise._cli.commands import SUMMARIES
from slotwise._core.arguments import MOST_SECONDS, MOST_SLOTS

if TYPE_CHECKING:
    from slotwise._core.rates import Rate


class UsageError(Exception):
    """The command line can't be understood; the message says why."""


class Parser(argparse.ArgumentParser):
    """The flags and arguments of one command."""

    def __init__(
        self, command: str, *, details: str = "", examples: str = "", usage: str | None = None
    ) -> None:
        summary = SUMMARIES[command]
        super().__init__(
            prog=f"slotwise {command}",
            usage=usage,
            description=f"{summary}.\n\n{details}".rstrip(),
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=_formatter,
            allow_abbrev=False,
            exit_on_error=False,
        )
        self.semaphore_arguments: set[str] = set()  # whose values are names of semaphores

    def add_argument(self, *args: Any, **options: Any) -> argparse.Action:
        # argparse would make a help formatter for each argument, only to check its metavar.
        self._get_formatter = lambda: _NO_WIDTH  # type: ignore[method-assign]
        try:
            return super().add_argument(*args, **options)
        finally:
            del self._get_formatter

    def add_name(self, words: str = "the semaphore") -> None:
        self.add_argument("name", metavar="NAME", help=words)
        self.semaphore_arguments.add("name")

    def add_url(self) -> None:
        self.add_argument(
            "--url",
            metavar="URL",
            help="process://, process:///directory or redis://... [$SLOTWISE_URL, else process://]",
        )

    def add_json(self) -> None:
        self.add_argument("--json", action="store_true", help="print JSON, for programs")

    def add_yes(self) -> None:
        self.add_argument("--yes", "-y", action="store_true", help="don't ask")

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


_NO_WIDTH = argparse.HelpFormatter("", width=80)


def _formatter(prog: str) -> argparse.HelpFormatter:
    # Given a width, argparse doesn't import shutil to find one.
    try:
        width = int(os.environ.get("COLUMNS", "")) or os.get_terminal_size().columns
    except (ValueError, OSError):
        try:
            width = os.get_terminal_size().columns
        except OSError:
            width = 80
    return argparse.RawDescriptionHelpFormatter(prog, width=width - 2)


def _sentence(error: argparse.ArgumentError) -> str:
    if error.argument_name is None:
        return error.message
    if error.message == "expected one argument":
        return f"{error.argument_name} needs a value"
    if error.message.startswith("ignored explicit argument"):
        return f"{error.argument_name} takes no value"
    if error.message.startswith("must "):  # from the types below
        return f"{error.argument_name} {error.message}"
    if error.message.startswith("not allowed "):
        return f"{error.argument_name} is {error.message}"
    return f"{error.argument_name}: {error.message}"


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


def count(text: str) -> int:
    """A number of slots."""
    given = whole_number(text)
    if given < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    if given > MOST_SLOTS:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_SLOTS}, not {text}")
    return given


def port(text: str) -> int:
    """A port to listen on; 0 is any free port."""
    given = whole_number(text)
    if not 0 <= given < 65536:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, not {text}")
    return given


#: what messages call a rate
RATE = "a rate such as 600/60s, 10/s or 5000/1h"


def rate(text: str, burst: int | None = None) -> Rate:
    """A number per time."""
    from slotwise._core.rates import Rate  # most commands have no rates, and start sooner without

    given, _, per = text.partition("/")
    seconds = duration(f"1{per}" if per in _UNITS else per)
    try:
        return Rate(int(given), per=seconds or 0.0, burst=burst)
    except (ValueError, OverflowError) as error:
        why = f": {error}" if given.isdecimal() and seconds else ""
        raise argparse.ArgumentTypeError(f"must be {RATE}, not {text!r}{why}") from None


def seconds(text: str) -> float:
    """A duration of 0 or more, in seconds or with a unit."""
    return _seconds(text, "0 or more", lambda given: given >= 0)


def some_seconds(text: str) -> float:
    """A duration above 0."""
    given = _seconds(text, "more than 0", lambda given: given > 0)
    if given > MOST_SECONDS:
        days = MOST_SECONDS / _UNITS["d"]
        raise argparse.ArgumentTypeError(f"must be at most {days:.0f}d, not {text!r}")
    return given


def interval(text: str) -> float:
    """The time between two samples."""
    return _seconds(text, "at least 0.1 s", lambda given: given >= 0.1)


def _seconds(text: str, least: str, is_enough: Callable[[float], bool]) -> float:
    given = duration(text)
    if given is None or not is_enough(given):
        raise argparse.ArgumentTypeError(f"must be {DURATION}, {least}, not {text!r}")
    return given


#: what messages call a duration
DURATION = "a time such as 5 (seconds), 250ms, 10m, 1h or 1.5d"

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}  # "ms" before "s"


def duration(text: str) -> float | None:
    """Return the seconds of ``90``, ``250ms``, ``10m``, ``1h`` or ``1.5d``, or None."""
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    try:
        given = float(text.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    except ValueError:
        return None
    return given if math.isfinite(given) else None
