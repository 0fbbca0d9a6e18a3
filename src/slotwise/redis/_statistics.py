"""Collect the statistics of the semaphores of a server, which are found by SCAN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from slotwise._core.stats import SemaphoreStats, fullest
from slotwise.errors import BackendError
from slotwise.redis._closing import read_closed
from slotwise.redis._dialect import read_waiting
from slotwise.redis._keys import SemaphoreKeys
from slotwise.redis._reply_limits import look_limit, reply_within
from slotwise.redis._scan import KeyKind, NameKind, ask_each, scan_names
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.redis._config import RedisConfig
    from slotwise.redis._shared_client import SharedClient

_MOST_AT_ONCE = 500  # counted in one write
# Those that are held, waited for, closed or paused.
SEMAPHORES = NameKind(
    "a semaphore",
    (
        KeyKind("semaphore_main"),
        KeyKind("semaphore_waiting"),
        KeyKind("semaphore_state", stopped_only=True),  # the keys of idle ones stay for a while
    ),
)

_INSPECT = load("semaphore/inspect")
_INTERVAL = 15  # for foreign waiters, if this call grants them something


async def collect(
    shared: SharedClient,
    config: RedisConfig,
    names: Iterable[str] | None,
    limit: int,
    at_most: float | None = None,
) -> tuple[dict[str, SemaphoreStats], list[BackendError]]:
    """Return statistics by name, fullest first, and what is wrong with those that can't be read.

    ``at_most`` is how long to wait for a reply, if not as long as usual.
    """
    client, on_cluster = shared.client(), bool(shared.cluster)
    unnamed: list[BackendError] = []

    async def count(name: str) -> list[Any]:
        keys = SemaphoreKeys(config.namespace, name, cluster=on_cluster)
        args = [b"", b"counts", keys.notification, _INTERVAL, b""]
        reply = client.run(_INSPECT, keys.all, args, keys.slot, config.limits)
        counted: list[Any] = await reply_within(look_limit(at_most), reply, client, keys.slot)
        return counted

    asked = names
    if asked is None:
        asked, unnamed = await scan_names(shared, config, SEMAPHORES)
    replies, unreadable = await ask_each(asked, count, at_once=_MOST_AT_ONCE)
    # Without a value, the server knows nothing of it.
    found = {name: read_stats(reply, reply[0]) for name, reply in replies.items() if reply[0]}
    return fullest(found, limit, idle_too=names is not None), unnamed + unreadable


def read_stats(reply: list[Any], value: int) -> SemaphoreStats:
    """Read a reply of semaphore/inspect.lua; ``value`` is used if the server knows none."""
    known_value, held, written, closed, reason, *_, frozen = reply
    waiting, paused_for = read_waiting(written)
    closure = read_closed(closed, reason)
    return SemaphoreStats(
        *(held, known_value or value, waiting),
        *(closure is not None, None if closure is None else closure.reason),
        scope="redis",
        paused_for=paused_for,
        frozen=bool(frozen),
    )
