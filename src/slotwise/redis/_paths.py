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
from slotwise.redis import _shared_client as processes
from slotwise.redis._acquisition import RedisAcquisition, read_closure
from slotwise.redis._config import RedisConfig, check_heartbeat
from slotwise.redis._loop_client import LoopClient
from slotwise.redis._path_acquisition import (
    PathRecord,
    RedisPathAcquisition,
    give,
    request_template,
)
from slotwise.redis._path_idle import Idle
from slotwise.redis._path_keys import PathKeys, write_node
from slotwise.redis._reply_limits import (
    LOOK,
    Release,
    release_on_exit,
    release_within,
    reply_within,
)
from slotwise.redis._scripts import Script, load
from slotwise.redis._shared_client import SharedClient, shared_client_for
from slotwise.redis._wait_for_grant import outcome

T = TypeVar("T")

# For how long a resize is remembered at least when nobody is there.
_REMEMBERED = 12 * 3600

# Lua counts in doubles: above this it would miscount.
_MOST = 2**53

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
        process = self._process = shared_client_for(self._config)
        cluster = process.cluster is not None
        self._room = PathRecord(PathKeys(self._config.namespace, self._name, cluster=cluster))
        self._idle = Idle(self._tiers)
        self._sent_as: tuple[bytes, bytes, bytes] | None = None
        self._era: object = processes.era

    def _attached(self) -> tuple[SharedClient, PathRecord]:
        """What this process shares; made anew in a forked child."""
        if self._era is not processes.era:
            self._attach()
        return self._process, self._room

    def _template(self) -> tuple[bytes, bytes, bytes]:
        """A request as it travels, but for what differs each time."""
        if self._sent_as is None:
            self._sent_as = request_template(self)
        return self._sent_as

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
        acquisition.ask(wait=timeout != 0)
        await outcome(acquisition, timeout)
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
            return self._in_keeper(acquire())
        except BaseException:
            # What came as the thread was interrupted goes back, and what still comes.
            self._attached()[0].keeper.give_back_soon(taken)
            raise

    # ---------------------------------------------------------------- giving

    async def release(self, acquisition_id: str) -> bool:
        """Give all tiers back at once; see `RedisSemaphore.release` for what it raises."""
        return await self._release(acquisition_id, release_within, self._config.cleanup_timeout)

    async def release_on_exit(self, acquisition_id: str) -> None:
        await self._release(acquisition_id, release_on_exit, EXIT_LIMIT)

    async def _release(self, acquisition_id: str, how: Release, seconds: float) -> bool:
        process, room = self._attached()
        if acquisition_id in processes.inherited:
            return False  # its parent process has it
        holder = process.holders.get(acquisition_id)
        if isinstance(holder, RedisPathAcquisition) and holder.room.name == room.name:
            process.holders.pop(acquisition_id, None)
            holder.let_go()
        else:
            holder = None
        process.condemned.pop(acquisition_id, None)

        def send(seat: LoopClient) -> asyncio.Future[Any]:
            return give(process, room, seat, [acquisition_id])

        reply = await how(seconds, process, room, self._interval, send)
        if reply is None:
            return False
        if holder is not None:
            _log.released(holder)
        return bool(reply[0] == b"1")

    def release_sync(self, acquisition_id: str) -> bool:
        """Like `release`; a thread that is interrupted meanwhile has released all the same."""
        process = self._attached()[0]
        process.condemned.pop(acquisition_id, None)
        return process.keeper.run_through(lambda: self.release(acquisition_id))

    def release_on_exit_sync(self, acquisition_id: str) -> None:
        process = self._attached()[0]
        process.condemned.pop(acquisition_id, None)
        process.keeper.run_through(lambda: self.release_on_exit(acquisition_id))

    # ------------------------------------------------------ looking, steering

    async def stats(self) -> dict[str, TierStats]:
        return await _path_stats.collect(*self._attached(), self._tiers, self._idle)

    def stats_sync(self) -> dict[str, TierStats]:
        return self._in_keeper(self.stats())

    async def resize(self, tier: str, value: int, key: str | None = None) -> None:
        """Change a value for the whole fleet; remembered for a day when nobody is there.

        Raises:
            ValueConflict: the name is in use with other tiers or values.
        """
        _check_value(value)
        process, room = self._attached()
        seat, index = process.seat(), self._indexes[tier]
        node = "" if key is None else write_node(index, key)
        args = [b"", seat.token, self._interval, self._shape, self._declared]
        args += [index, node, value, _REMEMBERED]
        if self._generation.closed:
            raise self._closed_error()
        word, *more = await self._ask(_RESIZE, args)
        if word == b"closed":
            raise self._closed_error(read_closure(more))
        if word == b"conflict":
            raise self._conflict(*more)
        for message in more[1:]:
            process.hear(message)
        if more[0]:
            room.go_on(process, seat)

    def resize_sync(self, tier: str, value: int, key: str | None = None) -> None:
        self._in_keeper(self.resize(tier, value, key))

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
        self._in_keeper(self.close())

    async def close_everywhere(self, reason: str | None = None) -> None:
        process, _ = self._attached()
        args = [b"", process.seat().token, *([] if reason is None else [reason])]
        for message in await self._ask(_CLOSE, args):
            process.hear(message)

    def close_everywhere_sync(self, reason: str | None = None) -> None:
        self._in_keeper(self.close_everywhere(reason))

    async def reopen(self) -> None:
        await self._ask(_REOPEN, [b""])

    def reopen_sync(self) -> None:
        self._in_keeper(self.reopen())

    async def _ask(self, script: Script, args: list[Any]) -> Any:
        process, room = self._attached()
        seat = process.seat()
        reply = seat.run(script, room.keys.all, args, room.keys.slot)
        return await reply_within(LOOK, reply, seat, room.keys.slot)

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

    def _in_keeper(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._attached()[0].keeper.run(coroutine)


def _check_value(value: int) -> None:
    if value > _MOST:
        raise ValueError(f"value must be at most {_MOST} on Redis, not {value}")
