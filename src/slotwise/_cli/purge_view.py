"""What a person sees of ``slotwise purge``: the plan, a bar meanwhile, a table at the end.

rich is imported where it is used: a run without a terminal starts sooner without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slotwise.purge import Plan, PurgeReport, Run
from slotwise.purge._plan import printable

Show = Callable[[PurgeReport, Run], None]


def show_plan(plan: Plan, sample: PurgeReport, seconds: float) -> None:
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
def bar(*, dry_run: bool) -> Iterator[Show]:
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
