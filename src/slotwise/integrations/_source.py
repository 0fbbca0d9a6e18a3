"""What adapters accept as ``limit``, and how they find the limit of one call.

That is a `Limit`; or a function of the request that returns one, or None for unlimited; or
`Tiers` with ``key=``, a function of the request that returns the keys of a path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from slotwise._core.arguments import check_count
from slotwise._core.limit import Limit
from slotwise._core.redaction import kind_of
from slotwise.tiers import Tiers

LimitArgument: TypeAlias = Limit | Tiers | Callable[..., Limit | None]
KeyFunction: TypeAlias = Callable[..., Mapping[str, Any] | None]


def limit_finder(
    limit: LimitArgument, key: KeyFunction | None = None
) -> Callable[..., Limit | None]:
    """Return a function of the request that returns its limit, None for unlimited.

    Raises:
        TypeError: ``limit`` is nothing of the kind, or ``key`` doesn't go with it.
    """
    if isinstance(limit, Tiers) and key is not None:
        if not callable(key):
            raise TypeError(f"key must be a function that returns the keys, not {kind_of(key)}")
        tiers, keys_of = limit, key

        def find_path(*args: Any, **kwargs: Any) -> Limit | None:
            keys = keys_of(*args, **kwargs)
            return None if keys is None else tiers.at(**keys)

        return find_path
    if key is not None:
        raise TypeError("key is for Tiers; a function that returns a limit needs no key")
    fixed = limit.at() if isinstance(limit, Tiers) else limit  # raises if there are keyed tiers
    if isinstance(fixed, Limit):
        return lambda *_args, **_kwargs: fixed
    if not callable(fixed):
        raise TypeError(
            f"limit must be a Limit, Tiers, or a function that returns a Limit or None,"
            f" not {kind_of(fixed)}"
        )
    return lambda *args, **kwargs: check_found(fixed(*args, **kwargs))


Cost: TypeAlias = int | Callable[..., int | Mapping[str, int]] | None


def cost_finder(
    limit: LimitArgument, key: KeyFunction | None = None, cost: Cost = None
) -> Callable[..., tuple[Limit | None, int]]:
    """Return a function of the request that returns its limit, and how many slots it takes.

    ``cost`` is how many, or a function of the request that returns it; for Tiers, that may also
    return a dict of rates to their costs.
    """
    find = limit_finder(limit, key)
    if cost is None or not callable(cost):
        slots = 1 if cost is None else check_count("cost", cost)
        return lambda *args, **kwargs: (find(*args, **kwargs), slots)
    function = cost

    def find_both(*args: Any, **kwargs: Any) -> tuple[Limit | None, int]:
        costs = function(*args, **kwargs)
        if not isinstance(costs, Mapping):
            return find(*args, **kwargs), check_count("cost", costs)
        if not isinstance(limit, Tiers):
            raise TypeError("a cost by the names of rates is for Tiers")
        keys = {} if key is None else key(*args, **kwargs)
        return (None if keys is None else limit.at(costs=costs, **keys)), 1

    return find_both


def check_found(found: object) -> Limit | None:
    """Check what a user's function returned as the limit of a call."""
    if found is None or isinstance(found, Limit):
        return found
    path = ": tiers.at(...) makes a Limit of one path" if isinstance(found, Tiers) else ""
    raise TypeError(f"the function must return a Limit or None, not {kind_of(found)}{path}")
