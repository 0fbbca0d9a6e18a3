"""``slotwise explain``: why an acquisition waits, or a newcomer would."""

from __future__ import annotations

import argparse
import sys
from math import ceil
from typing import Any

from slotwise._admin.backends import Backend, NotFound, open_backend
from slotwise._admin.hints import command_hint
from slotwise._admin.snapshot import claimant_as_dict, claimants
from slotwise._admin.tier_view import through, view
from slotwise._cli.commands import Command
from slotwise._cli.flags import Parser
from slotwise._cli.output import print_json, printable
from slotwise._core.explain import Explanation, explain_path, lack_of
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.paths import Path, PathStats
from slotwise._core.semaphore import Semaphore

_MOST_LACKS = 3  # of all the keys that are full
_LACK_FIELDS = ("tier", "key", "held", "value", "is_rate", "paused_for")


def _parser() -> Parser:
    parser = Parser(
        "explain",
        details="For an ID: its place in the queue, what it lacks, and who has held that longest.\n"
        "For a NAME: the same for a request made now; for tiers, whatever is full.",
        examples="  slotwise explain api\n"
        "  slotwise explain sw-3fa9-17 --url redis://cache:6379\n"
        "  slotwise explain api --json | jq '.lacks[].oldest.pid'",
    )
    parser.add_argument("which", metavar="ID|NAME", help="an acquisition, a semaphore or tiers")
    parser.add_json()
    parser.add_url()
    return parser


def explain(given: argparse.Namespace) -> int:
    """Print a sentence.

    Raises:
        NotFound: there is no such name, and nobody has that id.
    """
    found = _explain(open_backend(given.url), given.which)
    if given.json:
        print_json(as_dict(found))
    else:
        sys.stdout.write(f"{printable(str(found))}\n")
    return 0


def _explain(backend: Backend, which: str) -> Explanation:
    try:
        return _newcomer(backend.find_either(which))
    except NotFound as unknown:
        found = _by_id(backend, which)
        if found is None:
            listed = command_hint("ls", url=backend.url)
            raise NotFound(f"{unknown}, and nobody has that id; '{listed}' lists names") from None
        return found


def _newcomer(limit: Semaphore | FoundTiers) -> Explanation:
    if not isinstance(limit, FoundTiers):
        return limit.explain_sync()
    title = repr(limit.name)
    if limit.closure is not None:
        why = limit.closure.reason or ""
        return Explanation("new", None, (), None, title=title, closed=why)
    seen = claimants(limit)
    full = [
        lack_of(
            *(limit.specs, tier.spec, each.key, ceil(each.taken), each.value),
            through(seen.holders, tier.spec.name, each.key),
            each.paused_for,
        )
        for tier in view(limit).tiers
        for each in tier.keys or (tier.total,)
        if (each.value and ceil(each.taken) >= each.value) or each.paused_for > 0
    ]
    place = len(seen.waiters) + 1 if full else None
    return Explanation("new", place, tuple(full[:_MOST_LACKS]), None, title=title)


def _by_id(backend: Backend, acquisition_id: str) -> Explanation | None:
    for name in backend.names():
        try:
            found = backend.find(name).explain_sync(acquisition_id)
        except NotFound:  # deleted just now
            continue
        if found.state != "unknown":
            return found
    for tiers in backend.tiers()[0].values():
        found = explain_in_tiers(tiers, acquisition_id)
        if found.state != "unknown":
            return found
    return None


def explain_in_tiers(tiers: FoundTiers, acquisition_id: str) -> Explanation:
    paths, seen = tiers.paths, claimants(tiers)

    def look(path: Path) -> tuple[PathStats, float | None]:
        return paths.stats_of_sync(path), paths.estimate_sync(path)

    title = repr(tiers.name)
    return explain_path(title, acquisition_id, seen.waiters, seen.holders, tiers.specs, look, None)


def as_dict(found: Explanation) -> dict[str, Any]:
    return {
        "state": found.state,
        "place": found.place,
        "lacks": [
            {
                **{name: getattr(lack, name) for name in _LACK_FIELDS},
                "oldest": None if lack.oldest is None else claimant_as_dict(lack.oldest),
            }
            for lack in found.lacks
        ],
        "estimate": found.estimate,
        "closed": found.closed is not None,
        "reason": found.closed or None,
        "sentence": str(found),
    }


COMMANDS = {"explain": Command(_parser, explain)}
