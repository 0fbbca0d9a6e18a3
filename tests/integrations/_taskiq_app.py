from __future__ import annotations

import asyncio

from taskiq_redis import RedisStreamBroker
from tests.integrations._task_work import URL, find_limit, work

from slotwise.integrations.taskiq import limited

# Longer than a task takes, and waits: what is idle for longer is delivered once more.
broker = RedisStreamBroker(URL, idle_timeout=30_000, unacknowledged_lock_timeout=5)


@broker.task
@limited(find_limit, on_full="requeue")
async def run(number: int) -> None:
    await asyncio.to_thread(work, number)


async def send_all(numbers: range) -> None:
    await broker.startup()
    for number in numbers:
        await run.kiq(number)
    await broker.shutdown()
