"""Users with few rights: what the documentation and the error message grant is enough."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.redis._inside import shared_of
from tests.redis._keys import SemaphoreKeys
from tests.redis._server import Server, until

from slotwise._cli.doctor_redis import examine
from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore, _scripts
from slotwise.redis._keys import hash_slot

WAITING = "adv-sem:semaphore_waiting:x"
DOCUMENT = Path(__file__).parents[2] / "docs" / "redis.md"
# What we send besides scripts, and what a script of any kind is sent by.
SENT = {
    "evalsha",
    "eval",
    "script|exists",
    "script|load",
    "subscribe",
    "exists",
    "zscan",
}


@pytest.fixture
def limited(server: Server, client: redis.Redis) -> Iterator[RedisConfig]:
    """The server, for a user that has yet to be given rights."""
    yield RedisConfig(f"redis://slots:secret@127.0.0.1:{server.port}")
    client.execute_command("ACL", "DELUSER", "slots")


def documented() -> list[list[str]]:
    """The words of both documented ACL SETUSER: what is recommended, and what eases it."""
    commands = re.findall(r"```\nACL SETUSER (slots .*?)```", DOCUMENT.read_text(), re.DOTALL)
    recommended, easy = [command.split() for command in commands]
    return [recommended, easy]


def load_scripts(server: Server) -> None:
    """What an administrator does: ``slotwise doctor --load-scripts``."""
    checks = {check.check: check.state for check in examine(server.url, load_scripts=True)}
    assert checks["load scripts"] == "ok"


async def use_everything(semaphore: RedisSemaphore, client: redis.Redis) -> None:
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire(label="next"))
    await until(lambda: client.zcard(WAITING) == 1, "the waiter")
    assert len(await semaphore.holders()) == 1
    assert len(await semaphore.waiters()) == 1
    config = semaphore.config
    assert "x" in await RedisSemaphore.get_acquired_stats(config=config)
    await semaphore.resize(4)
    next_one = await waiting
    several = await semaphore.acquire(2)
    before = client.zscore("adv-sem:semaphore_main:x", held.acquisition_id)
    shared_of(semaphore).heartbeat_thread.heartbeat_soon()
    await until(
        lambda: client.zscore("adv-sem:semaphore_main:x", held.acquisition_id) > before,
        "a heartbeat",
    )
    assert await semaphore.kick(several)
    await asyncio.gather(semaphore.release(held), semaphore.release(next_one))
    acquired = await asyncio.to_thread(semaphore.acquire_sync)
    assert await asyncio.to_thread(semaphore.release_sync, acquired)
    await semaphore.close_everywhere("x")
    assert (await RedisSemaphore.get_acquired_stats(config=config))["x"].closed
    await semaphore.reopen()
    await semaphore.close()


@pytest.mark.parametrize("way", ["recommended", "easy"])
async def test_the_documented_rights_are_enough(
    server: Server,
    limited: RedisConfig,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    way: str,
) -> None:
    client.script_flush()
    recommended, easy = documented()
    client.execute_command("ACL", "SETUSER", *recommended)
    if way == "easy":
        client.execute_command("ACL", "SETUSER", *easy)
    else:
        load_scripts(server)
    await use_everything(RedisSemaphore(name="x", value=1, ttl=30, config=limited), client)
    assert [record.message for record in caplog.records if "lost" not in record.message] == []


def test_no_right_is_documented_that_nothing_uses() -> None:
    """Nor is any left out: the scripts' own commands are read from the scripts."""
    sources = (_scripts.load(name).source.decode() for name in _scripts.OURS)
    used = {word.lower() for text in sources for word in re.findall(r"call\('([A-Z]+)'", text)}
    granted = {word[1:] for words in documented() for word in words if word.startswith("+")}
    optional = {"info"}  # it is asked for without being relied on
    assert granted == (used - {"pubsub"} - optional) | {"pubsub|numsub"} | SENT


async def test_what_the_message_says_to_grant_is_enough(
    limited: RedisConfig, client: redis.Redis
) -> None:
    rights = ["resetkeys", "~adv-sem:*", "resetchannels", "&slotwise:*", "-@all"]
    groups = ["+@scripting", "+@pubsub", "+@sortedset", "+@hash"]
    client.execute_command("ACL", "SETUSER", "slots", "on", ">secret", *rights, *groups)
    semaphore = RedisSemaphore(name="x", value=1, ttl=30, config=limited)
    with pytest.raises(BackendError, match="doesn't give this user enough rights") as raised:
        await semaphore.acquire()
    told = str(raised.value).partition("(it said")[0].split()
    granted = [word for word in told if word.startswith("+")]
    client.execute_command("ACL", "SETUSER", "slots", *granted)
    await use_everything(semaphore, client)


async def test_scripts_that_are_missing_and_may_not_be_loaded_name_the_remedy(
    server: Server, limited: RedisConfig, client: redis.Redis
) -> None:
    client.script_flush()
    client.execute_command("ACL", "SETUSER", *documented()[0])
    semaphore = RedisSemaphore(name="x", value=1, ttl=30, config=limited)
    remedy = r"may not load them; let an administrator run 'slotwise doctor --load-scripts'"
    calls = (
        semaphore.acquire,
        semaphore.try_acquire,
        semaphore.stats,
        semaphore.holders,
        lambda: asyncio.to_thread(semaphore.acquire_sync),
    )
    for call in calls:
        with pytest.raises(BackendError, match=remedy):
            await call()
    load_scripts(server)
    async with semaphore:
        assert (await semaphore.stats()).acquired_slots == 1


async def test_scripts_that_vanish_during_a_hold_are_reported_and_it_goes_on_once_they_are_back(
    server: Server, limited: RedisConfig, client: redis.Redis
) -> None:
    load_scripts(server)
    client.execute_command("ACL", "SETUSER", *documented()[0])
    semaphore = RedisSemaphore(name="x", value=1, ttl=30, config=limited)
    held = await semaphore.acquire()
    client.script_flush()
    with pytest.raises(BackendError, match="--load-scripts"):
        await semaphore.stats()
    load_scripts(server)
    assert not held.lost
    assert await semaphore.release(held)


async def test_a_user_who_may_load_scripts_but_not_send_them_is_served(
    limited: RedisConfig, client: redis.Redis
) -> None:
    client.script_flush()
    client.execute_command("ACL", "SETUSER", *documented()[0], "+script|exists", "+script|load")
    semaphore = RedisSemaphore(name="x", value=1, ttl=30, config=limited)
    held = await semaphore.acquire()
    client.script_flush()
    assert await semaphore.release(held)


@pytest.mark.soak
def test_replicas_get_the_scripts_too(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "primary") as primary,
        Server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(primary.port)) as replica,
        primary.client() as client,
        replica.client() as copy,
    ):
        limit = time.monotonic() + 30
        # Connected is not enough: the primary names it once it has got all data.
        while not client.execute_command("ROLE")[2]:
            assert time.monotonic() < limit, "the replica never came"
            time.sleep(0.05)
        load_scripts(primary)
        assert all(copy.script_exists(*(_scripts.load(name).sha for name in _scripts.OURS)))


@pytest.mark.parametrize("namespace", ["a{b", "{", "{}", "{}{b}", "x{"])
def test_a_namespace_that_would_tear_the_keys_of_a_name_apart_is_refused_on_cluster(
    namespace: str,
) -> None:
    with pytest.raises(ValueError, match="hash tag"):
        RedisConfig("redis+cluster://127.0.0.1:1", namespace=namespace)
    assert RedisConfig("redis://127.0.0.1:1", namespace=namespace).namespace == namespace


@pytest.mark.parametrize("namespace", ["adv-sem", "{app}", "a{app}b", "a}b", "{app}{"])
def test_a_namespace_on_cluster_may_have_a_hash_tag(namespace: str) -> None:
    config = RedisConfig("redis+cluster://127.0.0.1:1", namespace=namespace)
    keys = SemaphoreKeys(config.namespace, "x", cluster=True)
    assert len({hash_slot(key) for key in (*keys.all, keys.notification)}) == 1
