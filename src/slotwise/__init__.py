"""Concurrency limits that keep their promises, from one event loop to a fleet.

Importing this package imports nothing but the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.errors import (
    AcquireTimeout,
    BackendError,
    ContextReused,
    SemaphoreClosed,
    SlotwiseError,
    ValueConflict,
    WouldBlockLoop,
)
from slotwise.memory import MemorySemaphore
from slotwise.semaphore import Semaphore
from slotwise.values import AcquisitionResult, Claimant, SemaphoreStats

if TYPE_CHECKING:
    from slotwise.redis import RedisConfig as RedisConfig
    from slotwise.redis import RedisSemaphore as RedisSemaphore

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "AcquisitionResult",
    "BackendError",
    "Claimant",
    "ContextReused",
    "MemorySemaphore",
    "Semaphore",
    "SemaphoreClosed",
    "SemaphoreStats",
    "SlotwiseError",
    "ValueConflict",
    "WouldBlockLoop",
    "__version__",
]

# Made when asked for: they need redis-py, which the core does without.
_LAZY = frozenset(("RedisConfig", "RedisSemaphore"))


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slotwise import redis

    found: object = getattr(redis, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
