"""The document's test plan and edge cases, on every backend."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests._inside import uploads_of

from slotwise import (
    AcquireTimeout,
    SemaphoreClosed,
    SlotManager,
    SlotManagerClosed,
    SlotOptions,
    SlotStats,
)
from slotwise.redis import RedisConfig

# ---------------------------------------------------------------- taking and giving


async def test_a_download_slot_can_be_acquired_and_released(manager):
    slots = manager(max_downloads=1)
    acquired = await slots.acquire_download_slot()
    assert (await slots.stats()).downloads_active == 1
    assert await slots.release_download_slot(acquired) is True
    assert (await slots.stats()).downloads_active == 0
    await slots.acquire_download_slot(timeout=0)


async def test_an_upload_slot_takes_both_tiers_and_gives_both_back(manager):
    slots = manager(max_uploads=1)
    acquired = await slots.acquire_upload_slot("alice")
    assert (await slots.stats()).uploads_active == 1
    with pytest.raises(AcquireTimeout):
        await slots.acquire_upload_slot("bob", timeout=0)  # the global one
    assert await slots.release_upload_slot("alice", acquired.acquisition_id) is True
    for user in ("alice", "bob"):
        async with slots.upload(user, timeout=0):
            pass


@pytest.mark.parametrize(
    ("limit", "taken", "blocks"), [(1, 1, True), (2, 1, False), (2, 2, True), (0, 100, False)]
)
async def test_a_newcomer_blocks_exactly_when_all_slots_are_taken(manager, limit, taken, blocks):
    slots = manager(max_downloads=limit)
    for _ in range(taken):
        await slots.acquire_download_slot()
    if blocks:
        with pytest.raises(AcquireTimeout):
            await slots.acquire_download_slot(timeout=0)
    else:
        await slots.acquire_download_slot(timeout=0)
    assert (await slots.stats()).downloads_active == taken + (not blocks)


async def test_no_limit_never_blocks_and_is_counted(manager):
    slots = manager(max_downloads=0, max_uploads=0, max_uploads_per_user=0)
    for _ in range(20):
        await slots.acquire_upload_slot("alice", timeout=0)
        await slots.acquire_download_slot(timeout=0)
    assert await slots.stats() == SlotStats(20, 0, 20, 0, 1)


# ------------------------------------------------------------ time-outs and cancelling


async def test_a_wait_that_is_cancelled_takes_nothing(manager, look):
    slots = manager(max_uploads=1)
    async with slots.upload("alice"):
        for user in ("alice", "bob"):
            waiting = asyncio.create_task(slots.acquire_upload_slot(user))
            await look.uploads_waiting(slots, 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await look.uploads_waiting(slots, 0)
        assert (await slots.stats()).uploads_active == 1
    assert (await slots.stats()).uploads_active == 0
    for user in ("alice", "bob"):
        async with slots.upload(user, timeout=0):
            pass


async def test_a_wait_that_times_out_takes_nothing(manager):
    slots = manager(max_uploads=1)
    # A server must have had the time to answer.
    seconds = 0.05 if slots.options.url is None else 1
    async with slots.upload("alice"):
        with pytest.raises(AcquireTimeout, match="upload"):
            await slots.acquire_upload_slot("bob", timeout=seconds)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await slots.acquire_upload_slot("bob")
    async with slots.upload("bob", timeout=0):
        pass
    assert (await slots.stats()).uploads_active == 0


# --------------------------------------------------------------------- per user


async def test_two_uploads_of_one_user_never_overlap_and_others_run_beside(manager, look):
    slots = manager()
    async with slots.upload("alice"), slots.upload("bob", timeout=0):
        second = asyncio.create_task(slots.acquire_upload_slot("alice"))
        await look.uploads_waiting(slots, 1)
        assert not second.done()
    async with asyncio.timeout(30):
        await second


async def test_the_second_upload_of_a_user_never_holds_up_another_user(manager, look):
    slots = manager(max_uploads=2)
    async with slots.upload("alice"):
        second = asyncio.create_task(slots.acquire_upload_slot("alice"))
        await look.uploads_waiting(slots, 1)
        for _ in range(3):
            async with slots.upload("bob", timeout=0):
                pass
        second.cancel()


async def test_several_uploads_of_one_user_if_so_wanted(manager):
    slots = manager(max_uploads_per_user=2)
    async with slots.upload("alice"), slots.upload("alice", timeout=0):
        with pytest.raises(AcquireTimeout):
            await slots.acquire_upload_slot("alice", timeout=0)


@pytest.mark.parametrize(
    "username", ["", " ", "a:b", "{}", "}{", "{alice}", "naïve ☃", "\x00\n", "x" * 5000]
)
async def test_a_username_may_be_anything(manager, username):
    slots = manager()
    async with slots.upload(username):
        async with slots.upload(username + "'", timeout=0):
            pass
        with pytest.raises(AcquireTimeout):
            await slots.acquire_upload_slot(username, timeout=0)
    assert (await slots.stats()).uploads_active == 0


@pytest.mark.parametrize("username", [None, 7, b"alice"])
async def test_a_username_must_be_a_str(manager, username):
    slots = manager()
    with pytest.raises(TypeError, match="username"):
        slots.upload(username)
    with pytest.raises(TypeError, match="username"):
        await slots.acquire_upload_slot(username)


# -------------------------------------------------------------------- releasing


async def test_a_double_release_never_frees_the_slot_of_another(manager):
    slots = manager(max_downloads=2)
    mine = await slots.acquire_download_slot()
    await slots.acquire_download_slot()
    assert await slots.release_download_slot(mine) is True
    assert await slots.release_download_slot(mine) is False
    assert await slots.release_download_slot(mine.acquisition_id) is False
    assert (await slots.stats()).downloads_active == 1


async def test_a_release_without_an_acquire_frees_nothing_and_warns(manager, caplog):
    slots = manager()
    holder = asyncio.create_task(slots.acquire_upload_slot("alice"))
    await holder
    caplog.set_level(logging.WARNING, logger="slotwise")
    assert await slots.release_download_slot() is False
    assert await slots.release_upload_slot("alice") is False  # another task's
    warnings = [r for r in caplog.records if r.name == "slotwise.tiers"]
    assert len(warnings) == 2
    assert "alice" in warnings[1].getMessage()
    assert (await slots.stats()).uploads_active == 1


async def test_a_release_without_an_id_frees_the_latest_of_this_task(manager):
    slots = manager(max_uploads_per_user=3)
    first = await slots.acquire_upload_slot("alice")
    second = await slots.acquire_upload_slot("alice")
    bobs = await slots.acquire_upload_slot("bob")
    assert await slots.release_upload_slot("alice") is True
    assert await slots.release_upload_slot("alice", second) is False
    assert await slots.release_upload_slot("alice") is True
    assert await slots.release_upload_slot("alice", first) is False
    assert await slots.release_upload_slot("bob", bobs) is True
    assert await slots.release_upload_slot("bob") is False


async def test_one_task_may_release_what_another_acquired_by_its_id(manager):
    slots = manager(max_downloads=1)
    acquired = await asyncio.create_task(slots.acquire_download_slot())
    assert await slots.release_download_slot(acquired) is True
    assert await slots.release_download_slot(acquired.acquisition_id) is False


@pytest.mark.parametrize("wrong", [7, b"id", object()])
async def test_a_release_takes_ids_and_acquisitions_only(manager, wrong):
    slots = manager()
    with pytest.raises(TypeError):
        await slots.release_download_slot(wrong)


# ---------------------------------------------------------------------- closing


async def test_a_close_wakes_all_who_wait_and_refuses_newcomers(manager, look):
    slots = manager(max_downloads=1, max_uploads=1)
    download = await slots.acquire_download_slot()
    upload = await slots.acquire_upload_slot("alice")
    waiting = [
        asyncio.create_task(slots.acquire_upload_slot("alice")),
        asyncio.create_task(slots.acquire_upload_slot("bob")),
    ]
    await look.uploads_waiting(slots, 2)
    waiting.append(asyncio.create_task(slots.acquire_download_slot()))
    await look.downloads_waiting(slots, 1)
    await slots.close()
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SlotManagerClosed] * 3
    with pytest.raises(SlotManagerClosed):
        await slots.acquire_download_slot()
    with pytest.raises(SemaphoreClosed):
        async with slots.upload("carol"):
            pass
    assert await slots.release_download_slot(download) is True
    assert await slots.release_upload_slot("alice", upload) is True
    await slots.close()


async def test_the_manager_is_a_block_that_closes_it(manager):
    async with manager() as slots, slots.download():
        pass
    with pytest.raises(SlotManagerClosed):
        await slots.acquire_download_slot()


# ---------------------------------------------------------------- threads


async def test_plain_threads_use_the_sync_twins_and_with(manager):
    slots = manager(max_uploads=1)

    def work():
        with slots.upload("alice"), slots.download():
            assert slots.stats_sync().uploads_active == 1
        acquired = slots.acquire_upload_slot_sync("alice", timeout=0)
        with pytest.raises(AcquireTimeout):
            slots.acquire_upload_slot_sync("alice", timeout=0)
        assert slots.release_upload_slot_sync("alice") is True
        assert slots.release_upload_slot_sync("alice", acquired) is False
        got = slots.acquire_download_slot_sync()
        assert slots.release_download_slot_sync(got) is True
        assert slots.release_download_slot_sync() is False
        assert slots.cleanup_idle_user_slots_sync(0) == 1

    await asyncio.to_thread(work)
    assert (await slots.stats()) == SlotStats(0, 10, 0, 1, 0)


# ------------------------------------------------------------------ concurrency


async def test_stats_tell_the_truth(manager):
    slots = manager(max_downloads=3, max_uploads=4)
    assert await slots.stats() == SlotStats(0, 3, 0, 4, 0)
    async with slots.download(), slots.download(), slots.upload("alice"), slots.upload("bob"):
        assert await slots.stats() == SlotStats(2, 3, 2, 4, 2)
    assert await slots.stats() == SlotStats(0, 3, 0, 4, 2)


# -------------------------------------------------------------------- idle users


async def test_idle_users_are_forgotten_and_those_in_use_are_not(manager, look):
    slots = manager(cleanup_interval=0)
    for user in "abc":
        async with slots.upload(user):
            pass
    async with slots.upload("held"):
        waiting = asyncio.create_task(slots.acquire_upload_slot("held"))
        await look.uploads_waiting(slots, 1)
        assert (await slots.stats()).user_slots_count == 4
        assert await slots.cleanup_idle_user_slots(3600) == 0
        assert await slots.cleanup_idle_user_slots(0) == 3
        assert (await slots.stats()).user_slots_count == 1
        with pytest.raises(AcquireTimeout):
            await slots.acquire_upload_slot("held", timeout=0)
    async with asyncio.timeout(30):
        await waiting
    assert await slots.cleanup_idle_user_slots(0) == 0
    await slots.release_upload_slot("held", waiting.result())
    assert await slots.cleanup_idle_user_slots(0) == 1


async def test_beyond_max_idle_users_the_longest_idle_are_forgotten_at_once(manager):
    slots = manager(max_idle_users=3, cleanup_interval=0)
    for n in range(10):
        async with slots.upload(f"user-{n}"):
            pass
    assert (await slots.stats()).user_slots_count == 3
    keys = (await uploads_of(slots).stats())["user"].keys
    assert {*keys} == {"user-7", "user-8", "user-9"}


# ----------------------------------------------------------------------- options


def test_the_defaults_are_those_of_the_manager():
    with SlotManager() as slots:
        assert slots.options == SlotOptions()


def test_a_manager_is_made_from_options():
    options = SlotOptions(max_downloads=3, max_uploads=0, cleanup_interval=0)
    with SlotManager.from_options(options) as slots:
        assert slots.options == options
        assert slots.stats_sync().downloads_max == 3


def test_each_field_has_a_variable():
    environ = {
        "SLOTWISE_MAX_DOWNLOADS": "1",
        "SLOTWISE_MAX_UPLOADS": "2",
        "SLOTWISE_MAX_UPLOADS_PER_USER": "3",
        "SLOTWISE_CLEANUP_INTERVAL": "4.5",
        "SLOTWISE_IDLE_THRESHOLD": "5",
        "SLOTWISE_MAX_IDLE_USERS": "6",
        "SLOTWISE_NAME": "transfers",
        "SLOTWISE_URL": "redis://127.0.0.1:1",
        "SLOTWISE_TTL": "7",
        "SLOTWISE_HEARTBEAT_MAX_INTERVAL": "8",
        "SLOTWISE_PING_INTERVAL": "2",
        "SLOTWISE_CANCEL_TASK_AFTER_TTL": "0",
    }
    options = SlotOptions.from_env(environ)
    assert options == SlotOptions(
        max_downloads=1,
        max_uploads=2,
        max_uploads_per_user=3,
        cleanup_interval=4.5,
        idle_threshold=5,
        max_idle_users=6,
        name="transfers",
        url=options.url,
        ttl=7,
        heartbeat_max_interval=8,
        ping_interval=2,
    )
    assert isinstance(options.url, RedisConfig)


def test_what_is_not_set_or_empty_has_its_default(monkeypatch):
    assert SlotOptions.from_env({"SLOTWISE_MAX_UPLOADS": " "}) == SlotOptions()
    monkeypatch.setenv("SLOTWISE_MAX_UPLOADS", "12")
    assert SlotOptions.from_env().max_uploads == 12


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SLOTWISE_MAX_DOWNLOADS", "many"),
        ("SLOTWISE_MAX_UPLOADS", "-1"),
        ("SLOTWISE_MAX_UPLOADS_PER_USER", "1.5"),
        ("SLOTWISE_CLEANUP_INTERVAL", "soon"),
        ("SLOTWISE_IDLE_THRESHOLD", "-3"),
        ("SLOTWISE_CANCEL_TASK_AFTER_TTL", "perhaps"),
        ("SLOTWISE_TTL", "0"),
        ("SLOTWISE_URL", "carrier-pigeon://"),
    ],
)
def test_bad_text_is_a_value_error_that_names_the_variable(variable, text):
    with pytest.raises(ValueError, match=variable):
        SlotOptions.from_env({variable: text})


@pytest.mark.parametrize("limit", ["max_downloads", "max_uploads", "max_uploads_per_user"])
@pytest.mark.parametrize(
    ("wrong", "error"), [(-1, ValueError), (True, TypeError), (1.0, TypeError), ("1", TypeError)]
)
def test_a_limit_that_makes_no_sense_is_refused(limit, wrong, error):
    for make in (SlotManager, SlotOptions):
        with pytest.raises(error, match=limit):
            make(**{limit: wrong})
