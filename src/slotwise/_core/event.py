"""Event: one thing that happened, as hooks get it.

It is imported with the first event that a hook wants: most processes have no hook.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "requested",
    "acquired",
    "refused",
    "released",
    "expired",
    "lost",
    "kicked",
    "resized",
    "adapted",
    "paused",
    "reopened",
    "frozen",
    "thawed",
    "unreachable",
    "back",
]
Reason: TypeAlias = Literal["timeout", "cancelled", "closed", "full", "unreachable"]

_NO_KEYS: Mapping[str, str] = MappingProxyType({})
_NOTHING_BY_TIER: Mapping[str, int] = MappingProxyType({})


# Without slots, so that `of` can fill it in one step.
@dataclass(frozen=True)
class Event:
    """One thing that happened to an acquisition, a limit or a server.

    ``name`` is None for a limit without a name, and the server's for ``unreachable`` and
    ``back``. ``scope`` is ``memory``, ``process`` or ``redis``. ``keys`` has the keys of a path
    through tiers. ``tier`` is set if it happened to one tier of several. ``values`` has the
    number of slots by tier, and by ``""`` that of a semaphore; ``needs`` what is taken of each
    tier, where that is not one slot. ``seconds`` is how long a pause is.
    """

    kind: Kind
    name: str | None
    scope: str
    acquisition_id: str | None = None
    waited: float | None = None
    held: float | None = None
    reason: Reason | str | None = None
    tier: str | None = None
    keys: Mapping[str, str] = field(default_factory=lambda: _NO_KEYS, hash=False)
    slots: int = 1
    values: Mapping[str, int] = field(default_factory=lambda: _NOTHING_BY_TIER, hash=False)
    needs: Mapping[str, int] = field(default_factory=lambda: _NOTHING_BY_TIER, hash=False)
    value: int | None = None
    fencing_token: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, fields: dict[str, object]) -> Event:
        """Return an event with these fields; a frozen dataclass would set each by a call."""
        event = object.__new__(cls)
        object.__setattr__(event, "__dict__", fields)
        return event
