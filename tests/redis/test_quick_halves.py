"""lua/rules/quick.lua against the rules: one random sequence with it, and without.

After every call the replies are the same, and so is what is kept, with its time to live.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import redis
from tests.redis._calls import Calls
from tests.redis._eval import read_keys
from tests.redis._keys import KINDS, PATH_KINDS
from tests.redis._server import FAKE_CLOCK

pytestmark = pytest.mark.usefixtures("x_listens")

# The tiers' names, and their values; every path has one key of each keyed tier.
SHAPES = [
    ("", "3"),
    ("", "1_9_4"),
    ("user*,all", "2,5"),
    ("user*,all", "0,0"),
    ("user*,team*", "1,3"),  # slot numbers of several widest nodes
    ("user*=,all", "2,4"),  # keys take turns
    ("user*,all", "2,1000/1000/3/1000000"),
    ("all", "1000/1000/3/1000000"),
    ("user*,all", "2,1_9_4"),
    ("all", "3"),
]


class WithQuickHalf(Calls):
    """Counts what that does."""

    def source(self, script: str) -> bytes:
        source = super().source(script)
        for word in (b"granted", b"released") if script in ("request", "release") else ():
            source = source.replace(
                b"if fine and %b then return" % word,
                b"if fine and %b then redis.call('INCR', 'quick') return" % word,
            )
        assert b"'quick'" in source or script not in ("request", "release")
        return source


class Plain(Calls):
    """Has only the rules."""

    def source(self, script: str) -> bytes:
        source = super().source(script)
        without = source.replace(b"pcall(R.quick.%b)" % script.encode(), b"true, nil")
        assert without != source or script not in ("request", "release")
        return without


class Twin:
    """One limit twice on a server: with the quick halves of the scripts, and without."""

    def __init__(self, client: redis.Redis, tiers: str, values: str) -> None:
        self.client, self.now = client, round(time.time(), 3)
        given: Any = {"tiers": tiers, "values": values}
        self.both = [
            kind(client, FAKE_CLOCK, kind.__name__, **given) for kind in (WithQuickHalf, Plain)
        ]

    def call(
        self, verb: str, *args: Any, interval: float = 15, ttl: str = "-", **options: Any
    ) -> Any:
        replies = []
        for each in self.both:
            each.now, each.interval, each.ttl = self.now, interval, ttl
            replies.append(getattr(each, verb)(*args, **options))
        assert replies[0] == replies[1]
        return replies[0]

    def declare(self, values: str) -> None:
        for each in self.both:
            each.values = values

    def compare(self) -> None:
        kinds = PATH_KINDS if self.both[0].tiers else KINDS
        kinds = tuple(kind for kind in kinds if kind not in ("max", "cleanup"))
        keys = [[each.key(kind) for kind in kinds] for each in self.both]
        found = [[*zip(*read_keys(self.client, *each), strict=True)] for each in keys]
        for key, quick, plain in zip(keys[0], *found, strict=True):
            assert quick[0] == plain[0], key
            assert abs(quick[1] - plain[1]) < 10_000, key  # the server's clock goes on
            assert -1 not in (quick[1], plain[1]), key


@pytest.mark.others_keys
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_quick_halves_do_what_the_rules_do(client: redis.Redis, shape: tuple[str, str]) -> None:
    dice = random.Random(str(shape))
    names, values = shape
    twin = Twin(client, names, values)
    holders = twin.both[0].keys.all[1]
    tiers = names.split(",")
    adapts, has_rates, number = "_" in values, "/" in values, 0
    known: list[str] = []

    def newcomer(needs: str = "") -> tuple[str, ...]:
        nonlocal number
        number += 1
        known.append(f"sw-x-{number}{needs}")
        keys = [dice.choice("ab") if "*" in tier else "" for tier in tiers]
        path = ",".join(f"{index}:{key}" for index, key in enumerate(keys))
        return (known[-1], path) if names else (known[-1],)

    for step in range(220):
        twin.now += dice.choice([0, 0, 0.000001, 0.3, 1.0, 4.0])
        twin.call(
            "inspect", "holders"
        )  # a quick release leaves those that are over to the next call
        is_calm = step < 150  # somebody waits now and then, and soon nobody does
        action = dice.random() * (0.94 if is_calm else 1)
        if action < 0.5:
            several = "*" + ".".join(["2", *["1"] * (len(tiers) - 1)])
            requests = newcomer(dice.choice([""] * 8 + [several, "^500000"]))
            if dice.random() < 0.05:
                requests += newcomer()
            word = dice.choice(["wait", "wait", "wait 3 1,2", "wait - -,- shed 5", "try"])
            if is_calm and (word.endswith("5") or dice.random() < 0.9):
                word = "try"
            twin.declare(values if dice.random() < 0.97 else values.replace("2", "7"))
            twin.call(
                "request",
                *requests,
                word=word,
                again=dice.random() < 0.15,
                owner="!ab host 1 x",
                due=dice.choice(["due", "due settle"]),
                told="0:a|2.5 0:b|1" if "=" in names else "",
                ttl=dice.choice(["-", "-", "3", "20"]),
                interval=dice.choice([15, 15, 15, 5, 25]),
            )
            twin.declare(values)
        elif action < 0.85 and known:
            ids = dice.sample(known, min(len(known), dice.choice([1, 1, 1, 3])))
            held = [each for each in client.zrange(holders, 0, -1) if "#" not in each]
            ids = [dice.choice(held)] if held and dice.random() < 0.7 else ids
            if dice.random() < 0.1:
                ids[0] = f"~{ids[0]}"
            elif dice.random() < 0.3:
                ids[0] += dice.choice([" o51234", " d51234", " i-", " o2000000", " d1 2000000"])
            twin.call("release", *ids, caller=dice.choice(["x", ""]))
        elif action < 0.93:
            ids = dice.sample(known, min(len(known), 6))
            held = [each for each in ids if client.zscore(holders, each)]
            twin.call("heartbeat", held, [each for each in ids if each not in held], caller="x")
        elif action < 0.95:
            twin.call("control", "pause", "0", dice.choice([0, 0.5]), caller="x")
        elif action < 0.97:
            if dice.random() < 0.3:
                twin.call("control", "close", "for a while", caller="x")
            twin.call("control", "reopen", caller="x")
        elif not (adapts or has_rates):
            node = dice.choice(["", "0:a"]) if "*" in tiers[0] else ""
            twin.call("control", "resize", 0, node, dice.choice([1, 2, 4]), 60, "", caller="x")
        twin.compare()
    assert int(client.get("quick") or 0) > 10
