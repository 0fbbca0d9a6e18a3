"""Which backend serves a Tiers object. The Redis ones are imported when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slotwise._core.paths import PathBackend, TierSpec
from slotwise._core.redaction import kind_of
from slotwise._core.semaphore import Semaphore
from slotwise.errors import SemaphoreClosed
from slotwise.memory import MemorySemaphore
from slotwise.memory._paths import MemoryPaths
from slotwise.tiers._staged import StagedPaths

if TYPE_CHECKING:
    from slotwise.redis import RedisConfig

# The name of what has none, on a server, where everything has one.
DEFAULT_NAME = "tiers"


def choose_backend(
    specs: Sequence[TierSpec],
    *,
    atomic: bool,
    backend: RedisConfig | None,
    name: str | None,
    ttl: float | None,
    cancel_task_after_ttl: bool,
    heartbeat_max_interval: float | None,
    ping_interval: float | None,
    cancel_task_on_loss: bool,
    max_idle_keys: int,
    closed_error: Callable[..., SemaphoreClosed],
) -> PathBackend:
    if (cancel_task_after_ttl or cancel_task_on_loss) and not atomic:
        raise TypeError("cancel_task_after_ttl and cancel_task_on_loss need atomic tiers")
    if backend is None:
        if atomic:
            return MemoryPaths(
                specs,
                name=name,
                ttl=ttl,
                cancel_task_after_ttl=cancel_task_after_ttl,
                max_idle_keys=max_idle_keys,
                closed_error=closed_error,
            )

        def in_memory(full_name: str | None, value: int) -> Semaphore:
            return MemorySemaphore(value=value, name=full_name, ttl=ttl)

        return StagedPaths(specs, in_memory, name=name, scope=None)
    from slotwise.redis import RedisConfig, RedisSemaphore
    from slotwise.redis._paths import RedisPaths

    if not isinstance(backend, RedisConfig):
        raise TypeError(f"backend must be a RedisConfig or None, not {kind_of(backend)}")
    options: dict[str, Any] = {"config": backend, "ttl": ttl}
    if heartbeat_max_interval is not None:
        options["heartbeat_max_interval"] = heartbeat_max_interval
    if ping_interval is not None:
        options["ping_interval"] = ping_interval
    if atomic:
        return RedisPaths(
            specs,
            name=name or DEFAULT_NAME,
            cancel_task_after_ttl=cancel_task_after_ttl,
            cancel_task_on_loss=cancel_task_on_loss,
            **options,
        )

    def on_redis(full_name: str | None, value: int) -> Semaphore:
        return RedisSemaphore(value=value, name=full_name, **options)

    scope = backend.endpoint, backend.namespace
    return StagedPaths(specs, on_redis, name=name or DEFAULT_NAME, scope=scope)
