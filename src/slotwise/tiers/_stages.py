"""Stages: the semaphores of one tier, by key, made when needed and forgotten when idle.

Nothing here waits. A key that somebody has looked up counts as used until it
leaves, so it can't be forgotten between the look-up and the acquisition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from slotwise._core import fork
from slotwise._core.arguments import MOST_SLOTS
from slotwise._core.paths import KeyStats, TierSpec, TierStats
from slotwise._core.semaphore import Semaphore
from slotwise._wait import clock
from slotwise.tiers._stage_calls import FindThread

# Makes the semaphore of a stage: its name, or None for a private one, and its value.
Make = Callable[[str | None, int], Semaphore]


class SemaphoreSource(NamedTuple):
    """Where the semaphores are, and what makes and lists them there."""

    key: Hashable  # equal for the same place: elsewhere, the same name is another semaphore
    make: Make
    kind: type[Any]  # has get_acquired_stats, to be called with `where`
    where: dict[str, Any]
    find_thread: FindThread = None
    cleanup_timeout: float = 0.0  # how long a release may wait for the server


def value_for(limit: int) -> int:
    """The value of the semaphore of a tier; 0 means unlimited, and what is held is counted."""
    return limit or MOST_SLOTS


def limit_of(value: int) -> int:
    return 0 if value == MOST_SLOTS else value


class StageKey:
    """One key of a stage: its semaphore, and how many of this object use it."""

    __slots__ = ("key", "name", "semaphore", "stage", "users", "value")

    def __init__(self, stage: Stage, key: str | None, value: int) -> None:
        self.stage = stage
        self.key = key
        self.name = stage.full_name(key)
        self.value = value
        self.semaphore = stage.make(self.name, value)
        # So that events name a tier, and not one semaphore for each key.
        keys = {} if key is None else {stage.spec.name: key}
        self.semaphore._reported = stage.tiers_name, stage.spec.name, keys
        self.users = 0  # those who wait or hold

    def leave(self) -> None:
        with self.stage.lock:
            self.users -= 1
            if not self.users and self.key is not None:
                self.stage.note_idle(self.key)


class Stage:
    """The keys of one tier; a tier without keys has one, None."""

    def __init__(self, spec: TierSpec, make: Make, name: str | None, max_idle: float) -> None:
        """``max_idle``: how many idle keys are kept."""
        self.spec = spec
        self.make = make
        self._max_idle = max_idle
        self.lock = fork.new_lock()
        self.idle: OrderedDict[str, float] = OrderedDict()  # since when; the longest idle first
        self._name = self.tiers_name = name
        self._value = None if spec.by_key else value_for(spec.slots)
        self._own_values: dict[str | None, int] = {}
        self._keys: dict[str | None, StageKey] = {}
        if not spec.keyed:
            self.visit(None).leave()

    def full_name(self, key: str | None) -> str | None:
        """Return the name of the semaphore of a key, None if it is private.

        Keys may be any text at all, so they are encoded; braces would change
        where a cluster puts them.
        """
        if self._name is None:
            return None
        encoded = "" if key is None else ":" + quote(key, safe="")
        return f"{self._name}:{self.spec.name}{encoded}"

    def key_in(self, full_name: str) -> str | None:
        """Return the key in the name of a semaphore; None if it isn't one of this keyed stage."""
        prefix = f"{self._name}:{self.spec.name}:"
        if not full_name.startswith(prefix):
            return None
        return unquote(full_name.removeprefix(prefix))

    def words(self, key: str | None) -> str:
        return f"no slot of {self.spec.name}" + ("" if key is None else f" {key!r}")

    def visit(self, key: str | None) -> StageKey:
        """Return the entry of a key, in use until its `leave`."""
        asked: int | None = None
        while True:
            with self.lock:
                entry = self._keys.get(key)
                value = self._value_of(key) or asked
                if entry is None and value is not None:
                    entry = self._keys[key] = StageKey(self, key, value)
                elif entry is not None and key is not None:
                    self.idle.pop(key, None)
                if entry is not None:
                    entry.users += 1
                    return entry
            asked = self._ask(key)

    def note_idle(self, key: str) -> None:
        """Note, *with the lock*, that nobody uses a key any more."""
        self.idle[key] = clock.now()
        if len(self.idle) > self._max_idle:
            longest_idle, _ = self.idle.popitem(last=False)
            del self._keys[longest_idle]

    def semaphore(self, key: str | None) -> Semaphore:
        """Return the semaphore of a key, to inspect or control it: no entry is made."""
        with self.lock:
            entry = self._keys.get(key)
            if entry is not None:
                return entry.semaphore
            value = self._value_of(key)
        return self.make(self.full_name(key), value or self._ask(key))

    def _value_of(self, key: str | None) -> int | None:
        """The value of a key; None if the user's function has to be asked."""
        return self._own_values.get(key, self._value)

    def _ask(self, key: str | None) -> int:
        """Ask the user's function, *without the lock*: it may do anything."""
        assert key is not None
        return value_for(self.spec.ask(key))

    def entries(self) -> list[tuple[str | None, StageKey]]:
        with self.lock:
            return [*self._keys.items()]

    def summary(self, keys: dict[str | None, KeyStats]) -> TierStats:
        return TierStats(
            sum(stats.active for stats in keys.values()),
            sum(stats.waiting for stats in keys.values()),
            0 if self._value is None else limit_of(self._value),
            {key: stats for key, stats in keys.items() if key is not None},
            paused_for=keys[None].paused_for if None in keys else 0.0,
        )

    def resize(self, limit: int, key: str | None) -> list[StageKey]:
        """Note another value; return the entries whose semaphores have to get it."""
        value = value_for(limit)
        with self.lock:
            if key is None:
                entries = [e for k, e in self._keys.items() if k not in self._own_values]
                self._value = value
            else:
                entries = [self._keys[key]] if key in self._keys else []
                self._own_values[key] = value
            for entry in entries:
                entry.value = value
            return entries

    def forget_idle(self, before: float, keep_at_most: int | None) -> int:
        forgotten = 0
        with self.lock:
            kept = len(self.idle) if keep_at_most is None else keep_at_most
            while self.idle:
                key, since = next(iter(self.idle.items()))
                if since > before and len(self.idle) <= kept:
                    break
                del self.idle[key], self._keys[key]
                forgotten += 1
        return forgotten
