"""Find the tiers on a server by its keys."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from slotwise._core.found_tiers import FoundTiers
from slotwise.errors import BackendError
from slotwise.redis._closing import read_closed
from slotwise.redis._diagnosis import GARBAGE, not_ours
from slotwise.redis._path_keys import PathKeys
from slotwise.redis._path_shape import read_shape
from slotwise.redis._paths import RedisPaths
from slotwise.redis._reply_limits import INSPECT, reply_within
from slotwise.redis._scan import KeyKind, NameKind, ask_each, scan_names
from slotwise.redis._scripts import load
from slotwise.redis._shared_client import SharedClient, shared_client_for

if TYPE_CHECKING:
    from slotwise.redis._config import RedisConfig

TIERS = NameKind("tiers", (KeyKind("tiers_state"),))
_MOST_AT_ONCE = 100  # described in one write

_DESCRIBE = load("tiers/describe")

TiersSurvey = tuple[dict[str, FoundTiers], list[BackendError]]


def survey_tiers_sync(names: Iterable[str] | None, config: RedisConfig) -> TiersSurvey:
    """Return tiers by name, and what is wrong with those that can't be read.

    Without ``names``, those that are used or closed; with ``names``, all of them that the server
    knows.
    """
    shared = shared_client_for(config)
    return shared.heartbeat_thread.run(survey(shared, names, config))


async def survey(
    shared: SharedClient, names: Iterable[str] | None, config: RedisConfig
) -> TiersSurvey:
    """Like `survey_tiers_sync`, in the heartbeat thread."""
    errors: list[BackendError] = []
    asked = names
    if asked is None:
        asked, errors = await scan_names(shared, config, TIERS)
    replies, unreadable = await ask_each(
        asked, partial(_describe, shared, config), at_once=_MOST_AT_ONCE, words="the tiers "
    )
    errors += unreadable
    found: dict[str, FoundTiers] = {}
    for name, reply in replies.items():
        try:
            tiers = read(name, reply, config)
        except GARBAGE:
            errors.append(not_ours(f"the tiers {name!r}"))
            continue
        if reply[-1]:  # something is unfinished
            shared.continue_serving(tiers.paths._attached()[1], shared.client())  # type: ignore[attr-defined]
        if tiers.is_used or tiers.closure or (names and tiers.specs):
            found[name] = tiers
    return found, errors


async def _describe(shared: SharedClient, config: RedisConfig, name: str) -> list[Any]:
    client = shared.client()
    keys = PathKeys(config.namespace, name, cluster=bool(shared.cluster))
    reply = client.run(_DESCRIBE, keys.all, [b""], keys.slot, config.limits)
    described: list[Any] = await reply_within(INSPECT, reply, client, keys.slot)
    return described


def read(name: str, reply: list[Any], config: RedisConfig) -> FoundTiers:
    """Read a reply of tiers/describe.lua.

    Raises:
        ValueError: none of our code wrote that.
    """
    shape, declared, holders, waiters, drained, closed, reason, *_ = reply
    specs = read_shape(shape.decode(), declared.decode())
    paths = RedisPaths(specs, name=name, config=config)
    closure = read_closed(closed, reason)
    return FoundTiers(name, specs, paths, holders, waiters, closure, drained=bool(drained))
