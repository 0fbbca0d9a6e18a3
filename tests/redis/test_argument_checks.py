"""What is refused before the server is asked."""

from __future__ import annotations

import pytest
from tests.redis._inside import shared_of

from slotwise.redis import RedisConfig, RedisSemaphore


async def test_what_cannot_be_sent_or_counted_is_refused_before_it_is_asked_for(
    config: RedisConfig,
) -> None:
    semaphore = RedisSemaphore(value=1, config=config)
    with pytest.raises(ValueError, match="surrogates not allowed"):
        await semaphore.acquire(label="\ud800")
    assert not shared_of(semaphore).waiters
    with pytest.raises(ValueError, match="at most"):
        RedisSemaphore(value=10**20, config=config)
    with pytest.raises(ValueError, match="at most"):
        await semaphore.resize(10**20)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret/x@host:6379",
        "redis://user:secret?x@host",
        "redis://:x/secret@host",
        "redis://:secret[@host",
        "unix:///path?db=secret",
    ],
)
def test_a_url_that_is_not_understood_is_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="percent-encoded") as raised:
        RedisConfig(url)
    assert "secret" not in str(raised.value)
