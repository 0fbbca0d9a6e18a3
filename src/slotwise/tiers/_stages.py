"""Stages: the semaphores of one tier, by key, made when needed and forgotten when idle.

Nothing here waits. A key that somebody has looked up counts as used until it
leaves, so it can't be forgotten between the look-up and the acquisition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import quote

from slotwise._core import fork
from slotwise._core.paths import KeyStats, TierSpec, TierStats
from slotwise._core.semaphore import Semaphore
from slotwise._wait import clock

Make = Callable[[str | None, int], Semaphore]


class StageKey:
    """One key of a stage: its semaphore, None if it has no limit, and how many use it."""

    __slots__ = ("active", "key", "semaphore", "stage", "users", "value")

    def __init__(self, stage: Stage, key: str | None, value: int) -> None:
        self.stage = stage
        self.key = key
        self.value = value
        self.semaphore = stage.make(stage.full_name(key), value) if value else None
        self.users = 0  # those who wait or hold
        self.active = 0  # those who hold

    def hold(self) -> None:
        with self.stage.lock:
            self.active += 1

    def leave(self, held: bool) -> None:
        with self.stage.lock:
            self.active -= held
            self.users -= 1
            if not self.users and self.key is not None:
                self.stage.idle[self.key] = clock.now()


class Stage:
    """The keys of one tier; a tier without keys has one, None."""

    def __init__(self, spec: TierSpec, make: Make, name: str | None) -> None:
        self.spec = spec
        self.make = make
        self.lock = fork.new_lock()
        self.idle: OrderedDict[str, float] = OrderedDict()  # since when; the longest idle first
        self._name = name
        self._value = spec.value
        self._own_values: dict[str | None, int] = {}
        self._keys: dict[str | None, StageKey] = {}
        if not spec.keyed:
            self.visit(None).leave(held=False)

    def full_name(self, key: str | None) -> str | None:
        """What the semaphore of a key is called, None if it is private.

        Keys may be any text at all, so they are encoded; braces would change
        where a cluster puts them.
        """
        if self._name is None:
            return None
        encoded = "" if key is None else ":" + quote(key.encode("utf-8", "surrogatepass"), safe="")
        return f"{self._name}:{self.spec.name}{encoded}"

    def words(self, key: str | None) -> str:
        return f"no slot of {self.spec.name}" + ("" if key is None else f" {key!r}")

    def visit(self, key: str | None) -> StageKey:
        """Return the entry of a key, in use until its `leave`."""
        with self.lock:
            entry = self._keys.get(key)
            if entry is None:
                entry = StageKey(self, key, self._own_values.get(key, self._value))
                self._keys[key] = entry
            elif key is not None:
                self.idle.pop(key, None)
            entry.users += 1
            return entry

    def get(self, key: str | None) -> StageKey | None:
        """The entry of a key, if there is one; for those who only look."""
        with self.lock:
            return self._keys.get(key)

    def value_of(self, key: str | None) -> int:
        with self.lock:
            return self._own_values.get(key, self._value)

    def entries(self) -> list[tuple[str | None, StageKey]]:
        with self.lock:
            return [*self._keys.items()]

    def summary(self, keys: dict[str | None, KeyStats]) -> TierStats:
        return TierStats(
            sum(stats.active for stats in keys.values()),
            sum(stats.waiting for stats in keys.values()),
            self._value,
            {key: stats for key, stats in keys.items() if key is not None},
        )

    def resize(self, value: int, key: str | None) -> list[Semaphore]:
        """Note another value; return the semaphores that have to get it.

        Raises:
            ValueError: it would change between a limit and none.
        """
        with self.lock:
            if key is None:
                entries = [e for k, e in self._keys.items() if k not in self._own_values]
                old = self._value
            else:
                entries = [self._keys[key]] if key in self._keys else []
                old = self._own_values.get(key, self._value)
            if bool(old) != bool(value):
                raise ValueError("a staged tier can't change between a limit and none")
            if key is None:
                self._value = value
            else:
                self._own_values[key] = value
            for entry in entries:
                entry.value = value
            return [entry.semaphore for entry in entries if entry.semaphore is not None]

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
