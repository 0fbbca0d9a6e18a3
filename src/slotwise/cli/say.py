"""How the commands speak: one line on stderr, tables for people, JSON for programs.

rich is imported only to draw on a terminal. Into a pipe go plain columns, which neither
wrap nor end at the width of a terminal that is not there; the same where a table does not
fit, as an id that was cut can't be copied.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

NOT_TEXT = "names and labels must be text, in UTF-8"

RIGHT = ">"  # what the title of a column of numbers begins with


def complain(command: str, words: object) -> None:
    """One line on stderr, whatever is in the words."""
    speaker = f"slotwise {command}".rstrip()
    line = " ".join(str(words).split())
    sys.stderr.write(f"{speaker}: {printable(line)}\n")
    sys.stderr.flush()


def complain_of_usage(command: str, words: str) -> None:
    """The same, with where help is."""
    helping = f"slotwise {command} --help".replace("  ", " ")
    end = "" if words.endswith("?") else ";"  # after a suggestion
    complain(command, f"{words}{end} '{helping}' shows how")


def print_json(data: Any) -> None:
    json.dump(data, sys.stdout, indent=2)
    sys.stdout.write("\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under their columns; those whose title begins with ``>`` are numbers."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if not (sys.stdout.isatty() and _drawn(columns, cells)):
        sys.stdout.write("".join(f"{line}\n" for line in _plain(columns, cells)))
    sys.stdout.flush()


def _drawn(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
    from rich.console import Console

    console, table = Console(), rich_table(columns, cells)
    fits = console.measure(table, options=console.options.update(max_width=10_000))
    if fits.maximum > console.width:
        return False
    console.print(table)
    return True


def rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]], **more: Any) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, **more)
    for title in columns:
        right = title.startswith(RIGHT)
        table.add_column(title.removeprefix(RIGHT), justify="right" if right else "left")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _plain(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    rows = [[title.removeprefix(RIGHT).upper() for title in columns], *cells]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    rights = [title.startswith(RIGHT) for title in columns]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, rights, strict=True)
        ).rstrip()
        for row in rows
    ]


def printable(text: str) -> str:
    """A text with nothing in it that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def age(since: datetime | None, now: datetime | None = None) -> float | None:
    """For how many seconds something has lasted; never less than 0, whatever the clocks say."""
    if since is None:
        return None
    return max(((now or datetime.now(UTC)) - since).total_seconds(), 0.0)


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``2 h 05``, ``4 d 3 h``."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60:02}"
    return f"{hours // 24} d {hours % 24} h"
