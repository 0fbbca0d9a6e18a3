"""What somebody else wrote into our keys: one bad record is shown as such, the rest is listed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.redis._server import Server

from slotwise import Adaptive, BackendError, Limit, Rate, RateLimit, Tier, Tiers
from slotwise._cli.main import main as command_line
from slotwise.redis import RedisConfig, RedisSemaphore, _protocol

FAR = time.time() + 3600
NAMESPACE = "adv-sem:semaphore"


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.fixture
def semaphore(config: RedisConfig) -> RedisSemaphore:
    return RedisSemaphore(name="s", value=10, config=config)


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


def make_limit(kind: str, config: RedisConfig) -> Any:
    if kind == "adaptive":
        return RedisSemaphore(Adaptive(2, 1, 5), name=kind, config=config)
    if kind == "rate":
        return RateLimit(kind, Rate(5, per=600, burst=5), url=config)
    user = Adaptive(2, 1, 5) if kind == "adaptive tiers" else 2
    tiers = Tier("user", user, keyed=True), Tier("calls", rate=Rate(9, per=600, burst=9))
    return Tiers(*tiers, name=kind, url=config).at(user="a")


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
