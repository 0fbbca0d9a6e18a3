"""What the tasks of all queues do: say that they run, look who else does, and say that they ran.

It is kept in the Redis server of the test: ``running`` (by process and task), ``over`` (what ran
while there were too many), ``done``, and how many ``attempts`` there were.
"""

from __future__ import annotations

import os
import time

import redis

from slotwise import Semaphore, semaphore

URL = os.environ["TEST_REDIS_URL"]
VALUE = int(os.environ["TEST_VALUE"])
SECONDS = float(os.environ.get("TEST_SECONDS", "0.05"))


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - as short as it gets
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def find_limit() -> Semaphore:
    with redis.Redis.from_url(URL) as client:
        client.incr("attempts")
    return semaphore("tasks", VALUE, url=URL)


def work(number: int) -> None:
    client = redis.Redis.from_url(URL)
    mine = f"{os.getpid()}:{number}"
    client.hset("running", mine, 1)
    pids = [int(each.split(b":")[0]) for each in client.hkeys("running")]
    if sum(map(alive, pids)) > VALUE:
        client.sadd("over", mine)
    time.sleep(SECONDS)
    client.hdel("running", mine)
    client.sadd("done", number)
    client.close()
