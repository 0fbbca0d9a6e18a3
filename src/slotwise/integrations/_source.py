"""What adapters accept as ``limit``, and how they find the limit of one call.

That is a `Limit`; or a function of the request that returns one, or None for unlimited; or
`Tiers` with ``key=``, a function of the request that returns the keys of a path. A name with
fields, like ``crm:{tenant}``, is one name for each different set of values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from string import Formatter
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


_ALWAYS_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_SAFE = _ALWAYS_SAFE | frozenset("_.-~")  # what a url leaves as it is
_formatter = Formatter()


class NameTemplate:
    """A name whose fields are filled in for each call.

    The text of each value is percent-encoded, so that no value can contain what separates the
    fields, and different texts never make the same name.

    Args:
        template: as for `str.format`, with named fields.
        known: the fields that there can be.

    Raises:
        ValueError: a field is not ``known``, or nothing separates two fields.
    """

    def __init__(self, template: str, known: Collection[str]) -> None:
        try:
            self._parts = list(_formatter.parse(template))
        except ValueError as error:
            raise ValueError(f"the name {template!r} is not a template: {error}") from None
        self._template = template
        fields = [field for _, field, _, _ in self._parts if field is not None]
        for field in fields:
            name = re.split(r"[.\[]", field)[0]  # of user.id or options[name]
            if name not in known:
                raise ValueError(
                    f"the name {template!r} has a field {name!r}, which is not a parameter of"
                    f" the function; there are: {', '.join(known) or 'none'}"
                )
        self.has_fields = bool(fields)
        self._safe = _SAFE - self._separators()

    def _separators(self) -> set[str]:
        """The characters that separate fields, which must not stand for themselves in a value."""
        found: set[str] = set()
        for literal, field, _, _ in self._parts[1:]:
            if field is None:  # after the last field
                continue
            # A percent sign is what encoded values are made of.
            separators = {each for each in literal if each not in _ALWAYS_SAFE and each != "%"}
            if not separators:
                raise ValueError(
                    f"the name {self._template!r} has two fields with nothing but"
                    f" {literal!r} between them: different values could make the same name;"
                    f" separate them by ':', '/' or '-'"
                )
            found |= separators
        return found

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the name for these values of the fields."""
        text = []
        for literal, field, spec, conversion in self._parts:
            text.append(literal)
            if field is not None:
                value, _ = _formatter.get_field(field, (), values)
                value = _formatter.convert_field(value, conversion)
                text.append(self._encode(format(value, spec or "")))
        return "".join(text)

    def _encode(self, text: str) -> str:
        if self._safe.issuperset(text):
            return text
        return "".join(
            each
            if each in self._safe
            else "".join(f"%{byte:02X}" for byte in each.encode(errors="surrogatepass"))
            for each in text
        )
