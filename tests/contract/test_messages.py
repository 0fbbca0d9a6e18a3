"""One fault, one sentence: every driver says the same of a semaphore, of tiers and of a rate."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from slotwise import (
    BackendError,
    Limit,
    Rate,
    RateLimit,
    SlotwiseError,
    Tier,
    Tiers,
    ValueConflict,
    semaphore,
)
from tests.contract.conftest import Url

TITLES = {
    "semaphore": "'crm'",
    "tiers": "the tiers tenant, all of 'crm'",
    "rate": "the rate 'crm'",
}
SUBJECTS = {kind: f"{title} {'are' if kind == 'tiers' else 'is'}" for kind, title in TITLES.items()}
FULL = {
    "semaphore": "2 of 2 held, 0 others waiting",
    "tiers": "tenant 'acme': 2 of 2 held, 0 others waiting",
    "rate": "0.0 left of 2 per 36000 s, burst 2, and 1 needed, 0 others waiting",
}
PAUSED = {
    "semaphore": "paused for another N s, 2 of 2 held, 0 others waiting",
    "tiers": "tenant 'acme': paused for another N s, 0 others waiting",
    "rate": "paused for another N s, 0 others waiting",
}
NEVER = {
    "semaphore": "3 slots requested of 'crm', which has 2",
    "tiers": "3 slots requested of tenant 'acme' of the tiers tenant, all of 'crm', which has 2",
    "rate": "a cost of 3 requested of the rate 'crm', which has a burst of 2",
}
CONFLICT = {
    "semaphore": "'crm' is in use with 2 slots, not 1: 2 held, 0 waiting; resize() changes the"
    " value of a semaphore in use",
    "tiers": "the tiers of 'crm' are in use as tenant=2 each, not tenant=1 each;"
    " resize() changes the value of a tier in use",
    "rate": "the rate 'crm' is in use as 2 per 36000 s, burst 2, not 1 per 36000 s, burst 2;"
    " resize() changes the rate in use",
}

Make = Callable[..., Any]


@pytest.fixture(params=["semaphore", "tiers", "rate"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_kind(kind: str, url: Url, name: str) -> Make:
    def make(value: int = 2, **options: Any) -> Limit:
        if kind == "semaphore":
            return semaphore(name, value, url=url, **options)
        if kind == "rate":
            return RateLimit(name, Rate(value, per=36000, burst=2), url=url, **options)
        tiers = Tier("tenant", value, keyed=True), Tier("all", 5)
        return Tiers(*tiers, name=name, url=url, **options).at(tenant="acme")

    return make


@pytest.fixture
def said(name: str) -> Callable[[Callable[[], Awaitable[Any]]], Awaitable[str]]:
    """What an error says, without what the drivers don't know equally well."""

    async def said(call: Callable[[], Awaitable[Any]]) -> str:
        while True:
            with pytest.raises((SlotwiseError, LookupError, ValueError)) as error:
                await call()
            if not isinstance(error.value, BackendError):  # a server that was too busy to answer
                break
        text = str(error.value).replace(name, "crm")
        text = re.sub(r" \(oldest: [^)]*\)", "", text)  # test_explain.py has them
        text = re.sub(r"; a newcomer would be served in about .* s$", "", text)
        return re.sub(r"for another [\d.]+ s", "for another N s", text)

    return said


Said = Callable[[Callable[[], Awaitable[Any]]], Awaitable[str]]


async def test_every_driver_says_the_same_of_a_full_limit(
    make_kind: Make, kind: str, said: Said
) -> None:
    limit = make_kind()
    held = [await limit.acquire(), await limit.acquire()]
    title = TITLES[kind]
    timed_out = await said(lambda: limit.acquire(timeout=0.01))
    assert timed_out == f"no slot of {title} within 0.01 s: {FULL[kind]}"
    at_once = await said(lambda: limit.acquire(timeout=0))
    assert at_once == f"no slot of {title} within 0 s: {FULL[kind]}"
    refused = await said(lambda: make_kind(max_waiting=0).acquire())
    assert refused == f"no slot of {title}, and too many are waiting: {FULL[kind]}"
    await limit.pause(60)
    paused = await said(lambda: limit.acquire(timeout=0.01))
    assert paused == f"no slot of {title} within 0.01 s: {PAUSED[kind]}"
    for each in held:
        await limit.release(each)


async def test_every_driver_says_the_same_of_a_wrong_request(
    make_kind: Make, kind: str, said: Said
) -> None:
    limit = make_kind()
    assert await said(lambda: limit.acquire(3)) == f"{NEVER[kind]}: that can never be granted"
    assert await said(lambda: limit.estimate(3)) == f"{NEVER[kind]}: that can never be granted"
    held = [await limit.acquire(), await limit.acquire()]

    async def conflict() -> None:
        await make_kind(1).acquire(timeout=30)

    assert await said(conflict) == CONFLICT[kind]
    again = limit.cm()

    async def left_first() -> None:
        await again.__aexit__(None, None, None)

    assert await said(left_first) == f"this cm() of {TITLES[kind]} was left without being entered"
    if kind == "rate":
        unknown = await said(lambda: limit.settle("abc", 1))
        title = TITLES[kind]
        assert unknown == (
            f"'abc' is not an acquisition of {title}, or ended too long ago to be settled"
        )
    for each in held:
        await limit.release(each)


async def test_every_driver_says_the_same_of_a_closed_limit(
    make_kind: Make, kind: str, said: Said
) -> None:
    limit = make_kind()
    operator = limit.tiers if kind == "tiers" else limit
    await operator.close_everywhere("moving house")
    closed = await said(lambda: limit.acquire(timeout=30))
    assert closed == f"{SUBJECTS[kind]} closed everywhere: moving house"
    await operator.reopen()
    await operator.close()
    assert await said(lambda: limit.acquire(timeout=30)) == f"{SUBJECTS[kind]} closed"
    assert await said(limit.try_acquire) == f"{SUBJECTS[kind]} closed"


# --------------------------------------------------------------------- conflicts


TENANT, EVERYBODY = Tier("tenant", 5, keyed=True), Tier("all", 20)
FAIR: dict[str, Any] = {"order": "fair", "fair_by": "tenant"}
TOKENS = Tier("tokens", rate=Rate(1_000, per=60, burst=200))


@pytest.fixture
def place(url: Url, name: str) -> dict[str, Any]:
    return {"url": url, "name": name}


@pytest.mark.parametrize(
    ("tiers", "options", "named", "left_out"),
    [
        (
            (TENANT, Tier("tokens", rate=Rate(500, per=60, burst=200)), EVERYBODY),
            {},
            ("1000 per 60 s, burst 200", "500 per 60 s, burst 200"),
            "all",
        ),
        ((TENANT, TOKENS, Tier("all", 19)), {}, ("20", "19"), "1000 per 60 s"),
        ((TENANT, TOKENS, EVERYBODY), FAIR, ("fair",), "all=20"),
        ((TENANT, EVERYBODY), {}, ("tokens=1000 per 60 s, burst 200", "all=20"), None),
    ],
)
async def test_two_objects_with_different_rules_are_a_conflict_that_names_the_difference(
    place: dict[str, Any],
    tiers: tuple[Tier, ...],
    options: dict[str, Any],
    named: tuple[str, ...],
    left_out: str | None,
) -> None:
    limits = Tiers(TENANT, TOKENS, EVERYBODY, **place)
    async with limits.cm(tenant="acme", tokens=7):
        with pytest.raises(ValueConflict) as conflict:
            await Tiers(*tiers, **place, **options).acquire(tenant="acme", timeout=10)
        for word in named:
            assert word in str(conflict.value)
        assert left_out is None or left_out not in str(conflict.value).replace(place["name"], "")
        stats = await limits.stats()
        assert stats["all"].active == 1
    await limits.close()


async def test_whose_key_a_tier_uses_is_agreed_on(place: dict[str, Any]) -> None:
    async with Tiers(TENANT, Tier("models", 3, keyed=True), **place).cm(tenant="a", models="b"):
        shared = Tier("models", 3, keyed="tenant")
        with pytest.raises(ValueConflict, match="as models=3 each, not models=3 for each tenant"):
            await Tiers(TENANT, shared, **place).acquire(tenant="a", timeout=10)


RESIZED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any, Any]] = {
    "semaphore": (lambda value, name, url: semaphore(name, value, url), (), 3, 5),
    "tiers": (lambda value, **place: Tiers(TENANT, Tier("all", value), **place), ("all",), 3, 5),
    "fair tiers": (
        lambda value, **place: Tiers(Tier("tenant", value, keyed=True), EVERYBODY, **place, **FAIR),
        *(("tenant",), 3, 5),
    ),
    "rate": (
        lambda value, name, url: RateLimit(name, value, url=url),
        *((), Rate(3, per=3600, burst=3), Rate(5, per=3600, burst=3)),
    ),
}


@pytest.mark.parametrize("kind", RESIZED)
async def test_what_was_resized_is_no_conflict_when_code_with_that_value_is_deployed(
    place: dict[str, Any], kind: str
) -> None:
    make, tier, declared, resized = RESIZED[kind]
    at = {"tenant": "acme"} if "tiers" in kind else {}
    earlier = make(declared, **place)
    await earlier.acquire(**at)
    await earlier.resize(*tier, resized)
    later = make(resized, **place)
    assert await later.try_acquire(**at) is not None
    assert await earlier.try_acquire(**at) is not None
    with pytest.raises(ValueConflict, match=r"in use (as .*|with )5"):
        await make(Rate(4, per=3600) if kind == "rate" else 4, **place).try_acquire(**at)


def test_limits_without_a_name_are_private(place: dict[str, Any]) -> None:
    url = place["url"]
    RateLimit(None, Rate(1, per=60), url=url).acquire_sync()
    assert RateLimit(None, Rate(1, per=60), url=url).try_acquire_sync() is not None
    assert RateLimit(None, Rate(9, per=60), url=url).try_acquire_sync() is not None
    first, second = (Tiers(Tier("all", 1), url=url) for _ in range(2))
    with first.cm(), second.cm(timeout=0):
        pass
