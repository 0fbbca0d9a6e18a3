from __future__ import annotations

from celery import Celery
from tests.integrations._task_work import URL, find_limit, work

from slotwise.integrations.celery import limited

app = Celery("tests", broker=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task(bind=True, max_retries=0)
@limited(find_limit, on_full="requeue")
def run(self, number: int) -> None:
    assert self.request.retries == 0
    work(number)


def send(number: int) -> None:
    run.delay(number)
