from __future__ import annotations

import asyncio
import time

import redis
from rq import Queue, Retry, get_current_job
from tests.integrations._task_work import (
    URL,
    fail,
    find_limit,
    find_limit_after_failure,
    main,
    work,
)

from slotwise.integrations.rq import limited

queue = Queue(connection=redis.Redis.from_url(URL))


@limited(find_limit, on_full="requeue")
def run(number: int, *, plus: int) -> list:
    work(number)
    return [number + plus, get_current_job().id]


@limited(find_limit, on_full="requeue")
async def run_async(number: int, *, plus: int) -> list:
    await asyncio.to_thread(work, number)
    return [number + plus, get_current_job().id]


@limited(find_limit_after_failure, on_full="requeue")
def fail_once(number: int) -> int:
    left = get_current_job().retries_left
    if left:
        fail(number)
    return 1 - left


def send(numbers):
    sent = [
        queue.enqueue(
            ("tests.integrations._rq_app.run", "tests.integrations._rq_app.run_async")[number % 2],
            number,
            plus=100,
        )
        for number in numbers
    ]
    return [
        *sent,
        queue.enqueue("tests.integrations._rq_app.fail_once", 1000, retry=Retry(max=1)),
    ]


def results(sent):
    got = []
    for job in sent:
        while not job.is_finished:
            time.sleep(0.05)
            job.refresh()
        got.append([job.id, job.return_value()])
    return [*got[:-1], got[-1][1]]


if __name__ == "__main__":
    main(send, results)
