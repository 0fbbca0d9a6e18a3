"""The value that the server's scripts move is the ledger's, bit for bit."""

from __future__ import annotations

import random

import pytest
import redis
from tests.redis.conftest import client, server, shared_server  # noqa: F401 - fixtures

from slotwise._core.adaptive import OUTCOMES, Adaptive, Errors, Latency
from slotwise._ledger import adaptation as rules
from slotwise._ledger.adaptation import adaptation
from slotwise.redis._scripts import _FOLDER

# Plays many samples in one call, and returns the record after each.
PLAY = """
local rules = read_adaptive(ARGV[1])
local it, replies = read_adaptation(rules, nil, 0), {}
for i = 2, #ARGV, 6 do
  it.change = nil
  local at, verb, held = tonumber(ARGV[i]), ARGV[i + 1], tonumber(ARGV[i + 2])
  if verb == 'freeze' then freeze(it, at, held > 0 and held or nil)
  elseif verb == 'thaw' then thaw(it, at)
  else note_end(it, at, held, ARGV[i + 3], tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])) end
  replies[#replies + 1] = adaptation_record(it) .. '|' .. (it.change or '')
  it = read_adaptation(rules, adaptation_record(it), at)
end
return replies
"""


def text_of(options: Adaptive) -> str:
    words = [options.min, options.max, options.start]
    if isinstance(options.algorithm, Latency):
        words += [round(options.algorithm.window * 1_000_000), options.algorithm.samples]
    return " ".join(map(str, words))


@pytest.mark.parametrize("seed", range(12))
def test_the_script_moves_the_value_as_the_ledger_does(client: redis.Redis, seed: int) -> None:  # noqa: F811
    dice = random.Random(seed)
    least = dice.choice([1, 2, 5])
    options = Adaptive(
        dice.randint(least, 30),
        least,
        dice.choice([30, 200]),
        algorithm=Errors()
        if seed % 4 == 3
        else Latency(dice.choice([0.1, 1.0]), dice.choice([5, 50])),
    )
    value, now = adaptation(options, 0), 0
    arguments: list[object] = [text_of(options)]
    expected, moves, looks = [], 0, 0
    knee, fails = dice.choice([3, 10, 50]), 0.0
    for number in range(3000):
        if number % 700 == 699:
            knee, fails = dice.choice([3, 10, 50]), dice.choice([0, 0, 0.02, 0.3])
        used = min(value.limit, dice.choice([value.limit] * 20 + [1]))
        held = int(50_000 * max(used / knee, 1) * dice.uniform(0.8, 1.2))
        slots = min(2, used) if number % 40 == 0 else 1
        now += held * slots // used
        if number % 1500 == 1499:
            now -= dice.choice([0, 200_000_000])  # the clock is set back
        verb, outcome, retry_after = "end", "ok", 0
        if dice.random() < fails:
            outcome = dice.choice(OUTCOMES)
            retry_after = dice.choice([0, 0, 0, 2_000_000])
        if dice.random() < 0.002:
            verb = dice.choice(["freeze", "thaw", "thaw"])
            held = dice.choice([0, options.min, options.max])
        before = value.value
        if verb == "freeze":
            value.freeze(now, held or None)
        elif verb == "thaw":
            value.thaw(now)
        else:
            value.end(now, held, outcome, retry_after, slots)
        change = ""
        if value.value != before:
            last = value.changes[-1]
            change, moves = f"{now} {last.old} {last.new} {last.reason}", moves + 1
        looks += value.limit != value.value
        arguments += (now, verb, held, outcome, retry_after, slots)
        expected.append((value.dump(), change))
    source = (_FOLDER / "base/adaptation.lua").read_text() + PLAY
    replies = [each.split("|") for each in client.eval(source, 0, *map(str, arguments))]
    for number, ((record, change), reply) in enumerate(zip(expected, replies, strict=True)):
        assert [*map(float, reply[0].split(" "))] == [*map(float, record.split(" "))], number
        assert reply[1] == change
    assert moves >= 1
    assert looks > 50 or isinstance(options.algorithm, Errors)


def test_a_record_that_was_spoilt_is_begun_anew(client: redis.Redis) -> None:  # noqa: F811
    source = (_FOLDER / "base/adaptation.lua").read_text()
    source += "return adaptation_record(read_adaptation(read_adaptive(ARGV[1]), ARGV[2], 5))"
    options = Adaptive(7, 2, 9)
    fresh = client.eval(source, 0, text_of(options), "")
    assert [*map(float, fresh.split(" "))] == [
        *map(float, adaptation(options, 5).dump().split(" "))
    ]
    for spoilt in ("x", "1 2 3", fresh + " 1", fresh.replace("7", "700", 1)):
        assert client.eval(source, 0, text_of(options), spoilt) == fresh


def test_the_script_has_the_constants_of_the_ledger() -> None:
    source = (_FOLDER / "base/adaptation.lua").read_text()
    found = {}
    for line in source.splitlines():
        if line.startswith("local ") and " = " in line and "{" not in line and "(" not in line:
            names, _, values = line.removeprefix("local ").partition(" = ")
            found.update(zip(names.split(", "), values.split(", "), strict=True))
    assert {name: float(found[name]) for name in found} == {
        name: float(getattr(rules, name)) for name in found
    }
    assert len(found) == 17


def test_what_was_dumped_goes_on_where_it_was() -> None:
    options = Adaptive(20, 2, 200)
    value = adaptation(options, 0)
    for number in range(1, 5000):
        value.end(number * 5000, 90_000 + number % 7 * 5000, "ok")
    again = adaptation(options, 0)
    again.restore(value.dump())
    assert again.dump() == value.dump()
    for number in range(5000, 9000):
        for each in (value, again):
            each.end(number * 5000, 90_000 + number % 7 * 5000, "ok")
    assert again.dump() == value.dump()
    with pytest.raises(ValueError, match="zip"):
        again.restore("1 2 3")
