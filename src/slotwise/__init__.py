"""Concurrency limits that keep their promises, from one event loop to a fleet.

Importing this package imports nothing but the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# The function: from here on it hides the module of that name, which is imported by its path.
from slotwise.door import semaphore
from slotwise.errors import (
    AcquireTimeout,
    BackendError,
    ContextReused,
    SemaphoreClosed,
    SlotManagerClosed,
    SlotwiseError,
    ValueConflict,
    WouldBlockLoop,
)
from slotwise.memory import MemorySemaphore
from slotwise.semaphore import Semaphore
from slotwise.values import AcquisitionResult, Claimant, SemaphoreStats

if TYPE_CHECKING:
    from slotwise.processes import ProcessSemaphore as ProcessSemaphore
    from slotwise.redis import RedisConfig as RedisConfig
    from slotwise.redis import RedisSemaphore as RedisSemaphore
    from slotwise.tiers import SlotManager as SlotManager
    from slotwise.tiers import SlotOptions as SlotOptions
    from slotwise.tiers import SlotStats as SlotStats
    from slotwise.tiers import Tier as Tier
    from slotwise.tiers import Tiers as Tiers

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
    "SlotManagerClosed",
    "SlotwiseError",
    "ValueConflict",
    "WouldBlockLoop",
    "__version__",
    "semaphore",
]

# Imported when asked for: redis-py is one that the core does without, and files and
# processes are nothing that every program needs.
_LAZY = {
    "ProcessSemaphore": "slotwise.processes",
    "RedisConfig": "slotwise.redis",
    "RedisSemaphore": "slotwise.redis",
    "SlotManager": "slotwise.tiers",
    "SlotOptions": "slotwise.tiers",
    "SlotStats": "slotwise.tiers",
    "Tier": "slotwise.tiers",
    "Tiers": "slotwise.tiers",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
