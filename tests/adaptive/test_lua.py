"""The value that the server's scripts move is the ledger's, bit for bit."""

from __future__ import annotations

import random

import pytest
import redis
from tests._effort import seeds
from tests.redis._eval import evaluate
from tests.redis.conftest import client, server, shared_server  # noqa: F401 - fixtures

from slotwise._core.adaptive import OUTCOMES, Adaptive, Errors, Latency
from slotwise._ledger.adaptation import adaptation
from slotwise.redis._scripts import _FOLDER

# Plays many samples in one call, and returns the record after each, what has changed, and whether
# the fast way counted the sample too.
PLAY = """
local function dump(it)
  local words = {}
  for i, field in ipairs(it.rules.window and OF_LATENCY or OF_ERRORS) do words[i] = it[field] end
  local window = it.rules.window and {'begin', 'calls', 'succeeded', 'busy', 'failed'}
    or {'since', 'succeeded', 'used'}
  for _, field in ipairs(window) do words[#words + 1] = it[field] end
  for i, word in ipairs(words) do words[i] = string.format('%.17g', word) end
  return table.concat(words, ' ')
end

local rules = read_adaptive(ARGV[1])
local it, replies = read_adaptation(rules, nil, nil, 0), {}
for i = 2, #ARGV, 5 do
  local at, verb, held, sample = tonumber(ARGV[i]), ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local slots = tonumber(ARGV[i + 4])
  local record, window = adaptation_record(it)
  local quickly = verb == 'end' and slots == 1 and count_in_window(window, sample, 1, 0, at)
  if verb == 'freeze' then adapting.freeze_it(it, at, held > 0 and held or nil)
  elseif verb == 'thaw' then adapting.thaw_it(it, at)
  else note_end(it, at, held, sample, slots) end
  local changes = table.concat(it.changes, ';')
  local now_record, now_window = adaptation_record(it)
  if quickly and (quickly ~= now_window or record ~= now_record) then
    return {'not ' .. quickly .. ' but ' .. now_window}
  end
  replies[#replies + 1] = dump(it) .. '|' .. changes .. '|' .. (quickly and 1 or 0)
  it = read_adaptation(rules, now_record, now_window, at)
end
return replies
"""
SOURCE = "local adapting = {}\n" + "".join(
    (_FOLDER / f"rules/{name}.lua").read_text() for name in ("window", "adaptation")
)


def sample_of(held: int, outcome: str, retry_after: int) -> str:
    return f"{outcome[0]}{held}" + (f" {retry_after}" if retry_after else "")


def text_of(options: Adaptive) -> str:
    words = [options.min, options.max, options.start]
    if isinstance(options.algorithm, Latency):
        words += [round(options.algorithm.window * 1_000_000), options.algorithm.samples]
    return " ".join(map(str, words))


@pytest.mark.parametrize("seed", seeds(6, 24))
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
    value, now = adaptation(options, 0), 10**9  # no clock is set back to before it began
    arguments: list[object] = [text_of(options)]
    expected, moves, probes = [], 0, 0
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
        probes += value.limit != value.value
        arguments += (now, verb, held, sample_of(held, outcome, retry_after), slots)
        expected.append((value.dump(), change))
    found = evaluate(client, SOURCE + PLAY, 0, *map(str, arguments))
    replies = [each.split("|") for each in found]
    for number, ((record, change), reply) in enumerate(zip(expected, replies, strict=True)):
        assert [*map(float, reply[0].split(" "))] == [*map(float, record.split(" "))], number
        assert reply[1] == change
    assert moves >= 1
    counted_quickly = sum(reply[2] == "1" for reply in replies)
    assert counted_quickly > 1000, "most samples are only counted"
    if isinstance(options.algorithm, Latency) and options.algorithm.window < 1:
        assert probes > 50


def test_a_record_that_was_damaged_is_begun_anew(client: redis.Redis) -> None:  # noqa: F811
    source = SOURCE + (
        "local record, window = adaptation_record("
        "read_adaptation(read_adaptive(ARGV[1]), ARGV[2], ARGV[3], 5, tonumber(ARGV[4])))"
        "return {record, table.concat({struct.unpack(WINDOW, window)}, ' ')}"
    )
    rules = text_of(Adaptive(7, 2, 9))
    fresh = evaluate(client, source, 0, rules, "", "", "")
    assert fresh[0].startswith("7 7 0 5 7 ")
    window = fresh[1]
    for damaged in ("x", "1 2 3", fresh[0] + " 1", fresh[0].replace("7", "700", 1), "nan" * 13):
        assert evaluate(client, source, 0, rules, damaged, window, "") == fresh
    # The value is still known, and nothing but a window is lost with the window.
    assert evaluate(client, source, 0, rules, "x", window, "4")[0].startswith("4 4 0 5 4 ")
    assert evaluate(client, source, 0, rules, "x", window, "10") == fresh
    assert evaluate(client, source, 0, rules, fresh[0], "5 1 inf nan", "4") == fresh


def test_a_restored_adaptation_continues_where_it_was() -> None:
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
