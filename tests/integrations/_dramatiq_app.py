from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from tests.integrations._task_work import URL, find_limit, work

from slotwise.integrations.dramatiq import limited

dramatiq.set_broker(RedisBroker(url=URL, heartbeat_timeout=2000))


@dramatiq.actor(max_retries=0)
@limited(find_limit, on_full="requeue")
def run(number: int) -> None:
    work(number)


def send(number: int) -> None:
    run.send(number)
