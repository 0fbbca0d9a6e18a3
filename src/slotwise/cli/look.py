"""``slotwise ls`` and ``slotwise show``: what there is, and who is there."""

from __future__ import annotations

import sys
from typing import Any

from slotwise.cli.places import open_place
from slotwise.cli.say import age, complain, duration, print_json, print_table, printable
from slotwise.values import Claimant


def ls(url: str | None, *, as_json: bool) -> int:
    """All semaphores of a place: how many slots, how many held, how many wait.

    Gives the exit code, which is 1 if one of them can't be read.
    """
    place = open_place(url)
    stats, troubles = place.stats()
    for trouble in troubles:
        complain("ls", trouble)
    rows = [(name, one.max_slots, one.acquired_slots, one.waiting) for name, one in stats.items()]
    if as_json:
        columns = ("name", "value", "held", "waiting")
        print_json([dict(zip(columns, row, strict=True)) for row in sorted(rows)])
    else:
        print_table(("name", ">value", ">held", ">waiting"), sorted(rows))
        if not rows and sys.stderr.isatty():
            complain("ls", f"there is no semaphore {place.words}; 'slotwise run' makes them")
    return 1 if troubles else 0


def show(name: str, url: str | None, *, as_json: bool) -> None:
    """One semaphore, with everybody who holds and who waits."""
    semaphore = open_place(url).find(name)
    holders, waiters = semaphore.holders_sync(), semaphore.waiters_sync()
    stats = semaphore.stats_sync()
    if as_json:
        print_json(
            {
                "name": name,
                "value": stats.max_slots,
                "holders": [_as_dict(each) for each in holders],
                "waiters": [_as_dict(each) for each in waiters],
            }
        )
        return
    held = sum(each.slots for each in holders)
    sys.stdout.write(
        f"{printable(name)}: {held} of {stats.max_slots} slots held, {len(waiters)} waiting\n"
    )
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
