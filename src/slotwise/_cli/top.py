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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from slotwise._admin.backends import open_backend
from slotwise._admin.snapshot import Row, Watcher
from slotwise._cli.flags import JSON, URL, Command, Flag, interval
from slotwise._cli.output import have_rich, print_error, print_json, print_table
from slotwise._cli.signals import handling
from slotwise._cli.top_screen import Screen, columns, keys_in, table

_DETAILS = """\
Without a terminal, or without the package rich, it prints once what it saw in two samples.

Keys: n name, v value, h held, w waiting, o oldest hold, s seen/s, 5 and 9 waits sort by
that column; the same key again reverses the order. The arrow keys choose a row, Enter shows who
holds it and who waits; there the arrow keys choose a holder, k kicks it, and Escape goes back.
r changes the number of slots; f and t freeze and thaw an adaptive value. All ask first. q quits.
Full limits are red, and others that somebody waits for are yellow.

'seen/s' and the waits are those of the last minute, as seen from outside: an acquisition
that came and went between two samples was not seen, so the rate is a lower bound. A wait
that began and ended between two samples counts as 0, and is shown as '<1 s'.
Only the 200 fullest semaphores are shown, and each tier with its three busiest keys.
A rate has no value; what comes back, its burst, what is left and when it is full are shown.
A value that has moved within the last minute is shown with the one before: 20→17."""


def top(given: argparse.Namespace) -> int:
    """Show it live until ``q``; without a terminal print what two samples have seen."""
    source, every, as_json = Watcher(open_backend(given.url)), given.every, given.json
    if not as_json and sys.stdin.isatty() and sys.stdout.isatty() and have_rich():
        _live(source, every)
        return 0
    source.rows()
    time.sleep(every)  # rates take two samples
    rows = sorted(source.rows(), key=lambda row: row.title)
    for error in source.errors:
        print_error("top", error)
    if as_json:
        print_json([_as_dict(row) for row in rows])
    else:
        print_table(columns(rows), table(rows, rows, every))
    return 0


def _live(source: Watcher, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    screen = Screen(source, every)

    def watch(live: Live, pressed: Callable[[float], str]) -> None:
        next_look = 0.0
        while True:
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + every
                screen.look()
            live.update(screen.picture(console.size.height), refresh=True)
            for key in keys_in(pressed(next_look - time.monotonic())):
                if not screen.press(key):
                    return

    while True:
        try:
            with (
                handling(_leave, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP),
                _keys() as pressed,
                Live(console=console, screen=True, auto_refresh=False) as live,
            ):
                watch(live, pressed)
                return
        except _Suspended:
            os.kill(os.getpid(), signal.SIGSTOP)  # `fg` continues here


class _Suspended(BaseException):
    """Ctrl-Z was pressed: the shell should find its terminal as it was."""


def _leave(number: int) -> None:
    """Let a signal that stops or ends this process do so after the terminal is as it was."""
    if number == signal.SIGTSTP:
        raise _Suspended
    sys.exit(128 + number)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Return a function that waits for keys, but not for long; keys are not echoed."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], max(seconds, 0.0))
        if not ready:
            return ""
        return os.read(terminal, 1024).decode(errors="replace") or "q"  # the end of the input quits

    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _as_dict(row: Row) -> dict[str, Any]:
    """Return all of a row; a semaphore has no tier and no key, and only a rate has a level.

    Instead of a value it has a burst.
    """
    groups = (("tier", "key"), ("level", "full_in_seconds"), ("rate",), ("value_before",))
    absent = {name for group in groups if getattr(row, group[0]) is None for name in group}
    shown = {name: value for name, value in asdict(row).items() if name not in absent}
    return shown if row.rate is None else shown | {"value": None, "burst": row.value}


COMMANDS = (
    Command(
        "top",
        top,
        Flag("--every", type=interval, default=1.0, metavar="S", help="between two samples [1s]"),
        JSON,
        URL,
        details=_DETAILS,
        examples="  slotwise top\n"
        "  slotwise top --every 5 --url redis://cache:6379\n"
        "  slotwise top --json         of one moment, for programs",
    ),
)
