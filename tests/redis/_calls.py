"""Calls: our scripts for one limit, called as clients call them; lua/*.lua says what is what."""

from __future__ import annotations

from typing import Any

import redis
from tests.redis._eval import evaluate
from tests.redis._keys import KINDS, PATH_KINDS, KeySet, PathKeys, SemaphoreKeys

from slotwise.redis._scripts import load


class Calls:
    """The scripts of a semaphore, or of tiers if their names are given.

    Args:
        namespace: of the keys.
        name: of the limit.
        tiers: their names as the scripts have them, "user*,all"; of a semaphore nothing.
        values: theirs; of a semaphore its value.
        interval: for how long everybody may be silent, in seconds.
        now: the time, as the scripts are told; None is the server's. Tests may change it.
    """

    def __init__(
        self,
        client: redis.Redis,
        namespace: str,
        name: str,
        *,
        tiers: str = "",
        values: object = 1,
        interval: float = 15,
        ttl: float | str = "-",
        now: float | None = None,
    ) -> None:
        self.client = client
        self.tiers, self.values = tiers, values
        self.interval, self.ttl, self.now = interval, ttl, now
        self.keys: KeySet = (PathKeys if tiers else SemaphoreKeys)(namespace, name)
        self.names = f"{namespace}:names"

    def key(self, kind: str) -> str:
        """The name of a key: of what is kept as "state", for example."""
        kinds = PATH_KINDS if self.tiers else KINDS
        return self.keys.all[kinds.index(kind)].decode()

    def source(self, script: str) -> bytes:
        return load(script).source

    def run(self, script: str, *args: object) -> Any:
        now = "" if self.now is None else f"{self.now:.6f}"
        given = (*self.keys.all, now, self.names, *map(str, args))
        return evaluate(self.client, self.source(script), len(self.keys.all), *given)

    def request(
        self,
        *claims: object,
        word: str = "wait",
        again: bool = False,
        owner: str = "host 1 ",
        due: str = "",
        told: str = "",
    ) -> Any:
        """Request: ids of a semaphore, or in turn ids and paths of tiers."""
        if not self.tiers:
            claims = tuple(each for claim in claims for each in (claim, "0:"))
        first = (self.tiers, self.values, self.interval, self.ttl, word, "again" if again else "")
        return self.run("request", *first, owner, due, told, *claims)

    def release(self, *ids: str, caller: str = "", count: bool = False) -> Any:
        return self.run("release", caller, "", "count" if count else "", *ids)

    def heartbeat(
        self, holders: Any = (), waiters: Any = (), *, caller: str = ""
    ) -> tuple[int, list[str]]:
        """Return when to come back, and what became of whom."""
        pattern = "" if self.tiers else self.keys.notification.decode()
        named = (self.interval, pattern, len(holders), len(waiters), *holders, *waiters)
        [[due_ms, *outcomes]] = self.run("heartbeat", caller, *named)
        return due_ms, outcomes

    def control(self, verb: str, *words: object, caller: str = "") -> Any:
        first = (caller, "", self.interval, self.tiers, self.values)
        return self.run("control", *first, verb, *words)

    def inspect(self, what: str, start: object = "") -> list[Any]:
        """Return what is told, behind the four things that each reply begins with."""
        found: list[Any] = self.run("inspect", "", what, start)
        return found[4:]

    def counts(self, path: str = "0:") -> list[int]:
        """How many hold and wait at each node of a path."""
        found = self.inspect("path", path)
        return [each for at in range(0, len(found), 6) for each in found[at : at + 2]]
