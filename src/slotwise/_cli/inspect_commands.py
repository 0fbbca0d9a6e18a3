"""``slotwise ls`` and ``slotwise show``: what there is, and who is there."""

from __future__ import annotations

import sys
from typing import Any

from slotwise._cli.backends import open_backend
from slotwise._cli.output import age, complain, duration, print_json, print_table, printable
from slotwise._core.results import Claimant, SemaphoreStats


def ls(url: str | None, *, as_json: bool) -> int:
    """All semaphores of a place: how many slots, how many held, how many wait.

    Gives the exit code, which is 1 if one of them can't be read.
    """
    place = open_backend(url)
    stats, troubles = place.stats()
    for trouble in troubles:
        complain("ls", trouble)
    found = sorted(stats.items())
    if as_json:
        columns = ("name", "value", "held", "waiting", "closed", "reason")
        rows = [(*_counts(name, one), one.closed, one.reason) for name, one in found]
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        titles: tuple[str, ...] = ("name", ">value", ">held", ">waiting")
        table: list[tuple[object, ...]] = [_counts(name, one) for name, one in found]
        if any(one.closed for _, one in found):
            titles = (*titles, "closed")
            table = [(*_counts(name, one), _closed(one)) for name, one in found]
        print_table(titles, table)
        if not found and sys.stderr.isatty():
            complain("ls", f"there is no semaphore {place.words}; 'slotwise run' makes them")
    return 1 if troubles else 0


def show(name: str, url: str | None, *, as_json: bool) -> None:
    """One semaphore, with everybody who holds and who waits."""
    semaphore = open_backend(url).find(name)
    holders, waiters = semaphore.holders_sync(), semaphore.waiters_sync()
    stats = semaphore.stats_sync()
    if as_json:
        print_json(
            {
                "name": name,
                "value": stats.max_slots,
                "closed": stats.closed,
                "reason": stats.reason,
                "holders": [_as_dict(each) for each in holders],
                "waiters": [_as_dict(each) for each in waiters],
            }
        )
        return
    held = sum(each.slots for each in holders)
    words = f"{name}: {held} of {stats.max_slots} slots held, {len(waiters)} waiting"
    if stats.closed:
        words += ", closed" + ("" if stats.reason is None else f": {stats.reason}")
    sys.stdout.write(f"{printable(words)}\n")
    if not (holders or waiters):
        return
    rows = [("holds", each) for each in holders] + [("waits", each) for each in waiters]
    print_table(
        ("state", ">for", ">slots", "host", ">pid", "label", "id"),
        [
            (
                state,
                duration(age(each.since)),
                each.slots,
                each.host or "",
                "" if each.pid is None else each.pid,
                "unreadable" if each.unreadable else each.label or "",
                each.acquisition_id,
            )
            for state, each in rows
        ],
    )


def _counts(name: str, stats: SemaphoreStats) -> tuple[str, int, int, int]:
    return name, stats.max_slots, stats.acquired_slots, stats.waiting


def _closed(stats: SemaphoreStats) -> str:
    return (stats.reason or "closed") if stats.closed else ""


def _as_dict(claimant: Claimant) -> dict[str, Any]:
    return {
        "id": claimant.acquisition_id,
        "since": None if claimant.since is None else claimant.since.isoformat(),
        "host": claimant.host,
        "pid": claimant.pid,
        "label": claimant.label,
        "slots": claimant.slots,
        "slot_number": claimant.slot_number,
        "unreadable": claimant.unreadable,
    }
