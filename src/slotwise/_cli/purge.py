"""``slotwise purge``: flags in, a plan to agree to, a bar meanwhile, a summary out.

What is purged, and how, is in `slotwise.purge`. Little is imported here: the start of a
process that purges a small tree costs as much as the purge.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from slotwise._cli.commands import Command
from slotwise._cli.flags import Parser, did_you_mean, number, whole_number
from slotwise._cli.output import is_writable, print_error, printable
from slotwise._cli.purge_view import bar, show_plan, show_summary
from slotwise._core.redaction import redact, redacted_repr
from slotwise.errors import SlotwiseError
from slotwise.purge import Plan, PurgeOptions, PurgeReport, Run, make_plan
from slotwise.purge._options import AGES
from slotwise.purge._report import SIGNALS

_ENV = "SLOTWISE_PURGE_"
_SAMPLE_SECONDS = 1.0
_NOT_DONE = 2
_LEVELS = ("debug", "info", "warning", "error")

_ENOUGH_DESCRIPTORS = 65_536

_EXAMPLES = f"""\
  slotwise purge /data/cache --dry-run                   what would go, and nothing goes
  slotwise purge /data/cache --max-age-days 14           shows its plan and asks
  slotwise purge /data/cache --yes --json --remove-empty-dirs --max-empty-dirs-to-delete 0
  slotwise purge /mnt/efs --yes --include '*.tmp' --exclude keep --audit /var/log/purge.jsonl
  slotwise purge /mnt/efs --yes --url redis://cache:6379 --name efs   a limit for all machines

exit code:
  0    done; reaching a limit of files or directories is reported, and not an error
  1    done, but some things could not be deleted
  2    not done: bad usage, declined, a refused root, too little memory
  130  Ctrl-C ended it, in order (143: SIGTERM)

Each flag can also be given in the environment, as {_ENV}MAX_AGE_DAYS=14; patterns for
--include and --exclude are separated by spaces there, and those given here are added."""


class _PurgeParser(Parser):
    """Flags that can also come from the environment, by their names."""

    def __init__(self) -> None:
        super().__init__("purge", details="PATH itself stays.", examples=_EXAMPLES)
        self._variables: set[str] = set()
        self._wrong: list[str] = []

    def flag(self, name: str, words: str, default: Any = None, **more: Any) -> None:
        variable = _ENV + name.removeprefix("--").upper().replace("-", "_")
        self._variables.add(variable)
        given = os.environ.get(variable)
        if given is not None:
            try:
                default = _from_environment(given, default, more)
            except (ValueError, argparse.ArgumentTypeError):
                self._wrong.append(
                    f"{variable}={redacted_repr(given)} is not a valid value for {name}"
                )
        if isinstance(default, bool):
            more["action"] = argparse.BooleanOptionalAction
        if default is not None and not isinstance(default, bool | list):
            words += f" [{redact(str(default))}]"
        self.add_argument(name, default=default, help=words.replace("%", "%%"), **more)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        given = super().parse(words)
        self._check_environment()
        return given

    def refuse_extra(self, extra: Sequence[str]) -> NoReturn:
        self.error(f"there is one PATH only; {extra[0]!r} is a second one")

    def _check_environment(self) -> None:
        """After the words, so that ``--help`` helps in any environment.

        A variable that belongs to no flag is refused: it may be a misspelled DRY_RUN.
        """
        for variable in sorted(set(os.environ) - self._variables):
            if variable.startswith(_ENV):
                near = did_you_mean(variable, self._variables)
                self._wrong.append(f"there is no flag for {variable} in the environment{near}")
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


def _parser() -> _PurgeParser:
    parser = _PurgeParser()
    parser.add_argument("path", metavar="PATH", help="the directory")
    flag = parser.flag
    decimal: dict[str, Any] = {"type": number, "metavar": "X"}
    whole: dict[str, Any] = {"type": whole_number, "metavar": "N"}
    flag("--max-age-days", "delete files that are older than X days", 30.0, **decimal)
    flag("--age-by", "which time of a file is its age", "mtime", choices=tuple(AGES))
    flag("--max-concurrency-scanning", "listing and stat operations in flight", 100, **whole)
    flag("--max-concurrency-deletion", "deletions in flight", 1000, **whole)
    flag("--memory-limit-mb", "one worker above 85 % of this, stop above 95 %", 800.0, **decimal)
    flag("--remove-empty-dirs", "also remove directories that are or become empty", False)
    flag("--max-empty-dirs-to-delete", "remove at most N directories; 0: no limit", 500, **whole)
    flag("--max-files-to-delete", "delete at most N files; 0: no limit", 0, **whole)
    flag("--max-delete-per-second", "at most X deletions a second", **decimal)
    globs: dict[str, Any] = {"action": "extend", "nargs": 1, "metavar": "GLOB"}
    flag("--include", "only files that match; repeatable", **globs)
    flag("--exclude", "nothing that matches; repeatable, wins over --include", **globs)
    flag("--min-depth", "leave what is less deep than N, as find does", 0, **whole)
    flag("--one-file-system", "don't enter mount points", True)
    flag("--dry-run", "delete nothing; count what would go", False)
    flag("--json", "JSON lines on stdout, the summary last", False)
    flag("--log-level", "how much to say on the way", "warning", choices=_LEVELS)
    flag(
        "--audit",
        "append a JSON line to FILE, a pipe, or - for stdout, before each deletion",
        metavar="FILE",
    )
    flag("--yes", "don't ask", False)
    flag("--allow-dangerous-root", "allow / and home directories", False)
    parser.add_argument(
        "--url",
        metavar="URL",
        help="share the deletion limit with all purges that use this --name there [$SLOTWISE_URL]",
    )
    flag("--name", "the name of the shared limit")
    return parser


def purge(options: argparse.Namespace) -> int:
    """Show the plan, ask, and do it; return the exit code."""
    given = vars(options)
    as_json = given.pop("json")
    with _logging_to(as_json=as_json, level=given.pop("log_level")):
        return _purge(given, as_json=as_json)


def _purge(given: dict[str, Any], *, as_json: bool) -> int:
    path, yes = given.pop("path"), given.pop("yes")
    if given["audit"] == "-":
        given["audit"] = "/dev/stdout"
    for globs in ("include", "exclude"):
        given[globs] = tuple(given[globs] or ())
    if given["name"] and given["url"] is None:
        from slotwise._urls import url_of_environment  # it needs asyncio, which is not small

        given["url"] = url_of_environment()
    try:
        options = PurgeOptions(**given)
        _raise_descriptor_limit()
        plan = make_plan(path, options)
    except (ValueError, TypeError) as error:
        return _refuse(str(error), as_json=as_json)
    try:
        if not options.dry_run and not yes and (objection := _ask(plan)) is not None:
            return _refuse(objection, as_json=as_json)
        return _run(plan, as_json=as_json).exit_code
    except (SlotwiseError, ImportError, ValueError) as error:
        return _refuse(str(error), as_json=as_json)
    except _StdoutFailed as error:
        print_error("purge", error)
        return error.exit_code
    except Exception as error:  # not done, which Python's 1 would not say
        print_error("purge", f"this is a bug, please report it: {type(error).__name__}: {error}")
        return _NOT_DONE
    except KeyboardInterrupt:  # during the question; a run that goes on ends in order
        _refuse("interrupted; nothing was deleted", as_json=as_json)
        return SIGNALS["SIGINT"]
    finally:
        plan.close()


class _StdoutFailed(Exception):
    """Stdout can't be written: nobody reads it, or the disk is full."""

    def __init__(self, words: str, exit_code: int) -> None:
        super().__init__(words)
        self.exit_code = exit_code


def _run(plan: Plan, *, as_json: bool) -> PurgeReport:
    dry_run = plan.options.dry_run
    if as_json:
        try:
            _line("start", {"plan": dict(plan.describe()), "dry_run": dry_run})
        except OSError as error:
            raise _StdoutFailed(f"nothing was done: stdout: {error.strerror}", _NOT_DONE) from error
    if not as_json and sys.stderr.isatty():
        with bar(dry_run=dry_run) as show:
            run = Run(plan, lambda report: show(report, run))
            report = _with_signals(run)
    else:
        report = _with_signals(Run(plan))
    try:
        if report.stopped_by in SIGNALS and not is_writable(sys.stdout):
            raise OSError(errno.EAGAIN, "nobody reads it")  # one signal is enough to end
        if as_json:
            _line("summary", report.as_dict())
        else:
            show_summary(report, plan)
            sys.stdout.flush()
    except (OSError, KeyboardInterrupt) as error:
        if isinstance(error, OSError):
            why, code = error.strerror, report.exit_code or 1
        else:  # Ctrl-C once more, or as the last file went
            why, code = "interrupted", SIGNALS["SIGINT"]
        words = (
            f"{report.files_purged:,} files and {report.empty_dirs_deleted:,} directories"
            f" {'would be' if dry_run else 'were'} purged, but stdout: {why}"
        )
        raise _StdoutFailed(words, code) from error
    return report


def _with_signals(run: Run) -> PurgeReport:
    """Run it; SIGINT and SIGTERM stop it."""

    def interrupt(number: int, _: FrameType | None) -> None:
        run.interrupt(signal.Signals(number).name)

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        return run.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ask(plan: Plan) -> str | None:
    """Show the plan and ask; return why it must not be done, or None."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "without a terminal to ask on, --yes or --dry-run is required"
    show_plan(plan, _sample(plan), _SAMPLE_SECONDS)
    sys.stderr.write("Delete these? [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    return None if answer.strip().lower() in ("y", "yes") else "declined; nothing was deleted"


def _sample(plan: Plan) -> PurgeReport:
    """Return what a dry run finds within a second."""
    from dataclasses import replace

    started = time.monotonic()
    dry = replace(plan, options=replace(plan.options, dry_run=True, max_delete_per_second=None))

    def enough(_: PurgeReport) -> None:
        if time.monotonic() - started > _SAMPLE_SECONDS:
            run.stop("sample")

    logger = logging.getLogger("slotwise.purge")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what fails now fails again, and is told then
    try:
        run = Run(dry, enough)
        sample = _with_signals(run)
    finally:
        logger.setLevel(level)
    if sample.stopped_by in SIGNALS:  # in order; now it does what it does to any program
        signal.raise_signal(signal.Signals[sample.stopped_by])
    return sample


def _refuse(words: str, *, as_json: bool) -> int:
    words = redact(words)
    if as_json:
        with suppress(OSError):  # stderr has it, too
            _line("refused", {"error": words})
    print_error("purge", words)
    return _NOT_DONE


def _line(event: str, fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class _Log(logging.Handler):
    """Writes lines to stderr, or JSON to stdout; never waits for a reader.

    A worker that logs goes on, whoever has closed the stream, or does not read it.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        with suppress(OSError, ValueError):
            if self._as_json and is_writable(sys.stdout):
                level = record.levelname.lower()
                _line("log", {"time": record.created, "level": level, "message": message})
            elif is_writable(sys.stderr):
                sys.stderr.write(f"{record.levelname} {printable(message)}\n")
                sys.stderr.flush()


@contextmanager
def _logging_to(*, as_json: bool, level: str) -> Iterator[None]:
    """Print what is logged; afterwards logging is as it was."""
    logger = logging.getLogger("slotwise")
    before = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:] = [_Log(as_json=as_json)]
    logger.setLevel(level.upper())
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers[:], level_before, logger.propagate = before
        logger.setLevel(level_before)


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


COMMANDS = {"purge": Command(_parser, purge)}
