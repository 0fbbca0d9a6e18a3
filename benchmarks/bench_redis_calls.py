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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from benchmarks._race import report, start
from benchmarks.bench_redis import running_server
from slotwise.redis._keys import KeySet
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
NAMES_KEY = "b:names"
AT_ONCE = 100  # requests or releases that one call carries
AT_ONE_LOOK = 20  # names that one call reads, as slotwise.redis._survey has it
# What is one call by its nature: docs/guarantees.md has the reasons.
WHOLE = ("one acquisition of",)

Ids = Iterable[str]


def id_of(number: int, needs: str = "") -> str:
    return f"sw-{number % PROCESSES:04}x1-{number}{needs}"


def ids_of(first: int, count: int) -> list[str]:
    return [id_of(n) for n in range(first, first + count)]


@dataclass
class Limit:
    """The keys of a limit, and the arguments of calls for it; lua/*.lua has what they mean."""

    keys: KeySet
    values: str
    shape: str = ""
    pattern: str = ""

    @property
    def kind(self) -> str:
        return "tiers" if self.shape else "semaphore"

    def path_of(self, number: int) -> str:
        return f"0:t{number % TENANTS},1:" if self.shape else "0:"

    def request(
        self, *claims: tuple[str, str], word: str = "wait", ttl: Any = "-", again: str = ""
    ) -> Any:
        told = self.pattern
        if "=" in self.shape:
            told = " ".join(f"{path.split(',')[0]}|1" for _, path in claims)
        words = (self.shape, self.values, INTERVAL, ttl, word, again, OWNER, "due", told)
        return (*words, *(word for each in claims for word in each))

    def release(self, *ids: str, count: str = "") -> Any:
        return ("", self.pattern, count, *ids)

    def heartbeat(self, holders: Ids = (), waiters: Ids = ()) -> Any:
        both = [*holders], [*waiters]
        return (INTERVAL, self.pattern, *map(len, both), *both[0], *both[1])

    def control(self, verb: str, *words: object) -> Any:
        return ("", self.pattern, INTERVAL, self.shape, self.values, verb, *words)

    def inspect(self, what: str, start: object = "") -> Any:
        return ("", self.pattern, what, start)


def semaphore(name: str, value: int) -> Limit:
    keys = KeySet("b", "semaphore", name)
    return Limit(keys, str(value), pattern=keys.notification.decode())


def tiers(name: str, shape: str, values: str) -> Limit:
    return Limit(KeySet("b", "tiers", name), values, shape)


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

    def run(self, title: str, name: str, keys: Any, *args: object) -> Any:
        """Call a script, measured."""
        sha = self.sha(name)
        before = self.cpu()
        reply = self.client.evalsha(sha, len(keys), *keys, *map(str, args))
        took = self.cpu() - before - self.idle
        row = self.rows.setdefault((title, self.row), Row(title, self.row))
        row.times.append(took)
        return reply

    def call(self, limit: Limit, name: str, *given: Any, later: float = 0, **options: Any) -> Any:
        """Call one of the five scripts for a limit, measured."""
        args = getattr(limit, name)(*given, **options)
        first = [f"{self.now + later:.6f}", NAMES_KEY]
        if name == "heartbeat":
            first.append("")
        return self.run(f"{limit.kind} {name}", name, limit.keys.all, *first, *args)

    def beat_until_done(self, limit: Limit, later: float = 0) -> None:
        for _ in range(20_000):
            [reply] = self.call(limit, "heartbeat", later=later)
            if reply[0] != 0:
                return
        raise AssertionError("it does not end")

    def fill(self, limit: Limit, name: str, argument_lists: Iterable[Any]) -> None:
        """Call a script very often, unmeasured."""
        sha, pipeline = self.sha(name), self.client.pipeline(transaction=False)
        for number, args in enumerate(argument_lists):
            at = f"{self.now + number * 1e-5:.6f}"
            keys = limit.keys.all
            pipeline.evalsha(sha, len(keys), *keys, at, NAMES_KEY, *map(str, args))
            if number % 200 == 199:
                pipeline.execute()
        pipeline.execute()

    def request_all(
        self, limit: Limit, first: int, count: int, needs: str = "", ttl: Any = "-"
    ) -> None:
        """As many requests as that, unmeasured."""
        claims = [(id_of(n, needs), limit.path_of(n)) for n in range(first, first + count)]
        calls = (claims[at : at + AT_ONCE] for at in range(0, count, AT_ONCE))
        self.fill(limit, "request", (limit.request(*some, ttl=ttl) for some in calls))

    def release_all(self, limit: Limit, ids: list[str]) -> None:
        calls = (ids[at : at + AT_ONCE] for at in range(0, len(ids), AT_ONCE))
        self.fill(limit, "release", (limit.release(*some) for some in calls))

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

FULL, HUGE = semaphore("s", HOLDERS), semaphore("s", SLOTS)
SCATTERED, THREE = semaphore("s", 2 * WIDE), semaphore("s", 3)


def crowd(bench: Bench) -> None:
    """All slots are held, and very many wait."""
    bench.request_all(FULL, 0, HOLDERS + WAITERS)


def with_ttl(bench: Bench) -> None:
    """Likewise, and all end at the same time."""
    bench.request_all(FULL, 0, HOLDERS, ttl=100)
    bench.request_all(FULL, HOLDERS, WAITERS)


def wide(bench: Bench) -> None:
    """A million slots, held in acquisitions of 10,000 each, but for the last of them."""
    claims = [(id_of(n, f"*{WIDE}"), "0:") for n in range(SLOTS // WIDE - 1)]
    bench.fill(HUGE, "request", (HUGE.request(each) for each in claims))


def scattered(bench: Bench) -> None:
    """Every other slot is free."""
    bench.request_all(SCATTERED, 0, 2 * WIDE)
    bench.release_all(SCATTERED, [id_of(n) for n in range(0, 2 * WIDE, 2)])


def wide_waiters(bench: Bench) -> None:
    bench.request_all(THREE, 0, WAITERS // 5, "*3")


def semaphore_calls(bench: Bench) -> None:
    def stage(row: str, name: str = "crowd") -> None:
        bench.restore(name)
        bench.row = row

    def claims(prefix: str, count: int = AT_ONCE) -> list[tuple[str, str]]:
        return [(f"sw-{prefix}-{n}", "0:") for n in range(count)]

    stage(f"{HOLDERS:,} holders, {WAITERS:,} waiters")
    bench.call(FULL, "request", ("sw-y-1", "0:"))
    bench.call(FULL, "request", ("sw-y-2", "0:"), word="try")
    bench.call(FULL, "request", ("sw-y-3", "0:"), word="replace")
    bench.call(FULL, "request", ("sw-y-4^7*1", "0:"))
    bench.call(FULL, "request", ("sw-y-5", "0:"), word="wait - shed 5")
    bench.call(FULL, "request", *claims("z"))
    bench.call(FULL, "request", *[(each, "0:") for each in ids_of(HOLDERS, AT_ONCE)], again="again")
    bench.call(FULL, "release", id_of(1))
    bench.call(FULL, "release", id_of(HOLDERS + 5), count="count")
    bench.call(FULL, "release", *ids_of(100, AT_ONCE))
    bench.call(FULL, "release", *ids_of(HOLDERS + 1_000, AT_ONCE))
    bench.call(FULL, "heartbeat", ids_of(1_000, 1_000))
    bench.call(FULL, "heartbeat", (), ids_of(HOLDERS + 2_000, 1_000))
    bench.call(FULL, "heartbeat", [f"sw-q-{n}" for n in range(1_000)])
    bench.call(FULL, "heartbeat", (), [f"sw-q-{n}" for n in range(1_000)])
    for what, start_at in (("path", "0:"), ("estimate", "0:"), ("changes", "0:")):
        bench.call(FULL, "inspect", what, start_at)
    list_all(bench, FULL)
    bench.call(FULL, "control", "kick", id_of(500))
    bench.call(FULL, "control", "pause", "0:", 5)
    bench.call(FULL, "control", "reopen")
    bench.call(FULL, "control", "forget")

    bench.client.flushall()
    bench.row = f"{AT_ONCE} requests at once, for all of which there is room"
    bench.call(HUGE, "request", ("sw-y-1", "0:"))
    bench.call(HUGE, "request", *claims("z"))
    stage("closed, then reopened")
    bench.call(FULL, "control", "close", "why")
    bench.beat_until_done(FULL)
    bench.call(FULL, "control", "reopen")

    stage(f"{WAITERS:,} waiters are granted at once")
    bench.call(FULL, "control", "resize", 0, "", SLOTS, 60, "")
    bench.beat_until_done(FULL)

    stage(f"{WAITERS // 5:,} waiters can't be granted any more", "wide waiters")
    resize(bench, THREE, 0, 2)

    for title, name, later in (("are silent", "crowd", 1000), ("end by their ttl", "ttl", 200)):
        stage(f"{HOLDERS:,} holders {title}", name)
        for _ in range(HOLDERS // 100):
            bench.call(FULL, "heartbeat", later=later)
        stage(f"{HOLDERS:,} holders {title}", name)
        bench.call(FULL, "request", ("sw-y-1", "0:"), later=later)
        bench.call(FULL, "request", *claims("z"), later=later)
        bench.call(FULL, "release", id_of(700), count="count", later=later)
        bench.call(FULL, "inspect", "path", "0:", later=later)
        bench.call(FULL, "inspect", "holders", later=later)
        bench.call(FULL, "control", "kick", id_of(1_005), later=later)
        bench.call(FULL, "heartbeat", ids_of(2_000, 1_000), later=later)

    for script in ("heartbeat", "release", "request", "inspect"):
        stage("the state was lost", "ttl")
        bench.client.delete(FULL.keys.all[0])
        given: dict[str, tuple[Any, ...]] = {
            "heartbeat": (ids_of(0, 1_000),),
            "release": (id_of(7),),
            "request": (("sw-y-1", "0:"),),
            "inspect": ("path", "0:"),
        }
        bench.call(FULL, script, *given[script])

    stage(f"most of {HOLDERS:,} numbers are free")
    for first, count in ((HOLDERS, WAITERS), (0, HOLDERS)):
        bench.release_all(FULL, [id_of(n) for n in range(first, first + count) if n % 50])
    bench.call(FULL, "request", ("sw-y-1", "0:"))

    stage(f"one acquisition of {WIDE:,} slots", "wide")
    last = id_of(SLOTS // WIDE - 1, f"*{WIDE}")
    bench.call(HUGE, "request", (last, "0:"))
    bench.call(HUGE, "heartbeat", [last])
    bench.call(HUGE, "release", last)
    stage(f"one acquisition of {WIDE:,} slots that are scattered", "scattered")
    bench.call(SCATTERED, "request", (last, "0:"))
    bench.call(SCATTERED, "release", last)
    stage(f"{SLOTS:,} slots in acquisitions of {WIDE:,}", "wide")
    bench.call(HUGE, "inspect", "path", "0:")
    list_all(bench, HUGE)
    stage(f"one acquisition of {WIDE:,} slots is over", "wide")
    for _ in range(5):
        bench.call(HUGE, "heartbeat", later=1000)


def list_all(bench: Bench, limit: Limit) -> None:
    for what in ("holders", "waiters"):
        go_on = ""
        for _ in range(100):
            go_on = bench.call(limit, "inspect", what, go_on)[3].decode()
            if not go_on:
                break


def resize(bench: Bench, limit: Limit, tier: int, value: object) -> None:
    go_on = ""
    for _ in range(10_000):
        go_on = bench.call(limit, "control", "resize", tier, "", value, 60, go_on)[1].decode()
        if not go_on:
            return


def many_names(bench: Bench) -> None:
    """As many names as one heartbeat carries, each with something to do."""
    bench.client.flushall()
    limits = [semaphore(f"n{n}", 100) for n in range(13)]
    for limit in limits:
        bench.request_all(limit, 0, 200)
    keys = [key for limit in limits for key in limit.keys.all]
    for row, later in (("", 0), (", and all are silent", 1000)):
        bench.row = f"as many names as one call carries{row}"
        given: list[object] = [f"{bench.now + later:.6f}", NAMES_KEY, ""]
        for number, limit in enumerate(limits):
            given += limit.heartbeat([id_of(number)])
        for _ in range(3):
            bench.run("semaphore heartbeat", "heartbeat", keys, *given)


def documented(bench: Bench) -> None:
    keys: Any = FULL.keys
    now, later = f"{bench.now:.6f}", f"{bench.now + 1000:.6f}"
    line, main = (keys.waiting, keys.waiting_heartbeat), keys.main
    both = (main, keys.ttl, *line)

    def run(script: str, its_keys: Any, args: list[Any]) -> None:
        bench.run(f"documented {script}", f"documented/{script}", its_keys, *args)

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
            run(script, its_keys, args)
    bench.row = f"{WAITERS:,} waiters fit"
    bench.restore("crowd")
    args = [SLOTS, INTERVAL, "", now, "p:@@@ACQUISITION_ID@@@"]
    run("wake_up_nexts", both, args)
    bench.row = f"one acquisition of {WIDE:,} slots"
    wide_id = id_of(0, f"*{WIDE}")
    for script, its_keys, args in (
        ("ping", (*line, main), [wide_id, INTERVAL, "", now]),
        ("acquire", (main, keys.ttl, keys.max), [wide_id, HOLDERS, INTERVAL, "", now]),
        ("release", both, [wide_id]),
    ):
        bench.restore("wide")
        run(script, its_keys, args)


# ----------------------------------------------------------------------- tiers

SHAPES = {"fifo": "user*,all", "fair": "user*=,all"}
ADAPTIVE = "1_100_5_1000000_10"
RATE = "1/1000000/5/5000000"


def tiers_calls(bench: Bench, order: str) -> None:
    limit = tiers("t", SHAPES[order], f"5,{HOLDERS}")

    def stage(row: str, name: str = "tenants") -> None:
        bench.restore(f"{order} {name}")
        bench.row = f"{order}: {row}"

    several = [(f"sw-y-{n}", limit.path_of(n)) for n in range(AT_ONCE)]
    stage(f"{HOLDERS:,} holders, {WAITERS:,} waiters, {TENANTS:,} tenants")
    bench.call(limit, "request", several[0])
    bench.call(limit, "request", ("sw-y-try", "0:t1,1:"), word="try")
    bench.call(limit, "request", ("sw-y-shed", "0:t1,1:"), word="wait - shed 1")
    bench.call(limit, "request", ("sw-y-large*2.3", "0:t1,1:"))
    bench.call(limit, "request", *[(f"sw-z-{n}", limit.path_of(n)) for n in range(AT_ONCE)])
    known = [(id_of(n), limit.path_of(n)) for n in range(100, 100 + AT_ONCE)]
    bench.call(limit, "request", *known, again="again")
    bench.call(limit, "release", id_of(1))
    bench.call(limit, "release", *ids_of(100, AT_ONCE))
    bench.call(limit, "release", *ids_of(HOLDERS + 100, AT_ONCE))
    for _ in range(3):
        bench.call(limit, "heartbeat", ids_of(1_000, 1_000))
    bench.call(limit, "heartbeat", (), ids_of(HOLDERS + 2_000, 1_000))
    bench.call(limit, "heartbeat", [f"sw-q-{n}" for n in range(1_000)])
    bench.call(limit, "heartbeat", (), [f"sw-q-{n}" for n in range(1_000)])
    bench.call(limit, "inspect", "tiers")
    go_on = ""
    for _ in range(100):
        go_on = bench.call(limit, "inspect", "nodes", go_on)[3].decode()
        if not go_on:
            break
    bench.call(limit, "inspect", "path", "0:t1,1:")
    bench.call(limit, "inspect", "estimate", "0:t1,1:")
    list_all(bench, limit)
    bench.call(limit, "control", "kick", id_of(300))
    bench.call(limit, "control", "settle", id_of(301), "")
    bench.call(limit, "control", "forget")
    bench.call(limit, "control", "pause", "0", 50)
    bench.call(limit, "control", "reopen")
    bench.beat_until_done(limit)
    bench.call(limit, "control", "pause", "1", 50)
    bench.call(limit, "control", "reopen")

    stage("closed, then reopened")
    bench.call(limit, "control", "close", "why")
    bench.beat_until_done(limit)
    bench.call(limit, "control", "reopen")

    stage("waiters of all tenants are granted at once")
    resize(bench, limit, 1, SLOTS)
    resize(bench, limit, 0, 100)
    bench.beat_until_done(limit)

    stage("the wide tier is full, and grows")
    bench.call(limit, "control", "resize", 0, "", 100, 60, "")
    bench.beat_until_done(limit)
    bench.call(limit, "control", "resize", 1, "", SLOTS, 60, "")
    bench.beat_until_done(limit)

    for title, name, later in (("are silent", "tenants", 1000), ("end by their ttl", "ttl", 200)):
        stage(f"{HOLDERS:,} holders {title}", name)
        for _ in range(HOLDERS // 60):
            bench.call(limit, "heartbeat", later=later)
        stage(f"{HOLDERS:,} holders {title}", name)
        bench.call(limit, "request", *several, later=later)
        bench.call(limit, "release", *ids_of(1_000, AT_ONCE), later=later)
        bench.call(limit, "heartbeat", ids_of(2_000, 1_000), later=later)

    for script in ("heartbeat", "release", "request"):
        stage("the holders were lost", "ttl")
        bench.client.delete(limit.keys.all[1])
        given: dict[str, tuple[Any, ...]] = {
            "heartbeat": (ids_of(0, 1_000),),
            "release": (id_of(7),),
            "request": (*several,),
        }
        bench.call(limit, script, *given[script])


def special_tiers(bench: Bench) -> None:
    """Tiers that adapt, and rates, of very many keys."""
    shape = "user*,all"
    bench.client.flushall()
    bench.row = f"{TENANTS:,} tenants whose values adapt"
    limit = tiers("t", shape, f"{ADAPTIVE},{HOLDERS}")
    bench.request_all(limit, 0, 3 * TENANTS)
    for verb, value in (("freeze", 7), ("thaw", "")):
        go_on = ""
        for _ in range(10_000):
            go_on = bench.call(limit, "control", verb, 0, "", value, 60, go_on)[2].decode()
            if not go_on:
                break
        bench.beat_until_done(limit)
    limit = tiers("t", shape, f"{RATE},{HOLDERS}")
    bench.client.flushall()
    bench.row = f"{TENANTS:,} tenants with a rate"
    bench.request_all(limit, 0, 8 * TENANTS, "*1.1")
    resize(bench, limit, 0, "3/1000000/7/5000000")
    bench.beat_until_done(limit)
    bench.row = f"{TENANTS:,} tenants with a rate, all refilled"
    for later in (2, 100, 1000):
        for _ in range(100):
            bench.call(limit, "heartbeat", later=later)
    bench.row = f"{TENANTS:,} tenants with other values than before"
    bench.client.flushall()
    limit = tiers("t", shape, f"5,{HOLDERS}")
    bench.request_all(limit, 0, TENANTS)
    for n in range(TENANTS):
        bench.client.hset(limit.keys.all[0], f"0:t{n}", "1 0 7 - 0")
    bench.release_all(limit, ids_of(0, TENANTS))
    other = tiers("t", shape, f"6,{HOLDERS}")
    bench.call(other, "request", (id_of(0), other.path_of(0)))


# ----------------------------------------------------------------------- names


def names(bench: Bench) -> None:
    bench.client.flushall()
    limits = [semaphore(f"n{n}", 3) for n in range(NAMES)]
    for n, limit in enumerate(limits):
        bench.fill(limit, "request", [limit.request((id_of(n), "0:"))])
    bench.row = f"{NAMES:,} names"
    look_at_all(bench, limits)
    bench.row = f"{NAMES:,} names are forgotten, by who needs the next one"
    new = semaphore("new", 3)
    for _ in range(3):
        bench.call(new, "request", ("sw-x-1", "0:"), later=10_000)
    bench.client.flushall()
    bench.row = "200 names of tiers, each with 900 tenants"
    limits = [tiers(f"t{n}", "user*,all", "5,5000") for n in range(200)]
    for limit in limits:
        bench.request_all(limit, 0, 900)
    look_at_all(bench, limits)


def look_at_all(bench: Bench, limits: list[Limit]) -> None:
    for at in range(0, len(limits), AT_ONE_LOOK):
        some = limits[at : at + AT_ONE_LOOK]
        keys = [key for limit in some for key in limit.keys.all]
        counts = [len(limit.keys.all) for limit in some]
        bench.run("survey", "inspect", keys, f"{bench.now:.6f}", "", "", "", "survey", *counts)


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
                limit = tiers("t", SHAPES[order], f"5,{HOLDERS}")
                bench.request_all(limit, 0, HOLDERS + WAITERS, ttl=ttl)
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
