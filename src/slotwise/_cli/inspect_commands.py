"""``slotwise ls`` and ``slotwise show``: print the semaphores, their holders and waiters."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from slotwise._cli.backends import open_backend
from slotwise._cli.commands import Command
from slotwise._cli.flags import Parser
from slotwise._cli.output import age, duration, print_error, print_json, print_table, printable
from slotwise._core.results import Claimant, SemaphoreStats


def _ls_parser() -> Parser:
    parser = Parser(
        "ls",
        details="On Redis those are listed that are held, waited for, or closed.",
        examples="  slotwise ls\n"
        "  slotwise ls --used                      only those that are held or waited for\n"
        "  slotwise ls --url redis://cache:6379\n"
        "  slotwise ls --json | jq -r '.[] | select(.waiting > 0) | .name'",
    )
    parser.add_argument(
        "--used", action="store_true", help="only those that somebody holds or waits for"
    )
    parser.add_json()
    parser.add_url()
    return parser


def ls(given: argparse.Namespace) -> int:
    """Print all semaphores: how many slots, how many held, how many waiters.

    The exit code is 1 if one of them can't be read.
    """
    backend = open_backend(given.url)
    stats, errors = backend.stats()
    for error in errors:
        print_error("ls", error)
    found = sorted(
        (name, one)
        for name, one in stats.items()
        if one.acquired_slots or one.waiting or not given.used
    )
    if given.json:
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
            print_error(
                "ls", f"there is no semaphore {backend.location}; 'slotwise run' creates them"
            )
    return 1 if errors else 0


def _show_parser() -> Parser:
    parser = Parser(
        "show",
        examples="  slotwise show backup\n  slotwise show backup --json | jq '.holders[].pid'",
    )
    parser.add_name()
    parser.add_json()
    parser.add_url()
    return parser


def show(given: argparse.Namespace) -> int:
    """Print one semaphore, with its holders and waiters."""
    name = given.name
    semaphore = open_backend(given.url).find(name)
    holders, waiters = semaphore.holders_sync(), semaphore.waiters_sync()
    stats = semaphore.stats_sync()
    if given.json:
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
        return 0
    held = sum(each.slots for each in holders)
    words = f"{name}: {held} of {stats.max_slots} slots held, {len(waiters)} waiting"
    if stats.closed:
        words += ", closed" + ("" if stats.reason is None else f": {stats.reason}")
    sys.stdout.write(f"{printable(words)}\n")
    if not (holders or waiters):
        return 0
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
    return 0


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


COMMANDS = {"ls": Command(_ls_parser, ls), "show": Command(_show_parser, show)}
