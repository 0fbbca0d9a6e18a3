"""The fast halves of tiers' scripts against the rules: one random sequence with them, and without.

After every call the replies are the same, and so is every key with its time to live.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import redis
from tests.redis._damage import drop_half, write_one_piece_of_garbage
from tests.redis._eval import evaluate, read_keys
from tests.redis._server import FAKE_CLOCK

from slotwise.redis._path_keys import KINDS, PathKeys
from slotwise.redis._scripts import load

pytestmark = pytest.mark.usefixtures("x_listens")

# How the fast half of a script ends.
FAST = {
    "tiers/request": "local granted = at_rest.request()\nif granted then return granted end\n",
    "tiers/release": "local released = at_rest.release()\nif released then return released end\n",
}
COUNT = "redis.call('INCR', 'answered by a fast half') return"

# The tiers' names, and their values; every path has one key of each keyed tier.
SHAPES = [
    ("user*,all", "2,5"),
    ("user*,all", "0,0"),
    ("user*,team*", "1,3"),  # slot numbers of several widest nodes
    ("user*=,all", "2,4"),  # keys take turns
    ("user*,all", "2,1000/1000/3/1000000"),
    ("user*,all", "2,1_9_4"),
    ("all", "3"),
]


@cache
def sources(name: str) -> tuple[str, str]:
    """Return a script that counts what its fast half does, and the script without that half."""
    source, ending = load(name).source.decode(), FAST.get(name, "")
    assert ending in source
    if not ending:
        return source, source
    return source.replace(ending, ending.replace("return", COUNT)), source.replace(ending, "")


class Twin:
    """One Tiers object twice on a server: with the fast halves of the scripts, and without."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.client = client
        self.keys = [PathKeys(FAKE_CLOCK, f"{name} {each}") for each in ("fast", "plain")]
        self.is_damaged = False

    def call(self, name: str, at: float, *args: object) -> Any:
        given = [f"{at:.6f}", *map(str, args)]
        replies = []
        for source, keys in zip(sources(name), self.keys, strict=True):
            try:
                replies.append(evaluate(self.client, source, 12, *keys.all, *given))
            except redis.ResponseError as error:
                # Redis 7 begins with the line of the script, which is not the same in both.
                replies.append(re.sub(r"^user_script:\d+: ", "", str(error)).split(" ")[0])
        fast_reply, plain_reply = replies
        assert fast_reply == plain_reply
        return fast_reply

    def damage(self, kind: int, how: Callable[[redis.Redis, bytes], None]) -> None:
        for keys in self.keys:
            if self.client.exists(keys.all[kind]):
                how(self.client, keys.all[kind])
                self.is_damaged = True

    def compare(self) -> None:
        found = [self.contents(keys) for keys in self.keys]
        for kind, fast, plain in zip(KINDS, *found, strict=True):
            assert fast[0] == plain[0], kind
            assert abs(fast[1] - plain[1]) < 10_000, kind  # the server's clock goes on
            assert -1 not in (fast[1], plain[1]) or self.is_damaged, (
                kind
            )  # else a rebuild sees to it

    def contents(self, keys: PathKeys) -> list[tuple[Any, int]]:
        """What is in each key, and for how long (ms)."""
        return [*zip(*read_keys(self.client, *keys.all), strict=True)]


@pytest.mark.others_keys
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_fast_halves_do_what_the_rules_do(client: redis.Redis, shape: tuple[str, str]) -> None:
    dice = random.Random(str(shape))
    twin = Twin(client, "t")
    names, values = shape
    tiers = names.split(",")
    now, number = round(time.time(), 3), 0
    known: list[str] = []

    def path() -> str:
        keys = [dice.choice("ab") if "*" in tier else "" for tier in tiers]
        return ",".join(f"{index}:{key}" for index, key in enumerate(keys))

    def some_ids(most: int) -> list[str]:
        return dice.sample(known, min(len(known), dice.randint(1, most)))

    for step in range(220):
        now += dice.choice([0, 0, 0.000001, 0.3, 1.0, 4.0])
        is_calm = step < 150  # somebody waits now and then, and soon nobody does
        action = dice.random() * (0.94 if is_calm else 1)
        if action < 0.5:
            number += 1
            needs = dice.choice([""] * 8 + ["*2.1", "^500000"])
            claim = f"sw-x-{number}{needs}"
            known.append(claim)
            ttl, interval = dice.choice(["-", "-", "3", "20"]), dice.choice([15, 15, 15, 5, 25])
            wait = dice.choice(["wait", "wait", "wait 3 1,2", "wait - -,- shed 5", "try"])
            if is_calm and (wait.endswith("5") or dice.random() < 0.9):
                wait = "try"
            weights = "0:a|2.5 0:b|1" if "=" in names else ""
            requests = [claim, path()]
            if dice.random() < 0.05:
                number += 1
                known.append(f"sw-x-{number}")
                requests += [known[-1], path()]
            again = dice.choice(["", "", "", "", "", "again"])
            options = interval, ttl, wait, again, "!ab host 1 x", "due", weights, *requests
            declared = values if dice.random() < 0.97 else values.replace("2", "7")
            twin.call("tiers/request", now, names, declared, *options)
        elif action < 0.85 and known:
            ids = some_ids(dice.choice([1, 1, 1, 3]))
            held = client.zrange(twin.keys[0].all[1], 0, -1)
            ids = [dice.choice(held)] if held and dice.random() < 0.7 else ids
            if dice.random() < 0.1:
                ids[0] = f"~{ids[0]}"
            twin.call("tiers/release", now, dice.choice(["x", ""]), *ids)
        elif action < 0.93:
            ids = some_ids(6)
            holders = [each for each in ids if client.zscore(twin.keys[0].all[1], each)]
            waiters = [each for each in ids if each not in holders]
            counts = len(holders), len(waiters)
            twin.call("tiers/heartbeat", now, "x", 15, "", *counts, *holders, *waiters)
        elif action < 0.95:
            twin.call("tiers/pause", now, "x", 15, names, values, "0", dice.choice([0, 0.5]))
        elif action < 0.97:
            if dice.random() < 0.3:
                twin.call("tiers/close", now, "x", "for a while")
            twin.call("tiers/reopen", now, "x")
        elif action < 0.985 and "/" not in values and "_" not in values:
            node = dice.choice(["", "0:a"]) if "*" in tiers[0] else ""
            own = (names, values, 0, node, dice.choice([1, 2, 4]), 60, "")
            twin.call("tiers/resize", now, "x", 15, *own)
        elif action > 0.99:
            damage = dice.choice([write_one_piece_of_garbage, drop_half])
            twin.damage(dice.randrange(12), damage)
        twin.compare()
    has_fast_half = "/" not in values and "_" not in values
    assert int(client.get("answered by a fast half") or 0) > 10 or not has_fast_half
