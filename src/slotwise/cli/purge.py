"""``slotwise purge``: flags in, a plan to agree to, a bar meanwhile, a summary out.

What is purged, and how, is in `slotwise.purge`. The flags are read with argparse: the
start of a process that purges a small tree costs as much as the purge.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from slotwise.errors import SlotwiseError
from slotwise.purge import Plan, PurgeOptions, PurgeReport, Run, make_plan
from slotwise.purge.options import AGES
from slotwise.purge.plan import printable
from slotwise.purge.report import SIGNALS

_ENV = "SLOTWISE_PURGE_"
_SAMPLE_SECONDS = 1.0
_NOT_DONE = 2
_LEVELS = ("debug", "info", "warning", "error")

Show = Callable[[PurgeReport, Run], None]
_ENOUGH_DESCRIPTORS = 65_536


class _Flags(argparse.ArgumentParser):
    """Flags that can also come from the environment, by their names."""

    def flag(self, name: str, words: str, default: Any = None, **more: Any) -> None:
        variable = _ENV + name.removeprefix("--").upper().replace("-", "_")
        given = os.environ.get(variable)
        if given is not None:
            try:
                default = _from_environment(given, default, more)
            except ValueError:
                self.error(f"{variable}={given!r} is no value for {name}")
        if isinstance(default, bool):
            more["action"] = argparse.BooleanOptionalAction
        if default is not None and not isinstance(default, bool | list):
            words += f" [{default}]"
        self.add_argument(name, default=default, help=words.replace("%", "%%"), **more)


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


def _parser() -> _Flags:
    parser = _Flags(
        prog="slotwise purge",
        description="Delete old files below PATH, and directories that are empty or become so.",
        epilog=f"Each flag can also be given in the environment, as {_ENV}MAX_AGE_DAYS=14.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="PATH", help="the directory; it stays itself")
    flag = parser.flag
    flag("--max-age-days", "delete files strictly older than this", 30.0, type=float)
    flag("--age-by", "which time of a file is its age", "mtime", choices=tuple(AGES))
    flag("--max-concurrency-scanning", "listing and stat operations in flight", 100, type=int)
    flag("--max-concurrency-deletion", "removing operations in flight", 1000, type=int)
    flag("--memory-limit-mb", "one worker above 85 % of this, stop above 95 %", 800.0, type=float)
    flag("--remove-empty-dirs", "also remove directories that are or become empty", False)
    flag("--max-empty-dirs-to-delete", "at most so many directories; 0: all", 500, type=int)
    flag("--max-files-to-delete", "at most so many files; 0: all", 0, type=int)
    flag("--max-delete-per-second", "at most so many deletions a second", type=float)
    globs: dict[str, Any] = {"action": "extend", "nargs": 1, "metavar": "GLOB"}
    flag("--include", "only files like this; repeatable", **globs)
    flag("--exclude", "nothing like this; repeatable, wins", **globs)
    flag("--min-depth", "leave what is less deep, as find does", 0, type=int)
    flag("--one-file-system", "don't enter mount points", True)
    flag("--dry-run", "delete nothing; count what would go", False)
    flag("--json", "JSON lines on stdout, the summary last", False)
    flag("--log-level", "how much to say on the way", "warning", choices=_LEVELS)
    flag("--audit", "append a JSON line to FILE before each deletion", metavar="FILE")
    flag("--yes", "don't ask", False)
    flag("--allow-dangerous-root", "allow / and home directories", False)
    flag("--fleet", "redis://...: share the deletion limit with other machines", metavar="URL")
    flag("--name", "the name of the shared limit")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Do what ``slotwise purge`` with these words does; gives the exit code."""
    try:
        given = vars(_parser().parse_args(words))
    except SystemExit as ending:  # help was asked for, or something is wrong
        return int(ending.code or 0)
    path, as_json, yes = given.pop("path"), given.pop("json"), given.pop("yes")
    _log_to(as_json=as_json, level=given.pop("log_level"))
    for globs in ("include", "exclude"):
        given[globs] = tuple(given[globs] or ())
    try:
        options = PurgeOptions(**given)
        _room_for_descriptors()
        plan = make_plan(path, options)
    except (ValueError, TypeError) as error:
        return _refuse(str(error), as_json=as_json)
    try:
        if not options.dry_run and not yes and (objection := _objection(plan)) is not None:
            return _refuse(objection, as_json=as_json)
        return _run(plan, as_json=as_json).exit_code
    except (SlotwiseError, ImportError, ValueError) as error:
        return _refuse(str(error), as_json=as_json)
    except Exception:  # a bug, or nobody reads stdout: not done, which Python's 1 would not say
        traceback.print_exc()
        return _NOT_DONE
    except KeyboardInterrupt:  # during the question; a run that goes on ends in order
        _refuse("interrupted; nothing was deleted", as_json=as_json)
        return SIGNALS["SIGINT"]
    finally:
        plan.close()


def _run(plan: Plan, *, as_json: bool) -> PurgeReport:
    if as_json:
        _line("start", {"plan": dict(plan.describe()), "dry_run": plan.options.dry_run})
        report = _with_signals(Run(plan))
        _line("summary", report.as_dict())
        return report
    if sys.stderr.isatty():
        with _bar(dry_run=plan.options.dry_run) as show:
            run = Run(plan, lambda report: show(report, run))
            report = _with_signals(run)
            show(report, run)
    else:
        report = _with_signals(Run(plan))
    _show_summary(report, plan)
    return report


def _with_signals(run: Run) -> PurgeReport:
    """Run it; SIGINT and SIGTERM end it in order."""

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


def _objection(plan: Plan) -> str | None:
    """Show the plan and ask; why it is not to be done, or None if it is."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "without a terminal to ask on, --yes or --dry-run is required"
    _show_plan(plan, _sample(plan), _SAMPLE_SECONDS)
    sys.stderr.write("Delete these? [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    return None if answer.strip().lower() in ("y", "yes") else "declined; nothing was deleted"


def _sample(plan: Plan) -> PurgeReport:
    """What a dry run finds within a moment."""
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
        return run.run()
    finally:
        logger.setLevel(level)


def _refuse(words: str, *, as_json: bool) -> int:
    if as_json:
        _line("refused", {"error": words})
    sys.stderr.write(f"slotwise purge: {words}\n")
    return _NOT_DONE


def _line(event: str, fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class _JsonLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            _line(
                "log",
                {
                    "time": record.created,
                    "level": record.levelname.lower(),
                    "message": record.getMessage(),
                },
            )
        except Exception:  # a worker that logs goes on, whoever has closed stdout
            self.handleError(record)


def _log_to(*, as_json: bool, level: str) -> None:
    handler: logging.Handler = _JsonLines() if as_json else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("slotwise")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def _room_for_descriptors() -> None:
    """This process is ours: let it open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


# ------------------------------------------------------------- what a person sees
# rich is imported where it is used: a run without a terminal starts sooner without it.


def _show_plan(plan: Plan, sample: PurgeReport, seconds: float) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(stderr=True)
    table = Table(title="the plan", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for label, value in plan.describe():
        table.add_row(label, escape(value))
    whole = sample.stopped_by != "sample"
    found = (
        f"{sample.files_to_purge:,} of {sample.files_scanned:,} files"
        f" ({_size(sample.bytes_freed)}), {sample.empty_dirs_deleted:,} directories"
    )
    table.add_row("would go", found if whole else f"{found}, in the first {seconds:g} s")
    console.print(table)


@contextmanager
def _bar(*, dry_run: bool) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("would purge" if dry_run else "purging", total=None, counts="")

        def show(report: PurgeReport, run: Run) -> None:
            progress.update(task, counts=_counts(report, run))

        yield show


def _counts(report: PurgeReport, run: Run) -> str:
    scanned = report.files_scanned / report.duration_seconds if report.duration_seconds else 0
    words = [
        f"{report.files_purged:,} files ({report.files_per_second:,.0f}/s)",
        f"{report.files_scanned:,} seen ({scanned:,.0f}/s)",
        f"{report.empty_dirs_deleted:,} dirs",
        _size(report.bytes_freed),
        f"{run.in_flight} in flight",
        f"{run.memory_mb:,.0f} MB",
    ]
    if report.failures:
        words.append(f"[red]{report.failures:,} errors[/red]")
    return " · ".join(words)


def _show_summary(report: PurgeReport, plan: Plan) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(title="would be purged" if report.dry_run else "purged", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    rows = [
        ("root", escape(printable(plan.root))),
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
        rows.append((f"error {kind}", f"[red]{count:,}[/red]"))
    if report.stopped_by:
        rows.append(("stopped by", f"[yellow]{report.stopped_by}[/yellow]"))
    for label, value in rows:
        table.add_row(label, value)
    console.print(table)
    if report.error_samples:
        console.print("the first errors:")
        for sample in report.error_samples:
            console.print(
                f"  {sample['op']} {escape(printable(sample['path']))}: {escape(sample['error'])}",
                soft_wrap=True,
                highlight=False,
            )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return ""
