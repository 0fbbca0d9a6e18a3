"""``slotwise purge``: read flags, show a plan, ask, show progress, and print a summary.

What is purged, and how, is in `slotwise.purge`; the flags are in `purge_flags`. Little is
imported here: for a small tree, starting the process costs as much as the purge itself.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from slotwise._cli.flags import Command
from slotwise._cli.output import (
    have_rich,
    is_writable,
    print_bug,
    print_error,
    print_facts,
    width_of,
)
from slotwise._cli.purge_flags import UNNECESSARY, destination_of, make_parser
from slotwise._cli.signals import handling
from slotwise._core.redaction import redact
from slotwise.errors import SlotwiseError
from slotwise.purge import Plan, PurgeOptions, PurgeReport, Run, make_plan
from slotwise.purge._report import SIGNALS, printable

_SAMPLE_SECONDS = 1.0
_NOT_DONE = 2

_ENOUGH_DESCRIPTORS = 65_536


def purge(options: argparse.Namespace) -> int:
    """Show the plan, ask, and do it; return the exit code."""
    given = vars(options)
    for flag, why in UNNECESSARY.items():
        if given.pop(destination_of(flag)) is not None:
            print_error("purge", f"{flag} is unnecessary: {why}")
    as_json = given.pop("json")
    with _logging_to(as_json=as_json, level=given.pop("log_level")):
        return _purge(given, as_json=as_json)


def _purge(given: dict[str, Any], *, as_json: bool) -> int:
    path, yes = given.pop("path"), given.pop("yes")
    progress_interval = given.pop("progress_interval")
    if given["audit"] == "-":
        given["audit"] = "/dev/stdout"
    for globs in ("include", "exclude"):
        given[globs] = tuple(given[globs] or ())
    if given["name"] and given["url"] is None:
        from slotwise._urls import url_of_environment  # it needs asyncio, which is slow to import

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
        return _run(plan, progress_interval, as_json=as_json)
    except (SlotwiseError, ImportError, ValueError) as error:
        return _refuse(str(error), as_json=as_json)
    except Exception as error:  # "not done", which Python's own 1 would not say
        print_bug("purge", error)
        return _NOT_DONE
    except KeyboardInterrupt:  # during the question; a run that has begun ends in order
        _refuse("interrupted; nothing was deleted", as_json=as_json)
        return SIGNALS["SIGINT"]
    finally:
        plan.close()


def _run(plan: Plan, progress_interval: float, *, as_json: bool) -> int:
    dry_run = plan.options.dry_run
    if as_json:
        try:
            _line("start", {"plan": dict(plan.describe()), "dry_run": dry_run})
        except OSError as error:
            print_error("purge", f"nothing was done: stdout: {error.strerror}")
            return _NOT_DONE
    report = _with_progress(plan, progress_interval, as_json=as_json)
    try:
        if report.stopped_by in SIGNALS and not is_writable(sys.stdout):
            raise OSError(errno.EAGAIN, "nobody reads it")  # one signal is enough to end
        if as_json:
            _line("summary", report.as_dict())
        else:
            show_summary(report, plan)
            sys.stdout.flush()
    except (OSError, KeyboardInterrupt) as error:  # Ctrl-C again, or as the last file was deleted
        why = error.strerror if isinstance(error, OSError) else "interrupted"
        print_error(
            "purge",
            f"{report.files_purged:,} files and {report.empty_dirs_deleted:,} directories"
            f" {'would be' if dry_run else 'were'} purged, but stdout: {why}",
        )
        return report.exit_code or 1 if isinstance(error, OSError) else SIGNALS["SIGINT"]
    return report.exit_code


def _with_progress(plan: Plan, interval: float, *, as_json: bool) -> PurgeReport:
    if not sys.stderr.isatty():
        lines = ProgressLines(interval, sys.stdout if as_json else sys.stderr)
        run = Run(plan, lambda report: lines.show(report, run))
        return _with_signals(run)
    if as_json:
        return _with_signals(Run(plan))
    with bar(dry_run=plan.options.dry_run) as show:
        run = Run(plan, lambda report: show(report, run))
        return _with_signals(run)


def _with_signals(run: Run) -> PurgeReport:
    """Run it; SIGINT and SIGTERM stop it."""
    with handling(
        lambda number: run.interrupt(signal.Signals(number).name), signal.SIGINT, signal.SIGTERM
    ):
        return run.run()


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
    dry = replace(
        plan, options=replace(plan.options, dry_run=True, max_delete_per_second=None, deadline=None)
    )

    def enough(_: PurgeReport) -> None:
        if time.monotonic() - started > _SAMPLE_SECONDS:
            run.stop("sample")

    logger = logging.getLogger("slotwise.purge")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what fails now will fail again, and is reported then
    try:
        run = Run(dry, enough)
        sample = _with_signals(run)
    finally:
        logger.setLevel(level)
    if sample.stopped_by in SIGNALS:  # stopped in order; now let the signal take effect
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
    write_event(sys.stdout, event, fields)


class _Log(logging.Handler):
    """Writes lines to stderr, or JSON to stdout; never waits for a reader.

    A worker that logs continues even if the stream is closed, or nobody reads it.
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
    """Raise the limit on open files as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


COMMANDS = (Command("purge", purge, kind=lambda *_: make_parser()),)


Show = Callable[[PurgeReport, Run], None]


def show_plan(plan: Plan, sample: PurgeReport, seconds: float) -> None:
    facts = plan.describe()
    whole = sample.stopped_by != "sample"
    found = (
        f"{sample.files_to_purge:,} of {sample.files_scanned:,} files"
        f" ({_size(sample.bytes_freed)}), {sample.empty_dirs_deleted:,} directories"
    )
    facts.append(("would go", found if whole else f"{found}, in the first {seconds:g} s"))
    print_facts("the plan", facts, sys.stderr)


def write_event(stream: TextIO, event: str, fields: dict[str, Any]) -> None:
    """Write one line of JSON."""
    stream.write(json.dumps({"event": event, **fields}) + "\n")
    stream.flush()


class ProgressLines:
    """Writes a line of JSON every ``interval`` seconds, where there is no terminal; 0 is never.

    It never waits for a reader: a line that can't be written now is left out.
    """

    def __init__(self, interval: float, stream: TextIO) -> None:
        self._interval = interval
        self._stream = stream
        self._shown = time.monotonic()

    def show(self, report: PurgeReport, run: Run) -> None:
        now = time.monotonic()
        if not self._interval or now - self._shown < self._interval or run.is_over:
            return
        self._shown = now
        fields = report.as_dict()
        del fields["error_samples"], fields["stopped_by"]
        fields.update(time=time.time(), in_flight=run.in_flight, memory_mb=run.memory_mb)
        with suppress(OSError, ValueError):
            if is_writable(self._stream):
                write_event(self._stream, "progress", fields)


@contextmanager
def bar(*, dry_run: bool) -> Iterator[Show]:
    """Show the counts on stderr while it runs, which is a terminal; without rich, nothing."""
    if not have_rich():
        yield lambda _report, _run: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    title = "would purge" if dry_run else "purging"
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn(title),
        TextColumn("{task.fields[counts]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, counts="")

        def show(report: PurgeReport, run: Run) -> None:
            room = console.width - len(title) - _BESIDE_COUNTS
            progress.update(task, counts=counts(report, run.in_flight, run.memory_mb, room))

        yield show


_BESIDE_COUNTS = 13  # the spinner, the elapsed time of up to 9 columns, and the gaps between them


def counts(report: PurgeReport, in_flight: int, memory_mb: float, room: int) -> str:
    """Return as many of the counts as fit into ``room`` columns, the important ones first."""
    words = [
        f"{report.files_purged:,} files",
        *([f"{report.failures:,} errors"] if report.failures else []),
        f"{in_flight:,} in flight",
        f"{report.files_per_second:,.0f}/s",
        f"{report.files_scanned:,} seen",
        f"{report.empty_dirs_deleted:,} dirs",
        _size(report.bytes_freed),
        f"{memory_mb:,.0f} MB",
    ]
    while len(words) > 1 and width_of(" · ".join(words)) > room:
        words.pop()
    return " · ".join(words)


def show_summary(report: PurgeReport, plan: Plan) -> None:
    facts = [
        ("root", printable(plan.root)),
        ("files seen", f"{report.files_scanned:,}"),
        ("old files", f"{report.files_to_purge:,}"),
        ("files purged", f"{report.files_purged:,}"),
        ("directories seen", f"{report.dirs_scanned:,}"),
        ("directories removed", f"{report.empty_dirs_deleted:,}"),
        ("symlinks left", f"{report.symlinks_skipped:,}"),
        ("special files left", f"{report.special_files_skipped:,}"),
        ("freed", _size(report.bytes_freed)),
        ("time", f"{report.duration_seconds:,.1f} s"),
        ("files a second", f"{report.files_per_second:,.0f}"),
        ("peak memory", f"{report.peak_memory_mb:,.0f} MB"),
    ]
    for kind, count in sorted(report.errors.items()):
        facts.append((f"error {kind}", f"{count:,}"))
    if report.stopped_by:
        facts.append(("stopped by", report.stopped_by))
    title = "would be purged" if report.dry_run else "purged"
    print_facts(title, facts, sys.stdout)
    if report.error_samples:
        sys.stdout.write("the first errors:\n")
        for sample in report.error_samples:
            path = printable(sample["path"])
            sys.stdout.write(f"  {sample['op']} {path}: {printable(sample['error'])}\n")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return ""
