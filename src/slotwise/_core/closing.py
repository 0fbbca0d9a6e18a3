"""What it means that a name is closed: in this process, or everywhere.

A local close ends a *generation*: all instances of a name that this process has made so
far, for good. That a name is closed everywhere is stored with the semaphore, by its driver.
Nothing here waits or wakes: drivers do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Self
from weakref import WeakValueDictionary

from slotwise._core import fork


@dataclass(frozen=True, slots=True)
class Closure:
    """A name is closed everywhere, for this reason."""

    reason: str | None


class ClosedByBlock(ABC):
    """Something that is closed at the end of its ``with`` or ``async with`` block."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def close_sync(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close_sync()


class Generation:
    """The instances of one name that this process made between two local closes.

    Each instance refers to its generation, and the generation to no instance.
    """

    __slots__ = ("__weakref__", "_leaving", "closed", "following", "has_instances")

    def __init__(self, leaving: Iterable[str] = ()) -> None:
        self.closed = False
        self.has_instances = False
        self._leaving = frozenset(leaving)  # holders from before the last close
        self.following: Generation | None = None  # once closed, the next one

    def admits(self, is_here: Callable[[str], bool]) -> bool:
        """Return whether newcomers are admitted; ``is_here`` tells whether an id is still held."""
        if self._leaving:
            self._leaving = frozenset(each for each in self._leaving if is_here(each))
        return not self.closed and not self._leaving


class Generations:
    """The current generation of each name.

    A generation lives as long as something refers to it, so names that come and go leave
    nothing behind. Holders refer to theirs, and it refers to the one that waits for them.
    """

    def __init__(self) -> None:
        self._lock = fork.new_lock()
        self._current: WeakValueDictionary[Hashable, Generation] = WeakValueDictionary()

    def current(self, key: Hashable) -> Generation:
        """Return the generation of an instance that is made now."""
        with self._lock:
            generation = self._current.get(key)
            if generation is None:
                self._current[key] = generation = Generation()
            generation.has_instances = True
            return generation

    def close(self, key: Hashable, leaving: Iterable[str] = ()) -> None:
        """Close all instances made so far; ``leaving`` are the ids of their holders."""
        with self._lock:
            closed = self._current.pop(key, None)
            if closed is not None:
                closed.closed = True
                following = closed.following = Generation(leaving)
                if following._leaving:
                    self._current[key] = following

    def open_names(self) -> list[Hashable]:
        """Return the names that have open instances."""
        with self._lock:
            return [key for key, each in self._current.items() if each.has_instances]
