"""``slotwise explain``: why an acquisition waits, or a newcomer would."""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import ceil
from typing import Any

from slotwise._admin.backends import Backend, Claimants, NotFound, claimants, open_backend
from slotwise._admin.snapshot import claimant_as_dict
from slotwise._admin.text import command_hint
from slotwise._admin.tier_view import TierCounts, shortages, through, view
from slotwise._cli.flags import JSON, TIERS, URL, Command, Flag, UsageError, count
from slotwise._cli.output import print_json, print_line
from slotwise._core.explain import Explanation, Lack, explain_path, lack_of
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.paths import Needs, Path, PathStats, TierSpec
from slotwise._core.rates import Rate
from slotwise._core.semaphore import Semaphore

_MOST_LACKS = 3  # of all the keys that are full
_LACK_FIELDS = ("tier", "key", "held", "value", "is_rate", "paused_for", "need")


def explain(given: argparse.Namespace) -> int:
    """Print a sentence.

    Raises:
        NotFound: there is no such name, and nobody has that id.
    """
    backend = open_backend(given.url)
    if given.key or given.cost or given.tiers:
        tiers = backend.find_tiers(given.which)
        requested = given.key or given.cost
        found = _with_keys(tiers, given) if requested else _of_tiers(tiers)
    else:
        found = _explain(backend, given.which)
    if given.json:
        print_json(as_dict(found))
    else:
        print_line(str(found))
    return 0


def _explain(backend: Backend, which: str) -> Explanation:
    try:
        limit = backend.find(which)
        return _of_tiers(limit) if isinstance(limit, FoundTiers) else limit.explain_sync()
    except NotFound as unknown:
        found = _by_id(backend, which)
        if found is None:
            listed = command_hint("ls", url=backend.url)
            raise NotFound(f"{unknown}, and nobody has that id; '{listed}' lists names") from None
        return found


def _of_tiers(limit: FoundTiers) -> Explanation:
    """Explain the line, or if there is none what is full."""
    title = repr(limit.name)
    if limit.closure is not None:
        why = limit.closure.reason or ""
        return Explanation("new", None, (), None, title=title, closed=why)
    seen, tiers = claimants(limit), view(limit)

    def lack(spec: TierSpec, each: TierCounts, need: int = 1) -> Lack:
        return lack_of(
            *(limit.specs, spec, each.key, ceil(each.taken), each.value),
            through(seen.holders, spec.name, each.key),
            *(each.paused_for, need),
        )

    if not seen.waiters and not any(spec.keyed for spec in limit.specs):
        return _explain_path(limit, None, seen, (None,) * len(limit.specs))  # there is one path
    short = shortages(tiers, seen.waiters)
    if short:
        first = short[0]
        lacks = tuple(lack(each.spec, each.counts, each.need) for each in short[:_MOST_LACKS])
        found = _explain_path(limit, first.waiters[0].acquisition_id, seen)
        soon = found.estimate if first.next_grant is None else first.next_grant
        return replace(found, lacks=lacks, estimate=soon, waiting=len(seen.waiters))
    full = [
        lack(tier.spec, each)
        for tier in tiers.tiers
        for each in tier.keys or (tier.total,)
        if (each.value and ceil(each.taken) >= each.value) or each.paused_for > 0
    ]
    place = len(seen.waiters) + 1 if full or seen.waiters else None
    return Explanation("new", place, tuple(full[:_MOST_LACKS]), None, title=title)


def _by_id(backend: Backend, acquisition_id: str) -> Explanation | None:
    for name in backend.names():
        try:
            limit = backend.find(name, "semaphore")
        except NotFound:  # deleted just now
            continue
        assert isinstance(limit, Semaphore)
        found = limit.explain_sync(acquisition_id)
        if found.state != "unknown":
            return found
    for tiers in backend.tiers()[0].values():
        found = _explain_path(tiers, acquisition_id, claimants(tiers))
        if found.state != "unknown":
            return found
    return None


def _with_keys(tiers: FoundTiers, given: argparse.Namespace) -> Explanation:
    """Explain a request made now, with the keys and costs of the flags."""
    keyed = [spec.name for spec in tiers.specs if spec.keyed and spec.key_of is None]
    rates = [spec.name for spec in tiers.specs if isinstance(spec.value, Rate)]
    names = ", ".join(rates) or "none"
    if len(rates) != 1 and any(tier is None for tier, _ in given.cost):
        raise UsageError(f"--cost needs TIER=N: of {tiers.name!r}, these are rates: {names}")
    keys = dict(given.key)
    costs = {rates[0] if tier is None else tier: cost for tier, cost in given.cost}
    if {*keys} != {*keyed}:
        flags = " ".join(f"--key {name}=K" for name in keyed) or "no --key"
        raise UsageError(f"a request for {tiers.name!r} has {flags}")
    if not costs.keys() <= {*rates}:
        raise UsageError(f"--cost is that of a rate; of {tiers.name!r}, these are rates: {names}")
    path = tuple(keys.get(spec.key_of or spec.name) for spec in tiers.specs)
    needs = tuple(costs.get(spec.name, 1) for spec in tiers.specs)
    return _explain_path(tiers, None, claimants(tiers), path, needs)


def _explain_path(
    tiers: FoundTiers,
    acquisition_id: str | None,
    seen: Claimants,
    path: Path | None = None,
    needs: Needs | None = None,
) -> Explanation:
    paths, title = tiers.paths, repr(tiers.name)

    def look(path: Path) -> tuple[PathStats, float | None]:
        return paths.stats_of_sync(path), paths.estimate_sync(path, needs)

    return explain_path(
        *(title, acquisition_id, seen.waiters, seen.holders, tiers.specs, look, path, needs)
    )


def _key(text: str) -> tuple[str, str]:
    tier, equals, key = text.partition("=")
    if not (tier and equals and key):
        raise argparse.ArgumentTypeError(f"must be TIER=KEY, not {text!r}")
    return tier, key


def _cost(text: str) -> tuple[str | None, int]:
    """Return the tier, None for the only rate, and the cost."""
    tier, equals, cost = text.partition("=")
    return (tier, count(cost)) if equals else (None, count(text))


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
        "waiting": found.waiting,
        "closed": found.closed is not None,
        "reason": found.closed or None,
        "sentence": str(found),
    }


COMMANDS = (
    Command(
        "explain",
        explain,
        Flag("which", metavar="ID|NAME", help="an acquisition, a semaphore or tiers"),
        Flag(
            "--key",
            type=_key,
            action="append",
            default=[],
            metavar="TIER=KEY",
            help="a key of the request; once for each keyed tier",
        ),
        Flag(
            "--cost",
            type=_cost,
            action="append",
            default=[],
            metavar="[TIER=]N",
            help="what the request takes of a rate [1]; TIER= can be left out if there is only one",
        ),
        TIERS,
        JSON,
        URL,
        details="For an ID: its place in the queue, what it lacks, and who has held that longest.\n"
        "For a NAME: the same for a request made now. For tiers: what those who wait now lack;\n"
        "--key and --cost explain a request made now, with these keys and costs.",
        examples="  slotwise explain api\n"
        "  slotwise explain model-api --key tenant=acme --cost tokens=500\n"
        "  slotwise explain sw-3fa9-17 --url redis://cache:6379\n"
        "  slotwise explain api --json | jq '.lacks[].oldest.pid'",
    ),
)
