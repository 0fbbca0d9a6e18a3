"""Find the tiers on a server, and read from its keys what they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from slotwise._core.closing import Closure
from slotwise._core.found_tiers import FoundTiers
from slotwise.errors import BackendError
from slotwise.redis._diagnosis import GARBAGE, Refused, Unusable, not_ours
from slotwise.redis._path_keys import PathKeys
from slotwise.redis._path_shape import read_shape
from slotwise.redis._paths import RedisPaths
from slotwise.redis._reply_limits import INSPECT, reply_within
from slotwise.redis._scan import KeyKind, scan_names
from slotwise.redis._scripts import load
from slotwise.redis._shared_client import SharedClient, shared_client_for

if TYPE_CHECKING:
    from slotwise.redis._config import RedisConfig

KINDS = (KeyKind("tiers_state"),)
_MOST_AT_ONCE = 100  # described in one write
_WITH_REASON = 2  # what tiers/describe.lua says of those that are closed for a reason

_DESCRIBE = load("tiers/describe")

TiersSurvey = tuple[dict[str, FoundTiers], list[BackendError]]


def survey_tiers_sync(names: Iterable[str] | None, config: RedisConfig) -> TiersSurvey:
    """Tiers by name, and what is wrong with those that can't be read.

    Of all names, those that are used or closed; of ``names``, all that the server
    knows.
    """
    shared = shared_client_for(config)
    return shared.heartbeat_thread.run(survey(shared, names, config))


async def survey(
    shared: SharedClient, names: Iterable[str] | None, config: RedisConfig
) -> TiersSurvey:
    """Like `survey_tiers_sync`, in the heartbeat thread."""
    errors: list[BackendError] = []
    if names is None:
        wanted, unnamed = await scan_names(shared, config, KINDS)
        errors += [not_text(shared, key) for key in unnamed]
    else:
        wanted = list(dict.fromkeys(names))
    found: dict[str, FoundTiers] = {}
    for at in range(0, len(wanted), _MOST_AT_ONCE):
        some = wanted[at : at + _MOST_AT_ONCE]
        replies = [_describe(shared, config, name) for name in some]
        for name, reply in zip(
            some, await asyncio.gather(*replies, return_exceptions=True), strict=True
        ):
            if isinstance(reply, BaseException):
                if not isinstance(reply, Refused) or isinstance(reply, Unusable):
                    raise reply
                errors.append(Refused(f"the tiers {name!r} can't be read: {reply}"))
                continue
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


def not_text(shared: SharedClient, key: bytes) -> BackendError:
    return Refused(f"{shared.endpoint} has tiers whose name is not text: {key!r}")


def read(name: str, reply: list[Any], config: RedisConfig) -> FoundTiers:
    """What tiers/describe.lua replies.

    Raises:
        ValueError: none of our code wrote that.
    """
    shape, declared, holders, waiters, drained, closed, reason, *_ = reply
    specs = read_shape(shape.decode(), declared.decode())
    why = reason.decode(errors="backslashreplace") if closed == _WITH_REASON else None
    paths = RedisPaths(specs, name=name, config=config)
    closure = Closure(why) if closed else None
    return FoundTiers(name, specs, paths, holders, waiters, closure, drained=bool(drained))
