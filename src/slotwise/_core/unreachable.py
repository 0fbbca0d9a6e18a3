"""Check what a limit on a server sends as heartbeats, and does while the server can't be reached.

The same arguments are accepted on every driver, so that only the url changes when a limit moves;
only one with a server uses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from slotwise._core.arguments import (
    check_count,
    check_limit,
    check_required_seconds,
    check_seconds,
    check_word,
)
from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate
from slotwise._core.redaction import kind_of

_LONGEST_PING = 5.0

_LONGEST_SILENCE = 15.0  # the default of heartbeat_max_interval, in seconds


class UnreachableOptions(NamedTuple):
    """What a limit was made with: ``on_unreachable``, ``local_value``, ``unreachable_after``."""

    policy: str = "raise"
    local_value: Any = None
    after: float = 1.0


def check_unreachable(policy: object, local_value: object, after: object) -> UnreachableOptions:
    """Return what a limit does while its server is away, checked except for the names of tiers."""
    word: str = check_word("on_unreachable", policy, ("raise", "open", "local"))
    if word == "local" and local_value is None:
        raise TypeError("on_unreachable='local' needs a local_value")
    if word != "local" and local_value is not None:
        raise TypeError(f"local_value is for on_unreachable='local', not {word!r}")
    seconds = check_required_seconds("unreachable_after", after)
    return UnreachableOptions(word, local_value, seconds)


def check_local_slots(given: object) -> int | None:
    """Return the local value of a semaphore; None if there is none."""
    return None if given is None else check_count("local_value", given)


def local_specs(specs: Sequence[TierSpec], given: object) -> tuple[TierSpec, ...]:
    """Return tiers with other values: an int for each with slots, or what a dict says by name.

    Tiers that are not named stay as they are.
    """
    if not isinstance(given, Mapping):
        value = check_count("local_value", given)
        given = {spec.name: value for spec in specs if not isinstance(spec.value, Rate)}
    unknown = given.keys() - {spec.name for spec in specs}
    if unknown:
        known = ", ".join(spec.name for spec in specs)
        raise ValueError(f"local_value names an unknown tier; there are: {known}")
    return tuple(
        _with_value(spec, given[spec.name]) if spec.name in given else spec for spec in specs
    )


def _with_value(spec: TierSpec, value: object) -> TierSpec:
    if isinstance(spec.value, Rate):
        if not isinstance(value, Rate):
            raise TypeError(
                f"the local_value of {spec.name!r} must be a Rate, not {kind_of(value)}"
            )
        return replace(spec, value=value)
    slots = check_limit(f"the local_value of {spec.name!r}", value)
    return replace(spec, value=slots, by_key=False, value_of=None)


def check_heartbeat(longest_silence: object, ping_interval: object) -> tuple[float, float]:
    """Return how long a process may be silent, and how often it sends a heartbeat.

    That is at least every 5 s, because a heartbeat also renews the lives of the keys: a client of
    the documented protocol lets them expire its own ttl and 10 s after its last call. None is the
    default of both.
    """
    interval = check_seconds("heartbeat_max_interval", longest_silence)
    if interval is None:
        interval = _LONGEST_SILENCE
    ping = check_seconds("ping_interval", ping_interval)
    if ping is None:
        return interval, min(interval / 5, _LONGEST_PING)
    if ping >= interval:
        raise ValueError(
            f"ping_interval must be lower than heartbeat_max_interval ({interval:g} s),"
            f" not {ping:g} s"
        )
    return interval, min(ping, _LONGEST_PING)
