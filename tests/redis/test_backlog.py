"""The backlog costs each call little, however many wait for the same connection."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from slotwise.errors import BackendError
from slotwise.redis import RedisConfig
from slotwise.redis._call_limits import ServerSettings
from slotwise.redis._net.backlog import Backlog
from slotwise.redis._net.call import Call

COUNT = 500
CONFIG = RedisConfig("redis://localhost", connect_timeout=30)
HASTY = replace(CONFIG, connect_timeout=20).limits


class CountingBacklog(Backlog):
    looks = 0

    def _overdue_at(self, call: Call) -> float:
        self.looks += 1
        return super()._overdue_at(call)


def a_backlog() -> CountingBacklog:
    settings = ServerSettings(CONFIG)
    loop = asyncio.get_running_loop()
    return CountingBacklog(settings, loop, lambda seconds: BackendError(f"{seconds} s"))


def a_call() -> Call:
    return Call(None, (), ["PING"], lambda *_: None, limits=HASTY)


async def test_a_call_that_joins_an_attempt_is_looked_at_and_not_the_others() -> None:
    backlog = a_backlog()
    backlog.begin_attempt()
    for _ in range(COUNT):
        backlog.add(a_call())
    assert backlog.looks == COUNT
    backlog.end_attempt()


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
