"""``slotwise top``: the semaphores and tiers, live on a terminal, or once elsewhere."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from types import FrameType
from typing import Any

from slotwise._cli.backends import open_backend
from slotwise._cli.commands import Command
from slotwise._cli.flags import Parser, interval
from slotwise._cli.output import (
    duration,
    have_rich,
    print_error,
    print_json,
    print_table,
    printable,
    rich_table,
)
from slotwise._cli.sampling import Row
from slotwise._cli.snapshot import Watcher
from slotwise.errors import SlotwiseError

_COLUMNS = (
    *("name", ">value", ">held", ">waiting", ">oldest hold"),
    *(">seen/s", ">wait p50", ">wait p95"),
)
_RATE_COLUMNS = (">left", ">full in")  # if there is a rate
# key -> column, and what to sort by; names from a to z, numbers with the largest first.
_SORTS: dict[str, tuple[int, Callable[[Row], Any], bool]] = {
    "n": (0, lambda row: row.title, False),
    "v": (1, lambda row: row.value, True),
    "h": (2, lambda row: row.held, True),
    "w": (3, lambda row: row.waiting, True),
    "o": (4, lambda row: row.oldest_hold_seconds or 0.0, True),
    "s": (5, lambda row: row.acquisitions_per_second or 0.0, True),
    "5": (6, lambda row: row.wait_p50_seconds or 0.0, True),
    "9": (7, lambda row: row.wait_p95_seconds or 0.0, True),
}
_KEYS = "sort: n v h w o s 5 9, again to reverse · q quits"


_DETAILS = """\
Without a terminal, or without the package rich, it prints once what it saw in two samples.

Keys: n name, v value, h held, w waiting, o oldest hold, s seen/s, 5 and 9 waits sort by
that column; pressed again, the other way round. q quits.

'seen/s' and the waits are those of the last minute, as seen from outside: an acquisition
that came and went between two samples was not seen, so the rate is a lower bound. A wait
that began and ended between two samples counts as 0, and is shown as '<1 s'.
Only the 200 fullest semaphores are shown, and of tiers each with its three busiest keys.
Of a rate the value is its burst, and it is shown what is left and how long until it is full."""


def _parser() -> Parser:
    parser = Parser(
        "top",
        details=_DETAILS,
        examples="  slotwise top\n"
        "  slotwise top --every 5 --url redis://cache:6379\n"
        "  slotwise top --json         of one moment, for programs",
    )
    parser.add_argument(
        "--every", type=interval, default=1.0, metavar="S", help="time between two samples [1s]"
    )
    parser.add_json()
    parser.add_url()
    return parser


def top(given: argparse.Namespace) -> int:
    """Show it live until ``q``; without a terminal print what two samples have seen."""
    source, every, as_json = Watcher(open_backend(given.url)), given.every, given.json
    if not as_json and sys.stdin.isatty() and sys.stdout.isatty() and have_rich():
        _live(source, every)
        return 0
    source.rows()
    time.sleep(every)  # rates take two samples
    rows = sorted(source.rows(), key=_SORTS["n"][1])
    for error in source.errors:
        print_error("top", error)
    if as_json:
        print_json([_as_dict(row) for row in rows])
    else:
        print_table(_columns(rows), _table(rows, rows, every))
    return 0


def _live(source: Watcher, every: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    sorted_by, reverse = "n", False
    rows: list[Row] = []
    trouble = ""
    console = Console()

    def picture() -> Group:
        column, by, largest_first = _SORTS[sorted_by]
        ordered = sorted(rows, key=by, reverse=largest_first != reverse)
        room = max(console.size.height - 6, 1)
        titles = [
            f"{title} {'▲' if largest_first == reverse else '▼'}" if at == column else title
            for at, title in enumerate(_columns(rows))
        ]
        table = _table(ordered[:room], rows, every)
        cells = [[printable(cell) for cell in line] for line in table]
        more = f" · {len(rows) - room} more" if len(rows) > room else ""
        return Group(
            Text(f"slotwise top  {datetime.now():%H:%M:%S}  {source.backend.location}"),
            rich_table(titles, cells, expand=True),
            Text(trouble or f"{_KEYS}{more}", style="red" if trouble else "dim"),
        )

    def watch(live: Live, pressed: Callable[[float], str]) -> None:
        nonlocal rows, trouble, sorted_by, reverse
        next_look = 0.0
        while True:
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + every
                try:
                    rows = source.rows()
                    trouble = "; ".join(str(each) for each in source.errors)
                except SlotwiseError as error:
                    trouble = f"{error}; trying again"
            live.update(picture(), refresh=True)
            for key in pressed(next_look - time.monotonic()):
                if key in ("q", "\x04"):
                    return
                if key == sorted_by:
                    reverse = not reverse
                elif key in _SORTS:
                    sorted_by, reverse = key, False

    while True:
        try:
            with (
                _leaving_cleanly(),
                _keys() as pressed,
                Live(console=console, screen=True, auto_refresh=False) as live,
            ):
                watch(live, pressed)
                return
        except _Suspended:
            os.kill(os.getpid(), signal.SIGSTOP)  # `fg` goes on here


class _Suspended(BaseException):
    """Ctrl-Z: the shell is to find its terminal as it was."""


@contextmanager
def _leaving_cleanly() -> Iterator[None]:
    """Let signals that stop or end this process do so after the terminal is as it was."""

    def leave(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            raise _Suspended
        sys.exit(128 + number)

    numbers = (signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Keys as they are pressed, unseen: a function that waits for some, but not for long."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], max(seconds, 0.0))
        if not ready:
            return ""
        return os.read(terminal, 1024).decode(errors="replace") or "q"  # its end is an end

    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _as_dict(row: Row) -> dict[str, Any]:
    """All of it; a semaphore has no tier and no key, and only a rate has a level."""
    fields = asdict(row)
    if row.tier is None:
        del fields["tier"], fields["key"]
    if row.level is None:
        del fields["level"], fields["full_in_seconds"]
    return fields


def _columns(rows: Sequence[Row]) -> tuple[str, ...]:
    has_rates = any(row.level is not None for row in rows)
    return (*_COLUMNS, *(_RATE_COLUMNS if has_rates else ()))


def _table(shown: Sequence[Row], rows: Sequence[Row], every: float) -> list[list[str]]:
    """The cells of some of the rows."""
    return [_cells(row, every)[: len(_columns(rows))] for row in shown]


def _cells(row: Row, every: float) -> list[str]:
    return [
        row.title,
        str(row.value) if row.value else "-",
        str(row.held),
        str(row.waiting),
        duration(row.oldest_hold_seconds),
        "" if row.acquisitions_per_second is None else f"{row.acquisitions_per_second:.1f}",
        _wait(row.wait_p50_seconds, every),
        _wait(row.wait_p95_seconds, every),
        "" if row.level is None else f"{row.level:g}",
        duration(row.full_in_seconds),
    ]


def _wait(seconds: float | None, every: float) -> str:
    return f"<{every:g} s" if seconds == 0 else duration(seconds)


COMMANDS = {"top": Command(_parser, top)}
