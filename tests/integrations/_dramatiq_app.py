from __future__ import annotations

import asyncio

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO, CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from tests.integrations._task_work import (
    URL,
    fail,
    find_limit,
    find_limit_after_failure,
    main,
    work,
)

from slotwise.integrations.dramatiq import limited

broker = RedisBroker(url=URL, heartbeat_timeout=2000)
broker.add_middleware(Results(backend=RedisBackend(url=URL), store_results=True))
broker.add_middleware(AsyncIO())
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=0)
@limited(find_limit, on_full="requeue")
def run(number: int, *, plus: int) -> list:
    work(number)
    return [number + plus, CurrentMessage.get_current_message().message_id]


@dramatiq.actor(max_retries=0)
@limited(find_limit, on_full="requeue")
async def run_async(number: int, *, plus: int) -> list:
    await asyncio.to_thread(work, number)
    return [number + plus, CurrentMessage.get_current_message().message_id]


@dramatiq.actor(max_retries=1, min_backoff=1, max_backoff=1)
@limited(find_limit_after_failure, on_full="requeue")
def fail_once(number: int) -> int:
    retries = CurrentMessage.get_current_message().options.get("retries", 0)
    if retries == 0:
        fail(number)
    return retries


def send(numbers):
    sent = [(run, run_async)[number % 2].send(number, plus=100) for number in numbers]
    return [*sent, fail_once.send(1000)]


def results(sent):
    got = [[each.message_id, each.get_result(block=True, timeout=240_000)] for each in sent]
    return [*got[:-1], got[-1][1]]


if __name__ == "__main__":
    main(send, results)
