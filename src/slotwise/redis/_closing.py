"""Close a name in this process: refuse newcomers, and fail the waiters.

The fleet is not told. Closing a name for everybody, and refusing newcomers, is done by the scripts
(lua/control.lua).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from slotwise._core.closing import Generations
from slotwise.errors import BackendError
from slotwise.redis._batching import release_all

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._config import RedisConfig
    from slotwise.redis._endpoint import Endpoint
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord, SharedClient

# By server, namespace, kind (a semaphore or tiers), and name.
Key = tuple["Endpoint", str, str, str]

generations = Generations()


def key_of(config: RedisConfig, kind: str, name: str) -> Key:
    return config.endpoint, config.namespace, kind, name


def has_open_instances(endpoint: Endpoint) -> bool:
    """Whether this process has instances on a server that it has not closed."""
    return any(isinstance(key, tuple) and key[0] == endpoint for key in generations.open_names())


async def close_here(shared: SharedClient, record: NameRecord, key: Key, at_most: float) -> None:
    """Close all instances of a name that this process made so far.

    Returns when their waiters have left the queue, or after ``at_most`` seconds; then
    that continues in the background.
    """
    # Waiters first: one that is granted meanwhile is among the holders before it leaves them.
    everybody = [*_those_of(record, shared.waiters), *_those_of(record, shared.holders)]
    generations.close(key, [each.acquisition_id for each in everybody])
    # Holders stay: a loop that has only holders may be blocked, and need not be waited for.
    by_client: dict[LoopClient, list[RedisAcquisition]] = {}
    for waiter in _those_of(record, shared.waiters):
        if waiter.limit._generation.closed:
            by_client.setdefault(waiter.client, []).append(waiter)
    here = asyncio.get_running_loop()
    failing: list[asyncio.Future[None]] = []
    for client, waiters in by_client.items():
        if client.loop is here:
            failing.append(here.create_task(_fail(client, waiters)))
        elif not client.loop.is_closed():
            elsewhere = asyncio.run_coroutine_threadsafe(_fail(client, waiters), client.loop)
            failing.append(asyncio.wrap_future(elsewhere))
    if failing:
        await asyncio.wait(failing, timeout=at_most)
    if not has_open_instances(key[0]):
        shared.heartbeat_thread.stop_when_idle()


def _those_of(record: NameRecord, claims: dict[str, RedisAcquisition]) -> list[RedisAcquisition]:
    """Return the acquisitions of one name among those of this process that hold, or wait."""
    return [each for each in list(claims.values()) if each.record.keys.all == record.keys.all]


async def _fail(client: LoopClient, waiters: list[RedisAcquisition]) -> None:
    """Fail waiters, in the thread of their loop, and remove them from the queue."""
    known = [waiter for waiter in waiters if waiter.close()]  # to the server, perhaps
    with contextlib.suppress(BackendError):  # silence frees them then
        await release_all(known, client)
