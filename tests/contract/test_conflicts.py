"""Other rules for a name that is in use: the error names the difference, and nothing is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotwise import Rate, RateLimit, Tier, Tiers, ValueConflict, semaphore
from tests.redis._server import Server

TENANT, EVERYBODY = Tier("tenant", 5, keyed=True), Tier("all", 20)
FAIR: dict[str, Any] = {"order": "fair", "fair_by": "tenant"}
TOKENS = Tier("tokens", rate=Rate(1_000, per=60, burst=200))


@pytest.fixture(params=["memory", "process", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "redis":
        server: Server = request.getfixturevalue("server")
        return {"url": server.url, "name": f"conflicts {tmp_path}"}
    url = "memory://" if request.param == "memory" else f"process://{tmp_path}"
    return {"url": url, "name": f"conflicts {tmp_path}"}


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
