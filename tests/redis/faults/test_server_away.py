"""A server that was killed, is stopped, or is slow: how long callers wait, and what they get.

The bounds are those of docs/redis.md; the tests allow `BUSY` seconds more, for a machine that
has other things to do. Other limits are set so high that keeping to them would be seen.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis
from tests.redis._keys import SemaphoreKeys
from tests.redis._server import BUSY, Server, free_port, until
from tests.redis.faults._proxy import IsSlow

from slotwise import AcquireTimeout, Rate, RateLimit
from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.tiers import Tier, Tiers

PATIENT = {"cleanup_timeout": 30, "attempts": 1000, "connect_timeout": 30, "reply_timeout": 30}


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


class Killed:
    def begin(self, server: Server) -> None:
        server.kill()

    def end(self, server: Server) -> None:
        server.start()


class Stopped:
    def begin(self, server: Server) -> None:
        server.pause()

    def end(self, server: Server) -> None:
        server.resume()


@pytest.fixture(params=[Killed, Stopped])
def trouble(request: pytest.FixtureRequest) -> Killed | Stopped:
    found: Killed | Stopped = request.param()
    return found


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds + BUSY


def a_semaphore(url: str, name: str = "s", **options: Any) -> RedisSemaphore:
    config = RedisConfig(url, **{**PATIENT, **options})
    return RedisSemaphore(name=name, value=1, heartbeat_max_interval=40, config=config)


def some_tiers(url: str, name: str = "t", **options: Any) -> Tiers:
    config = RedisConfig(url, **{**PATIENT, **options})
    tiers = (Tier("user", 1, keyed=True), Tier("all", 1))
    return Tiers(*tiers, name=name, url=config, heartbeat_max_interval=40)


def warnings_in(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


# ------------------------------------------------------------------ leaving blocks


def blocks_of(url: str) -> list[Any]:
    """One `with` block of every kind, none of which gets in another's way."""
    return [
        a_semaphore(url, "bare"),
        a_semaphore(url, "cm").cm(),
        some_tiers(url, "tiers").cm(user="u"),
    ]


async def test_leaving_a_block_neither_raises_nor_hangs_and_releases_later(
    own_server: Server, trouble: Killed | Stopped
) -> None:
    begun = asyncio.Event()

    async def work(block: Any) -> None:
        async with block:
            inside.append(block)
            await begun.wait()

    inside: list[Any] = []
    working = [asyncio.create_task(work(block)) for block in blocks_of(own_server.url)]
    await until(lambda: len(inside) == len(working), "all are in their blocks")
    trouble.begin(own_server)
    begun.set()
    await asyncio.wait_for(asyncio.gather(*working), 20)  # type: ignore[call-overload]
    trouble.end(own_server)
    # Long before the silence of 40 s would free them.
    for block in blocks_of(own_server.url):
        async with asyncio.timeout(20), block:
            pass


def test_the_release_goes_on_after_the_event_loop_is_closed(own_server: Server) -> None:
    async def work() -> None:
        async with a_semaphore(own_server.url):
            own_server.kill()

    asyncio.run(work())
    own_server.start()
    with a_semaphore(own_server.url):
        pass


@pytest.mark.soak
async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    own_server: Server, trouble: Killed | Stopped, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "slotwise.redis")
    one, other = a_semaphore(own_server.url), some_tiers(own_server.url, namespace="other")
    async with one, other.cm(user="u"):
        trouble.begin(own_server)
    with pytest.raises(BackendError):
        await one.try_acquire()
    server = f"Redis at 127.0.0.1:{own_server.port}"
    [began] = warnings_in(caplog, server)  # other tests' servers may be away still
    assert "releases continue in the background" in began
    trouble.end(own_server)
    await until(lambda: warnings_in(caplog, f"{server} is back after "), "it is back")
    async with asyncio.timeout(20), one, other.cm(user="u"):
        pass
    assert len(warnings_in(caplog, server)) == 2


# ------------------------------------------------------------------------ releasing


@pytest.mark.soak
async def test_release_raises_within_its_limit_and_goes_on(
    own_server: Server, trouble: Killed | Stopped
) -> None:
    semaphores = [a_semaphore(own_server.url, name, cleanup_timeout=0.3) for name in "ab"]
    tiers = [some_tiers(own_server.url, name, cleanup_timeout=0.3) for name in "cd"]
    held = [await semaphore.acquire() for semaphore in semaphores]
    paths = [await each.acquire(user="u") for each in tiers]
    trouble.begin(own_server)
    with within(0.3):
        found = await asyncio.gather(
            semaphores[0].release(held[0]),
            tiers[0].release(paths[0]),
            asyncio.to_thread(semaphores[1].release_sync, held[1]),
            asyncio.to_thread(tiers[1].release_sync, paths[1]),
            return_exceptions=True,
        )
    assert all(isinstance(each, BackendError) for each in found), found
    trouble.end(own_server)
    for block in (*semaphores, *(each.cm(user="u") for each in tiers)):
        async with asyncio.timeout(20), block:
            pass


@pytest.mark.soak
async def test_a_blocked_event_loop_is_not_taken_for_a_silent_server(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    semaphore = a_semaphore(server.url, cleanup_timeout=0.2)
    held = await semaphore.acquire()
    releasing = asyncio.create_task(semaphore.release(held))
    for _ in range(3):
        await asyncio.sleep(0)  # it is sent
    blocked_at = time.monotonic()
    holders = SemaphoreKeys(RedisConfig(server.url).namespace, "s").main
    with redis.Redis.from_url(server.url) as other:
        # Blocked for longer than the release may take, and until its reply waits in the socket.
        while other.zcard(holders) or time.monotonic() < blocked_at + 0.6:
            time.sleep(0.01)  # noqa: ASYNC251
    assert await releasing is True
    assert not warnings_in(caplog, f"127.0.0.1:{server.port}")


@pytest.mark.parametrize("stopped", [True, False])
def test_a_program_that_ends_while_redis_is_away_says_nothing_of_our_coroutines(
    own_server: Server, *, stopped: bool
) -> None:
    program = """
import asyncio, os, signal, sys
from slotwise.redis import RedisConfig, RedisSemaphore

async def main():
    config = RedisConfig(sys.argv[1])
    semaphores = [RedisSemaphore(1, name=str(n), config=config) for n in range(40)]
    held = [await semaphore.acquire() for semaphore in semaphores]
    os.kill(int(sys.argv[2]), int(sys.argv[3]))
    await asyncio.gather(
        *(each._backend._release(one, 0.01, on_exit=True) for each, one in zip(semaphores, held))
    )

asyncio.run(main())
"""
    assert own_server.process is not None
    number = signal.SIGSTOP if stopped else signal.SIGKILL
    args = [own_server.url, str(own_server.process.pid), str(int(number))]
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "never awaited" not in done.stderr
    assert "was destroyed" not in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------- acquiring


async def answers(semaphore: RedisSemaphore) -> None:
    """Wait until the server has answered, which takes seconds on a busy machine."""

    async def does() -> bool:
        try:
            await semaphore.stats()
        except BackendError:
            return False
        return True

    await until(does, "an answer")


async def test_timeouts_are_kept_whatever_the_server_does(
    own_server: Server, trouble: Killed | Stopped
) -> None:
    semaphore, tiers = a_semaphore(own_server.url), some_tiers(own_server.url)
    await answers(semaphore)  # connected here, and not in the threads of the blocking twins
    trouble.begin(own_server)
    with within(0.5):
        found = await asyncio.gather(
            semaphore.acquire(timeout=0.5),
            tiers.acquire(user="u", timeout=0.5),
            asyncio.to_thread(semaphore.acquire_sync, timeout=0.5),
            asyncio.to_thread(tiers.acquire_sync, user="u", timeout=0.5),
            return_exceptions=True,
        )
    assert all(isinstance(each, BackendError) for each in found), found


@pytest.mark.soak
async def test_a_timeout_of_0_is_kept_to_within_02_s_too(
    own_server: Server, trouble: Killed | Stopped
) -> None:
    semaphore, tiers = a_semaphore(own_server.url), some_tiers(own_server.url)
    await semaphore.stats()
    trouble.begin(own_server)
    calls = [
        semaphore.acquire,
        partial(tiers.acquire, user="u"),
        partial(asyncio.to_thread, semaphore.acquire_sync),
        partial(asyncio.to_thread, tiers.acquire_sync, user="u"),
    ]
    with within(2 * len(calls) * 0.2):  # one after the other, as trying would take 11 s for these
        for call in calls * 2:
            with pytest.raises(AcquireTimeout) as caught:
                await call(timeout=0)
            assert isinstance(caught.value, BackendError), "nobody knows whether it was full"


@pytest.fixture(params=["killed", "stopped", "slow"])
def useless_url(own_server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server to which no connection can be opened within 0.1 s."""
    if request.param == "slow":
        with IsSlow(own_server.port) as slow:
            yield slow.url
    else:
        (own_server.kill if request.param == "killed" else own_server.pause)()
        yield own_server.url


@pytest.mark.soak
async def test_a_caller_whose_attempts_fail_before_its_timeout_gets_a_plain_backend_error(
    useless_url: str,
) -> None:
    """It says what is wrong, and not that there was no slot in all that time."""
    limits = {"connect_timeout": 0.1, "attempts": 2}
    semaphore, tiers = a_semaphore(useless_url, **limits), some_tiers(useless_url, **limits)
    async with asyncio.timeout(20):
        found = await asyncio.gather(
            semaphore.acquire(timeout=60),
            tiers.acquire(user="u", timeout=60),
            asyncio.to_thread(semaphore.acquire_sync, timeout=60),
            asyncio.to_thread(tiers.acquire_sync, user="u", timeout=60),
            return_exceptions=True,
        )
    for error in found:
        assert isinstance(error, BackendError), error
        assert not isinstance(error, AcquireTimeout), error
        assert "can't be reached" in str(error) or "did not answer" in str(error)


async def time_out_in_trouble(
    server: Server,
    trouble: Killed | Stopped,
    acquire: Callable[..., Coroutine[Any, Any, object]],
    waits: Callable[[], Awaitable[bool]],
) -> None:
    """Let the trouble begin while somebody waits, and end when the timeout has been kept."""
    for timeout in (1, 4, 16):
        waiting = asyncio.create_task(acquire(timeout=timeout))

        async def has_come(waiting: asyncio.Task[object] = waiting) -> bool:
            with suppress(BackendError):  # a busy machine: no answer in time
                return waiting.done() or await waits()
            return False

        await until(has_come, "in line")
        trouble.begin(server)
        with within(timeout), pytest.raises(AcquireTimeout) as caught:
            await waiting
        trouble.end(server)
        if "did not answer" in str(caught.value):
            return
        # On a busy machine it may have begun in the last instant of the wait, or after it.
    raise caught.value


@pytest.mark.soak
async def test_trying_never_says_that_it_is_full_and_looking_raises_in_time(
    own_server: Server, trouble: Killed | Stopped
) -> None:
    semaphore, tiers = a_semaphore(own_server.url), some_tiers(own_server.url)
    config = semaphore.config
    trouble.begin(own_server)
    trying = asyncio.gather(
        semaphore.try_acquire(),
        tiers.try_acquire(user="u"),
        asyncio.to_thread(semaphore.try_acquire_sync),
        asyncio.to_thread(tiers.try_acquire_sync, user="u"),
        return_exceptions=True,
    )
    looking = asyncio.gather(
        semaphore.stats(),
        semaphore.locked(),
        semaphore.holders(),
        semaphore.waiters(),
        semaphore.resize(3),
        semaphore.kick("x"),
        tiers.stats(),
        tiers.resize("all", 3),
        RedisSemaphore.get_acquired_stats(config=config),
        RedisSemaphore.get_acquired_stats(["s"], config=config),
        asyncio.to_thread(semaphore.stats_sync),
        asyncio.to_thread(semaphore.locked_sync),
        asyncio.to_thread(semaphore.holders_sync),
        asyncio.to_thread(semaphore.waiters_sync),
        asyncio.to_thread(tiers.stats_sync),
        return_exceptions=True,
    )
    for asked, limit in ((trying, 1), (looking, 2)):
        with within(limit):
            found = await asked
        assert all(isinstance(each, BackendError) for each in found), found


@pytest.mark.soak
async def test_the_timeout_of_one_in_line_is_kept_too(
    own_server: Server, trouble: Killed | Stopped
) -> None:
    semaphore = a_semaphore(own_server.url)
    held = await semaphore.acquire()

    async def waits() -> bool:
        return (await semaphore.stats()).waiting == 1

    await time_out_in_trouble(own_server, trouble, semaphore.acquire, waits)
    assert await semaphore.release(held) is True
    async with asyncio.timeout(20), semaphore:
        pass


async def test_what_was_asked_of_a_stopped_server_takes_nothing(own_server: Server) -> None:
    semaphore = a_semaphore(own_server.url)
    async with semaphore:
        pass
    own_server.pause()
    with pytest.raises(BackendError):
        await semaphore.try_acquire()
    with pytest.raises(
        AcquireTimeout,
        match=r"no slot of 's' within 0\.1 s: Redis at 127\.0\.0\.1:\d+"
        r" did not answer",
    ):
        await semaphore.acquire(timeout=0.1)
    own_server.resume()
    await until(lambda: _is_free(semaphore), "nobody holds, nobody waits")


async def _is_free(semaphore: RedisSemaphore) -> bool:
    stats = await semaphore.stats()
    return (stats.acquired_slots, stats.waiting) == (0, 0)


async def _by_wait_for(wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
    await asyncio.wait_for(wait(), 0.3)


async def _by_timeout(wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with asyncio.timeout(0.3):
        await wait()


async def _by_task_group(wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(wait())
        await asyncio.sleep(0.3)
        raise TimeoutError


async def _by_scope(wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
    with anyio.fail_after(0.3):
        await wait()


@pytest.mark.parametrize("queued", [True, False])
async def test_a_cancelled_wait_ends_while_the_server_is_stopped_and_takes_nothing(
    own_server: Server, *, queued: bool
) -> None:
    url, ways = own_server.url, (_by_wait_for, _by_timeout, _by_task_group, _by_scope)
    semaphores = [a_semaphore(url, way.__name__) for way in ways]
    trying, blocks = a_semaphore(url, "try"), a_semaphore(url, "cm")
    tiers = some_tiers(url)
    rate = RateLimit("rate", Rate(1, per=3600), url=RedisConfig(url, **PATIENT))
    held = [await each.acquire() for each in (*semaphores, blocks)]
    on_path = await tiers.acquire(user="u")

    async def release() -> None:
        for semaphore, each in zip((*semaphores, blocks), held, strict=True):
            assert await semaphore.release(each)
        assert await tiers.release(on_path)

    async def enter() -> None:
        async with blocks.cm():
            pass

    def waits() -> list[Coroutine[Any, Any, None]]:
        return [
            *(way(semaphore.acquire) for way, semaphore in zip(ways, semaphores, strict=True)),
            _by_timeout(enter),
            _by_timeout(partial(tiers.acquire, user="v")),
        ]

    async def all_wait() -> bool:
        counts = [(await each.stats()).waiting for each in (*semaphores, blocks)]
        return all([*counts, (await tiers.stats())["all"].waiting])

    if queued:
        # They time out in the server's silence: it begins when all wait.
        waiting = [asyncio.create_task(each.acquire()) for each in (*semaphores, blocks)]
        waiting.append(asyncio.create_task(tiers.acquire(user="v")))
        await until(all_wait, "all wait")
        own_server.pause()
        for task in waiting:
            task.cancel()
    else:
        await release()
        own_server.pause()
        waiting = [asyncio.create_task(each) for each in waits()]
        waiting += [asyncio.create_task(_by_wait_for(each.try_acquire)) for each in (trying, rate)]
    done, pending = await asyncio.wait(waiting, timeout=20)
    assert not pending  # the server is still stopped, and its other limits are 30 s
    assert all(task.cancelled() or task.exception() is not None for task in done)
    own_server.resume()
    if queued:
        await release()
    for semaphore in (*semaphores, blocks, trying):
        await until(partial(_is_free, semaphore), "nobody holds, nobody waits")
    async with asyncio.timeout(20):
        async with tiers.cm(user="v"):
            pass
        await rate.acquire()


async def test_a_wait_that_is_cancelled_again_ends_at_once(own_server: Server) -> None:
    """A scope of anyio cancels again in every tick of the loop, which would be busy with that."""
    semaphore, tiers = a_semaphore(own_server.url), some_tiers(own_server.url)
    held, on_path = await semaphore.acquire(), await tiers.acquire(user="u")
    waiting = [asyncio.create_task(each) for each in (semaphore.acquire(), tiers.acquire(user="v"))]

    async def both_wait() -> bool:
        return bool((await semaphore.stats()).waiting and (await tiers.stats())["all"].waiting)

    await until(both_wait, "both wait")
    own_server.pause()
    for _ in range(2):
        for task in waiting:
            task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert all(task.cancelled() for task in waiting)
    own_server.resume()
    assert await semaphore.release(held)
    assert await tiers.release(on_path)
    await until(partial(_is_free, semaphore), "nobody holds, nobody waits")
    async with asyncio.timeout(20), tiers.cm(user="v"):
        pass


async def test_a_cancelled_release_continues_after_the_end_of_its_attempts(
    own_server: Server,
) -> None:
    semaphore = a_semaphore(own_server.url, attempts=1)
    held = await semaphore.acquire()
    own_server.pause()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(semaphore.release(held), 0.1)
    own_server.kill()
    own_server.start()
    patient = a_semaphore(own_server.url)
    await until(partial(_is_free, patient), "released, long before a silence of 40 s")


@pytest.mark.parametrize("flags", [("-X", "dev"), ("-O",), ()], ids=" ".join)
@pytest.mark.parametrize("killed", [True, False])
def test_a_thread_that_waits_as_the_interpreter_ends_gets_one_error_of_ours_or_none(
    own_server: Server, *, flags: tuple[str, ...], killed: bool
) -> None:
    program = """
import os, signal, sys, threading, time, traceback
from slotwise import RedisConfig, RedisSemaphore, Tier, Tiers

def tell(args):  # without the lock of sys.stderr, with which the interpreter can't end
    os.write(2, "".join(traceback.format_exception(args.exc_value)).encode())

threading.excepthook = tell
config = RedisConfig(sys.argv[1])
limits = [RedisSemaphore(1, name="s", config=config), Tiers(Tier("all", 1), name="t", url=config)]
for limit in limits:
    limit.acquire_sync()
    threading.Thread(target=limit.acquire_sync, daemon=True).start()
while not (limits[0].waiters_sync() and limits[1].waiters_sync()):
    time.sleep(0.001)
if sys.argv[2:]:
    os.kill(int(sys.argv[2]), signal.SIGKILL)
"""
    assert own_server.process is not None
    victim = [str(own_server.process.pid)] if killed else []
    done = subprocess.run(
        [sys.executable, *flags, "-c", program, own_server.url, *victim],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "during handling" not in done.stderr.lower()
    assert "Warning" not in done.stderr
    for line in done.stderr.splitlines():
        if line.endswith("Error") or "Error: " in line:
            assert line.startswith("slotwise.errors."), done.stderr


# --------------------------------------------------------------------------- slowness


@pytest.mark.soak
async def test_a_slow_server_is_used_and_not_complained_of(
    own_server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "slotwise.redis")
    monkeypatch.setattr(IsSlow, "delay", 0.15)  # half of what it may be, for a busy machine
    with IsSlow(own_server.port) as slow:  # and has never heard of our scripts
        semaphore, tiers = a_semaphore(slow.url), some_tiers(slow.url)
        acquired = await semaphore.acquire(timeout=60)
        assert slow.round_trips <= 2  # so try_acquire's second is enough if each takes 300 ms
        assert await semaphore.release(acquired) is True
        async with semaphore, tiers.cm(user="u", timeout=5):
            assert (await semaphore.stats()).acquired_slots == 1
            assert (await tiers.stats())["all"].active == 1
            assert await semaphore.try_acquire() is None
            assert await tiers.try_acquire(user="u") is None
        await until(lambda: _is_free(semaphore), "released")
        assert not warnings_in(caplog, "answer")


# ---------------------------------------------------------------------- the command line


@pytest.mark.soak
@pytest.mark.parametrize("stopped", [True, False])
def test_run_no_wait_exits_125_when_redis_is_away(own_server: Server, *, stopped: bool) -> None:
    url = own_server.url if stopped else f"redis://127.0.0.1:{free_port()}"
    if stopped:
        own_server.pause()
    command = ["run", "job", "--limit", "1", "--no-wait", "--url", url, "--", "echo", "ran"]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "slotwise", *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (125, "")
    assert time.monotonic() - started < 2 + BUSY * 2  # starting Python included
    assert "Redis at 127.0.0.1" in done.stderr
    assert "did not answer" in done.stderr or "can't be reached" in done.stderr
