"""What somebody else wrote into our keys: one bad record is shown as such, the rest is listed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.redis._server import Server

from slotwise import Adaptive, BackendError, Limit, Rate, RateLimit, SlotwiseError, Tier, Tiers
from slotwise._admin.backends import open_backend
from slotwise._cli.main import main as command_line
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._path_dialect import PATHS
from slotwise.redis._semaphore_dialect import SEMAPHORE

FAR = time.time() + 3600
NAMESPACE = "adv-sem:semaphore"

CLAIMS = {
    "words": b"garbage",
    "nothing but spaces": b"        ",
    "not UTF-8": b"15 - \xff\xfe 1 1 1 host 1 label",
    "wrong numbers": b"15 - ticket granted number token host pid label",
    "a time beyond all calendars": b"15 - 1 9e300 1 1 host 1 label",
    "numbers without end": b"15 - 1 nan inf -1 host 1 label",
    "ours, cut off": b"15 - 1700000000 1700000000.5 1",
}


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.fixture
def semaphore(config: RedisConfig) -> RedisSemaphore:
    return RedisSemaphore(name="s", value=10, config=config)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
async def test_a_claim_of_garbage_is_shown_as_unreadable_among_the_others(
    semaphore: RedisSemaphore, raw: redis.Redis, claim: bytes
) -> None:
    ours = await semaphore.acquire(label="ours")
    raw.hset(f"{NAMESPACE}_state:s", "theirs", claim)
    raw.zadd(f"{NAMESPACE}_main:s", {"theirs": FAR})
    found = {each.acquisition_id: each for each in await semaphore.holders()}
    assert found.keys() == {ours.acquisition_id, "theirs"}
    assert found[ours.acquisition_id].label == "ours"
    assert not found[ours.acquisition_id].unreadable
    assert found["theirs"].unreadable
    assert (found["theirs"].since, found["theirs"].pid) == (None, None)
    assert await semaphore.release(ours) is True


@pytest.mark.others_keys
async def test_members_that_are_not_utf8_are_listed_escaped(
    config: RedisConfig, raw: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=1, config=config)
    async with semaphore.cm(label="ours"):
        raw.zadd(f"{NAMESPACE}_main:s", {b"\xff\xfe": FAR})
        raw.zadd(f"{NAMESPACE}_waiting:s", {b"\xfd": 1})
        raw.zadd(f"{NAMESPACE}_waiting_heartbeat:s", {b"\xfd": FAR})
        holders, waiters = await semaphore.holders(), await semaphore.waiters()
    assert {each.label or each.acquisition_id for each in holders} == {"ours", r"\xff\xfe"}
    assert [each.acquisition_id for each in holders if each.unreadable] == [r"\xff\xfe"]
    assert [(each.acquisition_id, each.unreadable) for each in waiters] == [(r"\xfd", True)]


@pytest.mark.others_keys
def test_the_commands_list_the_rest_and_name_what_is_unreadable(
    semaphore: RedisSemaphore, raw: redis.Redis, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    with semaphore.cm(label="ours"):
        raw.zadd(f"{NAMESPACE}_main:s", {b"\xff\xfe": FAR})
        raw.hset(f"{NAMESPACE}_state:s", b"theirs", b"garbage")
        raw.zadd(f"{NAMESPACE}_main:s", {b"theirs": FAR})
        raw.zadd(f"{NAMESPACE}_main:name \xff".encode("latin-1"), {b"x": FAR})
        raw.hset(f"{NAMESPACE}_state:name \xff".encode("latin-1"), ".value", 3)
        raw.set(f"{NAMESPACE}_state:damaged", "a string")
        raw.zadd(f"{NAMESPACE}_main:damaged", {b"x": FAR})

        assert command_line(["show", "s", "--json", "--url", server.url]) == 0
        shown = json.loads(capfd.readouterr().out)
        unreadable = {each["id"] for each in shown["holders"] if each["unreadable"]}
        assert unreadable == {r"\xff\xfe", "theirs"}
        assert [each["label"] for each in shown["holders"] if not each["unreadable"]] == ["ours"]
        assert command_line(["show", "s", "--url", server.url]) == 0
        assert "unreadable" in capfd.readouterr().out

        for command in ("ls", "top"):
            code = command_line([command, "--json", "--url", server.url])
            assert code == (1 if command == "ls" else 0)
            said = capfd.readouterr()
            assert [each["name"] for each in json.loads(said.out)] == ["s"]
            assert said.err.count("\n") == 2
            assert r"a semaphore whose name is not text: b'name \xff'" in said.err
            assert "'damaged' can't be read: " in said.err

        assert command_line(["show", "damaged", "--url", server.url]) == 1
        assert "'damaged' can't be read: " in capfd.readouterr().err
        assert command_line(["kick", "nobody", "--yes", "--url", server.url]) == 1
        assert "has a holder with the id 'nobody'" in capfd.readouterr().err


@pytest.mark.others_keys
def test_a_name_whose_key_was_replaced_is_named_whichever_key_it_is(
    semaphore: RedisSemaphore,
    raw: redis.Redis,
    server: Server,
    config: RedisConfig,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    kinds = ("main", "ttl", "waiting", "state")
    for kind in kinds:
        raw.zadd(f"{NAMESPACE}_main:damaged-{kind}", {"theirs": FAR})
        raw.set(f"{NAMESPACE}_max:damaged-{kind}", 2, ex=3600)
        raw.set(f"{NAMESPACE}_{kind}:damaged-{kind}", "a string", ex=3600)
    raw.set("adv-sem:tiers_state:damaged-tiers", "a string", ex=3600)
    with semaphore.cm():
        for command in ("ls", "top"):
            command_line([command, "--json", "--url", server.url])
            said = capfd.readouterr()
            assert [each["name"] for each in json.loads(said.out)] == ["s"]
            for kind in (*kinds, "tiers"):
                assert said.err.count(f"'damaged-{kind}' can't be read: ") == 1
        assert list(RedisSemaphore.get_acquired_stats_sync(config=config)) == ["s"]
    for kind in kinds:
        assert f"'damaged-{kind}' can't be read: " in caplog.text


@pytest.mark.parametrize("value", ["9" * 27, "-5", "0", "zz", "2.5"])
async def test_a_value_of_garbage_is_called_unreadable_and_not_a_number(
    server: Server,
    config: RedisConfig,
    raw: redis.Redis,
    value: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    raw.set(f"{NAMESPACE}_max:bad", value, ex=3600)
    raw.zadd(f"{NAMESPACE}_main:bad", {"theirs": FAR})
    raw.expire(f"{NAMESPACE}_main:bad", 3600)
    semaphore = RedisSemaphore(name="s", value=10, config=config)
    async with semaphore:
        assert list(await RedisSemaphore.get_acquired_stats(config=config)) == ["s"]
    said = f"'bad' can't be read: Redis at 127.0.0.1:{server.port} refused a command"
    for words in (["ls"], ["show", "bad"], ["close", "bad", "--yes"], ["open", "bad"]):
        assert command_line([*words, "--url", server.url]) == 1
        assert said in capfd.readouterr().err


DAMAGED = (b"", b"\xff\xfe", b"inf", b"1 2 3", b"0/0/0/0")


def make_limit(kind: str, config: RedisConfig) -> Any:
    if kind == "adaptive":
        return RedisSemaphore(Adaptive(2, 1, 5), name=kind, config=config)
    if kind == "rate":
        return RateLimit(kind, Rate(5, per=600, burst=5), url=config)
    user = Adaptive(2, 1, 5) if kind == "adaptive tiers" else 2
    tiers = Tier("user", user, keyed=True), Tier("calls", rate=Rate(9, per=600, burst=9))
    return Tiers(*tiers, name=kind, url=config).at(user="a")


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["adaptive", "rate", "tiers", "adaptive tiers"])
def test_whatever_a_field_contains_no_call_ends_in_a_raw_error(
    kind: str, config: RedisConfig, server: Server, raw: redis.Redis
) -> None:
    """A BackendError that names it, or an answer: nothing else, and others are shown."""
    limit = make_limit(kind, config)
    other = RedisSemaphore(1, name="other", config=config)
    held = limit.acquire_sync(timeout=30)
    shown = "tiers_state" if "tiers" in kind or kind == "rate" else "semaphore_state"
    key = f"adv-sem:{shown}:{kind}"
    verbs: list[tuple[str, list[Any]]] = [
        *[(verb, []) for verb in ("stats", "level", "holders", "estimate", "explain", "changes")],
        ("pause", [0.001]),
    ]
    with other.cm():
        sound = raw.dump(key)
        for field in raw.hkeys(key):
            for damaged in DAMAGED:
                raw.hset(key, field, damaged)
                for verb, args in verbs:
                    call = getattr(limit, f"{verb}_sync", None)
                    if call is not None:
                        with contextlib.suppress(SlotwiseError):
                            call(*args)
                looked = open_backend(server.url).look()
                assert "other" in looked[0], (field, damaged, looked)
                raw.restore(key, 0, sound, replace=True)
    limit.release_sync(held)


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
async def test_a_reply_that_cannot_be_read_fails_the_request_and_takes_no_slot(
    config: RedisConfig, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def garbled(*_: object) -> list[bytes]:
        raise ValueError("not a number")

    limit: Limit = RedisSemaphore(1, name="s", config=config)
    if kind == "tiers":
        limit = Tiers(Tier("all", 1), name="s", url=config).at()
    dialect = SEMAPHORE if kind == "semaphore" else PATHS
    with monkeypatch.context() as patch:
        patch.setattr(type(dialect), "on_reply", garbled)
        with pytest.raises(BackendError, match="can't be read"):
            await asyncio.wait_for(limit.acquire(), 30)
    assert await limit.release(await asyncio.wait_for(limit.acquire(), 30)) is True
