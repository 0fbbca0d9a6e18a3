"""The arguments of `bounded_map`, checked once before anything starts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, TypeVar, get_args

from slotwise._bounded.memory_guard import MemoryGuard
from slotwise._core.arguments import check_count, check_flag
from slotwise._core.limit import Limit
from slotwise._core.redaction import redacted_repr
from slotwise.pipeline._report import Report

T = TypeVar("T")

OnError = Literal["raise", "collect", "skip"]
OnCancel = Literal["cancel", "finish"]


class MapSettings(TypedDict, Generic[T], total=False):
    """The keyword arguments of `bounded_map` and its variants; all optional."""

    semaphore: Limit | None
    """Each item also takes slots of this limit, which may be shared with others."""
    weight: int | Callable[[T], int]
    """How many slots an item takes, or a function that returns it. Default: 1."""
    ordered: bool
    """Results come in the order of the source (with ``priority``: of the starts); a slow item holds
    back at most ``2 * limit``. Default: False."""
    max_per_second: float | None
    """The most starts per second, evenly spaced."""
    max_items: int | None
    """Stop after this many items."""
    priority: Callable[[T], Any] | None
    """Start items with a higher priority first, among the next ``limit`` items."""
    group_key: Callable[[T], Any] | None
    """Items with equal keys run one after the other on one worker."""
    memory_guard: MemoryGuard | None
    """Slows the run down, or stops it, when memory runs low."""
    on_error: OnError
    """"raise" (the default) ends the run with the first exception, which is raised after
    the results that are ready; "skip" and "collect" count failures and go on, and
    "collect" keeps the first 100."""
    on_cancel: OnCancel
    """Whether running items are cancelled (the default) or finish when the run is cancelled, closed
    or left."""
    on_progress: Callable[[Report], object] | None
    """Called with the report at most ten times a second, by whoever finished an item,
    and at the end."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The same, checked, with the defaults filled in."""

    limit: int
    semaphore: Limit | None = None
    weight: int | Callable[[Any], int] = 1
    ordered: bool = False
    max_per_second: float | None = None
    max_items: int | None = None
    priority: Callable[[Any], Any] | None = None
    group_key: Callable[[Any], Any] | None = None
    memory_guard: MemoryGuard | None = None
    on_error: OnError = "raise"
    on_cancel: OnCancel = "cancel"
    on_progress: Callable[[Report], object] | None = None

    def __post_init__(self) -> None:
        check_count("limit", self.limit)
        if not callable(self.weight):
            check_count("weight", self.weight)
            # The semaphore itself decides what fits it, and may be resized.
            if self.semaphore is None and self.weight > self.limit:
                raise ValueError(
                    f"a weight of {self.weight} never fits into a limit of {self.limit}"
                )
        check_flag("ordered", self.ordered)
        if self.max_per_second is not None and not 0 < self.max_per_second < math.inf:
            raise ValueError(
                f"max_per_second must be finite and above 0, not {self.max_per_second!r}"
            )
        if self.max_items is not None:
            check_count("max_items", self.max_items)
        for what in ("priority", "group_key", "on_progress"):
            function = getattr(self, what)
            if function is not None and not callable(function):
                raise TypeError(f"{what} must be a function, not {redacted_repr(function)}")
        if self.priority is not None and self.group_key is not None:
            raise ValueError("priority and group_key both decide what comes next: give one of them")
        if self.memory_guard is not None and not isinstance(self.memory_guard, MemoryGuard):
            raise TypeError(
                f"memory_guard must be a MemoryGuard, not {redacted_repr(self.memory_guard)}"
            )
        for what, kind in (("on_error", OnError), ("on_cancel", OnCancel)):
            word, known = getattr(self, what), get_args(kind)
            if word not in known:
                words = " or ".join(map(repr, known))
                raise ValueError(f"{what} must be {words}, not {redacted_repr(word)}")


def check_settings(limit: int | None, given: MapSettings[Any]) -> Settings:
    """Return the checked settings; raise before anything starts if they are invalid."""
    semaphore: object = given.get("semaphore")
    if semaphore is not None and not isinstance(semaphore, Limit):
        if hasattr(semaphore, "at"):  # Tiers, which are not imported here
            raise TypeError(
                "semaphore must be one path through Tiers: semaphore=tiers.at(...), with a key for"
                " each keyed tier"
            )
        raise TypeError(f"semaphore must be a slotwise Limit, not {redacted_repr(semaphore)}")
    if limit is None:
        if semaphore is None:
            raise TypeError("bounded work needs limit=, or a semaphore= whose value is the limit")
        limit = semaphore._fixed_value()
    return Settings(limit=limit, **given)


def is_coroutine_function(fn: Callable[..., Any]) -> bool:
    """Whether calling ``fn`` returns a coroutine, even through partial() or ``async __call__``."""
    if not callable(fn):
        raise TypeError(f"fn must be a function that takes an item, not {redacted_repr(fn)}")
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004  # its kind is asked for, not whether it is there
    )
