from __future__ import annotations

import asyncio
import json
import os
import sys

from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends, TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisAsyncResultBackend, RedisStreamBroker
from tests.integrations._task_work import URL, fail, find_limit, find_limit_after_failure, work

from slotwise.integrations.taskiq import RequeueMiddleware, limited

# Longer than a task takes, and waits: what is idle for longer is delivered once more.
broker = RedisStreamBroker(
    URL, idle_timeout=30_000, unacknowledged_lock_timeout=5
).with_result_backend(RedisAsyncResultBackend(URL))
broker.add_middlewares(SimpleRetryMiddleware())
source = ListRedisScheduleSource(URL)
if os.environ.get("TEST_SCHEDULE"):
    broker.add_middlewares(RequeueMiddleware(source))
scheduler = TaskiqScheduler(broker, [source])


@broker.task(task_name="run")
@limited(find_limit, on_full="requeue")
async def run(number: int, *, plus: int, context: Context = TaskiqDepends()) -> list:  # noqa: B008
    await asyncio.to_thread(work, number)
    return [number + plus, context.message.task_id]


@broker.task(task_name="run_sync")
@limited(find_limit, on_full="requeue")
def run_sync(number: int, *, plus: int, context: Context = TaskiqDepends()) -> list:  # noqa: B008
    work(number)
    return [number + plus, context.message.task_id]


@broker.task(task_name="fail_once", retry_on_error=True, max_retries=2)
@limited(find_limit_after_failure, on_full="requeue")
async def fail_once(number: int, context: Context = TaskiqDepends()) -> int:  # noqa: B008
    retries = int(context.message.labels.get("_retries", 0))
    if retries == 0:
        await asyncio.to_thread(fail, number)
    return retries


async def send_and_wait(numbers, waiting):
    await broker.startup()
    sent = [await (run, run_sync)[number % 2].kiq(number, plus=100) for number in numbers]
    sent.append(await fail_once.kiq(1000))
    print("sent", flush=True)  # noqa: T201
    if waiting:
        got = [[each.task_id, (await each.wait_result(timeout=240)).return_value] for each in sent]
        print(json.dumps([*got[:-1], got[-1][1]]))  # noqa: T201
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(send_and_wait(range(int(sys.argv[1])), sys.argv[2:]))
