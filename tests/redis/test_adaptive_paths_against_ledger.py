"""The scripts of adaptive limits and the ledger of paths, one random sequence on a server.

Like test_paths_against_ledger, whose verbs these are; values move by themselves here, in both.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis
from tests._effort import seeds
from tests.redis._window import read_window
from tests.redis.test_paths_against_ledger import Pair, some_of

from slotwise._core.adaptive import OUTCOMES, Adaptive, Errors, Latency, Outcome
from slotwise._ledger import path_queue
from slotwise._ledger.adaptation import Adaptation, adaptation
from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.tier_nodes import CHANGES_OF_A_KEY
from slotwise._ledger.times import microseconds
from slotwise.redis._writing import write_needs, write_node

pytestmark = pytest.mark.usefixtures("x_listens")


class AdaptivePathLedger(PathLedger[PathClaim]):
    """A ledger that asks the pair how a hold ended.

    What a node learns begins with the first hold of it that ends, as on a server: there nothing is
    kept of a node before.
    """

    pair: AdaptivePathPair

    def _ending_of(self, claim: PathClaim, now: float) -> tuple[int, Outcome, int]:
        return self.pair.ending_of(str(claim.key), now)

    def _count_end(self, claim: PathClaim, now: float) -> None:
        for node in claim.nodes:
            if node.adaptation is not None and node not in self.pair.begun:
                granted_us = microseconds(self.pair.granted_at[str(claim.key)])
                begun = adaptation(node.adaptation.options, granted_us)
                if node.key is not None:
                    begun.keep_changes(CHANGES_OF_A_KEY)
                if node.adaptation.frozen:
                    begun.begin_frozen(node.adaptation.value)
                node.adaptation = begun
                self.pair.begun[node] = begun
        super()._count_end(claim, now)


class AdaptivePathPair(Pair):
    """One set of tiers, or one semaphore, twice; some of its values are adaptive."""

    ledger: AdaptivePathLedger

    def __init__(
        self,
        client: redis.Redis,
        values: list[int | Adaptive],
        dice: random.Random,
        *,
        quick: bool = True,
    ) -> None:
        fixed = [value.start if isinstance(value, Adaptive) else value for value in values]
        super().__init__(client, fixed, path_queue.PATIENCE, path_queue.LOOKS, quick=quick)
        self.dice = dice
        self.ledger = AdaptivePathLedger(values)
        self.ledger.pair = self
        self.declared = ",".join(
            value.written.replace(" ", "_") if isinstance(value, Adaptive) else str(value)
            for value in values
        )
        self.resized = True  # a shrink ends no hold
        self.granted_at: dict[str, float] = {}
        self.endings: dict[str, tuple[int, Outcome, int]] = {}
        self.begun: dict[Any, Adaptation] = {}
        self.moves = 0

    def note(self, granted: list[PathClaim]) -> None:
        for claim in granted:
            self.granted_at[str(claim.key)] = self.now
        super().note(granted)

    def run(self, name: str, *args: object) -> Any:
        if name == "release":
            args = (*args[:3], *map(self.sent, map(str, args[3:])))
        reply = super().run(name, *args)
        return _without_news(reply)

    def unbegun(self) -> list[Any]:
        """The adaptive nodes of which nothing is known yet."""
        nodes = [node for tier in self.ledger.tiers for node in tier.nodes.values()]
        return [n for n in nodes if n.adaptation is not None and n not in self.begun]

    def ending_of(self, claim_id: str, now: float) -> tuple[int, Outcome, int]:
        if claim_id in self.endings:
            return self.endings[claim_id]
        held_us = microseconds(now) - microseconds(self.granted_at[claim_id])
        return held_us, "dropped" if now >= self.ttl_ends[claim_id] else "ignored", 0

    def give(self, ids: list[str], *, count: bool = True) -> None:
        dice = self.dice
        self.end_what_is_over()
        for claim_id in ids:
            if claim_id in self.ledger.holders and dice.random() < 0.9:
                outcome = dice.choice([*["ok"] * 12, *OUTCOMES])
                held_us = dice.choice([0, 5_000, 300_000, 600_000, 1_200_000])
                retry_us = dice.choice([0, 0, 300_000]) if outcome == "dropped" else 0
                self.endings[claim_id] = held_us, outcome, retry_us
        super().give(ids, count=count)

    def sent(self, claim_id: str) -> str:
        if claim_id not in self.endings:
            return claim_id
        held_us, outcome, retry_us = self.endings[claim_id]
        return f"{claim_id} {outcome[0]}{held_us}" + (f" {retry_us}" if retry_us else "")

    def compare(self) -> None:
        state = self.client.hgetall(self.key["state"])
        for tier in self.ledger.tiers:
            # What a node has learnt stands in its record, as a value of its own would.
            tier.own_values = {
                node.key: node.value for node in tier.nodes.values() if node in self.begun
            }
        super().compare()
        for tier in self.ledger.tiers:
            tier.own_values = {}
        records = {each[1:]: text for each, text in state.items() if each[0] == "%"}
        assert set(records) == {write_node(node.tier, node.key) for node in self.begun}
        for node, begun in self.begun.items():
            name = write_node(node.tier, node.key)
            _, record, window = records[name].split(";", 2)
            _, begin, _, _, *counted = read_window(window)
            if isinstance(begun.options.algorithm, Errors):
                counted = counted[1:3]
            words = [*record.split(" "), begin, *counted]
            assert [*map(float, words)] == [*map(float, begun.dump().split(" "))], name
            assert state.get(f"&{name}", "").splitlines() == [
                f"{each.at * 1_000_000:.0f} {each.old} {each.new} {each.reason}"
                for each in begun.changes
            ]
        self.moves = sum(len(begun.changes) for begun in self.begun.values())

    def freeze(self, verb: str, tier: int, value: int | None, key: str | None) -> None:
        self.end_what_is_over()
        node = self.ledger.tiers[tier].nodes.get(key)
        if node not in self.begun:
            return  # it would begin now
        reply = self.control(verb, tier, write_node(tier, key), value, 60, "")
        if verb == "thaw":
            self.ledger.tiers[tier].thaw(key, self.now, one=True)
            self.note(self.ledger.serve(self.now))
        else:
            self.note(self.ledger.freeze(tier, value, key, self.now, one=True))
        assert reply[:2] == ["done", node.value]


def _without_news(reply: Any) -> Any:
    """A reply without what it tells of values that moved."""
    if not isinstance(reply, list):
        return reply
    return [
        _without_news(each)
        for each in reply
        if not (isinstance(each, str) and each.startswith("adapted "))
    ]


def some_rules(dice: random.Random) -> Adaptive:
    latency = Latency(dice.choice([0.01, 0.5]), dice.choice([2, 4]))
    algorithm = Errors() if dice.random() < 0.4 else latency
    return Adaptive(dice.randint(2, 4), 2, dice.choice([4, 8]), algorithm=algorithm)


def play(client: redis.Redis, seed: int, tiers: int, *, quick: bool = True) -> AdaptivePathPair:
    """A random sequence, compared after every step; one tier is a semaphore."""
    dice = random.Random(seed)
    values: list[int | Adaptive] = [some_rules(dice)]
    if tiers == 3:
        values += [dice.choice([0, 4, some_rules(dice)]), dice.choice([6, some_rules(dice)])]
    pair = AdaptivePathPair(client, values, dice, quick=quick)
    users, models = ["a", "b c"], ["m", "n"]
    keys: list[list[str | None]] = [[*users], [*models], [None]] if tiers == 3 else [[None]]
    issued = 0

    def new_id() -> str:
        nonlocal issued
        issued += 1
        return f"sw-x-{issued}" + write_needs([dice.choice([1, 1, 1, 2]) for _ in values])

    def some_path() -> tuple[str | None, ...]:
        return tuple(dice.choice(each) for each in keys)

    for _ in range(150):
        pair.now = round(pair.now + dice.choice([0, 0.001, 0.05, 0.5]), 6)
        pair.end_many()
        pair.beat([])
        everyone = [str(each) for each in (*pair.ledger.holders, *pair.ledger.waiting)]
        action = dice.random()
        if action < 0.1:
            ids = [new_id() for _ in range(3)]
            pair.request_many({each: some_path() for each in ids})
        elif action < 0.45:
            path, ttl = some_path(), dice.choice([None, None, None, 0.6, 100.0])
            if ttl is not None:
                ttl = round(ttl + issued / 1_000_000, 6)  # no two end at once
            pair.request(new_id(), path, ttl, wait=dice.random() < 0.9)
        elif action < 0.85:
            pair.give(some_of(dice, pair), count=dice.random() < 0.5)
        elif action < 0.93:
            pair.beat(dice.sample(everyone, dice.randint(0, len(everyone))))
        elif action < 0.98:
            tier = dice.choice([i for i, value in enumerate(values) if isinstance(value, Adaptive)])
            verb, value = dice.choice(["freeze", "thaw", "thaw"]), dice.choice([None, 3])
            pair.freeze(verb, tier, value, dice.choice(keys[tier]))
        elif not any(node.in_use > 1 for node in pair.unbegun()):  # whose holds end all at once
            for seconds in (0.7, 20):  # all short ttls end, and then all who are silent
                pair.now = round(pair.now + seconds, 6)
                pair.end_many()
                pair.beat([])
        pair.compare()
    assert pair.tokens == sorted(set(pair.tokens))
    return pair


@pytest.mark.parametrize("tiers", [1, 3])
@pytest.mark.parametrize("seed", seeds(2, 6))
def test_the_scripts_move_values_as_the_ledger_does(
    client: redis.Redis, seed: int, tiers: int
) -> None:
    assert play(client, seed, tiers).moves > 0


@pytest.mark.parametrize("tiers", [1, 3])
def test_the_quick_half_of_a_release_counts_as_the_rules_do(
    client: redis.Redis, tiers: int
) -> None:
    found = []
    for quick in (True, False):
        found.append(play(client, 1, tiers, quick=quick).contents())
        assert (int(client.get("quick") or 0) > 2) is quick
        client.flushall()
    assert found[0] == found[1]
