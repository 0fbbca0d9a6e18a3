"""The backlog: calls that wait for a connection keep their order."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from slotwise.errors import BackendError
from slotwise.redis import RedisConfig
from slotwise.redis._call_limits import ServerSettings
from slotwise.redis._net.backlog import Backlog
from slotwise.redis._net.call import Call

CONFIG = RedisConfig("redis://localhost", connect_timeout=30)
HASTY = replace(CONFIG, connect_timeout=20).limits


def a_backlog() -> Backlog:
    settings = ServerSettings(CONFIG)
    loop = asyncio.get_running_loop()
    return Backlog(settings, loop, lambda seconds: BackendError(f"{seconds} s"))


def a_call() -> Call:
    return Call(None, (), ["PING"], lambda *_: None, limits=HASTY)


async def test_calls_keep_their_order_around_those_that_are_withdrawn() -> None:
    backlog = a_backlog()
    first, second, third, fourth = (a_call() for _ in range(4))
    for call in (second, third, fourth):
        backlog.add(call)
    backlog.put_first([first])
    assert backlog.withdraw(third)
    assert not backlog.withdraw(third)
    assert backlog.take() == [first, second, fourth]
    assert not backlog
