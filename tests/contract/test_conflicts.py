"""Other rules for a name that is in use: the error names the difference, and nothing is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotwise import Rate, RateLimit, Tier, Tiers, ValueConflict
from tests.redis._server import Server

TENANT, EVERYBODY = Tier("tenant", 5, keyed=True), Tier("all", 20)
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
        ((TENANT, TOKENS, EVERYBODY), {"order": "fair", "fair_by": "tenant"}, ("fair",), "all=20"),
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


def test_limits_without_a_name_are_private(place: dict[str, Any]) -> None:
    url = place["url"]
    RateLimit(None, Rate(1, per=60), url=url).acquire_sync()
    assert RateLimit(None, Rate(1, per=60), url=url).try_acquire_sync() is not None
    assert RateLimit(None, Rate(9, per=60), url=url).try_acquire_sync() is not None
    first, second = (Tiers(Tier("all", 1), url=url) for _ in range(2))
    with first.cm(), second.cm(timeout=0):
        pass
