"""Settings: what a run was asked to do, checked once, before anything starts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from slotwise._arguments import check_count, check_flag
from slotwise.pipeline.guard import MemoryGuard
from slotwise.pipeline.report import Report
from slotwise.semaphore import Semaphore

OnError = Literal["raise", "collect", "skip"]
OnCancel = Literal["cancel", "finish"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `bounded_map` except the function and the source."""

    limit: int
    semaphore: Semaphore | None
    weight: int | Callable[[Any], int]
    ordered: bool
    max_per_second: float | None
    max_items: int | None
    priority: Callable[[Any], Any] | None
    group_key: Callable[[Any], Any] | None
    memory_guard: MemoryGuard | None
    on_error: OnError
    on_cancel: OnCancel
    on_progress: Callable[[Report], object] | None


def check_settings(
    *,
    limit: int | None,
    semaphore: Semaphore | None = None,
    weight: int | Callable[[Any], int] = 1,
    ordered: bool = False,
    max_per_second: float | None = None,
    max_items: int | None = None,
    priority: Callable[[Any], Any] | None = None,
    group_key: Callable[[Any], Any] | None = None,
    memory_guard: MemoryGuard | None = None,
    on_error: OnError = "raise",
    on_cancel: OnCancel = "cancel",
    on_progress: Callable[[Report], object] | None = None,
) -> Settings:
    given: object = semaphore
    if given is not None and not isinstance(given, Semaphore):
        raise TypeError(f"semaphore must be a slotwise Semaphore, not {semaphore!r}")
    if limit is None:
        if semaphore is None:
            raise TypeError("bounded work needs limit=, or a semaphore= whose value is the limit")
        limit = semaphore.value
    check_count("limit", limit)
    if not callable(weight):
        check_count("weight", weight)
        # The semaphore has its own word on what fits it, and may be resized.
        if semaphore is None and weight > limit:
            raise ValueError(f"a weight of {weight} never fits into a limit of {limit}")
    if max_per_second is not None and not 0 < max_per_second < math.inf:
        raise ValueError(f"max_per_second must be finite and above 0, not {max_per_second!r}")
    if max_items is not None:
        check_count("max_items", max_items)
    if priority is not None and group_key is not None:
        raise ValueError("priority and group_key both decide what comes next: give one of them")
    for what, function in (("priority", priority), ("group_key", group_key)):
        if function is not None and not callable(function):
            raise TypeError(f"{what} must be a function of an item, not {function!r}")
    if memory_guard is not None and not isinstance(memory_guard, MemoryGuard):
        raise TypeError(f"memory_guard must be a MemoryGuard, not {memory_guard!r}")
    if on_error not in ("raise", "collect", "skip"):
        raise ValueError(f"on_error must be 'raise', 'collect' or 'skip', not {on_error!r}")
    if on_cancel not in ("cancel", "finish"):
        raise ValueError(f"on_cancel must be 'cancel' or 'finish', not {on_cancel!r}")
    return Settings(
        limit=limit,
        semaphore=semaphore,
        weight=weight,
        ordered=check_flag("ordered", ordered),
        max_per_second=max_per_second,
        max_items=max_items,
        priority=priority,
        group_key=group_key,
        memory_guard=memory_guard,
        on_error=on_error,
        on_cancel=on_cancel,
        on_progress=on_progress,
    )


def is_coroutine_function(fn: Callable[..., Any]) -> bool:
    """Whether calling ``fn`` gives a coroutine: also through partial() and ``async __call__``."""
    if not callable(fn):
        raise TypeError(f"fn must be a function of an item, not {fn!r}")
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004  # its kind is asked for, not whether it is there
    )
