"""What the tasks of all queues do: say that they run, look who else does, and say that they ran.

Each of the apps is also a program that sends tasks, and prints the results if told to.

It is kept in the Redis server of the test: ``running`` (by process and task), ``over`` (what ran
while there were too many), ``done``, and how many ``attempts`` there were.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

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


def find_limit_after_failure() -> Semaphore:
    """Like `find_limit`, but once after `fail` it is a limit that the test holds."""
    with redis.Redis.from_url(URL) as client:
        if client.exists("failed") and client.incr("refused after failure") == 1:
            return semaphore("full", 1, url=URL)
    return find_limit()


def fail(number: int) -> None:
    work(number)
    with redis.Redis.from_url(URL) as client:
        client.set("failed", 1)
    raise ValueError("once")


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


def main(send: Callable[[Iterable[int]], list[Any]], results: Callable[[list[Any]], Any]) -> None:
    """Send the number of tasks in the first argument; print their results if there is a second."""
    sent = send(range(int(sys.argv[1])))
    print("sent", flush=True)  # noqa: T201
    if len(sys.argv) > 2:
        print(json.dumps(results(sent)))  # noqa: T201
