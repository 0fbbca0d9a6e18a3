"""The status line while ``slotwise run`` waits on a terminal: its place, and who holds.

It is overwritten every second, and removed when the wait ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotwise._admin.text import describe_claimant, duration, host
from slotwise._cli.output import cut, printable
from slotwise._cli.signals import in_foreground
from slotwise._core import fork
from slotwise._core.semaphore import Semaphore
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise._core.stats import Claimant

_DELAY = 0.3  # for shorter waits a line would only flicker
_REFRESH = 1.0
_CLEAR = "\r\x1b[K"


class StatusWhileWaiting:
    """Keeps the status on stderr, which is a terminal, up to date.

    A thread writes it: a server may take long to answer.
    """

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._ended = threading.Event()
        self._writing = fork.new_lock()
        self._is_shown = False

    def __enter__(self) -> None:
        threading.Thread(target=self._show, name="slotwise-status", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._writing:
            if self._is_shown:  # otherwise the line may be somebody else's prompt
                _write(_CLEAR)

    def _show(self) -> None:
        semaphore = self._semaphore
        pause = _DELAY
        while not self._ended.wait(pause):
            pause = _REFRESH
            try:
                line = describe(
                    semaphore.name or "",
                    semaphore.stats_sync().max_slots,
                    semaphore.holders_sync(),
                    semaphore.waiters_sync(),
                )
            except SlotwiseError as error:
                line = f"waiting for {semaphore.name!r}: {error}"
            width = max(shutil.get_terminal_size().columns - 1, 1)
            with self._writing:
                if not self._ended.is_set():
                    self._is_shown = True
                    _write(_CLEAR + cut(printable(line), width))


def describe(
    name: str, value: int, holders: Sequence[Claimant], waiters: Sequence[Claimant]
) -> str:
    """``waiting for 'api': 2nd of 3 in line; 1 of 1 held, by pid 4711 'backup' for 12 s``."""
    words = f"waiting for {name!r}: "
    place = next((at for at, each in enumerate(waiters, 1) if _is_us(each)), None)
    if place is not None:
        words += f"{_ordinal(place)} of {len(waiters)} in line; "
    words += f"{sum(each.slots for each in holders)} of {value} held"
    if holders:
        from slotwise._core.stats import age  # loaded by now: claimants are of that module

        longest = max(holders, key=lambda each: age(each.since) or 0.0)
        words += f", by {describe_claimant(longest)} for {duration(age(longest.since))}"
        if len(holders) > 1:
            words += f" and {len(holders) - 1} more"
    return words


def _is_us(claimant: Claimant) -> bool:
    return claimant.pid == os.getpid() and claimant.host == host()


def _ordinal(place: int) -> str:
    if place % 100 in (11, 12, 13):
        return f"{place}th"
    return f"{place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place % 10, 'th') }"


def _write(text: str) -> None:
    if not in_foreground():
        return  # a job in the background leaves the terminal to others
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # the terminal is gone, the wait continues
        pass
