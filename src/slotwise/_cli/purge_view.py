"""The output of ``slotwise purge``: the plan, the progress, a table at the end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from slotwise._cli.output import Fact, have_rich, is_writable, print_facts, width_of
from slotwise.purge import Plan, PurgeReport, Run
from slotwise.purge._report import printable

Show = Callable[[PurgeReport, Run], None]


def show_plan(plan: Plan, sample: PurgeReport, seconds: float) -> None:
    facts = [Fact(label, value) for label, value in plan.describe()]
    whole = sample.stopped_by != "sample"
    found = (
        f"{sample.files_to_purge:,} of {sample.files_scanned:,} files"
        f" ({_size(sample.bytes_freed)}), {sample.empty_dirs_deleted:,} directories"
    )
    facts.append(Fact("would go", found if whole else f"{found}, in the first {seconds:g} s"))
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
        Fact("root", printable(plan.root)),
        Fact("files seen", f"{report.files_scanned:,}"),
        Fact("old files", f"{report.files_to_purge:,}"),
        Fact("files purged", f"{report.files_purged:,}"),
        Fact("directories seen", f"{report.dirs_scanned:,}"),
        Fact("directories removed", f"{report.empty_dirs_deleted:,}"),
        Fact("symlinks left", f"{report.symlinks_skipped:,}"),
        Fact("special files left", f"{report.special_files_skipped:,}"),
        Fact("freed", _size(report.bytes_freed)),
        Fact("time", f"{report.duration_seconds:,.1f} s"),
        Fact("files a second", f"{report.files_per_second:,.0f}"),
        Fact("peak memory", f"{report.peak_memory_mb:,.0f} MB"),
    ]
    for kind, count in sorted(report.errors.items()):
        facts.append(Fact(f"error {kind}", f"{count:,}"))
    if report.stopped_by:
        facts.append(Fact("stopped by", report.stopped_by))
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
