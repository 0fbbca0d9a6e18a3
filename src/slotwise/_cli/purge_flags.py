"""The flags of ``slotwise purge``, which can also come from the environment.

What the command does with them is in `purge`. Flags of AsyncEFSPurge that have no effect here
are accepted, so that its users' old command lines keep working.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from slotwise import __version__
from slotwise._cli.flags import (
    Parser,
    duration,
    number,
    seconds,
    some_seconds,
    whole_number,
)
from slotwise._core.redaction import redact
from slotwise.purge._options import AGES

_ENV = "SLOTWISE_PURGE_"
_LEVELS = ("debug", "info", "warning", "error", "critical")
_SECONDS_PER_DAY = 86_400

#: flags of AsyncEFSPurge that change nothing, and why
UNNECESSARY = {
    "--max-concurrency": "--max-concurrency-scanning and --max-concurrency-deletion are the limits",
    "--max-concurrent-subdirs": "the number of directories in work adapts automatically",
    "--task-batch-size": "memory does not grow with the number of files",
}

_EXAMPLES = f"""\
  slotwise purge /data/cache --dry-run                   what would be deleted; deletes nothing
  slotwise purge /data/cache --max-age-days 14           shows its plan and asks
  slotwise purge /data/spool --yes --max-age 12h --deadline 2h
  slotwise purge /data/cache --yes --json --remove-empty-dirs --max-empty-dirs-to-delete 0
  slotwise purge /mnt/efs --yes --include '*.tmp' --exclude keep --audit /var/log/purge.jsonl
  slotwise purge /mnt/efs --yes --url redis://cache:6379 --name efs   a limit for all machines

exit code:
  0    done; reaching a limit of files or directories, or the deadline, is not an error
  1    done, but some things could not be deleted
  2    not done: bad usage, declined, a refused root, too little memory
  130  Ctrl-C stopped it cleanly (143: SIGTERM)

Each flag can also be given in the environment, as {_ENV}MAX_AGE_DAYS=14; patterns for
--include and --exclude are separated by spaces there, and those given here are added."""


class _PurgeParser(Parser):
    """Flags that can also come from the environment, by their names."""

    def __init__(self) -> None:
        super().__init__("purge", "PATH itself stays.", _EXAMPLES)
        self._variables: set[str] = set()
        self._wrong: list[str] = []

    def flag(
        self, name: str, words: str, default: Any = None, *, group: Any = None, **more: Any
    ) -> None:
        variable = _ENV + name.removeprefix("--").upper().replace("-", "_")
        self._variables.add(variable)
        given = os.environ.get(variable)
        if given is not None:
            try:
                default = _from_environment(given, default, more)
            except (ValueError, argparse.ArgumentTypeError):
                self._wrong.append(f"the value of {variable} is not valid for {name}")
        if isinstance(default, bool):
            more["action"] = argparse.BooleanOptionalAction
        if default is not None and not isinstance(default, bool | list):
            words += f" [{redact(str(default))}]"
        add = (group or self).add_argument
        add(name, default=default, help=words.replace("%", "%%"), **more)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        given = super().parse(words)
        self._check_environment()
        return given

    def add_max_age(self) -> None:
        """Add ``--max-age`` and ``--max-age-days``: two ways to say the same thing."""
        both: Any = self.add_mutually_exclusive_group()
        words = "delete files that are older than X days"
        decimal: dict[str, Any] = {"type": number, "metavar": "X"}
        self.flag("--max-age-days", words, 30.0, group=both, **decimal)
        both.add_argument(
            "--max-age",
            dest="max_age_days",
            type=_days,
            default=argparse.SUPPRESS,
            metavar="AGE",
            help="the same with a unit: 90m, 12h, 30d",
        )
        variable = f"{_ENV}MAX_AGE"
        self._variables.add(variable)
        given = os.environ.get(variable)
        if given is None:
            return
        if f"{variable}_DAYS" in os.environ:
            self._wrong.append(f"{variable} and {variable}_DAYS are both set")
        try:
            self.set_defaults(max_age_days=_days(given))
        except argparse.ArgumentTypeError as error:
            self._wrong.append(f"{variable} {error}")

    def refuse_extra(self, extra: Sequence[str]) -> NoReturn:
        self.error(f"there is one PATH only; {extra[0]!r} is a second one")

    def _check_environment(self) -> None:
        """After the words, so that ``--help`` helps in any environment.

        A variable that belongs to no flag is refused: it may be a misspelled DRY_RUN.
        """
        for variable in sorted(set(os.environ) - self._variables):
            if variable.startswith(_ENV):
                from slotwise._cli.other_words import did_you_mean

                near = did_you_mean(variable, self._variables)
                self._wrong.append(f"unknown environment variable {variable}{near}")
        if self._wrong:
            self.error("; ".join(self._wrong))


def _from_environment(given: str, default: Any, more: dict[str, Any]) -> Any:
    if isinstance(default, bool):
        if given.lower() in ("1", "true", "yes", "on"):
            return True
        if given.lower() in ("0", "false", "no", "off", ""):
            return False
        raise ValueError(given)
    if more.get("action") == "extend":
        return given.split()
    value = more.get("type", str)(given)
    if value not in more.get("choices", (value,)):
        raise ValueError(given)
    return value


def _days(text: str) -> float:
    # Without a unit, --max-age 30 would be 30 seconds to one and 30 days to another.
    given = duration(text) if text[-1:].isalpha() or text == "0" else None
    if given is None or given < 0:
        raise argparse.ArgumentTypeError(
            f"must be a time with its unit, such as 90m, 12h or 30d, not {text!r}"
        )
    return given / _SECONDS_PER_DAY


def destination_of(flag: str) -> str:
    """Return the name of a flag's value."""
    return flag.removeprefix("--").replace("-", "_")


_TIME: dict[str, Any] = {"metavar": "TIME"}
_DECIMAL: dict[str, Any] = {"type": number, "metavar": "X"}
_WHOLE: dict[str, Any] = {"type": whole_number, "metavar": "N"}
_GLOBS: dict[str, Any] = {"action": "extend", "nargs": 1, "metavar": "GLOB"}

# Name, words, default, and how argparse takes it.
_FLAGS: tuple[tuple[str, str, Any, dict[str, Any]], ...] = (
    ("--age-by", "the timestamp that tells the age of a file", "mtime", {"choices": tuple(AGES)}),
    ("--max-concurrency-scanning", "listing and stat operations in flight", 100, _WHOLE),
    ("--max-concurrency-deletion", "deletions in flight", 1000, _WHOLE),
    (
        "--memory-limit-mb",
        "one worker above 85 % of this, stop above 95 %; 0: no limit",
        800.0,
        _DECIMAL,
    ),
    (
        "--deadline",
        "stop cleanly after this time, such as 2h",
        None,
        {"type": some_seconds} | _TIME,
    ),
    ("--remove-empty-dirs", "also remove directories that are or become empty", False, {}),
    ("--max-empty-dirs-to-delete", "remove at most N directories; 0: no limit", 500, _WHOLE),
    ("--max-files-to-delete", "delete at most N files; 0: no limit", 0, _WHOLE),
    ("--max-delete-per-second", "at most X deletions a second", None, _DECIMAL),
    ("--include", "only files that match; repeatable", None, _GLOBS),
    ("--exclude", "nothing that matches; repeatable, wins over --include", None, _GLOBS),
    ("--min-depth", "keep entries above depth N, as find does", 0, _WHOLE),
    ("--one-file-system", "don't enter mount points", True, {}),
    ("--dry-run", "delete nothing; count what would be deleted", False, {}),
    ("--json", "JSON lines on stdout, the summary last", False, {}),
    (
        "--progress-interval",
        "without a terminal, a JSON line of progress this often; 0: none",
        30.0,
        {"type": seconds} | _TIME,
    ),
    ("--log-level", "how much to log", "warning", {"type": str.lower, "choices": _LEVELS}),
    (
        "--audit",
        "append a JSON line to FILE, a pipe, or - for stdout, before each deletion",
        None,
        {"metavar": "FILE"},
    ),
    ("--yes", "don't ask", False, {}),
    ("--allow-dangerous-root", "allow / and home directories", False, {}),
    ("--name", "the name of the shared limit", None, {}),
)


def make_parser() -> Parser:
    """Return the parser of ``slotwise purge``."""
    parser = _PurgeParser()
    parser.add_argument("path", metavar="PATH", help="the directory")
    parser.add_max_age()
    for name, words, default, more in _FLAGS:
        parser.flag(name, words, default, **more)
    parser.add_argument(
        "--url",
        metavar="URL",
        help="share the deletion limit with all purges that use this --name there [$SLOTWISE_URL]",
    )
    parser.add_argument(
        "--version", action="version", version=f"slotwise {__version__}", help="print the version"
    )
    old = parser.add_argument_group("accepted from command lines of AsyncEFSPurge, and ignored")
    old.description = ", ".join(UNNECESSARY)
    for name in UNNECESSARY:
        old.add_argument(name, type=whole_number, metavar="N", help=argparse.SUPPRESS)
    return parser
