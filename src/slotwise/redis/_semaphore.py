"""RedisSemaphore: a semaphore for every process that uses one Redis server.

What it does is in `slotwise._core.semaphore`, on `RedisBackend`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import partial
from typing import Any

from slotwise._core.adaptive import Adaptive
from slotwise._core.arguments import (
    OnUnreachable,
    Shed,
    check_count,
    check_label,
    check_names,
    check_value,
)
from slotwise._core.paths import SEMAPHORE_PATH, semaphore_spec
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore, semaphore_needs
from slotwise._core.stats import Claimant, SemaphoreStats, fullest
from slotwise._core.unreachable import check_local_slots, check_unreachable
from slotwise.redis._backend import RedisBackend
from slotwise.redis._config import RedisConfig
from slotwise.redis._diagnosis import logger
from slotwise.redis._shared_client import shared_client_for
from slotwise.redis._survey import survey


class RedisSemaphore(Semaphore):
    """A semaphore for all processes that use one Redis server.

    Instances of one name, namespace and server are one semaphore, in any
    process. ``name=None`` makes a private one, with a random name.

    Args:
        value: how many slots there are; or an `Adaptive`, which finds the number.
        name: the name that instances share.
        max_acquire_time: the longest wait in seconds; None waits forever.
        ttl: the longest hold in seconds; then the slot is freed, whoever has it.
        cancel_task_after_ttl: also cancel the task that took the slot.
        heartbeat_max_interval: how long a process may be silent, in seconds,
            before what it holds and its places in the queue are given to others; None is the
            default.
        ping_interval: how often it sends a heartbeat; a fifth of that by default, at most 5 s.
        cancel_task_on_loss: cancel the task whose slot was lost by silence.
        max_waiting: how many may wait, in the whole fleet; beyond it, newcomers that would have
            to wait get a LimitFull. None lets any number wait.
        shed: "deadline" also refuses callers whose timeout is shorter than the expected wait
            (see `Limit.estimate`); None, the default, refuses nobody for that.
        on_unreachable: what is done while the server is away: "raise" raises a BackendError,
            "open" grants everything, "local" has a limit of this process.
        local_value: how many slots that local limit has.
        unreachable_after: for how many seconds the server may be silent before it counts
            as away. It does at once when connections are refused or cut.
        config: the server; ``RedisConfig()`` is the one on this machine.
    """

    __slots__ = ("_backend",)

    _has_a_server = True
    _scope = "redis"

    _backend: RedisBackend

    def __init__(
        self,
        value: int | Adaptive,
        *,
        name: str | None = None,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        heartbeat_max_interval: float | None = 15,
        ping_interval: float | None = None,
        cancel_task_on_loss: bool = False,
        max_waiting: int | None = None,
        shed: Shed | None = None,
        on_unreachable: OnUnreachable = "raise",
        local_value: int | None = None,
        unreachable_after: float = 1.0,
        config: RedisConfig | None = None,
    ) -> None:
        super().__init__(name, max_acquire_time, ttl, cancel_task_after_ttl, max_waiting, shed)
        self._backend = RedisBackend(
            [semaphore_spec(value if isinstance(value, Adaptive) else check_value(value))],
            name=self._name or f"private-{secrets.token_hex(8)}",
            is_private=self._name is None,
            config=RedisConfig() if config is None else config,
            ttl=self._ttl,
            cancel_task_after_ttl=cancel_task_after_ttl,
            heartbeat_max_interval=heartbeat_max_interval,
            ping_interval=ping_interval,
            cancel_task_on_loss=cancel_task_on_loss,
            overload=self._overload,
            unreachable=check_unreachable(
                on_unreachable, check_local_slots(local_value), unreachable_after
            ),
        )

    def __repr__(self) -> str:
        name, endpoint = self._backend.reported_name, self.config.endpoint
        return f"<RedisSemaphore {name!r} value={self.value}, {endpoint}>"

    @property
    def _base(self) -> type[RedisSemaphore]:
        return RedisSemaphore

    def _arguments(self) -> dict[str, Any]:
        [spec] = self._backend._specs
        return {
            "value": spec.adaptive or spec.value,
            **super()._arguments(),
            "heartbeat_max_interval": self.heartbeat_max_interval,
            "ping_interval": self.ping_interval,
            "cancel_task_on_loss": self.cancel_task_on_loss,
            "on_unreachable": self.on_unreachable,
            "local_value": self.local_value,
            "unreachable_after": self.unreachable_after,
            "config": self.config,
        }

    @property
    def heartbeat_max_interval(self) -> float:
        """How long a process may be silent, in seconds, before it counts as dead."""
        return self._backend._interval

    @property
    def ping_interval(self) -> float:
        """How often this process sends a heartbeat, in seconds."""
        return self._backend._ping_interval

    @property
    def cancel_task_on_loss(self) -> bool:
        """Whether the task whose slot was lost by silence is cancelled."""
        return self._backend._cancel_task_on_loss

    @property
    def on_unreachable(self) -> str:
        """What is done while the server is away: "raise", "open" or "local"."""
        return self._backend._unreachable.policy

    @property
    def local_value(self) -> int | None:
        """How many slots there are in each process while the server is away, with "local"."""
        value: int | None = self._backend._unreachable.local_value
        return value

    @property
    def unreachable_after(self) -> float:
        """For how many seconds the server may be silent before it counts as away."""
        return self._backend._unreachable.after

    @property
    def config(self) -> RedisConfig:
        """The server."""
        return self._backend._config

    @property
    def value(self) -> int:
        """How many slots there are, as the server last told this process."""
        return self._backend.value

    async def _acquire_at_once(
        self, slots: int, label: str | None, seconds: float
    ) -> AcquisitionResult:
        needs = semaphore_needs(slots)
        path, checked = SEMAPHORE_PATH, check_label(label)
        return await self._backend._acquire_at_once(path, checked, needs, seconds)

    async def _holders_within(self, at_most: float | None) -> list[Claimant]:
        return await self._backend.list_claimants("holders", at_most)

    def _rules_sync(self, at_most: float | None = None) -> Adaptive | None:
        """Return the rules of the semaphore on the server, if it adapts, within that time."""
        return self._run(partial(self._backend.rules, at_most))

    @classmethod
    async def get_acquired_stats(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        config: RedisConfig | None = None,
    ) -> dict[str, SemaphoreStats]:
        """Return the statistics of the semaphores on a server, fullest first.

        Idle ones are left out unless they are asked for by name. So are those that can't be
        read, because somebody has written something else into their keys: each is logged as a
        WARNING.

        Args:
            names: only these; unknown ones are left out.
            limit: return at most this many.
            config: the server and the namespace.
        """
        check_names(names)
        check_count("limit", limit)
        config = RedisConfig() if config is None else config
        wanted = None if names is None else [("semaphore", name) for name in names]
        shared = shared_client_for(config)
        found = await survey(shared, config, wanted, kinds=["semaphore"])
        for trouble in found.errors:
            logger.warning("%s", trouble)
        return fullest(found.semaphores, limit, idle_too=names is not None)

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
