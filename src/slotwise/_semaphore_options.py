"""The types of the options of `slotwise.semaphore`; only type checkers and tests import it."""

from __future__ import annotations

from typing import Any, TypedDict

from slotwise._core.arguments import OnUnreachable, Shed


class SemaphoreOptions(TypedDict, total=False):
    """The options of `semaphore`: those of `RedisSemaphore`, then those of `RedisConfig`."""

    max_acquire_time: float | None
    ttl: float | None
    cancel_task_after_ttl: bool
    heartbeat_max_interval: float | None
    ping_interval: float | None
    cancel_task_on_loss: bool
    max_waiting: int | None
    shed: Shed | None
    on_unreachable: OnUnreachable
    local_value: int | None
    unreachable_after: float
    namespace: str
    connect_timeout: float
    reply_timeout: float
    attempts: int
    backoff: float
    max_backoff: float
    cleanup_timeout: float
    credential_provider: Any
