"""What is given to every driver, and what it gives: bounds of arguments, results that travel."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotwise import AcquisitionResult, Semaphore
from slotwise.redis import RedisConfig
from slotwise.tiers import Tier, Tiers
from tests.contract.conftest import Speak
from tests.redis._server import Server


async def test_a_result_can_be_pickled_and_released_by_its_copy(
    make: Callable[..., Semaphore], speak: Speak
) -> None:
    semaphore = make(value=2)
    for slots in (1, 2):
        acquired = await speak.acquire(semaphore, slots)
        arrived = pickle.loads(pickle.dumps(acquired))
        assert type(arrived) is AcquisitionResult
        assert arrived == acquired
        assert arrived.fencing_token == acquired.fencing_token
        assert not arrived.lost.is_set()
        assert copy.copy(acquired) is copy.deepcopy(acquired) is acquired
        assert await speak.release(semaphore, arrived) is True
        assert await speak.release(semaphore, acquired) is False


async def test_a_result_of_tiers_on_redis_can_be_pickled(server: Server) -> None:
    tiers = Tiers(Tier("t", 1), url=RedisConfig(server.url), name="p")
    acquired = await tiers.acquire()
    assert type(pickle.loads(pickle.dumps(acquired))) is AcquisitionResult
    assert await tiers.release(pickle.loads(pickle.dumps(acquired))) is True


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": 1e15},
        {"ttl": 10**400},
        {"max_acquire_time": 1e15},
        {"name": "lone \ud800 surrogate"},
        {"name": "\udcff"},
    ],
)
def test_what_no_driver_could_keep_is_a_value_error(
    driver: Callable[..., Semaphore], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        driver(1, **{"name": "s", **wrong})


async def test_a_value_that_can_not_be_stored_is_refused_before_anything_is_written(
    make: Callable[..., Semaphore], speak: Speak
) -> None:
    semaphore = make(value=2)
    acquired = await speak.acquire(semaphore)
    for value in (2**53 + 1, 2**62, 10**30):
        with pytest.raises(ValueError, match=f"value must be at most {2**53}, not {value}"):
            make(value=value)
        with pytest.raises(ValueError, match=f"value must be at most {2**53}, not {value}"):
            await speak.resize(semaphore, value)
    stats = await speak.stats(semaphore)
    assert (stats.acquired_slots, stats.max_slots) == (1, 2)
    await speak.resize(semaphore, 2**53)
    assert (await speak.stats(semaphore)).max_slots == 2**53
    assert await speak.release(semaphore, acquired) is True


def test_neither_could_tiers_nor_a_namespace() -> None:
    with pytest.raises(ValueError, match="ttl must be at most"):
        Tiers(Tier("t", 1), ttl=1e15)
    with pytest.raises(ValueError, match="name must be text"):
        Tiers(Tier("t", 1), name="\udc80")
    with pytest.raises(ValueError, match="namespace must be text"):
        RedisConfig(namespace="\udc80")


async def test_an_id_that_is_not_text_is_a_value_error(
    make: Callable[..., Semaphore], speak: Speak
) -> None:
    semaphore = make(value=1)
    with pytest.raises(ValueError, match="acquisition_id must be text"):
        await speak.release(semaphore, "\ud800")
    if hasattr(semaphore, "kick"):
        with pytest.raises(ValueError, match="acquisition_id must be text"):
            await semaphore.kick("\ud800")


@pytest.mark.parametrize("backend", ["memory", "process", "redis"])
async def test_a_key_of_tiers_that_is_not_text_is_a_value_error(
    server: Server, tmp_path: Path, backend: str
) -> None:
    url = {"memory": None, "process": f"process://{tmp_path}/slots", "redis": server.url}[backend]
    tiers = Tiers(Tier("user", 1, keyed=True), url=url, name="p")
    for given in (lambda: tiers.acquire(user="\ud800"), lambda: tiers.resize("user", 2, "\ud800")):
        with pytest.raises(ValueError, match="the key of tier 'user' must be text"):
            await given()
    with pytest.raises(ValueError, match="acquisition_id must be text"):
        await tiers.release("\ud800")


async def test_a_timeout_that_no_clock_could_keep_is_a_value_error(
    make: Callable[..., Semaphore], speak: Speak
) -> None:
    with pytest.raises(ValueError, match="timeout must be at most 1e"):
        await speak.acquire(make(value=1), timeout=1e15)


async def test_the_longest_ttl_and_a_name_of_any_text_work(
    driver: Callable[..., Semaphore], name: str, speak: Speak
) -> None:
    semaphore = driver(1, name=f"{name} Grüße \U0001f980", ttl=1e9)
    acquired = await speak.acquire(semaphore, timeout=1e9)
    assert await speak.release(semaphore, acquired) is True
