"""Adaptive values: how a hold ended decides where they go, on every driver alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import pytest

from slotwise import (
    Adaptive,
    Errors,
    Latency,
    Semaphore,
    SemaphoreClosed,
    Tier,
    Tiers,
    ValueConflict,
)
from slotwise.instrumentation import add_hook, remove_hook
from tests.contract.conftest import Speak, Url

Make = Callable[..., Semaphore]

RULES = Adaptive(10, 2, 20, algorithm=Errors())
DROPPED = 7  # what is left of 10 then


# ---------------------------------------------------------------- how a hold ends


async def leaves(limit: Any, error: type[BaseException] | None, say: str = "") -> None:
    """Leave a block, in a way."""
    with nullcontext() if error is None else pytest.raises(error):
        async with limit.cm() as acquired:
            if say:
                getattr(acquired, say)()
            if error is not None:
                raise error


def leaves_sync(limit: Any, error: type[BaseException] | None, say: str = "") -> None:
    with nullcontext() if error is None else pytest.raises(error), limit.cm() as acquired:
        if say:
            getattr(acquired, say)()
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "say", "value"),
    [
        (None, "", 10),
        (TimeoutError, "", DROPPED),
        (ConnectionResetError, "", DROPPED),
        (ValueError, "", 10),
        (asyncio.CancelledError, "", 10),
        (None, "dropped", DROPPED),
        (None, "ignored", 10),
        (TimeoutError, "ignored", 10),
        (ValueError, "dropped", DROPPED),
    ],
)
async def test_a_block_ends_as_it_is_left(
    make: Make, speak: Speak, error: type[BaseException] | None, say: str, value: int
) -> None:
    limit = make(RULES)
    if speak.sync:
        await asyncio.to_thread(leaves_sync, limit, error, say)
    else:
        await leaves(limit, error, say)
    assert (await limit.stats()).max_slots == value
    assert limit.value == value


async def test_a_block_without_a_name_for_its_slot_ends_as_it_is_left(
    make: Make, speak: Speak
) -> None:
    limit = make(RULES)

    def leave() -> None:
        with limit:
            raise TimeoutError

    async def leave_async() -> None:
        async with limit:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await (asyncio.to_thread(leave) if speak.sync else leave_async())
    assert (await limit.stats()).max_slots == DROPPED


async def test_which_errors_are_drops_is_up_to_the_caller(make: Make) -> None:
    limit = make(Adaptive(10, 2, 20, algorithm=Errors(), drop_on=(KeyError,)))
    await leaves(limit, TimeoutError)
    assert (await limit.stats()).max_slots == 10
    other = make(RULES)  # of the same name: only the rules have to be the same
    await leaves(other, KeyError)
    assert (await limit.stats()).max_slots == 10
    await leaves(limit, KeyError)
    assert (await limit.stats()).max_slots == DROPPED


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize(
    ("outcome", "value"), [(None, 10), ("ok", 10), ("ignored", 10), ("dropped", DROPPED)]
)
async def test_a_release_says_how_it_ended(
    make: Make, speak: Speak, by_id: bool, outcome: Any, value: int
) -> None:
    limit = make(RULES)
    held = await speak.acquire(limit)
    released = held.acquisition_id if by_id else held
    assert await speak.say(limit, "release", released, outcome=outcome)
    assert (await limit.stats()).max_slots == value
    assert not await speak.say(limit, "release", released, outcome="dropped")
    assert (await limit.stats()).max_slots == value


async def test_what_an_acquisition_was_told_counts_if_the_release_says_nothing(
    make: Make, speak: Speak
) -> None:
    limit = make(RULES)
    held, other = await speak.acquire(limit), await speak.acquire(limit)
    held.dropped()
    other.dropped()
    await speak.say(limit, "release", other, outcome="ok")
    assert (await limit.stats()).max_slots == 10
    await speak.say(limit, "release", held.acquisition_id)
    assert (await limit.stats()).max_slots == DROPPED


@pytest.mark.parametrize("value", [3, RULES])
async def test_an_unknown_outcome_releases_nothing(
    make: Make, speak: Speak, value: int | Adaptive
) -> None:
    limit = make(value)
    held = await speak.acquire(limit)
    for which in (held, held.acquisition_id):
        with pytest.raises(ValueError, match="'ok', 'dropped' or 'ignored'"):
            await speak.say(limit, "release", which, outcome="failed")
        with pytest.raises(TypeError, match=r"outcome must be 'ok', .*, not int"):
            await speak.say(limit, "release", which, outcome=3)
    assert (await limit.stats()).acquired_slots == 1
    if isinstance(value, Adaptive):
        with pytest.raises(ValueError, match="retry_after"):
            held.dropped(retry_after=-1)
    assert await speak.say(limit, "release", held, outcome="dropped")


async def test_the_end_of_a_ttl_is_a_drop_and_a_kick_says_nothing(make: Make, speak: Speak) -> None:
    limit = make(RULES, ttl=0.05)
    kept = await limit.acquire()
    async with asyncio.timeout(30):
        while not kept.lost.is_set():
            await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        while (await limit.stats()).max_slots != DROPPED:
            await asyncio.sleep(0.01)
    other = make(RULES, name=f"{limit.name}-kicked")
    kicked = await speak.acquire(other)
    kicked.dropped()
    assert await speak.kick(other, kicked.acquisition_id)
    assert (await other.stats()).max_slots == 10


# -------------------------------------------------------------------- the value


async def grow(limit: Semaphore, to: int) -> None:
    """Use all of it, for as long as it takes; what a busy machine does meanwhile doesn't matter."""
    async with asyncio.timeout(30):
        while limit.value < to:
            held = [await limit.acquire() for _ in range((await limit.stats()).max_slots)]
            await asyncio.sleep(0.03)
            for each in held:
                await limit.release(each)


async def test_what_it_gains_goes_to_those_who_wait(make: Make, speak: Speak) -> None:
    limit = make(Adaptive(1, 1, 3, algorithm=Errors()))
    first = await speak.acquire(limit)
    waiting = [asyncio.create_task(speak.acquire(limit)) for _ in range(2)]
    await speak.waiting(limit, 2)
    await asyncio.sleep(0.02)
    await speak.release(limit, first)
    # With one success at a value of 1 it is 2, unless somebody took long to begin.
    if (await limit.stats()).max_slots == 2:
        await speak.held(limit, 2)
        await speak.waiting(limit, 0)
    for each in waiting:
        await speak.release(limit, await each)
    await grow(limit, 3)
    assert (await limit.stats()).max_slots == 3
    await speak.held(limit, 0)


async def test_a_shrink_kicks_nobody_and_grants_nothing_until_it_fits(
    make: Make, speak: Speak
) -> None:
    limit = make(Adaptive(4, 2, 10, algorithm=Errors()))
    held = [await speak.acquire(limit) for _ in range(4)]
    held[0].dropped()
    await speak.release(limit, held[0])
    stats = await limit.stats()
    assert (stats.acquired_slots, stats.max_slots) == (3, 2)
    assert not any(each.lost.is_set() for each in held[1:])
    waiting = asyncio.create_task(speak.acquire(limit))
    await speak.waiting(limit, 1)
    await speak.say(limit, "release", held[1], outcome="ignored")
    assert not waiting.done()
    assert (await limit.stats()).waiting == 1
    await speak.say(limit, "release", held[2], outcome="ignored")
    await speak.release(limit, await waiting)
    await speak.release(limit, held[3])


async def test_changes_are_listed_with_their_reasons(make: Make, speak: Speak) -> None:
    limit = make(RULES)
    assert await speak.say(limit, "changes") == []
    held = await speak.acquire(limit)
    await speak.say(limit, "release", held, outcome="dropped")
    await speak.say(limit, "freeze", 12)
    await speak.say(limit, "thaw")
    held = await speak.acquire(limit)
    await speak.say(limit, "release", held, outcome="dropped")
    found = await speak.say(limit, "changes")
    assert [(each.old, each.new, each.reason) for each in found] == [
        (10, DROPPED, "a call was dropped"),
        (DROPPED, 12, "frozen"),
        (12, 8, "a call was dropped"),
    ]
    times = [each.at for each in found]
    assert times == sorted(times)
    assert abs(times[0] - time.time()) < 60


# ----------------------------------------------------------------------- steering


async def test_a_frozen_value_stays_until_it_is_thawed(make: Make, speak: Speak) -> None:
    limit = make(RULES)
    await speak.say(limit, "freeze")
    await leaves(limit, TimeoutError)
    assert (await limit.stats()).max_slots == 10
    await speak.say(limit, "freeze", 15)
    assert (await limit.stats()).max_slots == 15
    held = [await speak.acquire(limit) for _ in range(15)]
    for each in held:
        await speak.say(limit, "release", each, outcome="dropped")
    assert (await limit.stats()).max_slots == 15
    await speak.say(limit, "thaw")
    await leaves(limit, TimeoutError)
    assert (await limit.stats()).max_slots == 10
    await speak.say(limit, "resize", 5)
    await leaves(limit, TimeoutError)
    assert (await limit.stats()).max_slots == 5


async def test_it_is_frozen_within_its_bounds_alone(make: Make, speak: Speak) -> None:
    limit = make(RULES)
    for verb in ("freeze", "resize"):
        for outside in (1, 21):
            with pytest.raises(ValueError, match=f"must be within 2 and 20, not {outside}"):
                await speak.say(limit, verb, outside)
        with pytest.raises(TypeError):
            await speak.say(limit, verb, 2.5)
    assert (await limit.stats()).max_slots == 10
    await leaves(limit, TimeoutError)
    assert (await limit.stats()).max_slots == DROPPED


async def test_a_fixed_value_has_nothing_of_it(make: Make, speak: Speak) -> None:
    limit = make(3)
    for verb in ("freeze", "thaw", "changes"):
        with pytest.raises(TypeError, match="has a fixed value"):
            await speak.say(limit, verb)
    async with limit.cm() as acquired:
        acquired.dropped(retry_after=3)
        acquired.ignored()
    assert (await limit.stats()).max_slots == 3


# ------------------------------------------------------------------------ sharing


async def test_all_who_share_a_name_have_the_same_rules(make: Make, speak: Speak) -> None:
    limit = make(RULES)
    held = await speak.acquire(limit)
    others: list[Any] = [Adaptive(10, 2, 19, algorithm=Errors()), Adaptive(10, 2, 20), 10]
    others.append(Adaptive(10, 2, 20, algorithm=Latency(2.0)))
    for other in others:
        with pytest.raises(ValueConflict, match=r"adapts \(2 to 20 from 10, errors\)"):
            await speak.acquire(make(other))
    await speak.release(limit, held)
    fixed = make(5)
    held = await speak.acquire(fixed)
    with pytest.raises(ValueConflict, match="in use with 5 slots"):
        await speak.acquire(limit)
    await speak.release(fixed, held)
    await speak.release(limit, await speak.acquire(limit))
    assert (await limit.stats()).max_slots == 10


async def test_one_of_a_fixed_value_cannot_freeze_an_adaptive_name(
    make: Make, speak: Speak, name: str
) -> None:
    limit, other = make(RULES, name=name), make(10, name=name)
    held = await speak.acquire(limit)
    for verb in ("freeze", "thaw"):
        with pytest.raises(ValueConflict, match=r"adapts .*, but this instance has a fixed value"):
            await getattr(other, verb)()
    await limit.release(held, outcome="dropped")
    assert limit.value == DROPPED, "it is not frozen"


async def test_it_never_takes_more_slots_than_it_may_fall_to(make: Make, speak: Speak) -> None:
    limit = make(RULES)
    with pytest.raises(ValueError, match="may fall to 2 slots: 3 at once"):
        await speak.acquire(limit, 3)
    held = await speak.acquire(limit, 2)
    assert (await limit.stats()).acquired_slots == 2
    await speak.release(limit, held)


async def test_nobody_is_replaced_there(make: Make, speak: Speak) -> None:
    limit = make(RULES)
    with pytest.raises(TypeError, match="is adaptive: on_full='replace' can't be used"):
        await speak.acquire(limit, on_full="replace")


# ------------------------------------------------------------------------ pausing

PAUSING = Adaptive(2, 2, 20, algorithm=Errors(), pause_on_retry_after=True)


async def test_a_service_that_names_a_time_gets_nothing_until_then(
    make: Make, speak: Speak
) -> None:
    limit = make(PAUSING)
    held = [await speak.acquire(limit) for _ in range(2)]
    waiting = asyncio.create_task(speak.acquire(limit))
    await speak.waiting(limit, 1)
    held[0].dropped(retry_after=3600)
    await speak.release(limit, held[0])
    stats = await limit.stats()
    assert (stats.acquired_slots, stats.waiting) == (1, 1)
    assert 3000 < stats.paused_for <= 3600
    assert await speak.try_acquire(limit) is None
    await speak.reopen(limit)
    await speak.release(limit, await waiting)
    await speak.release(limit, held[1])


# -------------------------------------------------------------------------- tiers

MakeTiers = Callable[..., Tiers]


@pytest.fixture
def make_tiers(url: Url, name: str) -> MakeTiers:
    def make(*tiers: Tier, **options: Any) -> Tiers:
        return Tiers(*tiers, url=url, **{"name": name, **options})

    return make


def tiers_of(make_tiers: MakeTiers, **options: Any) -> Tiers:
    return make_tiers(Tier("user", RULES, keyed=True), Tier("all", 50), **options)


async def value_of(tiers: Tiers, user: str) -> int:
    return (await tiers.stats())["user"].keys[user].value


async def test_each_key_adapts_alone(make_tiers: MakeTiers, speak: Speak) -> None:
    tiers = tiers_of(make_tiers)
    held = await tiers.acquire(user="b")
    with pytest.raises(TimeoutError):
        async with tiers.cm(user="a"):
            raise TimeoutError
    assert await value_of(tiers, "a") == DROPPED
    assert await value_of(tiers, "b") == 10
    assert await speak.say(tiers, "release", held, outcome="dropped")  # type: ignore[arg-type]
    assert await value_of(tiers, "b") == DROPPED
    [change] = await speak.say(tiers, "changes", "user", "a")  # type: ignore[arg-type]
    assert (change.old, change.new, change.reason) == (10, DROPPED, "a call was dropped")
    assert await tiers.changes("user", "nobody") == []


async def test_a_key_that_nobody_has_used_is_frozen_at_the_present_time(
    make_tiers: MakeTiers, speak: Speak
) -> None:
    tiers: Any = tiers_of(make_tiers)
    await speak.say(tiers, "freeze", "user", 5, "a")
    [change] = await tiers.changes("user", "a")
    assert (change.old, change.new, change.reason) == (10, 5, "frozen")
    assert abs(change.at - time.time()) < 60


@pytest.mark.parametrize(
    ("end", "value"),
    [
        (lambda path: leaves(path, None), 10),
        (lambda path: leaves(path, TimeoutError), DROPPED),
        (lambda path: leaves(path, ValueError), 10),
        (lambda path: leaves(path, asyncio.CancelledError), 10),
        (lambda path: leaves(path, None, "dropped"), DROPPED),
        (lambda path: leaves(path, TimeoutError, "ignored"), 10),
        (lambda path: asyncio.to_thread(leaves_sync, path, TimeoutError), DROPPED),
        (lambda path: asyncio.to_thread(leaves_sync, path, None, "dropped"), DROPPED),
    ],
)
async def test_a_path_ends_as_its_block_is_left(
    make_tiers: MakeTiers, end: Callable[[Any], Awaitable[None]], value: int
) -> None:
    tiers = make_tiers(Tier("user", 5, keyed=True), Tier("backend", RULES))
    await end(tiers.at(user="a"))
    assert (await tiers.stats())["backend"].value == value


async def test_closed_tiers_are_not_changed(make_tiers: MakeTiers, speak: Speak) -> None:
    tiers: Any = tiers_of(make_tiers)
    held = await tiers.acquire(user="a")
    await tiers.close_everywhere("maintenance")
    for verb, *args in (("freeze", "user", 5), ("thaw", "user"), ("resize", "all", 5)):
        with pytest.raises(SemaphoreClosed, match="maintenance"):
            await speak.say(tiers, verb, *args)
    await tiers.reopen()
    await leaves(tiers.at(user="a"), TimeoutError)
    assert await value_of(tiers, "a") == DROPPED
    assert (await tiers.stats())["all"].value == 50
    await tiers.release(held)


async def test_keys_and_tiers_are_frozen_and_thawed(make_tiers: MakeTiers, speak: Speak) -> None:
    tiers: Any = tiers_of(make_tiers)
    kept = [await tiers.acquire(user=user) for user in "ab"]
    await speak.say(tiers, "freeze", "user", 5, "a")
    await leaves(tiers.at(user="a"), TimeoutError)
    await leaves(tiers.at(user="b"), TimeoutError)
    assert [await value_of(tiers, user) for user in "ab"] == [5, DROPPED]
    await speak.say(tiers, "freeze", "user")
    assert [await value_of(tiers, user) for user in "ab"] == [5, DROPPED]
    await speak.say(tiers, "freeze", "user", 6)
    newcomer = await tiers.acquire(user="c")
    assert [await value_of(tiers, user) for user in "abc"] == [6, 6, 6]
    await leaves(tiers.at(user="c"), TimeoutError)
    assert await value_of(tiers, "c") == 6
    await speak.say(tiers, "thaw", "user", "c")
    await leaves(tiers.at(user="b"), TimeoutError)
    await leaves(tiers.at(user="c"), TimeoutError)
    assert [await value_of(tiers, user) for user in "bc"] == [6, 4]
    await speak.say(tiers, "thaw", "user")
    await leaves(tiers.at(user="b"), TimeoutError)
    assert await value_of(tiers, "b") == 4
    await speak.say(tiers, "resize", "user", 9, "b")
    await leaves(tiers.at(user="b"), TimeoutError)
    assert await value_of(tiers, "b") == 9
    for each in (*kept, newcomer):
        await tiers.release(each)


async def test_values_outside_the_bounds_and_fixed_tiers_are_refused(
    make_tiers: MakeTiers, speak: Speak
) -> None:
    tiers: Any = make_tiers(Tier("user", RULES, keyed=True), Tier("backend", RULES), Tier("all", 5))
    for verb, arguments, error, text in [
        ("freeze", ("user", 21), ValueError, "within 2 and 20, not 21"),
        ("freeze", ("user", 1, "a"), ValueError, "within 2 and 20, not 1"),
        ("resize", ("backend", 1), ValueError, "within 2 and 20, not 1"),
        ("freeze", ("all",), TypeError, "has a fixed value"),
        ("thaw", ("all",), TypeError, "has a fixed value"),
        ("changes", ("all",), TypeError, "has a fixed value"),
        ("changes", ("user",), TypeError, "has keys"),
        ("changes", ("backend", "a"), TypeError, "has no keys"),
        ("freeze", ("backend", None, "a"), TypeError, "has no keys"),
        ("thaw", ("nothing",), ValueError, "there is no tier 'nothing'"),
        ("freeze", ("user", 5, 7), TypeError, "must be a str"),
        ("release", ("x",), ValueError, "'ok', 'dropped' or 'ignored'"),
    ]:
        options = {"outcome": "failed"} if verb == "release" else {}
        with pytest.raises(error, match=text):
            await speak.say(tiers, verb, *arguments, **options)
    with pytest.raises(ValueError, match="may fall to 2 slots: 3 at once"):
        await tiers.acquire(3, user="a")


async def test_hooks_are_told_which_tier_and_key_moved(make_tiers: MakeTiers) -> None:
    tiers, seen = tiers_of(make_tiers), []
    add_hook(seen.append)
    try:
        await leaves(tiers.at(user="a"), TimeoutError)
    finally:
        remove_hook(seen.append)
    [told] = [each for each in seen if each.kind == "adapted"]
    assert (told.tier, told.keys, told.value) == ("user", {"user": "a"}, DROPPED)
    assert told.reason == "a call was dropped"
