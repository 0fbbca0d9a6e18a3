"""Concurrency limits that keep their promises, from one event loop to a fleet.

Importing this package imports nothing but the standard library.
"""

from slotwise.errors import (
    AcquireTimeout,
    ContextReused,
    SemaphoreClosed,
    SlotwiseError,
    ValueConflict,
    WouldBlockLoop,
)
from slotwise.memory import MemorySemaphore
from slotwise.semaphore import Semaphore
from slotwise.values import AcquisitionResult, SemaphoreStats

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "AcquisitionResult",
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
