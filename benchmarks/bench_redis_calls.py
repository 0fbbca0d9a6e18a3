"""How long one call of each script keeps a Redis server from others, with the worst input.

What is measured is the processor time of the server in one call: wall time would also have in it
what other processes of this machine take. Even so, a busy machine is slower: everything is
repeated, of each call the least counts, and of all calls of a row the worst is shown.

    python -m benchmarks.bench_redis_calls              everything (an hour)
    python -m benchmarks.bench_redis_calls fair names   some parts: those in `main`
    python -m benchmarks.bench_redis_calls --quick      a tenth of the holders, waiters and names
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from benchmarks._race import report, start
from benchmarks.bench_redis import running_server
from slotwise.redis._keys import SemaphoreKeys
from slotwise.redis._path_keys import PathKeys
from slotwise.redis._scripts import load

QUICK = "--quick" in sys.argv
WORDS = [word for word in sys.argv[1:] if not word.startswith("-")]
REPEATS = next((int(word[10:]) for word in sys.argv if word.startswith("--repeats=")), 3)
PART = 10 if QUICK else 1
HOLDERS, WAITERS, TENANTS, NAMES = 50_000 // PART, 100_000 // PART, 10_000 // PART, 10_000 // PART
SLOTS, WIDE = 1_000_000 // PART, 10_000
INTERVAL, BAR_MS = 600, 5.0
PROCESSES = 500
OWNER = "!0123456789abcdef host 1 label"
SEMAPHORE, TIERS = SemaphoreKeys("b", "s"), PathKeys("b", "t")
# What is one call by its nature: docs/guarantees.md has the reasons.
WHOLE = ("one acquisition of",)


def id_of(number: int, needs: str = "") -> str:
    return f"sw-{number % PROCESSES:04}x1-{number}{needs}"


@dataclass
class Row:
    """The calls of one script with one input, and what each took (ms) at best."""

    script: str
    title: str
    times: list[float] = field(default_factory=list)

    @property
    def worst(self) -> float:
        return max(self.times)

    def include(self, other: Row) -> None:
        """Take another repetition in, whose calls do the same one after the other."""
        both = zip(self.times, other.times, strict=False)
        self.times = [min(one, another) for one, another in both]


@dataclass
class Bench:
    """A server, and what was measured on it."""

    client: redis.Redis
    now: float = field(default_factory=lambda: float(int(time.time())))
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    kept: dict[str, dict[Any, tuple[Any, int]]] = field(default_factory=dict)
    loaded: dict[str, str] = field(default_factory=dict)
    idle: float = 0.0  # what it costs to ask
    row: str = ""

    def sha(self, name: str) -> str:
        if name not in self.loaded:
            self.loaded[name] = self.client.script_load(load(name).source)
        return self.loaded[name]

    def cpu(self) -> float:
        info = self.client.info("cpu")
        return float(info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]) * 1000

    def calibrate(self) -> None:
        taken = []
        for _ in range(200):
            before = self.cpu()
            taken.append(self.cpu() - before)
        self.idle = sorted(taken)[100]

    def call(self, name: str, *args: object, keys: Any = None) -> Any:
        """Call a script as `name`, measured; again as long as it is busy with repairs."""
        keys = keys or (SEMAPHORE if name.startswith("semaphore") else TIERS).all
        sha = self.sha(name)
        while True:
            before = self.cpu()
            try:
                reply = self.client.evalsha(sha, len(keys), *keys, *map(str, args))
            except redis.ResponseError as error:
                if not str(error).startswith("REPAIRING"):
                    raise
                reply = None
            took = self.cpu() - before - self.idle
            row = self.rows.setdefault((name, self.row), Row(name, self.row))
            row.times.append(took)
            if reply is not None:
                return reply

    def fill(self, name: str, keys: Any, argument_lists: Iterator[list[object]]) -> None:
        """Call a script very often, unmeasured."""
        sha, pipeline = self.sha(name), self.client.pipeline(transaction=False)
        for number, args in enumerate(argument_lists):
            pipeline.evalsha(sha, len(keys.all), *keys.all, *map(str, args))
            if number % 200 == 199:
                pipeline.execute()
        pipeline.execute()

    def keep(self, stage: str) -> None:
        found = self.client.keys("*")
        self.kept[stage] = {
            key: (self.client.dump(key), max(self.client.pttl(key), 0)) for key in found
        }

    def restore(self, stage: str) -> None:
        self.client.flushall()
        for key, (dumped, ttl) in self.kept[stage].items():
            self.client.restore(key, ttl, dumped)


# ------------------------------------------------------------------ semaphores


def request_semaphore(now: float, claim: str, value: int, word: str = "wait") -> list[object]:
    return [f"{now:.6f}", claim, value, INTERVAL, "", word, "", OWNER, "", ""]


def wait_in_line(now: float, first: int, count: int, value: int, needs: str = "") -> Any:
    for at in range(first, first + count, 200):
        ids = [id_of(n, needs) for n in range(at, min(at + 200, first + count))]
        yield [f"{now:.6f}", value, INTERVAL, "", "", OWNER, "", "", "wait", *ids]


def crowd(bench: Bench) -> None:
    """All slots are held, and very many wait."""
    now = bench.now
    bench.fill(
        "semaphore/request",
        SEMAPHORE,
        (request_semaphore(now + n * 1e-5, id_of(n), HOLDERS) for n in range(HOLDERS)),
    )
    bench.fill("semaphore/request_many", SEMAPHORE, wait_in_line(now, HOLDERS, WAITERS, HOLDERS))


def with_ttl(bench: Bench) -> None:
    """Likewise, and all end at the same time."""
    bench.fill(
        "semaphore/request",
        SEMAPHORE,
        (
            [f"{bench.now:.6f}", id_of(n), HOLDERS, INTERVAL, 100, "wait", "", OWNER, "", ""]
            for n in range(HOLDERS)
        ),
    )
    bench.fill(
        "semaphore/request_many", SEMAPHORE, wait_in_line(bench.now, HOLDERS, WAITERS, HOLDERS)
    )


def wide(bench: Bench) -> None:
    """A million slots, held in acquisitions of 10,000 each, but for the last of them."""
    ids = [id_of(n, f"*{WIDE}") for n in range(SLOTS // WIDE - 1)]
    bench.fill(
        "semaphore/request", SEMAPHORE, (request_semaphore(bench.now, each, SLOTS) for each in ids)
    )


def scattered(bench: Bench) -> None:
    """Every other slot is free."""
    crowd_of = (request_semaphore(bench.now, id_of(n), 2 * WIDE) for n in range(2 * WIDE))
    bench.fill("semaphore/request", SEMAPHORE, crowd_of)
    released = ([f"{bench.now:.6f}", id_of(n), "", INTERVAL, "", ""] for n in range(0, 2 * WIDE, 2))
    bench.fill("semaphore/release", SEMAPHORE, released)


def wide_waiters(bench: Bench) -> None:
    now = bench.now
    bench.fill(
        "semaphore/request",
        SEMAPHORE,
        (request_semaphore(now, id_of(n, "*3"), 3) for n in range(WAITERS // 5)),
    )


def beat(bench: Bench, name: str, holders: list[str], waiters: list[str]) -> Any:
    counts = [len(holders), len(waiters)]
    args = [f"{bench.now:.6f}", "", INTERVAL, "p:@@@ACQUISITION_ID@@@", *counts]
    return bench.call(name, *args, *holders, *waiters)


def beat_until_done(bench: Bench, name: str) -> None:
    for _ in range(20_000):
        [reply] = beat(bench, name, [], [])
        if reply[0] != 0:
            return
    raise AssertionError("it does not end")


def semaphore_calls(bench: Bench) -> None:
    now, first_waiter = f"{bench.now:.6f}", HOLDERS

    def stage(row: str, name: str = "crowd") -> None:
        bench.restore(name)
        bench.row = row

    stage(f"{HOLDERS:,} holders, {WAITERS:,} waiters")
    bench.call("semaphore/request", *request_semaphore(bench.now, "sw-y-1", HOLDERS))
    bench.call("semaphore/request", *request_semaphore(bench.now, "sw-y-2", HOLDERS, "try"))
    bench.call("semaphore/request", *request_semaphore(bench.now, "sw-y-3", HOLDERS, "replace"))
    bench.call("semaphore/request", *request_semaphore(bench.now, "sw-y-4^7*1", HOLDERS))
    shed = "wait - shed 5"
    bench.call("semaphore/request", *request_semaphore(bench.now, "sw-y-5", HOLDERS, shed))
    bench.call("semaphore/request_many", *next(wait_in_line(bench.now, 10**7, 200, HOLDERS)))
    again = [*next(wait_in_line(bench.now, first_waiter, 200, HOLDERS))]
    again[4] = "again"
    bench.call("semaphore/request_many", *again)
    bench.call("semaphore/release", now, id_of(1), "", INTERVAL, "", "")
    bench.call("semaphore/release", now, id_of(first_waiter + 5), "", INTERVAL, "", "count")
    some = [id_of(n) for n in range(100, 300)]
    bench.call("semaphore/release_many", now, "", INTERVAL, "", *some)
    some = [id_of(n) for n in range(first_waiter + 1_000, first_waiter + 1_200)]
    bench.call("semaphore/release_many", now, "", INTERVAL, "", *some)
    beat(bench, "semaphore/heartbeat", [id_of(n) for n in range(1_000, 2_000)], [])
    waiters = [id_of(n) for n in range(first_waiter + 2_000, first_waiter + 3_000)]
    beat(bench, "semaphore/heartbeat", [], waiters)
    beat(bench, "semaphore/heartbeat", [f"sw-q-{n}" for n in range(1_000)], [])
    beat(bench, "semaphore/heartbeat", [], [f"sw-q-{n}" for n in range(1_000)])
    for what, go_on in (("counts", ""), ("estimate", "1"), ("changes", "")):
        bench.call("semaphore/inspect", now, what, "", INTERVAL, go_on)
    for what in ("holders", "waiters"):
        go_on = ""
        while True:
            reply = bench.call("semaphore/inspect", now, what, "", INTERVAL, go_on)
            go_on = reply[5].decode() if isinstance(reply[5], bytes) else reply[5]
            if not go_on:
                break
    bench.call("semaphore/kick", now, id_of(5_00), "", INTERVAL, "")
    bench.call("semaphore/pause", now, "", INTERVAL, "", HOLDERS, 5)
    bench.call("semaphore/reopen", now, "", INTERVAL, "")
    bench.call("semaphore/forget", now)

    bench.client.flushall()
    bench.row = "200 requests at once, for all of which there is room"
    bench.call("semaphore/request", *request_semaphore(bench.now, "sw-y-1", SLOTS))
    bench.call("semaphore/request_many", *next(wait_in_line(bench.now, 10**7, 200, SLOTS)))
    stage("closed, then reopened")
    reply = bench.call("semaphore/close", now, "", HOLDERS, "why")
    beat_until_done(bench, "semaphore/heartbeat")
    bench.call("semaphore/reopen", now, "", INTERVAL, "")

    stage(f"{WAITERS:,} waiters are granted at once")
    bench.call("semaphore/resize", now, "", INTERVAL, "", HOLDERS, SLOTS, 60, "")
    beat_until_done(bench, "semaphore/heartbeat")

    stage(f"{WAITERS // 5:,} waiters can't be granted any more", "wide waiters")
    go_on = ""
    while True:
        reply = bench.call("semaphore/resize", now, "", INTERVAL, "", 3, 2, 60, go_on)
        go_on = reply[2].decode()
        if not go_on:
            break

    for title, name in (("are silent", "crowd"), ("end by their ttl", "ttl")):
        stage(f"{HOLDERS:,} holders {title}", name)
        later = bench.now + (1000 if name == "crowd" else 200)
        bench.now, before = later, bench.now
        for _ in range(HOLDERS // 100):
            beat(bench, "semaphore/heartbeat", [], [])
        stage(f"{HOLDERS:,} holders {title}", name)
        later_text = f"{later:.6f}"
        bench.call("semaphore/request", *request_semaphore(later, "sw-y-1", HOLDERS))
        bench.call("semaphore/request_many", *next(wait_in_line(later, 10**7, 200, HOLDERS)))
        bench.call("semaphore/release", later_text, id_of(700), "", INTERVAL, "", "count")
        bench.call("semaphore/inspect", later_text, "counts", "", INTERVAL, "")
        bench.call("semaphore/inspect", later_text, "holders", "", INTERVAL, "")
        bench.call("semaphore/kick", later_text, id_of(10_05), "", INTERVAL, "")
        beat(bench, "semaphore/heartbeat", [id_of(n) for n in range(2_000, 3_000)], [])
        bench.now = before

    for lost in ("main", "ttl", "max", "waiting", "waiting_heartbeat", "state", "numbers"):
        for kind in ("heartbeat", "release", "request", "inspect"):
            stage(f"{lost} was lost", "ttl")
            bench.client.delete(getattr(SEMAPHORE, lost))
            if kind == "request":
                bench.call("semaphore/request", *request_semaphore(bench.now, "sw-y-1", HOLDERS))
            elif kind == "release":
                bench.call("semaphore/release", now, id_of(7), "", INTERVAL, "", "")
            elif kind == "inspect":
                bench.call("semaphore/inspect", now, "counts", "", INTERVAL, "")
            ids = [id_of(n) for n in range(1_000)]
            for at in range(0, 5_000, 1_000):
                ids = [id_of(n) for n in range(at, at + 1_000)]
                beat(bench, "semaphore/heartbeat", ids, [])
                beat_until_done(bench, "semaphore/heartbeat")

    stage(f"most of {HOLDERS:,} numbers are free")
    bench.fill(
        "semaphore/release_many",
        SEMAPHORE,
        (
            [now, "", INTERVAL, "", *(id_of(n) for n in range(at, at + 200) if n % 50)]
            for at in range(HOLDERS, HOLDERS + WAITERS, 200)
        ),
    )
    bench.fill(
        "semaphore/release_many",
        SEMAPHORE,
        (
            [now, "", INTERVAL, "", *(id_of(n) for n in range(at, at + 200) if n % 50)]
            for at in range(0, HOLDERS, 200)
        ),
    )
    bench.client.hdel(SEMAPHORE.state, ".life")
    bench.call("semaphore/request", *request_semaphore(bench.now, "sw-y-1", HOLDERS))
    beat_until_done(bench, "semaphore/heartbeat")

    stage(f"one acquisition of {WIDE:,} slots", "wide")
    last = id_of(SLOTS // WIDE - 1, f"*{WIDE}")
    bench.call("semaphore/request", *request_semaphore(bench.now, last, SLOTS))
    bench.call("semaphore/release", now, last, "", INTERVAL, "", "")
    stage(f"one acquisition of {WIDE:,} slots that are scattered", "scattered")
    bench.call("semaphore/request", *request_semaphore(bench.now, last, 2 * WIDE))
    bench.call("semaphore/release", now, last, "", INTERVAL, "", "")
    stage(f"{SLOTS:,} slots in acquisitions of {WIDE:,}", "wide")
    first = id_of(0, f"*{WIDE}")
    parts = [f"{first}#{at}-{at + 999}" for at in range(1, 10_000, 1_000)]
    for part in parts:
        beat(bench, "semaphore/heartbeat", [part], [])
    bench.call("semaphore/inspect", now, "counts", "", INTERVAL, "")
    go_on = ""
    for _ in range(40):
        reply = bench.call("semaphore/inspect", now, "holders", "", INTERVAL, go_on)
        go_on = reply[5].decode()
    stage(f"one acquisition of {WIDE:,} slots is over", "wide")
    later, bench.now = bench.now, bench.now + 1000
    for _ in range(5):
        beat(bench, "semaphore/heartbeat", [], [])
    bench.now = later
    for lost in ("main", "state", "numbers"):
        stage(f"one acquisition of {WIDE:,} slots each, {lost} was lost", "wide")
        bench.client.delete(getattr(SEMAPHORE, lost))
        bench.call("semaphore/request", *request_semaphore(bench.now, "sw-y-1", SLOTS))
        beat_until_done(bench, "semaphore/heartbeat")


def many_names(bench: Bench) -> None:
    """As many names as one heartbeat carries, each with something to do."""
    bench.client.flushall()
    bench.row = "as many names as one call carries"
    names = [SemaphoreKeys("b", f"n{n}") for n in range(13)]
    for keys in names:
        requests = (request_semaphore(bench.now, id_of(n), 100) for n in range(200))
        bench.fill("semaphore/request", keys, requests)
    for row, later in (("", 0), (", and all are silent", 1000)):
        bench.row = f"as many names as one call carries{row}"
        given: list[object] = [f"{bench.now + later:.6f}", ""]
        for number in range(len(names)):
            given += [INTERVAL, "", 1, 0, id_of(number)]
        for _ in range(3):
            bench.call("semaphore/heartbeat", *given, keys=[k for each in names for k in each.all])


def documented(bench: Bench) -> None:
    keys = SEMAPHORE
    now, later = f"{bench.now:.6f}", f"{bench.now + 1000:.6f}"
    line, main = (keys.waiting, keys.waiting_heartbeat), keys.main
    both = (main, keys.ttl, *line)
    for title, name, at in (
        (f"{HOLDERS:,} holders, {WAITERS:,} waiters", "crowd", now),
        (f"{HOLDERS:,} holders are silent", "crowd", later),
        (f"{HOLDERS:,} holders end by their ttl", "ttl", f"{bench.now + 200:.6f}"),
    ):
        bench.row = title
        for script, its_keys, args in (
            ("card", (main, keys.ttl), [at]),
            ("wake_up_nexts", both, [HOLDERS, INTERVAL, "", at, "p:@@@ACQUISITION_ID@@@"]),
            ("queue", line, ["foreign", INTERVAL, "", at]),
            ("ping", (*line, main), [id_of(1), INTERVAL, "", at]),
            ("acquire", (main, keys.ttl, keys.max), [id_of(1), HOLDERS, INTERVAL, "", at]),
            ("release", both, [id_of(1)]),
        ):
            bench.restore(name)
            bench.call(f"documented/{script}", *args, keys=its_keys)
    bench.row = f"{WAITERS:,} waiters fit"
    bench.restore("crowd")
    args = [SLOTS, INTERVAL, "", now, "p:@@@ACQUISITION_ID@@@"]
    bench.call("documented/wake_up_nexts", *args, keys=both)
    bench.row = f"one acquisition of {WIDE:,} slots"
    wide_id = id_of(0, f"*{WIDE}")
    for script, its_keys, args in (
        ("ping", (*line, main), [wide_id, INTERVAL, "", now]),
        ("acquire", (main, keys.ttl, keys.max), [wide_id, HOLDERS, INTERVAL, "", now]),
        ("release", both, [wide_id]),
    ):
        bench.restore("wide")
        bench.call(f"documented/{script}", *args, keys=its_keys)


# ----------------------------------------------------------------------- tiers

VALUES = {"fifo": "5,{all}", "fair": "5,{all}"}
SHAPES = {"fifo": "user*,all", "fair": "user*=,all"}
ADAPTIVE = "1_100_5_1000000_10"
RATE = "1/1000000/5/5000000"


def request_tiers(
    now: float, shape: str, values: str, ids: list[tuple[str, str]], **own: str
) -> list[object]:
    weights = ""
    if "=" in shape:
        weights = " ".join(f"{path.split(',')[0]}|1" for _, path in ids)
    words = [own.get("wait", "wait"), own.get("again", ""), OWNER, "due", weights]
    ttl = own.get("ttl", "-")
    return [f"{now:.6f}", shape, values, INTERVAL, ttl, *words, *(w for each in ids for w in each)]


def tenants(bench: Bench, shape: str, values: str, count: int, ttl: str = "-") -> None:
    pairs = [(id_of(n), f"0:t{n % TENANTS},1:") for n in range(count)]
    bench.fill(
        "tiers/request",
        TIERS,
        (
            request_tiers(bench.now + at * 1e-5, shape, values, pairs[at : at + 60], ttl=ttl)
            for at in range(0, count, 60)
        ),
    )


def tiers_calls(bench: Bench, order: str) -> None:
    shape, values = SHAPES[order], f"5,{HOLDERS}"
    now = f"{bench.now:.6f}"

    def stage(row: str, name: str = "tenants") -> None:
        bench.restore(f"{order} {name}")
        bench.row = f"{order}: {row}"

    def ask(ids: list[tuple[str, str]], **own: str) -> Any:
        at = float(own.pop("now", bench.now))
        return bench.call("tiers/request", *request_tiers(at, shape, values, ids, **own))

    several = [(f"sw-y-{n}", f"0:t{n},1:") for n in range(60)]
    stage(f"{HOLDERS:,} holders, {WAITERS:,} waiters, {TENANTS:,} tenants")
    ask(several[:1])
    ask([("sw-y-try", "0:t1,1:")], wait="try")
    ask([("sw-y-shed", "0:t1,1:")], wait="wait - shed 1")
    ask([("sw-y-large*2.3", "0:t1,1:")])
    ask([(f"sw-z-{n}", f"0:t{n},1:") for n in range(60)])
    ask([(id_of(n), f"0:t{n % TENANTS},1:") for n in range(100, 160)], again="again")
    bench.call("tiers/release", now, "", id_of(1))
    bench.call("tiers/release", now, "", *(id_of(n) for n in range(100, 160)))
    bench.call("tiers/release", now, "", *(id_of(HOLDERS + n) for n in range(100, 160)))
    for _ in range(3):
        beat(bench, "tiers/heartbeat", [id_of(n) for n in range(1_000, 2_000)], [])
    beat(bench, "tiers/heartbeat", [], [id_of(HOLDERS + n) for n in range(2_000, 3_000)])
    beat(bench, "tiers/heartbeat", [f"sw-q-{n}" for n in range(1_000)], [])
    beat(bench, "tiers/heartbeat", [], [f"sw-q-{n}" for n in range(1_000)])
    bench.call("tiers/describe", now)
    cursor = "0"
    for _ in range(100):
        cursor = bench.call("tiers/inspect", now, cursor)[0].decode()
        if cursor == "0":
            break
    bench.call("tiers/inspect_path", now, "path", "0:t1,1:")
    bench.call("tiers/inspect_path", now, "estimate", "0:t1,1:")
    for what in ("holders", "waiters"):
        go_on = ""
        for _ in range(100):
            go_on = bench.call("tiers/inspect_path", now, what, go_on)[3].decode()
            if not go_on:
                break
    bench.call("tiers/kick", now, id_of(300), "")
    bench.call("tiers/settle", now, "", id_of(301), "")
    bench.call("tiers/forget", now)
    bench.call("tiers/pause", now, "", INTERVAL, shape, values, "0", 50)
    bench.call("tiers/reopen", now, "")
    beat_until_done(bench, "tiers/heartbeat")
    bench.call("tiers/pause", now, "", INTERVAL, shape, values, "1", 50)
    bench.call("tiers/reopen", now, "")

    stage("closed, then reopened")
    bench.call("tiers/close", now, "", "why")
    beat_until_done(bench, "tiers/heartbeat")
    bench.call("tiers/reopen", now, "")

    stage("waiters of all tenants are granted at once")
    bench.call("tiers/resize", now, "", INTERVAL, shape, values, 1, "", SLOTS, 60, "")
    go_on = ""
    while True:
        reply = bench.call("tiers/resize", now, "", INTERVAL, shape, values, 0, "", 100, 60, go_on)
        go_on = reply[1].decode()
        if not go_on:
            break
    beat_until_done(bench, "tiers/heartbeat")

    stage("the wide tier is full, and grows")
    bench.call("tiers/resize", now, "", INTERVAL, shape, values, 0, "", 100, 60, "")
    beat_until_done(bench, "tiers/heartbeat")
    bench.call("tiers/resize", now, "", INTERVAL, shape, values, 1, "", SLOTS, 60, "")
    beat_until_done(bench, "tiers/heartbeat")

    for title, name, later in (("are silent", "tenants", 1000), ("end by their ttl", "ttl", 200)):
        before, bench.now = bench.now, bench.now + later
        at = f"{bench.now:.6f}"
        stage(f"{HOLDERS:,} holders {title}", name)
        for _ in range(HOLDERS // 60):
            beat(bench, "tiers/heartbeat", [], [])
        stage(f"{HOLDERS:,} holders {title}", name)
        ask(several)
        bench.call("tiers/release", at, "", *(id_of(n) for n in range(1_000, 1_060)))
        beat(bench, "tiers/heartbeat", [id_of(n) for n in range(2_000, 3_000)], [])
        bench.now = before

    for lost, key in zip(
        ("state", "holders", "waiters", "ttls", "queue", "parked", "unfinished", "numbers"),
        TIERS.all,
        strict=False,
    ):
        for kind in ("heartbeat", "release", "request"):
            stage(f"{lost} was lost", "ttl")
            if lost == "numbers":
                bench.call("tiers/release", now, "", *(id_of(n) for n in range(100, 160)))
            bench.client.delete(key)
            if kind == "request":
                ask(several)
            elif kind == "release":
                bench.call("tiers/release", now, "", id_of(7))
            for at_id in range(0, 3_000, 1_000):
                beat(bench, "tiers/heartbeat", [id_of(n) for n in range(at_id, at_id + 1_000)], [])
            beat_until_done(bench, "tiers/heartbeat")


def special_tiers(bench: Bench) -> None:
    """Tiers that adapt, and rates, of very many keys."""
    now = f"{bench.now:.6f}"
    shape, values = "user*,all", f"{ADAPTIVE},{HOLDERS}"
    bench.client.flushall()
    bench.row = f"{TENANTS:,} tenants whose values adapt"
    tenants(bench, shape, values, 3 * TENANTS)
    own = [shape, values, 0, ""]
    for word, value in (("freeze", 7), ("thaw", "")):
        bench.call("tiers/freeze", now, "", INTERVAL, *own, word, value, 60)
        beat_until_done(bench, "tiers/heartbeat")
    values = f"{RATE},{HOLDERS}"
    bench.client.flushall()
    bench.row = f"{TENANTS:,} tenants with a rate"
    pairs = [(id_of(n, "*1.1"), f"0:t{n % TENANTS},1:") for n in range(8 * TENANTS)]
    bench.fill(
        "tiers/request",
        TIERS,
        (
            request_tiers(bench.now, shape, values, pairs[at : at + 60])
            for at in range(0, len(pairs), 60)
        ),
    )
    new = "3/1000000/7/5000000"
    go_on = ""
    for _ in range(1_000):
        resized = bench.call(
            "tiers/resize", now, "", INTERVAL, shape, values, 0, "", new, 60, go_on
        )
        go_on = resized[1].decode()
        if not go_on:
            break
    beat_until_done(bench, "tiers/heartbeat")
    bench.row = f"{TENANTS:,} tenants with a rate, all refilled"
    for later in (2, 100, 1000):
        bench.now += later
        for _ in range(100):
            beat(bench, "tiers/heartbeat", [], [])
        bench.now -= later
    bench.row = f"{TENANTS:,} tenants with other values than before"
    bench.client.flushall()
    pairs = [(id_of(n), f"0:t{n % TENANTS},1:") for n in range(TENANTS)]
    values = f"5,{HOLDERS}"
    tenants(bench, shape, values, TENANTS)
    for n in range(TENANTS):
        bench.client.hset(TIERS.all[0], f"0:t{n}", "1 0 7 - 0")
    bench.fill("tiers/release", TIERS, ([now, "", each] for each, _ in pairs))
    bench.call("tiers/request", *request_tiers(bench.now, shape, f"6,{HOLDERS}", pairs[:1]))


# ----------------------------------------------------------------------- names


def names(bench: Bench) -> None:
    bench.client.flushall()
    now, key = f"{bench.now:.6f}", b"b:names"
    members = []
    for n in range(NAMES):
        keys = SemaphoreKeys("b", f"n{n}")
        bench.fill("semaphore/request", keys, iter([request_semaphore(bench.now, id_of(n), 3)]))
        members.append(f"semaphore n{n}")
    bench.row = f"{NAMES:,} names"
    for at in range(0, NAMES, 500):
        bench.call("names/note", now, 120, *members[at : at + 500], keys=[key])

    def survey(scanned: list[str]) -> None:
        go_on = ""
        while True:
            args = [now, "b", "0", go_on, *([] if go_on else scanned)]
            go_on = bench.call("names/survey", *args, keys=[key])[0].decode()
            if not go_on:
                break
        if scanned:
            bench.call("names/survey", now, "b", "0", "-", *scanned, keys=[key])

    survey([])
    bench.row = f"{NAMES:,} names, others found by SCAN"
    survey(members[:NAMES_AT_ONCE])
    bench.row = f"{NAMES:,} names are forgotten"
    bench.call("names/note", f"{bench.now + 1000:.6f}", 120, "semaphore x", keys=[key])
    bench.client.flushall()
    bench.row = "200 names of tiers, each with 900 tenants"
    for n in range(200):
        tiers = PathKeys("b", f"t{n}")
        pairs = [(id_of(i), f"0:t{i},1:") for i in range(900)]
        bench.fill(
            "tiers/request",
            tiers,
            (
                request_tiers(bench.now, "user*,all", "5,5000", pairs[at : at + 60])
                for at in range(0, 900, 60)
            ),
        )
        bench.client.zadd(key, {f"tiers t{n}": bench.now})
    survey([])


NAMES_AT_ONCE = 500  # what slotwise.redis._namespace sends


def main() -> int:
    results: list[tuple[str, bool]] = []
    with running_server() as port:
        bench = Bench(redis.Redis(port=port, socket_timeout=600))
        bench.calibrate()
        stages: dict[str, Callable[[Bench], None]] = {
            "crowd": crowd,
            "ttl": with_ttl,
            "wide": wide,
            "scattered": scattered,
            "wide waiters": wide_waiters,
        }
        parts: dict[str, Callable[[Bench], None]] = {
            "semaphore": semaphore_calls,
            "many names": many_names,
            "documented": documented,
            "fifo": lambda bench: tiers_calls(bench, "fifo"),
            "fair": lambda bench: tiers_calls(bench, "fair"),
            "special": special_tiers,
            "names": names,
        }
        wanted = [part for part in parts if not WORDS or part in WORDS]
        if {"semaphore", "documented"} & {*wanted}:
            for stage, make in stages.items():
                bench.client.flushall()
                make(bench)
                bench.keep(stage)
        for order in {"fifo", "fair"} & {*wanted}:
            for stage, ttl in (("tenants", "-"), ("ttl", "100")):
                bench.client.flushall()
                tenants(bench, SHAPES[order], f"5,{HOLDERS}", HOLDERS + WAITERS, ttl)
                bench.keep(f"{order} {stage}")
        best: dict[tuple[str, str], Row] = {}
        for part in wanted:
            for _ in range(REPEATS):
                bench.rows = {}
                parts[part](bench)
                for key, row in bench.rows.items():
                    best.setdefault(key, row).include(row)
            print(f"  {part} done", flush=True)
        rows = sorted(best.values(), key=lambda row: -row.worst)
        print(f"\n{'script':28} {'worst ms':>8} {'total':>8} {'calls':>6}  input")
        for row in rows:
            total, calls = sum(row.times), len(row.times)
            print(f"{row.script:28} {row.worst:8.2f} {total:8.0f} {calls:6}  {row.title}")
        results += [
            (f"{row.script}: {row.title}", row.worst <= BAR_MS)
            for row in rows
            if not row.title.startswith(WHOLE)
        ]
    return report(results)


if __name__ == "__main__":
    start(main)
