from __future__ import annotations

import redis
from rq import Queue
from tests.integrations._task_work import URL, find_limit, work

from slotwise.integrations.rq import limited

queue = Queue(connection=redis.Redis.from_url(URL))


@limited(find_limit, on_full="requeue")
def run(number: int) -> None:
    work(number)


def send(number: int) -> None:
    queue.enqueue(run, number)
