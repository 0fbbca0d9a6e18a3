"""RedisPaths: atomic paths for a fleet, what tiers use when they are given a Redis server.

It asks, waits and cleans up. Who gets a path is decided by the scripts on the
server (lua/path_*.lua), which mirror `slotwise._ledger.paths`, where the rules stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from slotwise._core.arguments import check_flag, check_label, check_name, check_seconds
from slotwise._core.closing import Closure, closed_error
from slotwise._core.limit import EXIT_LIMIT, refuse_to_block_a_loop
from slotwise._core.paths import Path, TierSpec, TierStats
from slotwise._core.redaction import kind_of
from slotwise._core.results import AcquisitionResult
from slotwise.errors import SemaphoreClosed, ValueConflict
from slotwise.redis import _closing, _log, _path_stats
from slotwise.redis import _shared_client as shared_clients
from slotwise.redis._acquisition import RedisAcquisition, read_closure
from slotwise.redis._config import RedisConfig, check_heartbeat
from slotwise.redis._loop_client import LoopClient
from slotwise.redis._path_acquisition import (
    PathRecord,
    RedisPathAcquisition,
    request_template,
    send_release,
)
from slotwise.redis._path_idle import Idle
from slotwise.redis._path_keys import PathKeys, write_node
from slotwise.redis._reply_limits import (
    INSPECT,
    Release,
    release_on_exit,
    release_within,
    reply_within,
)
from slotwise.redis._scripts import Script, load
from slotwise.redis._shared_client import SharedClient, shared_client_for
from slotwise.redis._wait_for_grant import wait_for_grant

T = TypeVar("T")

# For how long a resize is remembered at least when nobody is there.
_REMEMBERED = 12 * 3600

# Lua counts in doubles: above this it would miscount.
_MAX_VALUE = 2**53

_RESIZE = load("path_resize")
_CLOSE = load("path_close")
_REOPEN = load("path_reopen")


class RedisPaths:
    """A `PathBackend` for all processes that use one Redis server.

    Objects of one name, namespace and server share their tiers, in whatever
    process, and must agree about them. On Cluster one object lives on one shard.

    Args:
        tiers: narrow to wide.
        name: what objects share them by.
        config: the server.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took the slots.
        heartbeat_max_interval: how long a process may be silent, in seconds,
            before what it holds and its places in line are given to others.
        ping_interval: how often it shows that it lives; a fifth of that by default, and
            5 s at most.
        cancel_task_on_loss: cancel the task whose slots were lost by silence.
    """

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        *,
        name: str,
        config: RedisConfig,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        heartbeat_max_interval: float = 15,
        ping_interval: float | None = None,
        cancel_task_on_loss: bool = False,
    ) -> None:
        self._tiers = tuple(tiers)
        for tier in self._tiers:
            _check_value(tier.value)
        self._indexes = {tier.name: index for index, tier in enumerate(self._tiers)}
        if check_name(name) is None:
            raise TypeError("name must be a str, not None")
        self._name = name
        if not isinstance(config, RedisConfig):
            raise TypeError(f"config must be a RedisConfig, not {kind_of(config)}")
        self._config = config
        self._ttl = check_seconds("ttl", ttl)
        self._cancel_task_after_ttl = check_flag("cancel_task_after_ttl", cancel_task_after_ttl)
        self._cancel_task_on_loss = check_flag("cancel_task_on_loss", cancel_task_on_loss)
        self._interval, self._ping_interval = check_heartbeat(heartbeat_max_interval, ping_interval)
        # What all objects of a name must agree about.
        self._shape = ",".join(
            quote(tier.name.encode("utf-8", "surrogatepass"), safe="") + "*" * tier.keyed
            for tier in self._tiers
        )
        self._declared = ",".join(str(tier.value) for tier in self._tiers)
        limited = [tier.value for tier in self._tiers if tier.value]
        self._value = limited[-1] if limited else 0
        self._closing_key = _closing.key_of(config, "tiers", name)
        self._generation = _closing.generations.current(self._closing_key)
        self._attach()

    def _attach(self) -> None:
        shared = self._shared = shared_client_for(self._config)
        cluster = shared.cluster is not None
        self._record = PathRecord(PathKeys(self._config.namespace, self._name, cluster=cluster))
        self._idle = Idle(self._tiers)
        self._request_template: tuple[bytes, bytes, bytes] | None = None
        self._fork_epoch: object = shared_clients.fork_epoch

    def _attached(self) -> tuple[SharedClient, PathRecord]:
        """What this process shares; made anew in a forked child."""
        if self._fork_epoch is not shared_clients.fork_epoch:
            self._attach()
        return self._shared, self._record

    def _template(self) -> tuple[bytes, bytes, bytes]:
        """A request as it travels, but for what differs each time."""
        if self._request_template is None:
            self._request_template = request_template(self)
        return self._request_template

    def __repr__(self) -> str:
        return f"<RedisPaths {self._name!r} of {self._shape}, {self._config.endpoint}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def value(self) -> int:
        """That of the widest tier with a limit, as it was made; 0 if none has one."""
        return self._value

    # ---------------------------------------------------------------- taking

    async def acquire(
        self, path: Path, *, timeout: float | None, label: str | None = None
    ) -> AcquisitionResult:
        """Wait for one slot of every tier; see `PathBackend`.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first; it tells which tier was full.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: a tier is in use with another value, or there are other tiers.
            BackendError: the server can't be used, or could not be reached in time.
        """
        if not self._generation.admits(self._attached()[0].has):
            raise self._closed_error()
        if label is not None:
            check_label(label)
        acquisition = RedisPathAcquisition(self, path, label or "")
        if self._cancel_task_after_ttl or self._cancel_task_on_loss:
            acquisition.task = asyncio.current_task()
        self._idle.enter(path)
        acquisition.send_request(wait=timeout != 0)
        await wait_for_grant(acquisition, timeout)
        return acquisition

    def acquire_sync(
        self, path: Path, *, timeout: float | None, label: str | None = None
    ) -> AcquisitionResult:
        refuse_to_block_a_loop("acquire_sync()")
        taken: list[RedisAcquisition] = []

        async def acquire() -> AcquisitionResult:
            acquired = await self.acquire(path, timeout=timeout, label=label)
            assert isinstance(acquired, RedisPathAcquisition)
            acquired.task = None  # the task that took it is nobody's work
            taken.append(acquired)
            return acquired

        try:
            return self._run_blocking(acquire())
        except BaseException:
            # What came as the thread was interrupted goes back, and what still comes.
            self._attached()[0].heartbeat_thread.release_soon(taken)
            raise

    # ---------------------------------------------------------------- giving

    async def release(self, acquisition_id: str) -> bool:
        """Give all tiers back at once; see `RedisSemaphore.release` for what it raises."""
        return await self._release(acquisition_id, release_within, self._config.cleanup_timeout)

    async def release_on_exit(self, acquisition_id: str) -> None:
        await self._release(acquisition_id, release_on_exit, EXIT_LIMIT)

    async def _release(self, acquisition_id: str, how: Release, seconds: float) -> bool:
        shared, record = self._attached()
        if acquisition_id in shared_clients.inherited:
            return False  # its parent process has it
        holder = shared.holders.get(acquisition_id)
        if isinstance(holder, RedisPathAcquisition) and holder.record.name == record.name:
            shared.holders.pop(acquisition_id, None)
            holder.mark_ended()
        else:
            holder = None
        shared.pending_cancels.pop(acquisition_id, None)

        def send(client: LoopClient) -> asyncio.Future[Any]:
            return send_release(shared, record, client, [acquisition_id])

        reply = await how(seconds, shared, record, self._interval, send)
        if reply is None:
            return False
        if holder is not None:
            _log.released(holder)
        return bool(reply[0] == b"1")

    def release_sync(self, acquisition_id: str) -> bool:
        """Like `release`; a thread that is interrupted meanwhile has released all the same."""
        shared = self._attached()[0]
        shared.pending_cancels.pop(acquisition_id, None)
        return shared.heartbeat_thread.run_to_completion(lambda: self.release(acquisition_id))

    def release_on_exit_sync(self, acquisition_id: str) -> None:
        shared = self._attached()[0]
        shared.pending_cancels.pop(acquisition_id, None)
        shared.heartbeat_thread.run_to_completion(lambda: self.release_on_exit(acquisition_id))

    # ------------------------------------------------------ looking, steering

    async def stats(self) -> dict[str, TierStats]:
        return await _path_stats.collect(*self._attached(), self._tiers, self._idle)

    def stats_sync(self) -> dict[str, TierStats]:
        return self._run_blocking(self.stats())

    async def resize(self, tier: str, value: int, key: str | None = None) -> None:
        """Change a value for the whole fleet; remembered for a day when nobody is there.

        Raises:
            ValueConflict: the name is in use with other tiers or values.
        """
        _check_value(value)
        shared, record = self._attached()
        client, index = shared.client(), self._indexes[tier]
        node = "" if key is None else write_node(index, key)
        args = [b"", client.token, self._interval, self._shape, self._declared]
        args += [index, node, value, _REMEMBERED]
        if self._generation.closed:
            raise self._closed_error()
        word, *more = await self._run_script(_RESIZE, args)
        if word == b"closed":
            raise self._closed_error(read_closure(more))
        if word == b"conflict":
            raise self._conflict(*more)
        for message in more[1:]:
            shared.dispatch(message)
        if more[0]:
            record.continue_serving(shared, client)

    def resize_sync(self, tier: str, value: int, key: str | None = None) -> None:
        self._run_blocking(self.resize(tier, value, key))

    async def forget_idle(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        """Forget idle keys that this object remembers; the server remembers none."""
        return self._idle.forget(self._indexes[tier], older_than, keep_at_most)

    def forget_idle_sync(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        return self._idle.forget(self._indexes[tier], older_than, keep_at_most)

    # --------------------------------------------------------------- closing

    async def close(self) -> None:
        """Close all objects of the name that this process made so far; see `PathBackend`.

        Returns when the waiters have left the queue, or after ``cleanup_timeout``; then
        that goes on in the background.
        """
        if not self._generation.closed:
            at_most = self._config.cleanup_timeout
            await _closing.close_here(*self._attached(), self._closing_key, at_most)

    def close_sync(self) -> None:
        self._run_blocking(self.close())

    async def close_everywhere(self, reason: str | None = None) -> None:
        shared, _ = self._attached()
        args = [b"", shared.client().token, *([] if reason is None else [reason])]
        for message in await self._run_script(_CLOSE, args):
            shared.dispatch(message)

    def close_everywhere_sync(self, reason: str | None = None) -> None:
        self._run_blocking(self.close_everywhere(reason))

    async def reopen(self) -> None:
        await self._run_script(_REOPEN, [b""])

    def reopen_sync(self) -> None:
        self._run_blocking(self.reopen())

    async def _run_script(self, script: Script, args: list[Any]) -> Any:
        shared, record = self._attached()
        client = shared.client()
        reply = client.run(script, record.keys.all, args, record.keys.slot)
        return await reply_within(INSPECT, reply, client, record.keys.slot)

    # ------------------------------------------------------------------ words

    def _closed_error(self, closure: Closure | None = None) -> SemaphoreClosed:
        return closed_error(f"{self._title} are", closure)

    @property
    def _title(self) -> str:
        return f"the tiers {', '.join(self._indexes)} of {self._name!r}"

    def _node(self, index: int, key: str) -> str:
        tier = self._tiers[index]
        return f"{tier.name} {key!r}" if tier.keyed else tier.name

    def _conflict(self, index: int, value: int) -> ValueConflict:
        if index < 0:
            return ValueConflict(f"{self._name!r} is in use with other tiers than {self._shape}")
        own = self._tiers[index].value
        return ValueConflict(
            f"{self._tiers[index].name} of {self._name!r} is in use with {value or 'any number of'}"
            f" slots, not {own or 'any number'}; resize() changes the value of a tier in use"
        )

    def _run_blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._attached()[0].heartbeat_thread.run(coroutine)


def _check_value(value: int) -> None:
    if value > _MAX_VALUE:
        raise ValueError(f"value must be at most {_MAX_VALUE} on Redis, not {value}")
