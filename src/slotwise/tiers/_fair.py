"""fair_specs: tiers for a backend, with what fair order needs to know about them.

It checks arguments; who is next is decided by the rules of `slotwise._ledger.paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from slotwise._core.arguments import check_word
from slotwise._core.paths import TierSpec
from slotwise._core.priorities import check_weight
from slotwise._core.redaction import kind_of, redacted_repr
from slotwise.tiers._tier import Tier


def fair_specs(
    tiers: Sequence[Tier],
    *,
    order: str,
    fair_by: str | None,
    weight: float | Callable[[str], float],
    fair_cost: str | None,
) -> list[TierSpec]:
    """Return the tiers as a backend takes them.

    Raises:
        TypeError, ValueError: the order is not one, or not one of these tiers.
    """
    specs = [tier.spec for tier in tiers]
    check_word("order", order, ("fifo", "fair"))
    weight_of = weight if callable(weight) else None
    if weight_of is None:
        check_weight("weight", weight)  # the same for all keys, so it makes no difference
    if order == "fifo":
        if fair_by is not None or fair_cost is not None or weight_of is not None or weight != 1:
            raise TypeError("fair_by, weight and fair_cost need order='fair'")
        return specs
    if fair_by is None:
        raise TypeError("order='fair' needs fair_by, the tier whose keys take turns")
    by = _find(tiers, "fair_by", fair_by)
    if tiers[by].keyed is not True:
        raise ValueError(f"fair_by must be a tier with keys of its own, and {fair_by!r} has none")
    specs[by] = replace(specs[by], fair="by", weight_of=weight_of)
    if fair_cost is not None:
        cost = _find(tiers, "fair_cost", fair_cost)
        if tiers[cost].rate is None:
            raise ValueError(f"fair_cost must be a tier with a rate, and {fair_cost!r} has none")
        specs[cost] = replace(specs[cost], fair=f"{specs[cost].fair} cost".strip())
    return specs


def _find(tiers: Sequence[Tier], what: str, name: object) -> int:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be the name of a tier, not {kind_of(name)}")
    names = [tier.name for tier in tiers]
    if name not in names:
        raise ValueError(
            f"{what}: there is no tier {redacted_repr(name)}; there are: {', '.join(names)}"
        )
    return names.index(name)
