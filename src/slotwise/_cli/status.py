"""The status line while ``slotwise run`` waits on a terminal: the place in the queue, who holds.

It is overwritten every second, and removed when the wait ends.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slotwise._cli.output import age, cut, duration, printable
from slotwise._cli.signals import in_foreground
from slotwise._core.results import Claimant
from slotwise._core.semaphore import Semaphore
from slotwise.errors import SlotwiseError

_DELAY = 0.3  # for shorter waits a line would only flicker
_REFRESH = 1.0
_CLEAR = "\r\x1b[K"


@contextmanager
def status_while_waiting(semaphore: Semaphore) -> Iterator[None]:
    """Keep the status on stderr up to date, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    shown = asyncio.Event()
    showing = asyncio.ensure_future(_show(semaphore, shown))
    try:
        yield
    finally:
        showing.cancel()
        if shown.is_set():  # else the line may be a prompt of somebody else
            _write(_CLEAR)


async def _show(semaphore: Semaphore, shown: asyncio.Event) -> None:
    await asyncio.sleep(_DELAY)
    while True:
        try:
            stats = await semaphore.stats()
            line = describe(
                semaphore.name or "",
                stats.max_slots,
                await semaphore.holders(),
                await semaphore.waiters(),
            )
        except SlotwiseError as error:
            line = f"waiting for {semaphore.name!r}: {error}"
        width = max(shutil.get_terminal_size().columns - 1, 1)
        line = printable(line)
        shown.set()
        _write(_CLEAR + cut(line, width))
        await asyncio.sleep(_REFRESH)


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
        longest = max(holders, key=lambda each: age(each.since) or 0.0)
        words += f", by {who(longest)} for {duration(age(longest.since))}"
        if len(holders) > 1:
            words += f" and {len(holders) - 1} more"
    return words


def who(claimant: Claimant) -> str:
    """Return how messages name a holder or waiter."""
    if claimant.pid is None:
        return claimant.acquisition_id
    here = claimant.host == _host()
    words = f"pid {claimant.pid}" + ("" if here else f" on {claimant.host}")
    return f"{words} {claimant.label!r}" if claimant.label else words


def _is_us(claimant: Claimant) -> bool:
    return claimant.pid == os.getpid() and claimant.host == _host()


def _host() -> str:
    return socket.gethostname().replace(" ", "_")


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
    except OSError:  # the terminal is gone, the wait goes on
        pass
