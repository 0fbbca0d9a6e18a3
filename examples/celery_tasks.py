"""Celery tasks for tenants: at most 2 at once for each tenant, in all workers together.

    pip install 'slotwise[celery]'
    export REDIS_URL=redis://localhost:6379
    celery -A celery_tasks worker --concurrency 8
    python celery_tasks.py acme other acme

A task that finds its tenant's limit full goes back to the queue. The worker is
free for others meanwhile.
"""

import os
import sys
import time

from celery import Celery

from slotwise.integrations.celery import limited

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")

app = Celery("celery_tasks", broker=URL, backend=URL)
# A worker that dies doesn't take its tasks with it.
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task
@limited("tenant:{tenant}", 2, url=URL, on_full="requeue")
def synchronise(tenant: str) -> str:
    time.sleep(0.2)  # stands in for a slow API
    return f"{tenant} is up to date"


if __name__ == "__main__":
    for result in [synchronise.delay(tenant) for tenant in sys.argv[1:]]:
        print(result.get(timeout=300))
