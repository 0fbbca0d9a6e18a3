"""``slotwise ls`` and ``slotwise show``: print semaphores and tiers, their holders and waiters."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from slotwise._admin import tier_view
from slotwise._admin.backends import claimants, open_backend
from slotwise._admin.snapshot import claimant_as_dict, survey
from slotwise._admin.text import duration, units
from slotwise._admin.tier_view import TierCounts, TiersView
from slotwise._admin.verbs import choose_tier
from slotwise._cli.flags import (
    JSON,
    KEY,
    NAME,
    TIER,
    TIERS,
    URL,
    Command,
    Flag,
    whole_number,
)
from slotwise._cli.output import print_error, print_json, print_line, print_table
from slotwise._core.adaptive import Change
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.semaphore import Semaphore
from slotwise._core.stats import Claimant, SemaphoreStats, age

_COUNTS = (">value", ">held", ">waiting")
_RATES = (">rate", ">burst", ">left", ">full in")
_NO_RATE = ("",) * len(_RATES)
_KEYS = 3  # the busiest of each tier, in `ls`
_KEYS_SHOWN = 20  # the same in `show`
_CHANGES_SHOWN = 20  # of an adaptive value, the latest


def ls(given: argparse.Namespace) -> int:
    """Print all semaphores and tiers: how many slots, how many held, how many waiters.

    The exit code is 1 if one of them can't be read.
    """
    backend = open_backend(given.url)
    seen = survey(backend, used=given.used, idle=backend.keeps_idle)
    semaphores = sorted(seen.semaphores.items(), key=lambda pair: pair[0])
    tiers = [seen.tiers[name] for name in sorted(seen.tiers)]
    errors = seen.errors
    for each in errors:
        print_error("ls", each)
    most = max(given.keys, 0)
    if given.json:
        columns = ("name", "value", "held", "waiting", "closed", "reason", "paused_for", "frozen")
        rows = [
            (*_counts(name, one), one.closed, one.reason, round(one.paused_for, 3), one.frozen)
            for name, one in semaphores
        ]
        listed = [dict(zip(columns, row, strict=True)) for row in rows]
        listed += [_tiers_as_dict(each, most) for each in tiers]
        print_json(sorted(listed, key=lambda each: each["name"]))
    else:
        _print_list(semaphores, tiers, most)
        if not (semaphores or tiers) and sys.stderr.isatty():
            print_error(
                "ls", f"there are no semaphores {backend.location}; 'slotwise run' creates them"
            )
    return 1 if errors else 0


def _print_list(
    semaphores: list[tuple[str, SemaphoreStats]], tiers: list[TiersView], most: int
) -> None:
    """Print a line for each semaphore, tier or key; columns that are not used are left out."""
    titles = ["name", "tier", "key", *_COUNTS, *_RATES, "closed"]
    rows: list[tuple[str, ...]] = []
    for name, one in semaphores:
        _, value, held, waiting = _counts(name, one)
        cells = (str(value), str(held), str(waiting))
        rows.append((name, "", "", *cells, *_NO_RATE, _closed(one)))
    for each in tiers:
        name, closed = each.found.name, each.closed
        if not each.tiers:  # closed before anybody used them
            rows.append((name, "", "", "", "0", "0", *_NO_RATE, closed))
        for tier in each.tiers:
            for counts in tier.rows(most):
                paused = _paused(max(counts.paused_for, tier.total.paused_for))
                state = closed or paused or _frozen(counts)
                rows.append((name, tier.spec.name, *_cells(counts), state))
    rows.sort(key=lambda row: row[0])
    optional = {1, 2, *range(6, len(titles))}
    unused = {at for at in optional if not any(row[at] for row in rows)}
    if 6 not in unused:
        unused -= {*range(6, len(titles) - 1)}  # the columns of rates, all or none
    if tiers:
        unused -= {1, 2}
    shown = [at for at in range(len(titles)) if at not in unused]
    print_table(
        [titles[at] for at in shown],
        [[row[at] for at in shown] for row in rows],
    )


def _cells(counts: TierCounts) -> tuple[str, ...]:
    """Return the key, and the cells of `_COUNTS` and `_RATES`: a rate has no slots."""
    value, is_rate = str(counts.value) if counts.value else "-", counts.rate is not None
    return (
        "" if counts.key is None else counts.key or "''",
        *(("", "") if is_rate else (value, str(counts.held))),
        str(counts.waiting),
        *((counts.rate_words or "", value) if is_rate else ("", "")),
        "" if counts.level is None else units(counts.level),
        duration(counts.full_in),
    )


def _tiers_as_dict(each: TiersView, most: int) -> dict[str, Any]:
    found = each.found
    counts = {"name": found.name, "value": None, "held": found.holders, "waiting": found.waiters}
    return counts | each.as_dict(most)


def show(given: argparse.Namespace) -> int:
    """Print one semaphore or the tiers of one name, with holders and waiters."""
    chosen = given.tier is not None or given.key is not None
    found = open_backend(given.url).find(given.name, "tiers" if chosen or given.tiers else None)
    if isinstance(found, FoundTiers):
        return _show_tiers(found, given)
    return _show_semaphore(found, given)


def _show_semaphore(semaphore: Semaphore, given: argparse.Namespace) -> int:
    name = given.name
    found = claimants(semaphore)
    holders, waiters = found.holders, found.waiters
    stats = semaphore.stats_sync()
    changes = _changes_of(semaphore)
    if given.json:
        print_json(
            {
                "name": name,
                "value": stats.max_slots,
                "closed": stats.closed,
                "reason": stats.reason,
                "paused_for": round(stats.paused_for, 3),
                "frozen": stats.frozen,
                "holders": [claimant_as_dict(each) for each in holders],
                "waiters": [claimant_as_dict(each) for each in waiters],
            }
            | ({} if changes is None else {"changes": [*map(asdict, changes)]})
        )
        return 0
    held = sum(each.slots for each in holders)
    words = f"{name}: {held} of {stats.max_slots} slots held, {len(waiters)} waiting"
    if stats.closed:
        words += ", closed" + ("" if stats.reason is None else f": {stats.reason}")
    elif stats.paused_for:
        words += f", paused for {duration(stats.paused_for)}"
    if stats.frozen:
        words += ", frozen"
    print_line(words)
    _print_claimants(holders, waiters)
    _print_changes([("", each) for each in changes or ()])
    return 0


def _show_tiers(found: FoundTiers, given: argparse.Namespace) -> int:
    chosen = None
    if given.tier is not None or given.key is not None:
        chosen = choose_tier(found, given.tier, given.key)
    seen = claimants(found)
    holders, waiters = seen.holders, seen.waiters
    view = tier_view.view(found)
    if chosen is not None:
        view = view.only(chosen.name, given.key)
        holders = tier_view.through(holders, chosen.name, given.key)
        waiters = tier_view.through(waiters, chosen.name, given.key)
    changes = _changes_of_tiers(view, given.key)
    if given.json:
        moves = [{"tier": tier, "key": key, **asdict(each)} for tier, key, each in changes]
        print_json(
            view.as_dict()
            | {
                "holders": [claimant_as_dict(each, tiers=True) for each in holders],
                "waiters": [
                    {**claimant_as_dict(each, tiers=True), "lacks": each.lacks} for each in waiters
                ],
            }
            | ({"changes": moves} if any(tier.spec.adaptive for tier in view.tiers) else {})
        )
        return 0
    words = f"{found.name}: {len(holders)} holding, {len(waiters)} waiting"
    if found.closure is not None:
        words += ", closed" + ("" if found.closure.reason is None else f": {found.closure.reason}")
    for which, left in view.paused():
        words += f", {which} paused for {duration(left)}"
    for which in view.frozen():
        words += f", {which} frozen"
    print_line(words)
    most = _KEYS_SHOWN if chosen is None else None
    rows = [(tier.spec.name, *_cells(one)) for tier in view.tiers for one in tier.rows(most)]
    has_rates = any(tier.total.rate is not None for tier in view.tiers)
    titles = ("tier", "key", *_COUNTS, *_RATES)
    at_most = len(titles) if has_rates else len(titles) - len(_RATES)
    print_table(titles[:at_most], [row[:at_most] for row in rows])
    if holders or waiters:
        sys.stdout.write("\n")
    _print_claimants(holders, waiters, tiers=True)
    _print_changes(
        [(tier if key is None else f"{tier}={key}", each) for tier, key, each in changes]
    )
    return 0


def _changes_of(semaphore: Semaphore) -> list[Change] | None:
    """Return how an adaptive value has moved; None for a fixed one."""
    try:
        return semaphore.changes_sync()
    except TypeError:
        return None


def _changes_of_tiers(view: TiersView, key: str | None) -> list[tuple[str, str | None, Change]]:
    """Return how adaptive tiers have moved, or the busiest keys of those that have keys."""
    found: list[tuple[str, str | None, Change]] = []
    for tier in view.tiers:
        if tier.spec.adaptive is None:
            continue
        keys: list[str | None] = [None]
        if tier.spec.keyed:
            keys = [each.key for each in tier.keys[:_KEYS_SHOWN] if key in (None, each.key)]
        for each in keys:
            changes = view.found.paths.changes_sync(tier.spec.name, each)
            found += [(tier.spec.name, each, change) for change in changes]
    found.sort(key=lambda row: row[2].at)
    return found


def _print_changes(changes: list[tuple[str, Change]]) -> None:
    """Print the last changes, the latest at the end, each with its key if there are several."""
    if not changes:
        return
    shown = changes[-_CHANGES_SHOWN:]
    which = ("of",) * any(of for of, _ in shown)
    sys.stdout.write("\n")
    print_table(
        ("changed", *which, ">from", ">to", "because"),
        [
            (
                f"{duration(max(time.time() - each.at, 0.0))} ago",
                *((of,) if which else ()),
                *(str(each.old), str(each.new), each.reason),
            )
            for of, each in shown
        ],
    )


def _print_claimants(
    holders: list[Claimant], waiters: list[Claimant], *, tiers: bool = False
) -> None:
    if not (holders or waiters):
        return
    rows = [("holds", each) for each in holders] + [("waits", each) for each in waiters]
    print_table(
        ("state", ">for", ">slots", *(("keys", "lacks") * tiers), "host", ">pid", "label", "id"),
        [
            (
                state,
                duration(age(each.since)),
                _pairs(each.needs) or each.slots,
                *((_pairs(each.keys), each.lacks or "") * tiers),
                each.host or "",
                "" if each.pid is None else each.pid,
                "unreadable" if each.unreadable else each.label or "",
                each.acquisition_id,
            )
            for state, each in rows
        ],
    )


def _pairs(those: Mapping[str, object]) -> str:
    """``tenant=acme model=large``."""
    return " ".join(f"{name}={value}" for name, value in those.items())


def _counts(name: str, stats: SemaphoreStats) -> tuple[str, int, int, int]:
    return name, stats.max_slots, stats.acquired_slots, stats.waiting


def _closed(stats: SemaphoreStats) -> str:
    if stats.closed:
        return stats.reason or "closed"
    return _paused(stats.paused_for) or _frozen(stats)


def _paused(seconds: float) -> str:
    return f"paused for {duration(seconds)}" if seconds > 0 else ""


def _frozen(stats: SemaphoreStats | TierCounts) -> str:
    return "frozen" if stats.frozen else ""


COMMANDS = (
    Command(
        "ls",
        ls,
        Flag("--used", action="store_true", help="only those that somebody holds or waits for"),
        Flag(
            "--keys",
            type=whole_number,
            default=_KEYS,
            metavar="N",
            help=f"how many keys of a tier are listed, the busiest [{_KEYS}]",
        ),
        JSON,
        URL,
        details="On Redis, only those that are held, waited for or closed are listed. Each tier\n"
        "is listed with its busiest keys: those with the most waiters, then the fullest.",
        examples="  slotwise ls\n"
        "  slotwise ls --used                      only those that are held or waited for\n"
        "  slotwise ls --url redis://cache:6379 --keys 10\n"
        "  slotwise ls --json | jq -r '.[] | select(.waiting > 0) | .name'",
    ),
    Command(
        "show",
        show,
        NAME,
        TIER,
        KEY,
        TIERS,
        JSON,
        URL,
        details="For tiers, also how full each of them is, and which tier each waiter lacks. With\n"
        "--key, only the holders and waiters of that key. For adaptive values, also how they have\n"
        "moved lately, and why.",
        examples="  slotwise show backup\n"
        "  slotwise show backup --json | jq '.holders[].pid'\n"
        "  slotwise show model-api --tier tenant              all of its keys\n"
        "  slotwise show model-api --tier tenant --key acme\n"
        "  slotwise show model-api --json | jq -r '.waiters[].lacks' | sort | uniq -c",
    ),
)
