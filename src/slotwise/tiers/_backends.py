"""Choose the driver that keeps the slots of a Tiers object."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from slotwise._core.overload import Overload
from slotwise._core.path_backend import PathBackend
from slotwise._core.paths import TierSpec
from slotwise._urls import directory_of
from slotwise.memory._backend import MemoryBackend
from slotwise.tiers._options import TiersOptions


def choose_backend(
    specs: Sequence[TierSpec], options: TiersOptions, overload: Overload | None
) -> PathBackend:
    """Return a new backend for these tiers, in the scope of the url."""
    url, name = options.url, options.name
    passed_on: dict[str, Any] = {
        "ttl": options.ttl,
        "cancel_task_after_ttl": options.cancel_task_after_ttl,
        "overload": overload,
        "max_idle_keys": options.max_idle_keys,
        "closed_error": options.closed_error,
    }
    if url is None or url == "memory://":
        return MemoryBackend(specs, name=name, **passed_on)
    if isinstance(url, str):
        from slotwise.processes._backend import ProcessBackend

        return ProcessBackend(specs, name=name, directory=directory_of(url), **passed_on)
    from slotwise.redis._backend import RedisBackend

    return RedisBackend(
        specs,
        name=name or f"private-{secrets.token_hex(8)}",  # on a server everything needs one
        config=url,
        heartbeat_max_interval=options.heartbeat_max_interval,
        ping_interval=options.ping_interval,
        cancel_task_on_loss=options.cancel_task_on_loss,
        unreachable=options.unreachable,
        **passed_on,
    )
