"""Collect the statistics of the semaphores of a server, found by SCAN and counted in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from slotwise._core.results import SemaphoreStats
from slotwise.errors import BackendError
from slotwise.redis._diagnosis import Refused, Unusable
from slotwise.redis._dialect import read_waiting
from slotwise.redis._keys import SemaphoreKeys
from slotwise.redis._reply_limits import look_limit, reply_within
from slotwise.redis._scan import KeyKind, scan_names
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.redis._config import RedisConfig
    from slotwise.redis._shared_client import SharedClient

_MOST_AT_ONCE = 500  # counted in one write
_WITH_REASON = 2  # what semaphore/inspect.lua replies if it is closed with a reason
# The keys of semaphores that are held, waited for, closed or paused.
KINDS = (
    KeyKind("semaphore_main"),
    KeyKind("semaphore_waiting"),
    KeyKind("semaphore_state", stopped_only=True),  # those of idle ones stay for a while
)
_INTERVAL = 15  # for foreign waiters, if this call grants them something


async def collect(
    shared: SharedClient,
    config: RedisConfig,
    names: Iterable[str] | None,
    limit: int,
    at_most: float | None = None,
) -> tuple[dict[str, SemaphoreStats], list[BackendError]]:
    """Statistics by name, fullest first, and what is wrong with those that can't be read.

    ``at_most`` is how long to wait for a reply, if not as long as usual.
    """
    troubles: list[BackendError] = []
    if names is None:
        wanted, unnamed = await scan_names(shared, config, KINDS)
        troubles += [not_text(shared, key) for key in unnamed]
    else:
        wanted = list(dict.fromkeys(names))
    shown: list[tuple[str, SemaphoreStats]] = []
    client, on_cluster = shared.client(), bool(shared.cluster)
    for at in range(0, len(wanted), _MOST_AT_ONCE):
        replies = []
        for name in wanted[at : at + _MOST_AT_ONCE]:
            keys = SemaphoreKeys(config.namespace, name, cluster=on_cluster)
            args = [b"", b"counts", keys.notification, _INTERVAL, b""]
            script = load("semaphore/inspect")
            reply = client.run(script, keys.all, args, keys.slot, config.limits)
            replies.append(reply_within(look_limit(at_most), reply, client, keys.slot))
        found = await asyncio.gather(*replies, return_exceptions=True)
        for name, outcome in zip(wanted[at : at + _MOST_AT_ONCE], found, strict=True):
            if isinstance(outcome, BaseException):
                if not isinstance(outcome, Refused) or isinstance(outcome, Unusable):
                    raise outcome
                troubles.append(Refused(f"{name!r} can't be read: {outcome}"))  # the others can
                continue
            value, held, waiting, closed, *_ = outcome  # while it is paused, waiting is a text
            if value and (names is not None or held or waiting or closed):
                shown.append((name, read_stats(outcome, value)))
    shown.sort(key=lambda item: (-item[1].acquired_percent, -item[1].waiting, item[0]))
    return dict(shown[:limit]), troubles


def not_text(shared: SharedClient, key: bytes) -> BackendError:
    return Refused(f"{shared.endpoint} has a semaphore whose name is not text: {key!r}")


def read_stats(reply: list[Any], value: int) -> SemaphoreStats:
    """Read a reply of semaphore/inspect.lua; ``value`` is used if the server knows none."""
    known_value, held, written, closed, reason, *_, frozen = reply
    waiting, paused_for = read_waiting(written)
    why = reason.decode(errors="backslashreplace") if closed == _WITH_REASON else None
    value = known_value or value
    return SemaphoreStats(
        *(held, value, waiting, bool(closed), why),
        scope="redis",
        paused_for=paused_for,
        frozen=bool(frozen),
    )
