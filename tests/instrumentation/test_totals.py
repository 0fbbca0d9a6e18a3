"""`keep_totals()`: what this process got of a limit, in its statistics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slotwise import MemorySemaphore, Tier, Tiers
from slotwise.instrumentation import drop_totals, keep_totals
from slotwise.instrumentation._totals import Distribution
from slotwise.processes import ProcessSemaphore
from slotwise.testing import FakeClock


@pytest.fixture
def kept() -> Iterator[None]:
    keep_totals()
    yield
    drop_totals()


async def test_without_totals_there_are_none() -> None:
    assert (await MemorySemaphore(1, name="none").stats()).totals is None


async def test_grants_refusals_losses_waits_and_holds_are_counted(
    kept: None, clock: FakeClock
) -> None:
    semaphore = MemorySemaphore(1, name="counted")
    for _ in range(19):
        async with semaphore.cm():
            clock.advance(2)
    held = await semaphore.acquire()
    assert await semaphore.try_acquire() is None
    clock.advance(40)
    await semaphore.kick(held)
    totals = (await semaphore.stats()).totals
    assert totals is not None
    assert (totals.granted, dict(totals.refused), totals.lost) == (20, {"full": 1}, 1)
    assert totals.wait_mean == 0
    assert totals.hold_mean == pytest.approx((19 * 2 + 40) / 20)
    assert totals.hold_p95 == pytest.approx(2, rel=0.1)


async def test_other_limits_have_totals_too(kept: None, tmp_path: object) -> None:
    path = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2), name="totals").at(tenant="a")
    for limit in (path, ProcessSemaphore(1, name="totals", directory=str(tmp_path))):
        async with limit:
            pass
        for stats in (await limit.stats(), limit.stats_sync()):
            assert stats.totals is not None
            assert stats.totals.granted == 1
    private = MemorySemaphore(1)
    async with private:
        assert (await private.stats()).totals is None


def test_a_percentile_is_right_to_five_per_cent_whatever_the_times() -> None:
    distribution = Distribution()
    for number in range(1, 1001):
        distribution.add(number / 100)
    for share in (0.5, 0.95, 0.99):
        assert distribution.percentile(share) == pytest.approx(share * 10, rel=0.06)
    assert Distribution().percentile(0.5) is Distribution().mean is None
