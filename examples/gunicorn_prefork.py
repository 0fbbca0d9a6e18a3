"""A WSGI app under gunicorn: 3 requests at once in all of its worker processes, without Redis.

    pip install slotwise gunicorn
    gunicorn --workers 8 gunicorn_prefork:app

A semaphore of the machine is enough for a prefork server: its workers share it by its name,
and a worker that is killed frees its slots.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from slotwise import semaphore
from slotwise.integrations.wsgi import LimitMiddleware

LIMIT = semaphore("gunicorn-prefork", 3, url="process://")


def work(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"] != "/healthz":
        time.sleep(0.2)  # stands in for a slow query
    return [b"done\n"]


app = LimitMiddleware(work, LIMIT, wait=0.05)
