"""What tests look at inside a limit on Redis; everything else goes through its public face."""

from __future__ import annotations

from typing import Any

from slotwise.redis._shared_client import NameRecord, SharedClient


def shared_of(limit: Any) -> SharedClient:
    """What this process has on the server of a semaphore, of tiers or of their backend."""
    return _backend_of(limit)._attached()[0]


def record_of(limit: Any) -> NameRecord:
    """What this process knows of the name."""
    return _backend_of(limit)._attached()[1]


def _backend_of(limit: Any) -> Any:
    return getattr(limit, "_backend", limit)
