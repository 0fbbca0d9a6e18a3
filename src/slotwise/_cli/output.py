"""Print errors as one line on stderr, tables for people, JSON for programs.

A table is columns of plain text, everywhere the same: neither wrapped nor cut off, because an id
that was cut off can't be copied.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from slotwise._core.redaction import redact
from slotwise.errors import SlotwiseError

_PATIENCE = 1.0  # seconds that an error waits for a reader of stderr

NOT_TEXT = "names and labels must be text, in UTF-8"


class Declined(Exception):
    """The person said no, or there was nobody to ask."""


RIGHT = ">"  # what the title of a column of numbers begins with


def print_error(command: str, words: object) -> None:
    """Write one line to stderr, whatever is in the words.

    A stderr that can't be written to (a full disk, a reader that is gone, or one that does not
    read) changes nothing else: the exit code still says what happened, and the work is done.
    """
    speaker = f"slotwise {command}".rstrip()
    line = redact(" ".join(str(words).split()))
    if not is_writable(sys.stderr, _PATIENCE):
        return
    try:
        sys.stderr.write(f"{speaker}: {printable(line)}\n")
        sys.stderr.flush()
    except OSError:
        pass


def is_writable(stream: TextIO, timeout: float = 0.0) -> bool:
    """Whether a line can be written within ``timeout`` seconds, without waiting for a reader."""
    try:
        return bool(select.select([], [stream], [], timeout)[1])
    except (OSError, ValueError):  # not a file of the system
        return True


def print_bug(command: str, error: Exception) -> None:
    """Like `print_error`, for an error that nobody expected."""
    print_error(command, f"this is a bug, please report it: {type(error).__name__}: {error}")


def print_any(command: str, error: Exception) -> None:
    """Like `print_error`, for an error that may be a bug."""
    if isinstance(error, UnicodeError):
        print_error(command, NOT_TEXT)
    elif isinstance(error, SlotwiseError | ValueError | TypeError | ImportError | OSError):
        print_error(command, error)
    else:
        print_bug(command, error)


def print_usage_error(command: str, words: str) -> None:
    """Like `print_error`, and name the help."""
    helping = f"slotwise {command} --help".replace("  ", " ")
    end = "" if words.endswith("?") else ";"  # after a suggestion
    print_error(command, f"{words}{end} '{helping}' shows how")


def print_line(words: str) -> None:
    sys.stdout.write(f"{printable(words)}\n")
    sys.stdout.flush()


def print_json(data: Any) -> None:
    import json  # `run` starts without it

    json.dump(data, sys.stdout, indent=2)
    sys.stdout.write("\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their columns; a title that begins with ``>`` is that of numbers."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    sys.stdout.write("".join(f"{line}\n" for line in _plain(columns, cells)))
    sys.stdout.flush()


def have_rich() -> bool:
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True


def print_facts(title: str, facts: Sequence[tuple[str, str]], stream: TextIO) -> None:
    """Print a title, and under it a line for each fact."""
    widest = max(len(label) for label, _ in facts)
    lines = [title, *(f"  {label:<{widest}}  {printable(value)}" for label, value in facts)]
    stream.write("".join(f"{line}\n" for line in lines))
    stream.flush()


def _plain(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    rows = [[title.removeprefix(RIGHT).upper() for title in columns], *cells]
    widths = [max(width_of(row[at]) for row in rows) for at in range(len(columns))]
    rights = [title.startswith(RIGHT) for title in columns]
    lines = []
    for row in rows:
        gaps = [" " * (width - width_of(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = [
            gap + cell if right else cell + gap
            for cell, gap, right in zip(row, gaps, rights, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, width: int) -> str:
    """Return a text of at most ``width`` columns; an ellipsis replaces what was cut."""
    if width_of(text) <= width:
        return text
    kept, room = "", width - 1
    for char in text:
        room -= _columns(char)
        if room < 0:
            break
        kept += char
    return f"{kept}…"


def _columns(char: str) -> int:
    import unicodedata  # rarely needed, and slow to import

    if unicodedata.category(char) in ("Mn", "Me", "Cf"):  # drawn over the one before
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def printable(text: str) -> str:
    """Return a text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
