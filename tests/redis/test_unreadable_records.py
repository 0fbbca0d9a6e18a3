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
from slotwise.redis import RedisConfig, RedisSemaphore, _protocol

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
async def test_what_is_recorded_of_an_id_that_is_not_ours_is_not_read(
    semaphore: RedisSemaphore, raw: redis.Redis, claim: bytes
) -> None:
    ours = await semaphore.acquire(label="ours")
    raw.hset(f"{NAMESPACE}_state:s", "theirs", claim)
    raw.zadd(f"{NAMESPACE}_main:s", {"theirs": FAR})
    found = {each.acquisition_id: each for each in await semaphore.holders()}
    assert found.keys() == {ours.acquisition_id, "theirs"}
    assert found[ours.acquisition_id].label == "ours"
    assert (found["theirs"].since, found["theirs"].pid) == (None, None)
    assert await semaphore.release(ours) is True


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
async def test_a_claim_of_ours_that_is_garbage_resets_the_name(
    config: RedisConfig, raw: redis.Redis, kind: str, claim: bytes
) -> None:
    limit: Any = RedisSemaphore(2, name="s", ping_interval=0.2, config=config)
    if kind == "tiers":
        limit = Tiers(Tier("all", 2), name="s", ping_interval=0.2, url=config).at()
    held = [await limit.acquire() for _ in range(2)]
    raw.hset(f"adv-sem:{kind}_state:s", held[0].acquisition_id, claim)
    for each in held:
        await asyncio.wait_for(each.lost, 30)
    again = await limit.acquire(timeout=30)
    assert again.slot_number == 1
    assert [each.acquisition_id for each in await _listed(limit)] == [again.acquisition_id]
    assert await limit.release(again) is True


async def _listed(limit: Any) -> Any:
    return await (limit.holders() if hasattr(limit, "holders") else limit.tiers.holders())


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
        raw.zadd("adv-sem:names", {f"{NAMESPACE}_state:name \xff".encode("latin-1"): FAR})
        raw.zadd("adv-sem:names", {f"{NAMESPACE}_state:damaged": FAR})
        raw.set(f"{NAMESPACE}_state:damaged", "a string")

        assert command_line(["show", "s", "--json", "--url", server.url]) == 0
        shown = json.loads(capfd.readouterr().out)
        assert [each["id"] for each in shown["holders"] if each["unreadable"]] == [r"\xff\xfe"]
        assert [each["label"] for each in shown["holders"] if not each["unreadable"]] == ["ours"]
        assert command_line(["show", "s", "--url", server.url]) == 0
        assert "unreadable" in capfd.readouterr().out

        for command in ("ls", "top"):
            code = command_line([command, "--json", "--url", server.url])
            assert code == (1 if command == "ls" else 0)
            said = capfd.readouterr()
            assert [each["name"] for each in json.loads(said.out)] == ["s"]
            assert said.err.count("\n") == 1
            assert r"a name that is not text: b'name \xff'" in said.err
        assert raw.exists(f"{NAMESPACE}_state:damaged") == 0, "it was looked at, and is reset"
        assert command_line(["show", "damaged", "--url", server.url]) == 1
        assert "no semaphore" in capfd.readouterr().err
        assert command_line(["kick", "nobody", "--yes", "--url", server.url]) == 1
        assert "has a holder with the id 'nobody'" in capfd.readouterr().err


@pytest.mark.parametrize("value", ["9" * 27, "-5", "0", "zz", "2.5"])
async def test_a_value_of_garbage_is_no_value(
    server: Server, config: RedisConfig, raw: redis.Redis, value: str
) -> None:
    raw.set(f"{NAMESPACE}_max:bad", value, ex=3600)
    raw.zadd(f"{NAMESPACE}_main:bad", {"theirs": FAR})
    raw.expire(f"{NAMESPACE}_main:bad", 3600)
    semaphore = RedisSemaphore(3, name="bad", config=config)
    async with semaphore:
        stats = await semaphore.stats()
        assert (stats.acquired_slots, stats.max_slots) == (1, 3), "it was reset"


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
                raw.restore(key, 60_000, sound, replace=True)
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
    with monkeypatch.context() as patch:
        patch.setattr(_protocol, "on_reply", garbled)
        with pytest.raises(BackendError, match="can't be read"):
            await asyncio.wait_for(limit.acquire(), 30)
    assert await limit.release(await asyncio.wait_for(limit.acquire(), 30)) is True
