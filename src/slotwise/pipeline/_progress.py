"""A rich progress bar for ``on_progress``; the only module here that imports rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from slotwise._bounded.memory_guard import MB
from slotwise.pipeline._report import Report


@contextmanager
def progress_bar(
    total: int | None = None, *, description: str = "working", console: Any = None
) -> Iterator[Callable[[Report], None]]:
    """Show a bar while the block runs; pass what it yields as ``on_progress``.

        with progress_bar(total=1000) as show:
            report = await run_bounded(fn, source, limit=10, on_progress=show)

    Raises:
        ImportError: rich is not installed (``pip install 'slotwise[cli]'``).
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError as error:
        raise ImportError("the progress bar needs rich: pip install 'slotwise[cli]'") from error
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True) if console is None else console
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(description, total=total, counts="")

        def show(report: Report) -> None:
            progress.update(task, completed=report.done + report.failed, counts=_counts(report))

        yield show


def _counts(report: Report) -> str:
    words = [f"{report.done:,} done"]
    if report.failed:
        words.append(f"[red]{report.failed:,} failed[/red]")
    words += [
        f"{report.rate_now or report.rate:,.0f}/s",
        f"{report.in_flight} in flight",
        f"{report.memory / MB:,.0f} MB",
    ]
    return " · ".join(words)
