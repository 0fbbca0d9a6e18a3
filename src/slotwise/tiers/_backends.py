"""Choose the driver that keeps the slots of a Tiers object."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from slotwise._core.overload import Overload
from slotwise._core.path_backend import PathBackend
from slotwise._core.paths import TierSpec
from slotwise._core.semaphore import Semaphore
from slotwise._urls import directory_of
from slotwise.memory import MemorySemaphore
from slotwise.memory._paths import MemoryPaths
from slotwise.tiers._options import TiersOptions
from slotwise.tiers._staged import StagedPaths
from slotwise.tiers._stages import SemaphoreSource


def choose_backend(
    specs: Sequence[TierSpec], options: TiersOptions, overload: Overload | None
) -> PathBackend:
    """Return a new backend for these tiers, in the scope of the url."""
    url, name, ttl, atomic = options.url, options.name, options.ttl, options.atomic
    bound: dict[str, Any] = {
        "max_idle_keys": options.max_idle_keys,
        "closed_error": options.closed_error,
    }
    if url is None or url == "memory://":
        if atomic:
            return MemoryPaths(
                specs,
                name=name,
                ttl=ttl,
                cancel_task_after_ttl=options.cancel_task_after_ttl,
                overload=overload,
                **bound,
            )

        def in_memory(full_name: str | None, value: int) -> Semaphore:
            return MemorySemaphore(value=value, name=full_name, ttl=ttl)

        source = SemaphoreSource(None, in_memory, MemorySemaphore, {})
        return StagedPaths(specs, source, name=name, **bound)
    if isinstance(url, str):
        if atomic:
            from slotwise.processes._paths import ProcessPaths

            return ProcessPaths(
                specs,
                name=name,
                ttl=ttl,
                cancel_task_after_ttl=options.cancel_task_after_ttl,
                overload=overload,
                directory=directory_of(url),
                **bound,
            )
        return StagedPaths(specs, _in_directory(url, ttl), name=name, **bound)
    from slotwise.redis import RedisSemaphore
    from slotwise.redis._paths import RedisPaths
    from slotwise.redis._shared_client import shared_client_for

    name = name or f"private-{secrets.token_hex(8)}"  # on a server everything needs one
    passed_on: dict[str, Any] = {"config": url, "ttl": ttl}
    if options.heartbeat_max_interval is not None:
        passed_on["heartbeat_max_interval"] = options.heartbeat_max_interval
    if options.ping_interval is not None:
        passed_on["ping_interval"] = options.ping_interval
    if atomic:
        return RedisPaths(
            specs,
            name=name,
            cancel_task_after_ttl=options.cancel_task_after_ttl,
            cancel_task_on_loss=options.cancel_task_on_loss,
            overload=overload,
            unreachable=options.unreachable,
            **passed_on,
            **bound,
        )

    def on_redis(full_name: str | None, value: int) -> Semaphore:
        return RedisSemaphore(value=value, name=full_name, **passed_on)

    source = SemaphoreSource(
        (url.endpoint, url.namespace),
        on_redis,
        RedisSemaphore,
        {"config": url},
        lambda: shared_client_for(url).heartbeat_thread,
        url.cleanup_timeout,
    )
    return StagedPaths(specs, source, name=name, **bound)


def _in_directory(url: str, ttl: float | None) -> SemaphoreSource:
    from slotwise.processes import ProcessSemaphore

    directory = directory_of(url)

    def made_in_directory(full_name: str | None, value: int) -> Semaphore:
        return ProcessSemaphore(value=value, name=full_name, ttl=ttl, directory=directory)

    return SemaphoreSource(url, made_in_directory, ProcessSemaphore, {"directory": directory})
