"""Concurrency limits that keep their promises, from one event loop to a fleet.

Importing this package imports next to nothing: each name below is fetched from its module
when it is first asked for. What the core needs is in the standard library.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as type checkers know it; importing typing would take longest of all
if TYPE_CHECKING:
    from slotwise._core.adaptive import Adaptive
    from slotwise._core.adaptive import Change as Change
    from slotwise._core.adaptive import Errors as Errors
    from slotwise._core.adaptive import Latency as Latency
    from slotwise._core.explain import Explanation as Explanation
    from slotwise._core.explain import Lack as Lack
    from slotwise._core.limit import Limit
    from slotwise._core.results import AcquisitionResult
    from slotwise._core.semaphore import Semaphore
    from slotwise._core.stats import Claimant as Claimant
    from slotwise._core.stats import SemaphoreStats
    from slotwise._urls import semaphore
    from slotwise.errors import (
        AcquireTimeout,
        BackendError,
        LimitFull,
        SemaphoreClosed,
        SlotwiseError,
        ValueConflict,
        WouldBlockLoop,
    )
    from slotwise.errors import ContextReused as ContextReused
    from slotwise.errors import SlotManagerClosed as SlotManagerClosed
    from slotwise.integrations._decorator import limited
    from slotwise.memory import MemorySemaphore
    from slotwise.processes import ProcessSemaphore
    from slotwise.redis import RedisConfig, RedisSemaphore
    from slotwise.tiers import (
        Rate,
        RateLimit,
        Tier,
        Tiers,
    )
    from slotwise.tiers import SlotManager as SlotManager
    from slotwise.tiers import SlotOptions as SlotOptions
    from slotwise.tiers import SlotStats as SlotStats

__version__ = "0.1.0"

# What most need; a star import fetches it, which needs POSIX. The names of `slotwise.adaptive`,
# `errors`, `inspection` and `tiers` can be imported from here, too.
__all__ = [
    "AcquireTimeout",
    "AcquisitionResult",
    "Adaptive",
    "BackendError",
    "Limit",
    "LimitFull",
    "MemorySemaphore",
    "ProcessSemaphore",
    "Rate",
    "RateLimit",
    "RedisConfig",
    "RedisSemaphore",
    "Semaphore",
    "SemaphoreClosed",
    "SemaphoreStats",
    "SlotwiseError",
    "Tier",
    "Tiers",
    "ValueConflict",
    "WouldBlockLoop",
    "__version__",
    "limited",
    "semaphore",
]

_NAMES_OF = {
    "slotwise._urls": ("semaphore",),
    "slotwise.errors": (
        *("AcquireTimeout", "BackendError", "ContextReused", "LimitFull", "SemaphoreClosed"),
        *("SlotManagerClosed", "SlotwiseError", "ValueConflict", "WouldBlockLoop"),
    ),
    "slotwise.integrations._decorator": ("limited",),
    "slotwise.memory": ("MemorySemaphore",),
    "slotwise.processes": ("ProcessSemaphore",),
    "slotwise.redis": ("RedisConfig", "RedisSemaphore"),
    "slotwise.adaptive": ("Adaptive", "Change", "Errors", "Latency"),
    "slotwise._core.limit": ("Limit",),
    "slotwise._core.semaphore": ("Semaphore",),
    "slotwise.tiers": (
        *("Rate", "RateLimit", "SlotManager", "SlotOptions", "SlotStats", "Tier", "Tiers"),
    ),
    "slotwise._core.results": ("AcquisitionResult",),
    "slotwise.inspection": ("Claimant", "Explanation", "Lack", "SemaphoreStats"),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        try:
            found: object = getattr(_import(_MODULE_OF[name]), name)
        except ImportError as error:
            if _MODULE_OF[name] != "slotwise.redis":
                raise
            return _needs_extra(name, str(error))
        globals()[name] = found
        return found
    if f"{__name__}.{name}" in _NAMES_OF:  # slotwise.errors, with nothing but `import slotwise`
        try:
            return _import(f"{__name__}.{name}")
        except ImportError as error:  # inspect.getmembers skips what raises an AttributeError
            raise AttributeError(str(error)) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _import(module: str) -> object:
    __import__(module)  # importlib would take longer to import
    return sys.modules[module]


def _needs_extra(name: str, message: str) -> type:
    """Return a class that raises an ImportError when it is used: a star import must not."""

    def new(*_: object, **__: object) -> None:
        raise ImportError(message)

    return type(name, (), {"__new__": new})


def __dir__() -> list[str]:
    modules = [module.removeprefix("slotwise.") for module in _NAMES_OF if "._" not in module]
    return sorted([*__all__, *modules])
