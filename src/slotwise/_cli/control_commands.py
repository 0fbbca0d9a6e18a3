"""``slotwise resize``, ``kick``, ``close`` and ``open``: changing what others are using."""

from __future__ import annotations

import shlex
import sys

from slotwise._cli.backends import Backend, NoSuchThing, like, open_backend
from slotwise._cli.output import age, duration, printable
from slotwise._cli.status import who
from slotwise._core.results import Claimant
from slotwise._core.semaphore import Semaphore


class Declined(Exception):
    """The person said no, or there was nobody to ask."""


def resize(name: str, value: int, url: str | None) -> None:
    """Give a semaphore another value; waiters are served at once if it grows."""
    semaphore = open_backend(url).find(name)
    before = semaphore.stats_sync().max_slots
    semaphore.resize_sync(value)
    _tell(f"{name!r} has {value} {_slots(value)} now, {before} before")


def close(name: str, url: str | None, *, reason: str | None, yes: bool) -> None:
    """Reject waiters and newcomers, wherever they are, until ``slotwise open``.

    Raises:
        Declined: it was not agreed to; nothing has changed.
    """
    semaphore = open_backend(url).find(name)
    stats = semaphore.stats_sync()
    undo = f"'slotwise open {shlex.quote(name)}'"
    if not yes:
        waiters = _count(stats.waiting, "waiter")
        _ask(f"Close {name!r}, rejecting {waiters} now and all newcomers until {undo}?")
    semaphore.close_everywhere_sync(reason)
    held = _count(stats.acquired_slots, "slot")
    _tell(f"{name!r} is closed: rejected {_count(stats.waiting, 'waiter')}, {held} still held")
    _tell(f"{undo} undoes it")


def reopen(name: str, url: str | None) -> None:
    """Undo `close`."""
    semaphore = open_backend(url).find(name)
    was_closed = semaphore.stats_sync().closed
    semaphore.reopen_sync()
    _tell(f"{name!r} is open" + ("" if was_closed else ", and was not closed"))


def kick(acquisition_id: str, url: str | None, *, yes: bool) -> None:
    """End somebody's acquisition. ``slotwise run`` ends its command then.

    Raises:
        NoSuchThing: nobody holds by that id.
        Declined: it was not agreed to.
    """
    semaphore, holder = _find(open_backend(url), acquisition_id)
    words = (
        f"{who(holder)}, which has held {holder.slots} {_slots(holder.slots)} of"
        f" {semaphore.name!r} for {duration(age(holder.since)) or 'an unknown time'}"
    )
    if not yes:
        _ask(f"Kick {words}?")
    if not semaphore.kick_sync(acquisition_id):
        raise NoSuchThing(f"{acquisition_id!r} has ended in the meantime; nothing was kicked")
    _tell(f"kicked {words}")


def _find(place: Backend, acquisition_id: str) -> tuple[Semaphore, Claimant]:
    known = []
    for name in place.names():
        try:
            semaphore = place.find(name)
        except NoSuchThing:  # since a moment ago
            continue
        for holder in semaphore.holders_sync():
            if holder.acquisition_id == acquisition_id:
                return semaphore, holder
            known.append(holder.acquisition_id)
        if any(each.acquisition_id == acquisition_id for each in semaphore.waiters_sync()):
            raise NoSuchThing(
                f"{acquisition_id!r} waits for {name!r} and holds nothing yet; only holders"
                f" can be kicked"
            )
    raise NoSuchThing(
        f"nobody {place.words} holds by the id {acquisition_id!r}{like(acquisition_id, known)};"
        f" 'slotwise show NAME' lists the ids"
    )


def _ask(question: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Declined("without a terminal to ask on, --yes is required")
    sys.stderr.write(f"{printable(question)} [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("declined; nothing was done")


def _slots(count: int) -> str:
    return "slot" if count == 1 else "slots"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _tell(words: str) -> None:
    sys.stdout.write(f"{printable(words)}\n")
    sys.stdout.flush()
