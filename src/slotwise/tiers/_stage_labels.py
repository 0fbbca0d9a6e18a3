"""Labels that say which acquisition of tiers holds or waits for a slot of one of their semaphores.

The label of the caller comes first, then the id and the keys in brackets: ``import
[s1f-7 user=alice]``; ``[s1f-7*2,3 user=alice]`` takes two slots of the first tier and three
of the second. So whoever looks at the semaphore knows whose slot it is, and
whoever looks at the tiers, in any process, finds all slots of an acquisition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote, unquote

from slotwise._core.paths import Needs, TierSpec, needs_by_name
from slotwise._core.results import Claimant

_LABEL = re.compile(
    r"(?:(.*) )?\[(s[0-9a-f]+-[0-9]+)(?:\*([0-9]+(?:,[0-9]+)*))?((?: \w+=\S*)*)\]", re.DOTALL
)


def write_label(
    label: str | None, acquisition_id: str, keys: Mapping[str, str], needs: Needs | None
) -> str:
    several = "" if needs is None else f"*{','.join(map(str, needs))}"
    words = "".join([f" {tier}={_quoted(key)}" for tier, key in keys.items()])
    written = f"[{acquisition_id}{several}{words}]"
    return written if label is None else f"{label} {written}"


def _quoted(key: str) -> str:
    return key if key.isalnum() and key.isascii() else quote(key, safe="")


def read_claimant(claimant: Claimant, tiers: Sequence[TierSpec]) -> Claimant | None:
    """Return who holds or waits for tiers; None if it is a user of the semaphore alone."""
    found = _LABEL.fullmatch(claimant.label or "")
    if found is None:
        return None
    label, acquisition_id, several, words = found.groups()
    needs = tuple(map(int, several.split(","))) if several else None
    if needs is not None and len(needs) != len(tiers):
        return None
    pairs = [word.split("=", 1) for word in words.split()]
    return replace(
        claimant,
        acquisition_id=acquisition_id,
        slots=1 if needs is None else needs[-1],
        label=label,
        keys={tier: unquote(key) for tier, key in pairs},
        needs=needs_by_name(tiers, needs),
    )
