"""What adapters accept as ``limit``, and how they find the limit of one call.

That is a `Limit`; or a function of the request that returns one, or None for unlimited; or
`Tiers` with ``key=``, a function of the request that returns the keys of a path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

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
    if isinstance(limit, Tiers):
        return _path_finder(limit, key)
    if key is not None:
        raise TypeError("key is for Tiers; a function that returns a limit needs no key")
    if isinstance(limit, Limit):
        return lambda *_args, **_kwargs: limit
    if not callable(limit):
        raise TypeError(
            f"limit must be a Limit, Tiers, or a function that returns a Limit or None,"
            f" not {kind_of(limit)}"
        )
    function = limit

    def find(*args: Any, **kwargs: Any) -> Limit | None:
        return check_found(function(*args, **kwargs))

    return find


def _path_finder(tiers: Tiers, key: KeyFunction | None) -> Callable[..., Limit | None]:
    if key is None:
        path = tiers.at()  # raises if there are keyed tiers
        return lambda *_args, **_kwargs: path
    if not callable(key):
        raise TypeError(f"key must be a function that returns the keys, not {kind_of(key)}")

    def find(*args: Any, **kwargs: Any) -> Limit | None:
        keys = key(*args, **kwargs)
        return None if keys is None else tiers.at(**keys)

    return find


def check_found(found: object) -> Limit | None:
    """Check what a user's function returned as the limit of a call."""
    if found is None or isinstance(found, Limit):
        return found
    raise TypeError(f"the function must return a Limit or None, not {kind_of(found)}")
