"""A name whose keys were lost, or spoilt by others: it is reset, and goes on.

No call fails. Holders learn by their next heartbeat that they lost what they held, or still hold
it; waiters learn that they are not in the queue any more. These are calls of scripts; clients are
tested in faults/.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import redis
from tests._effort import seeds
from tests.redis._eval import evaluate, keys_that_stay
from tests.redis._keys import KeySet, PathKeys, SemaphoreKeys
from tests.redis._server import FAKE_CLOCK
from tests.redis.test_paths_against_ledger import INTERVAL, Pair

from slotwise._core.rates import Rate
from slotwise.redis._scripts import load
from slotwise.redis._writing import write_needs, write_path, write_value

pytestmark = pytest.mark.usefixtures("x_listens")

Path = tuple[str | None, ...]
USERS, MODELS = ["a", "b", "c"], ["m", "n"]


class Limit:
    """One limit on a server, and what its users, all of one process, believe that they have."""

    def __init__(self, client: redis.Redis, kind: str, name: str) -> None:
        self.client = client
        self.values: list[int | Rate] = [4] if kind == "semaphore" else [2, 3, 4]
        self.shape, self.pattern = "s*,m*,l", ""
        if kind == "rates":
            self.shape, self.values[1] = "s*=,m*,l", Rate(2, per=1, burst=5)
        self.keys: KeySet = PathKeys(FAKE_CLOCK, name)
        if kind == "semaphore":
            self.keys = SemaphoreKeys(FAKE_CLOCK, name)
            self.shape, self.pattern = "", self.keys.notification.decode()
        self.declared = ",".join(map(write_value, self.values))
        self.now = Pair.now
        self.holding: dict[str, Path] = {}
        self.waiting: dict[str, Path] = {}
        self.last_token = self.issued = 0
        self.damage: Any = None

    # ----------------------------------------------------------------- calls

    def call(self, name: str, *args: object) -> Any:
        self.now = round(self.now + 0.001, 6)
        given = (f"{self.now:.6f}", "", *map(str, args))
        keys = self.keys.all
        return evaluate(self.client, load(name).source, len(keys), *keys, *given)

    def request(self, path: Path, needs: list[int], word: str = "wait") -> bool:
        """Whether it got what it needs."""
        self.issued += 1
        claim_id = f"sw-x-{self.issued}{write_needs(needs)}"
        options = (INTERVAL, "-" if self.issued % 3 else 600, word, "", "host 1 x y", "due")
        more = self.pattern or " ".join(f"0:{user}|2.0" for user in USERS if "=" in self.shape)
        args = (self.shape, self.declared, *options, more, claim_id, write_path(path))
        reply = self.call("request", *args)
        if reply[0] == "granted":
            self.note_grant(claim_id, path, reply[2])
        elif reply[0] == "queued":
            self.waiting[claim_id] = path
        self.hear(reply[1:])
        return claim_id in self.holding

    def release(self, claim_id: str) -> None:
        reply = self.call("release", "x", self.pattern, "", claim_id)
        self.holding.pop(claim_id, None)
        self.waiting.pop(claim_id, None)
        self.hear(reply[1:])

    def beat(self) -> None:
        """Have everybody learn what became of their acquisitions."""
        counts = (len(self.holding), len(self.waiting))
        ids = (*self.holding, *self.waiting)
        [reply] = self.call("heartbeat", "x", INTERVAL, self.pattern, *counts, *ids)
        assert not [each for each in reply[1:] if each.startswith("failed ")]
        self.hear(reply[1:])

    def look(self) -> None:
        for what in ("tiers", "nodes", "holders", "waiters"):
            self.call("inspect", self.pattern, what, "")
        path = write_path(self.some_path(0))
        for what in ("path", "estimate"):
            self.call("inspect", self.pattern, what, path)

    def control(self, verb: str, *args: object) -> None:
        declared = (INTERVAL, self.shape, self.declared)
        self.hear(self.call("control", "x", self.pattern, *declared, verb, *args))

    def kick(self) -> None:
        self.control("kick", next(iter(self.holding), "sw-x-nobody"))

    def hear(self, messages: list[Any]) -> None:
        for words in [str(each).split(" ") for each in messages]:
            if words[0] == "granted" and words[1] in self.waiting:
                self.note_grant(words[1], self.waiting.pop(words[1]), int(words[3]))
            elif words[0] in ("lost", "kicked"):
                self.holding.pop(words[1], None)
            elif words[0] == "gone":
                self.waiting.pop(words[1], None)

    def note_grant(self, claim_id: str, path: Path, token: int) -> None:
        self.holding[claim_id] = path
        assert token > self.last_token, "tokens increase"
        self.last_token = token

    # ----------------------------------------------------------------- users

    def some_path(self, number: int) -> Path:
        return (
            (USERS[number % 3], MODELS[number % 2], None)[: len(self.values)]
            if self.shape
            else (None,)
        )

    def fill(self, count: int = 12) -> None:
        """Have some hold, some wait, and some slot numbers free."""
        for number in range(count):
            self.request(self.some_path(number), [1 + (number == 4)] * len(self.values))
        for claim_id in [*self.holding][:2]:
            self.release(claim_id)

    def check(self) -> None:
        """Nobody has more than there is, and everybody knows it, after a heartbeat."""
        held: Counter[tuple[int, str | None]] = Counter()
        for claim_id, path in self.holding.items():
            needs = [1] * len(path)
            if "*" in claim_id:
                needs = [*map(int, claim_id.rpartition("*")[2].split("."))]
            for tier, key in enumerate(path):
                held[tier, key] += needs[tier]
        for (tier, _), slots in held.items():
            value = self.values[tier]
            assert isinstance(value, Rate) or slots <= value, (held, self.damage)
        assert not keys_that_stay(self.client)
        for what, known in (("holders", self.holding), ("waiters", self.waiting)):
            found = self.call("inspect", self.pattern, what, "")[4:]
            ids = {each for each, claim in zip(found[::3], found[1::3], strict=True) if claim}
            assert ids == {*known}, self.damage

    def go_on(self) -> None:
        """Everybody learns how things are; afterwards the limit is as good as a new one."""
        for _ in range(3):
            self.beat()
        self.check()
        self.now += 60  # silent ones that nobody knows of have died
        before = {**self.holding, **self.waiting}
        for claim_id in before:
            self.release(claim_id)
        assert not self.waiting
        self.beat()
        largest = [1 if isinstance(value, Rate) else value for value in self.values]
        path = self.some_path(0)
        for _ in range(3):
            if self.request(path, largest):
                break
            self.beat()
        assert len(self.holding) == 1, ("all of it can be had again", self.damage)
        self.look()
        self.release(next(iter(self.holding)))

    def contents(self) -> dict[bytes, Any]:
        return {key: self.client.dump(key) for key in self.keys.all}


# --------------------------------------------------------------------------------- damage


def delete(client: redis.Redis, key: bytes) -> None:
    client.delete(key)


def make_string(client: redis.Redis, key: bytes) -> None:
    client.set(key, "garbage", ex=600)


def make_list(client: redis.Redis, key: bytes) -> None:
    client.delete(key)
    client.rpush(key, "garbage", "more of it")
    client.expire(key, 600)


def make_set(client: redis.Redis, key: bytes) -> None:
    client.delete(key)
    client.sadd(key, "garbage", "more of it")
    client.expire(key, 600)


def make_hash(client: redis.Redis, key: bytes) -> None:
    """Of the state too, which then has only fields of others."""
    client.delete(key)
    client.hset(key, mapping={"garbage": "x", "more of it": "y"})
    client.expire(key, 600)


def make_zset(client: redis.Redis, key: bytes) -> None:
    client.delete(key)
    client.zadd(key, {"garbage": 1, "more of it": 5e9, "0:": 0, "sw-x-77*3#2": 2, "sw-x-78": 9e9})
    client.expire(key, 600)


def add_members(client: redis.Redis, key: bytes) -> None:
    if client.type(key) == "zset":
        client.zadd(key, {"garbage": 1, "0:a": 9e15, "sw-x-77*3#2": 2, "sw-x-1*9": 3e9, "": inf})


def drop_half(client: redis.Redis, key: bytes) -> None:
    if client.type(key) == "zset":
        for member in client.zrange(key, 0, -1)[::2]:
            client.zrem(key, member)
    elif client.type(key) == "hash":
        for field in sorted(client.hkeys(key))[::2]:
            client.hdel(key, field)


DAMAGES = (delete, make_string, make_list, make_set, make_hash, make_zset, add_members, drop_half)

# Field by field of the state.
TEXTS = (
    "",
    "garbage",
    "-1",
    "1e300",
    "9" * 30,
    "nan",
    "inf",
    "0 0 0 0 0 0 0 0",
    "1 2 - - x",
    "a|b|",
    " ",
)


KINDS = ("semaphore", "tiers", "rates")
FIRST: dict[str, Callable[[Limit], object]] = {
    "request": lambda limit: limit.request(limit.some_path(1), [1] * len(limit.values)),
    "release": lambda limit: limit.release(next(iter(limit.holding), "sw-x-nobody")),
    "heartbeat": Limit.beat,
    "inspect": Limit.look,
    "kick": Limit.kick,
    "resize": lambda limit: limit.control("resize", 0, "", 4 if not limit.shape else 2, 60, ""),
    "pause": lambda limit: limit.control("pause", "0", 0.001),
    "close": lambda limit: (limit.control("close", "x"), limit.control("reopen")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_name_goes_on_after_damage_to_any_key(
    client: redis.Redis, kind: str, damage: Callable[[redis.Redis, bytes], None]
) -> None:
    other = Limit(client, kind, "other")
    other.fill()
    untouched = other.contents()
    for key in range(len(other.keys.all)):
        for first in FIRST.values():
            limit = Limit(client, kind, f"spoilt {key}")
            limit.fill()
            damage(client, limit.keys.all[key])
            limit.damage = limit.keys.all[key]
            first(limit)
            limit.go_on()
            client.delete(*limit.keys.all)
    assert other.contents() == untouched


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_goes_on_after_damage_to_any_field(client: redis.Redis, kind: str) -> None:
    dice = random.Random(0)
    limit = Limit(client, kind, "spoilt")
    limit.fill()
    fields = sorted(client.hkeys(limit.keys.all[0]))
    client.delete(*limit.keys.all)
    for field in fields:
        for text in TEXTS:
            limit = Limit(client, kind, "spoilt")
            limit.fill()
            client.hset(limit.keys.all[0], field, text)
            limit.damage = field, text
            dice.choice([*FIRST.values()])(limit)
            limit.go_on()
            client.delete(*limit.keys.all)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [*seeds(3, 30), 299, 432, 4134])
def test_a_name_goes_on_after_any_damage_at_any_time(
    client: redis.Redis, kind: str, seed: int
) -> None:
    dice = random.Random(seed)
    limit = Limit(client, kind, "spoilt")
    limit.fill()
    for _ in range(40):
        for _ in range(dice.choice([1, 1, 3])):
            key = dice.choice(limit.keys.all)
            if dice.random() < 0.5:
                dice.choice(DAMAGES)(client, key)
            elif client.type(key) == "hash":
                field = dice.choice(sorted(client.hkeys(key)))
                parts = re.split("([ =*,;|])", client.hget(key, field))
                parts[dice.randrange(len(parts))] = dice.choice(TEXTS)
                client.hset(key, field, dice.choice([*TEXTS, *["".join(parts)] * len(TEXTS)]))
        for _ in range(dice.randint(1, 6)):
            dice.choice([*FIRST.values()])(limit)
        if dice.random() < 0.3:
            limit.go_on()
    limit.go_on()
