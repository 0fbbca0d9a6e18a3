"""RedisSemaphore: the public face of the Redis driver.

It checks arguments, asks, and waits. Who gets a slot is decided by the scripts
on the server; how calls get there is the seat's business, staying alive the
keeper's, and the blocking twins are in `threads`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import Any

from slotwise._core.arguments import (
    UNSET,
    Unset,
    check_count,
    check_flag,
    check_label,
    check_name,
    check_reason,
    check_seconds,
)
from slotwise._core.closing import Closure, closed_error
from slotwise._core.limit import EXIT_LIMIT
from slotwise._core.redaction import kind_of
from slotwise._core.results import AcquisitionResult, Claimant, SemaphoreStats, acquisition_id_of
from slotwise.errors import BackendError, SemaphoreClosed
from slotwise.redis import _closing, _log, _statistics
from slotwise.redis import _shared_client as shared_clients
from slotwise.redis._acquisition import RedisAcquisition, read_closure
from slotwise.redis._config import RedisConfig, check_heartbeat
from slotwise.redis._diagnosis import logger
from slotwise.redis._inspect import read_claimants
from slotwise.redis._loop_client import LoopClient
from slotwise.redis._release_batching import kick, send_release
from slotwise.redis._reply_limits import (
    INSPECT,
    Release,
    release_on_exit,
    release_within,
    reply_within,
)
from slotwise.redis._request_batching import request_template
from slotwise.redis._scripts import Script, load
from slotwise.redis._shared_client import NameRecord, SharedClient, shared_client_for
from slotwise.redis._statistics import read_stats
from slotwise.redis._sync import BlockingTwins
from slotwise.redis._wait_for_grant import wait_for_grant

# For how long a resize is remembered when nobody is there.
_REMEMBERED = 24 * 3600

# Lua counts in doubles: above this it would miscount.
_MAX_VALUE = 2**53

# Each slot is a member of a sorted set, as documented, and the server does nothing else while it
# adds them: this is some 20 ms of its time.
_MAX_SLOTS = 10_000

_INSPECT = load("look")
_CLOSE = load("close")
_REOPEN = load("reopen")


class RedisSemaphore(BlockingTwins):
    """A semaphore for all processes that use one Redis server.

    Instances of one name, namespace and server are one semaphore, in whatever
    process. ``name=None`` makes a private one, with a random name.

    Args:
        value: how many slots there are.
        name: what instances share it by.
        max_acquire_time: the longest wait in seconds; None waits for ever.
        ttl: the longest hold in seconds; then the slot is freed, whoever has it.
        cancel_task_after_ttl: also cancel the task that took the slot.
        heartbeat_max_interval: how long a process may be silent, in seconds,
            before what it holds and its places in line are given to others.
        ping_interval: how often it shows that it lives; a fifth of that by default, and
            5 s at most.
        cancel_task_on_loss: cancel the task whose slot was lost by silence.
        config: the server; ``RedisConfig()`` is the one on this machine.
    """

    __slots__ = (
        "_cancel_task_on_loss",
        "_config",
        "_fork_epoch",
        "_generation",
        "_interval",
        "_ping_interval",
        "_record",
        "_request_template",
        "_shared",
        "_value",
        "_written_name",
    )

    def __init__(
        self,
        value: int,
        *,
        name: str | None = None,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        heartbeat_max_interval: float = 15,
        ping_interval: float | None = None,
        cancel_task_on_loss: bool = False,
        config: RedisConfig | None = None,
    ) -> None:
        super().__init__()
        self._value = _check_value(value)
        self._name = check_name(name)
        self._written_name = self._name or f"private-{secrets.token_hex(8)}"
        self._max_acquire_time = check_seconds("max_acquire_time", max_acquire_time)
        self._ttl = check_seconds("ttl", ttl)
        self._cancel_task_after_ttl = check_flag("cancel_task_after_ttl", cancel_task_after_ttl)
        self._cancel_task_on_loss = check_flag("cancel_task_on_loss", cancel_task_on_loss)
        self._interval, self._ping_interval = check_heartbeat(heartbeat_max_interval, ping_interval)
        if config is not None and not isinstance(config, RedisConfig):
            raise TypeError(f"config must be a RedisConfig, not {kind_of(config)}")
        self._config = RedisConfig() if config is None else config
        self._generation = _closing.generations.current(self._closing_key)
        self._fork_epoch: object = None
        self._attach()

    @property
    def _closing_key(self) -> _closing.Key:
        return _closing.key_of(self._config, "semaphore", self._written_name)

    def _attach(self) -> None:
        shared = shared_client_for(self._config)
        self._shared = shared
        self._record = shared.record(self._config.namespace, self._written_name)
        self._request_template: tuple[bytes, bytes] | None = None
        self._fork_epoch = shared_clients.fork_epoch

    def _attached(self) -> tuple[SharedClient, NameRecord]:
        """What this process shares; made anew in a forked child."""
        if self._fork_epoch is not shared_clients.fork_epoch:
            self._attach()
        return self._shared, self._record

    def _template(self) -> tuple[bytes, bytes]:
        """A request as it travels, but for what differs each time."""
        if self._request_template is None:
            self._request_template = request_template(self)
        return self._request_template

    def __repr__(self) -> str:
        return (
            f"<RedisSemaphore {self._written_name!r} value={self.value}, {self._config.endpoint}>"
        )

    def _arguments(self) -> dict[str, Any]:
        return {
            "value": self._value,
            "name": self._name,
            "max_acquire_time": self._max_acquire_time,
            "ttl": self._ttl,
            "cancel_task_after_ttl": self._cancel_task_after_ttl,
            "heartbeat_max_interval": self._interval,
            "ping_interval": self._ping_interval,
            "cancel_task_on_loss": self._cancel_task_on_loss,
            "config": self._config,
        }

    @property
    def heartbeat_max_interval(self) -> float:
        """How long a process may be silent, in seconds, before it is taken for dead."""
        return self._interval

    @property
    def ping_interval(self) -> float:
        """How often this process sends a heartbeat, in seconds."""
        return self._ping_interval

    @property
    def cancel_task_on_loss(self) -> bool:
        """Whether the task whose slot was lost by silence is cancelled."""
        return self._cancel_task_on_loss

    @property
    def config(self) -> RedisConfig:
        """The server."""
        return self._config

    @property
    def value(self) -> int:
        """How many slots there are, as the server last told this process."""
        record = self._record
        return record.value if self._value in record.values else self._value

    # ---------------------------------------------------------------- taking

    async def acquire(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
    ) -> AcquisitionResult:
        """Wait for ``slots`` slots, in the order of arrival of the whole fleet.

        A wait that is cancelled or times out takes no slot. ``label`` is shown
        by `holders` and `waiters`.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: the name is in use with another value.
            ValueError: ``slots`` is more than the semaphore has, or more than 10,000.
            BackendError: the server can't be used, or could not be reached in time.
        """
        if timeout is UNSET:
            timeout = self._max_acquire_time
        else:
            timeout = check_seconds("timeout", timeout, zero=True)
        acquisition = self._new_acquisition(slots, label)
        acquisition.send_request(wait=timeout != 0)
        await wait_for_grant(acquisition, timeout)
        return acquisition

    async def try_acquire(
        self, slots: int = 1, *, label: str | None = None
    ) -> AcquisitionResult | None:
        """Take ``slots`` slots if that neither waits nor passes anybody, else give None.

        Raises:
            BackendError: the server can't be used, or did not answer within a second.
        """
        acquisition = self._new_acquisition(slots, label)
        acquisition.send_request(wait=False)
        try:
            await wait_for_grant(acquisition, 0.0)
        except BackendError:
            raise  # also when it is a time-out as well: nobody knows whether there was a slot
        except TimeoutError:
            return None
        return acquisition

    def _check_slots(self, slots: object) -> int:
        count = check_count("slots", slots)
        if count > _MAX_SLOTS:
            raise ValueError(f"slots must be at most {_MAX_SLOTS} at once on Redis, not {slots}")
        return count

    def _new_acquisition(self, slots: int, label: str | None) -> RedisAcquisition:
        if slots != 1 or type(slots) is not int:  # True is 1, and no number of slots
            self._check_slots(slots)
        if not self._generation.admits(self._attached()[0].has):
            raise self._closed_error()
        acquisition = RedisAcquisition(
            self, slots, "" if label is None else check_label(label) or ""
        )
        if self._cancel_task_after_ttl or self._cancel_task_on_loss:
            acquisition.task = asyncio.current_task()
        return acquisition

    # ---------------------------------------------------------------- giving

    async def release(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Give an acquisition's slots back; False if it had ended before.

        Raises:
            BackendError: the server did not confirm it within ``cleanup_timeout``. The
                release continues in the background, and silence frees the slots anyway.
        """
        return await self._release(acquisition_id, release_within, self._config.cleanup_timeout)

    async def _release_on_exit(
        self, acquired: AcquisitionResult, at_most: float = EXIT_LIMIT
    ) -> None:
        await self._release(acquired, release_on_exit, at_most)

    async def _release(
        self, acquisition_id: str | AcquisitionResult, how: Release, seconds: float
    ) -> bool:
        acquisition_id = acquisition_id_of(acquisition_id)
        shared, record = self._attached()
        if acquisition_id in shared_clients.inherited:
            return False  # its parent process has it
        holder = shared.holders.pop(acquisition_id, None)
        if holder is not None:
            holder.mark_ended()
        shared.pending_cancels.pop(acquisition_id, None)

        def send(client: LoopClient) -> asyncio.Future[Any]:
            return send_release(shared, record, client, acquisition_id, self._interval)

        reply = await how(seconds, shared, record, self._interval, send)
        if reply is None:
            return False
        if holder is not None:
            _log.released(holder)
        return bool(reply[0])

    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool:
        """End somebody's acquisition, of whatever process; False if it had ended before.

        The next waiters get its slots at once. Its holder is told at once, or by
        its next heartbeat if the message does not reach it: its ``lost`` is set, and
        ``cancel_task_on_loss`` applies. Until then two may be at work: that is what
        fencing tokens are for. One who still waits is not kicked out of line.
        """
        shared, record = self._attached()
        client = shared.client()
        kicked = kick(shared, record, client, acquisition_id_of(acquisition_id), self._interval)
        return await reply_within(INSPECT, kicked, client, record.keys.slot)

    # ------------------------------------------------------ looking, steering

    async def _locked(self) -> bool:
        if self._generation.closed:
            return True
        stats = await self.stats()
        return stats.closed or bool(stats.waiting) or stats.acquired_slots >= stats.max_slots

    async def stats(self) -> SemaphoreStats:
        return read_stats(await self._inspect("counts"), self._value)

    async def holders(self) -> list[Claimant]:
        """Who holds slots now, in the whole fleet."""
        return read_claimants((await self._inspect("holders"))[5:])

    async def waiters(self) -> list[Claimant]:
        """Who waits now, in the whole fleet, first come first."""
        return read_claimants((await self._inspect("waiters"))[5:])

    async def _inspect(self, what: str) -> list[Any]:
        args = [b"", what, self._attached()[1].keys.notification, self._interval]
        return await self._run_script(_INSPECT, args)

    async def _run_script(self, script: Script, args: list[Any]) -> list[Any]:
        shared, record = self._attached()
        client = shared.client()
        reply = client.run(script, record.keys.all, args, record.keys.slot)
        return await reply_within(INSPECT, reply, client, record.keys.slot)

    @classmethod
    async def get_acquired_stats(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        config: RedisConfig | None = None,
    ) -> dict[str, SemaphoreStats]:
        """The statistics of the semaphores on a server, fullest first.

        Idle ones are left out unless they are asked for by name.

        Args:
            names: only these; unknown ones are left out.
            limit: at most so many.
            config: the server and the namespace.
        """
        if isinstance(names, str):
            raise TypeError(f"names must be several names, not the str {names!r}")
        check_count("limit", limit)
        config = RedisConfig() if config is None else config
        shared = shared_client_for(config)
        found, troubles = await _statistics.collect(shared, config.namespace, names, limit)
        for trouble in troubles:
            logger.warning("%s", trouble)
        return found

    @classmethod
    def get_acquired_stats_sync(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        config: RedisConfig | None = None,
    ) -> dict[str, SemaphoreStats]:
        """Like `get_acquired_stats`."""
        shared = shared_client_for(RedisConfig() if config is None else config)
        return shared.heartbeat_thread.run(cls.get_acquired_stats(names, limit, config))

    @classmethod
    def _survey_sync(
        cls, names: Iterable[str] | None, limit: int, config: RedisConfig
    ) -> tuple[dict[str, SemaphoreStats], list[BackendError]]:
        """`get_acquired_stats_sync`, and what is wrong with those that can't be read."""
        shared = shared_client_for(config)
        return shared.heartbeat_thread.run(
            _statistics.collect(shared, config.namespace, names, limit)
        )

    async def resize(self, value: int) -> None:
        _check_value(value)
        if self._generation.closed:
            raise self._closed_error()
        shared, record = self._attached()
        client = shared.client()
        args = [b"", client.token, self._interval, record.keys.notification]
        args += [self._value, value, _REMEMBERED]
        word, *messages = await self._run_script(load("resize"), args)
        if word == b"closed":
            raise self._closed_error(read_closure(messages))
        record.learn(value, self._value, value)
        for message in messages[1:]:
            shared.dispatch(message)

    # --------------------------------------------------------------- closing

    async def close(self) -> None:
        if not self._generation.closed:
            at_most = self._config.cleanup_timeout
            await _closing.close_here(*self._attached(), self._closing_key, at_most)

    async def close_everywhere(self, reason: str | None = None) -> None:
        """Close the name for the whole fleet, until `Semaphore.reopen`.

        Waiters and newcomers fail with SemaphoreClosed, which carries ``reason``, in
        instances made later too; holders may still release. The server remembers it for
        30 days after the last call that met it.
        """
        reason = check_reason(reason)
        shared, _ = self._attached()
        args = [b"", shared.client().token, self._value, *([] if reason is None else [reason])]
        for message in await self._run_script(_CLOSE, args):
            shared.dispatch(message)

    async def reopen(self) -> None:
        shared, record = self._attached()
        args = [b"", shared.client().token, self._interval, record.keys.notification]
        for message in await self._run_script(_REOPEN, args):
            shared.dispatch(message)

    def _closed_error(self, closure: Closure | None = None) -> SemaphoreClosed:
        return closed_error(f"{self._written_name!r} is", closure)


def _check_value(value: object) -> int:
    count = check_count("value", value)
    if count > _MAX_VALUE:
        raise ValueError(f"value must be at most {_MAX_VALUE} on Redis, not {count}")
    return count
