from __future__ import annotations

from celery import Celery
from tests.integrations._task_work import (
    URL,
    fail,
    find_limit,
    find_limit_after_failure,
    main,
    work,
)

from slotwise.integrations.celery import limited

app = Celery("tests", broker=URL, backend=URL)
app.conf.update(
    imports=["tests.integrations._celery_app"],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    # After this many seconds, what a worker had that is no more goes to others.
    broker_transport_options={"visibility_timeout": 20},
)


@app.task(bind=True, max_retries=0, name="run")
@limited(find_limit, on_full="requeue")
def run(self, number: int, *, plus: int) -> list:
    assert self.request.retries == 0
    work(number)
    return [number + plus, self.request.id]


@app.task(bind=True, max_retries=1, name="fail_once")
@limited(find_limit_after_failure, on_full="requeue")
def fail_once(self, number: int) -> int:
    if self.request.retries == 0:
        try:
            fail(number)
        except ValueError as error:
            raise self.retry(exc=error, countdown=0) from None
    return self.request.retries


def send(numbers):
    sent = [run.delay(number, plus=100) for number in numbers]
    return [*sent, fail_once.delay(1000)]


def results(sent):
    *sent, failed = sent
    return [[each.id, each.get(timeout=240)] for each in sent] + [failed.get(timeout=240)]


if __name__ == "__main__":
    main(send, results)
