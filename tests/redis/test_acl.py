"""Users with few rights: what the documentation and the error message grant is enough."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.redis._server import Server, until

from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore, scripts

WAITING = "adv-sem:semaphore_waiting:x"
DOCUMENT = Path(__file__).parents[2] / "docs" / "redis.md"
# What we send besides scripts, and what a script of any kind is sent by.
SENT = {
    "evalsha",
    "eval",
    "script|exists",
    "script|load",
    "subscribe",
    "blpop",
    "scan",
    "exists",
    "hexists",
}


@pytest.fixture
def limited(server: Server, client: redis.Redis) -> Iterator[RedisConfig]:
    """The server, for a user that has yet to be given rights."""
    yield RedisConfig(f"redis://slots:secret@127.0.0.1:{server.port}")
    client.execute_command("ACL", "DELUSER", "slots")


def documented() -> list[str]:
    """The words of the documented ACL SETUSER."""
    [command] = re.findall(r"```\nACL SETUSER (slots .*?)```", DOCUMENT.read_text(), re.DOTALL)
    return command.split()


async def use_everything(semaphore: RedisSemaphore, client: redis.Redis) -> None:
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire(label="next"))
    await until(lambda: client.zcard(WAITING) == 1, "the waiter")
    assert len(await semaphore.holders()) == 1
    assert len(await semaphore.waiters()) == 1
    config = semaphore._config
    assert "x" in await RedisSemaphore.get_acquired_stats(config=config)
    await semaphore.resize(4)
    next_one = await waiting
    several = await semaphore.acquire(2)
    before = client.zscore("adv-sem:semaphore_main:x", held.acquisition_id)
    semaphore._process.keeper.beat_soon()
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


async def test_the_documented_rights_are_enough(
    limited: RedisConfig, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.script_flush()
    client.execute_command("ACL", "SETUSER", *documented())
    await use_everything(RedisSemaphore(name="x", value=1, ttl=30, config=limited), client)
    assert [record.message for record in caplog.records if "lost" not in record.message] == []


def test_no_right_is_documented_that_nothing_uses() -> None:
    """Nor is any left out: the scripts' own commands are read from the scripts."""
    sources = (scripts.load(name).source.decode() for name in scripts.OURS)
    used = {word.lower() for text in sources for word in re.findall(r"call\('([A-Z]+)'", text)}
    granted = {word[1:] for word in documented() if word.startswith("+")}
    assert granted == used | SENT


async def test_what_the_message_says_to_grant_is_enough(
    limited: RedisConfig, client: redis.Redis
) -> None:
    rights = ["resetkeys", "~adv-sem:*", "resetchannels", "&slotwise:*", "-@all"]
    groups = ["+@scripting", "+@pubsub", "+@sortedset", "+@hash"]
    client.execute_command("ACL", "SETUSER", "slots", "on", ">secret", *rights, *groups)
    semaphore = RedisSemaphore(name="x", value=1, ttl=30, config=limited)
    with pytest.raises(BackendError, match="does not allow this user enough") as raised:
        await semaphore.acquire()
    told = str(raised.value).partition("(it said")[0].split()
    granted = [word for word in told if word.startswith("+")]
    client.execute_command("ACL", "SETUSER", "slots", *granted)
    await use_everything(semaphore, client)
