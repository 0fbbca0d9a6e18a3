"""What a person sees of ``slotwise purge``: the plan, a bar meanwhile, a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slotwise._cli.output import Fact, have_rich, print_facts
from slotwise.purge import Plan, PurgeReport, Run
from slotwise.purge._plan import printable

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


@contextmanager
def bar(*, dry_run: bool) -> Iterator[Show]:
    """Show the counts on stderr while it runs, which is a terminal; without rich, nothing."""
    if not have_rich():
        yield lambda _report, _run: None
        return
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
        facts.append(Fact(f"error {kind}", f"{count:,}", "red"))
    if report.stopped_by:
        facts.append(Fact("stopped by", report.stopped_by, "yellow"))
    title = "would be purged" if report.dry_run else "purged"
    print_facts(title, facts, sys.stdout, numbers=True)
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
