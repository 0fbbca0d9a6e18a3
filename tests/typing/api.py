"""Each documented call, as the type checker sees it; nothing here runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, Literal, assert_type

import slotwise
import slotwise.web
from slotwise import (
    AcquireTimeout,
    AcquisitionResult,
    Adaptive,
    BackendError,
    Change,
    Claimant,
    ContextReused,
    Errors,
    Explanation,
    Lack,
    Latency,
    Limit,
    LimitFull,
    MemorySemaphore,
    ProcessSemaphore,
    Rate,
    RateLimit,
    RedisConfig,
    RedisSemaphore,
    Semaphore,
    SemaphoreClosed,
    SemaphoreStats,
    SlotManager,
    SlotManagerClosed,
    SlotOptions,
    SlotStats,
    SlotwiseError,
    Tier,
    Tiers,
    ValueConflict,
    WouldBlockLoop,
    limited,
)
from slotwise.errors import UnknownSemaphore
from slotwise.instrumentation import (
    KINDS,
    Event,
    Hook,
    Totals,
    add_hook,
    drop_totals,
    keep_totals,
    load_hooks,
    remove_hook,
)
from slotwise.instrumentation.opentelemetry import instrument, uninstrument
from slotwise.instrumentation.prometheus import Collector
from slotwise.pipeline import (
    BoundedMap,
    BoundedMapSync,
    MapSettings,
    MemoryGuard,
    MemoryLimitExceeded,
    Report,
    bounded_map,
    bounded_map_sync,
    progress_bar,
    run_bounded,
    run_bounded_sync,
)
from slotwise.purge import (
    AsyncEFSPurger,
    AuditFailed,
    AuditRefused,
    Plan,
    PurgeFlags,
    PurgeOptions,
    PurgeReport,
    RootRefused,
    Run,
    make_plan,
    purge,
)
from slotwise.testing import FakeClock, Leak, leaked_slots, no_leaked_slots, settle
from slotwise.tiers import KeyStats, TierStats


async def any_limit(limit: Limit) -> None:
    acquired = await limit.acquire(2, timeout=None, label="import")
    assert_type(acquired, AcquisitionResult)
    assert_type(await limit.try_acquire(label="import"), AcquisitionResult | None)
    assert_type(limit.try_acquire_sync(2), AcquisitionResult | None)
    assert_type(limit.acquire_sync(timeout=1, label="import"), AcquisitionResult)
    assert_type(await limit.release(acquired), bool)
    assert_type(limit.release_sync("id"), bool)
    async with limit.cm(2, timeout=1, label="import") as one:
        assert_type(one, AcquisitionResult)
    async with limit:
        pass
    with limit:
        pass
    with limit.cm() as one:
        assert_type(one.slot_number, int)
    assert_type(await limit.locked(), bool)
    assert_type(limit.locked_sync(), bool)
    assert_type(await limit.stats(), SemaphoreStats)
    assert_type(limit.stats_sync(), SemaphoreStats)


async def tasks(semaphore: Semaphore) -> None:
    await any_limit(semaphore)
    acquired = await semaphore.acquire(on_full="replace")
    assert_type(acquired.acquisition_id, str)
    assert_type(acquired.slot_number, int)
    assert_type(await semaphore.try_acquire(slots=2, priority=1.5), AcquisitionResult | None)
    assert_type(await semaphore.release(acquisition_id=acquired.acquisition_id), bool)
    await semaphore.resize(3)
    semaphore.resize_sync(3)
    await semaphore.pause(1.5)
    assert_type((await semaphore.stats()).paused_for, float)
    assert_type((await semaphore.stats()).frozen, bool)
    await semaphore.close()
    await semaphore.close_everywhere("maintenance")
    await semaphore.reopen()
    assert_type(await semaphore.holders(), list[Claimant])
    assert_type(await semaphore.waiters(), list[Claimant])
    assert_type((await semaphore.holders())[0].ttl, float | None)
    assert_type(await semaphore.kick(acquired), bool)
    assert_type(semaphore.max_acquire_time, float | None)
    assert_type(semaphore.ttl, float | None)
    assert_type((await semaphore.stats()).closed, bool)
    assert_type((await semaphore.stats()).reason, str | None)
    async with semaphore as nothing:
        assert_type(nothing, None)
    await acquired.lost
    assert_type(acquired.lost.wait(1.0), bool)
    assert_type(acquired.lost.is_set(), bool)


async def memory() -> None:
    semaphore = MemorySemaphore(
        value=5, name="api", max_acquire_time=5, ttl=30.0, cancel_task_after_ttl=True
    )
    await tasks(semaphore)
    assert_type(bool(semaphore.locked()), bool)
    assert_type(semaphore.value, int)
    assert_type(semaphore.name, str | None)
    stats = await MemorySemaphore.get_acquired_stats(names=["api"], limit=10)
    assert_type(stats, dict[str, SemaphoreStats])
    assert_type(stats["api"].acquired_percent, float)
    assert_type(MemorySemaphore.get_acquired_stats_sync(), dict[str, SemaphoreStats])


async def processes() -> None:
    semaphore = ProcessSemaphore(2, name="gpu", ttl=5, directory="/srv/slots")
    await tasks(semaphore)
    async with semaphore.hold(label="nightly") as acquired:
        assert_type(acquired.fencing_token, int | None)
    assert_type((await semaphore.holders())[0].unreadable, bool)
    assert_type(semaphore.directory, Path)
    assert_type(semaphore.resized, bool)
    assert_type(ProcessSemaphore.names(), list[str])
    assert_type(ProcessSemaphore.existing("gpu"), ProcessSemaphore)


async def fleet() -> None:
    config = RedisConfig("redis://cache:6379", namespace="shop")
    assert_type(RedisConfig.from_client(object(), namespace="shop"), RedisConfig)
    assert_type(RedisConfig("redis://cache", credential_provider=object()), RedisConfig)
    semaphore = RedisSemaphore(10, name="api", heartbeat_max_interval=30, config=config)
    await tasks(semaphore)


def every_scope() -> None:
    assert_type(slotwise.semaphore("api", 3), Semaphore)
    assert_type(slotwise.semaphore("api", 3, "process://", ttl=5), Semaphore)
    assert_type(slotwise.semaphore("api", 3, url=RedisConfig()), Semaphore)


async def slots() -> None:
    async with SlotManager(max_uploads=20, url="redis://cache") as manager:
        async with manager.download() as acquired:
            assert_type(acquired, AcquisitionResult)
        with manager.upload("alice", timeout=5):
            pass
        taken = await manager.acquire_upload_slot("alice")
        assert_type(await manager.release_upload_slot("alice", taken), bool)
        assert_type(manager.stats_sync(), SlotStats)
        await manager.close_everywhere("maintenance")
        await manager.reopen()
    assert_type(SlotManager.from_options(SlotOptions.from_env()), SlotManager)


async def tiers() -> None:
    crm = RateLimit("crm", Rate(1, per=1))
    assert_type(await crm.acquire(priority=1), AcquisitionResult)
    await crm.settle("id", cost=3)
    await crm.refill()
    assert_type(crm.level_sync().level, float | None)
    limits = Tiers(Tier("tenant", 5, keyed=True), Tier("all", 100))
    Tiers(Tier("tenant", len, keyed=True))
    tenant = Tier("tenant", 5, keyed=True)
    Tiers(tenant, Tier("all", 100), order="fair", fair_by="tenant", weight=len, fair_cost=None)
    assert_type(await limits.acquire(tenant="acme", priority=1.5), AcquisitionResult)
    assert_type(await limits.try_acquire(tenant="acme", priority=-1), AcquisitionResult | None)
    limits.cm(tenant="acme", priority=2)
    await any_limit(limits.at(tenant="acme"))
    rated = Tiers(Tier("tokens", rate=Rate(600, per=60, burst=20)), Tier("all", 1))
    acquired = await rated.acquire(tokens=5, costs={"tokens": 5})
    assert_type(acquired.waited, float)
    acquired.settle(tokens=4)
    await acquired.settle(tokens=4)
    await rated.settle(acquired, tokens=4)
    await rated.refill("tokens")
    await rated.resize("tokens", Rate(600, per=1))
    assert_type((await rated.stats())["tokens"].level, float | None)
    await any_limit(crm)
    assert_type(await crm.acquire(cost=3), AcquisitionResult)
    with Tiers(Tier("all", 1)) as closed_at_the_end:
        assert_type(closed_at_the_end, Tiers)
    taken = await limits.acquire(tenant="acme", timeout=5, label="import")
    assert_type(taken, AcquisitionResult)
    assert_type(await limits.acquire({"tenant": 2}, tenant="acme"), AcquisitionResult)
    assert_type(await limits.at(tenant="acme").acquire({"tenant": 2}), AcquisitionResult)
    assert_type(await limits.release(taken), bool)
    assert_type(await limits.holders(), list[Claimant])
    assert_type((await limits.waiters())[0].lacks, str | None)
    assert_type(limits.waiters_sync()[0].keys["tenant"], str)
    assert_type(await limits.kick(taken), bool)
    assert_type(Tiers(Tier("all", 1), url="redis://cache").max_acquire_time, float | None)
    assert_type(Tiers(Tier("all", 1), url="process://").url, str | RedisConfig | None)
    async with limits.cm(tenant="acme", timeout=None) as acquired:
        assert_type(acquired, AcquisitionResult)
    assert_type(await limits.stats(), dict[str, TierStats])
    assert_type((await limits.stats())["tenant"].keys["acme"], KeyStats)
    assert_type((await limits.stats())["tenant"].keys["acme"].active, int)
    await limits.resize("tenant", 6, key="acme")
    await limits.pause(12, tenant="acme")
    await limits.at(tenant="acme").pause(12)
    await crm.pause(12)
    assert_type((await limits.stats())["tenant"].keys["acme"].paused_for, float)
    assert_type((await limits.stats())["tenant"].keys["acme"].frozen, bool)
    assert_type((await limits.stats())["tenant"].frozen, bool)
    assert_type((await limits.at(tenant="acme").explain()).lacks[0].paused_for, float)
    await limits.close_everywhere("maintenance")
    await limits.reopen()
    await limits.close()


def words() -> None:
    Tiers(Tier("all", 1), order="fiar")  # type: ignore[arg-type]
    Tiers(Tier("all", 1), shed="dedline")  # type: ignore[arg-type]
    Tiers(Tier("all", 1), on_unreachable="opne")  # type: ignore[arg-type]
    RateLimit("crm", Rate(1, per=1), heartbeat_max_interval=10, ping_interval=2)
    MemorySemaphore(1, shed="dedline")  # type: ignore[arg-type]
    RedisSemaphore(1, on_unreachable="opne")  # type: ignore[arg-type]
    slotwise.semaphore("api", 1, shed="dedline")  # type: ignore[arg-type]
    slotwise.semaphore("api", 1, tll=5)  # type: ignore[call-arg]
    slotwise.semaphore("api", 1, "memory://", on_unreachable="open", heartbeat_max_interval=10)
    slotwise.semaphore("api", 1, heartbeat_max_interval=None, ping_interval=None)
    slotwise.semaphore("api", 1, "redis://cache", namespace="shop", attempts=2)
    MemorySemaphore(1).cm(on_full="repalce")  # type: ignore[arg-type]
    Rate(600, 60)  # type: ignore[call-arg]


def errors() -> None:
    assert_type(SemaphoreClosed("closed", reason="why").reason, str | None)
    both: list[tuple[type[SlotwiseError], type[Exception]]] = [
        (AcquireTimeout, TimeoutError),
        (SemaphoreClosed, RuntimeError),
        (SlotManagerClosed, SemaphoreClosed),
        (ValueConflict, ValueError),
        (UnknownSemaphore, LookupError),
        (WouldBlockLoop, RuntimeError),
        (ContextReused, RuntimeError),
        (BackendError, ConnectionError),
        (AuditFailed, OSError),
        (AuditRefused, ValueError),
        (RootRefused, ValueError),
        (MemoryLimitExceeded, MemoryError),
    ]
    assert_type(ValueConflict("in use").value, int | None)
    for ours, builtin in both:
        assert issubclass(ours, builtin)


async def testing() -> None:
    with FakeClock() as clock:
        clock.advance(61)
    await settle()
    assert_type(leaked_slots(), dict[int, Leak])
    assert_type(no_leaked_slots, Any)  # a fixture, made when it is imported


async def fetch(url: str) -> bytes:
    return url.encode()


def digest(data: bytes) -> int:
    return len(data)


async def numbers() -> AsyncIterator[int]:
    yield 1


async def pipelines(semaphore: Semaphore) -> None:
    results = bounded_map(fetch, ["a", "b"], 10)
    assert_type(results, BoundedMap[bytes])
    async with results:
        async for body in results:
            assert_type(body, bytes)
    assert_type(await anext(results), bytes)
    async with aclosing(aiter(results)) as closing_results:
        assert_type(await anext(closing_results), bytes)
    assert_type(bounded_map(digest, [b""], limit=2, ordered=True), BoundedMap[int])
    assert_type(bounded_map(str, numbers(), limit=2, on_error="collect"), BoundedMap[str])
    report = await run_bounded(
        fetch,
        ["a"],
        semaphore=semaphore,
        weight=lambda url: len(url) + 1,
        max_per_second=2.5,
        max_items=7,
        priority=lambda url: -len(url),
        memory_guard=MemoryGuard(800, slow_at=0.5, gauge=lambda: 1),
        on_error="skip",
        on_cancel="finish",
    )
    assert_type(report, Report)
    assert_type(report.failures, list[tuple[Any, BaseException]])
    with progress_bar(total=3) as show:
        await run_bounded(fetch, ["a"], 1, group_key=str.lower, on_progress=show)
    await run_bounded(fetch, ["a"], 1, on_error="ignore")  # type: ignore[arg-type]
    await run_bounded(fetch, ["a"], 1, max_item=7)  # type: ignore[call-arg]
    await run_bounded(fetch, [1], 1)  # type: ignore[arg-type]


def pipelines_of_threads() -> None:
    assert_type(bounded_map_sync(digest, [b""], 2), BoundedMapSync[int])
    with bounded_map_sync(digest, [b""], 2, weight=2, ordered=False) as results:
        assert_type(next(results), int)
    with closing(iter(results)) as closing_results:
        assert_type(next(closing_results), int)
    settings: MapSettings[bytes] = {"on_error": "collect", "max_items": 3}
    assert_type(run_bounded_sync(digest, [b""], 2, **settings), Report)
    run_bounded_sync(digest, [b""], 2, max_items="3")  # type: ignore[arg-type]


async def purging(semaphore: Semaphore) -> None:
    purger = AsyncEFSPurger(
        "/scratch", max_age_days=14, include=["*.tmp"], semaphore=semaphore, deadline=7200
    )
    report = await purger.purge()
    assert_type(report, PurgeReport)
    assert_type(report.errors, dict[str, int])
    assert_type(report.exit_code, int)
    flags: PurgeFlags = {"dry_run": True, "age_by": "ctime"}
    assert_type(purge("/scratch", on_progress=print, **flags), PurgeReport)
    purge("/scratch", max_age=3)  # type: ignore[call-arg]
    plan = make_plan(Path("/scratch"), PurgeOptions(max_age_days=14, dry_run=True))
    assert_type(plan, Plan)
    assert_type(Run(plan, print).run(), PurgeReport)
    purge("/scratch", age_by="birth")  # type: ignore[arg-type]


# ------------------------------------------------------------------- the decorator


@limited("crm", 5, url="redis://cache", timeout=3.0, cost=2, priority=1.5)
async def limited_fetch(number: int, *, retries: int = 3) -> str:
    return str(number)


@limited("crm:{tenant}", 5, on_full="raise")
def update(tenant: str) -> int:
    return len(tenant)


@limited(MemorySemaphore(3), on_full="skip")
async def perhaps(number: int) -> str:
    return str(number)


@limited(MemorySemaphore(3), on_full="skip")
def perhaps_plain(number: int) -> str:
    return str(number)


@limited(lambda tenant: None)
async def stream(tenant: str) -> AsyncGenerator[int, None]:
    yield 1


@limited(MemorySemaphore(3))
def limited_numbers() -> Generator[int, str, bool]:
    yield 1
    return True


class Client:
    @limited("client:{number}", 5, on_full="replace")
    async def fetch(self, number: int) -> str:
        return str(number)


async def use_limited() -> None:
    assert_type(await limited_fetch(1, retries=2), str)
    assert_type(limited_fetch.limit, Limit)
    assert_type(limited_fetch.limit_for(1), Limit | None)
    assert_type(update("acme"), int)
    assert_type(await perhaps(1), str | None)
    assert_type(perhaps_plain(1), str | None)
    async for item in stream("acme"):
        assert_type(item, int)
    assert_type(limited_numbers(), Generator[int, str, bool])
    assert_type(await Client().fetch(1), str)
    await limited_fetch("1")  # type: ignore[arg-type]
    update()  # type: ignore[call-arg]
    await Client().fetch("1")  # type: ignore[arg-type]


plain_callable: Callable[[int], Coroutine[Any, Any, str | None]] = perhaps


async def overload(config: RedisConfig) -> None:
    for semaphore in (
        MemorySemaphore(1, max_waiting=3),
        ProcessSemaphore(1, max_waiting=3),
        RedisSemaphore(1, max_waiting=3, config=config),
    ):
        assert_type(semaphore.max_waiting, int | None)
        assert_type(semaphore.shed, Literal["deadline"] | None)
        assert_type(await semaphore.estimate(2), float | None)
        assert_type(await semaphore.acquire(on_full="replace"), AcquisitionResult)
        async with semaphore.cm(on_full="replace") as newer:
            assert_type(newer, AcquisitionResult)
    local = RedisSemaphore(9, on_unreachable="local", local_value=2, unreachable_after=0.5)
    assert_type(local.on_unreachable, str)
    assert_type(local.local_value, int | None)
    assert_type(local.unreachable_after, float)
    assert_type((await local.acquire()).scope, str)
    assert_type((await local.stats()).scope, str)
    Tiers(Tier("t", 9), url="redis://", on_unreachable="local", local_value={"t": 2})
    RateLimit("r", Rate(9, per=1), on_unreachable="local", local_value=Rate(1, per=1))
    tiers = Tiers(Tier("tenant", 1, keyed=True, max_waiting=2), Tier("all", 5), max_waiting=9)
    assert_type(tiers.max_waiting, int | None)
    assert_type(await tiers.estimate(tenant="acme"), float | None)
    assert_type(await tiers.at(tenant="acme").estimate(), float | None)
    rate = RateLimit("crm", Rate(10, per=1), max_waiting=5, shed="deadline")
    assert_type(rate.max_waiting, int | None)
    assert_type(await rate.estimate(cost=3), float | None)
    try:
        await tiers.acquire(tenant="acme")
    except LimitFull as full:
        assert_type(full.waiting, int)
        assert_type(full.estimate, float | None)


async def explaining(limit: Limit, tiers: Tiers) -> None:
    explained = await limit.explain()
    assert_type(explained, Explanation)
    assert_type(explained.place, int | None)
    assert_type(explained.lacks, tuple[Lack, ...])
    assert_type(limit.explain_sync("id").estimate, float | None)
    assert_type(await tiers.explain("id"), Explanation)


def mounting() -> None:
    slotwise.web.app("redis://cache", token="t", allow_steer=True)
    slotwise.web.app(port=1)  # type: ignore[call-arg]


def instrumentation() -> None:
    def hook(event: Event) -> None:
        assert_type(event.name, str | None)
        assert_type(event.waited, float | None)

    add_hook(hook)
    remove_hook(hook)
    add_hook(lambda: None)  # type: ignore[misc,arg-type]
    both: Hook = hook
    add_hook(both)
    for kind, (meaning, fields) in KINDS.items():
        assert_type(f"{kind}: {meaning}", str)
        assert_type(fields, tuple[str, ...])
    load_hooks()
    keep_totals()
    drop_totals()
    totals = MemorySemaphore(1, name="api").stats_sync().totals
    assert_type(totals, Totals | None)
    instrument(keys=["tenant"])
    uninstrument()
    Collector().close()


async def adaptive() -> None:
    limit = MemorySemaphore(
        Adaptive(20, min=2, max=200, algorithm=Latency(window=2.0, samples=100), drop_on=(OSError,))
    )
    async with limit.cm() as acquired:
        assert_type(acquired.dropped(retry_after=1.5), None)
        assert_type(acquired.ignored(), None)
    assert_type(await limit.changes(), list[Change])
    await limit.freeze(10)
    await limit.thaw()
    MemorySemaphore(Adaptive(1, 1, 1, algorithm=Errors()))
    slotwise.semaphore("backend", Adaptive(20, min=2, max=200), url="redis://")
    tiers = Tiers(Tier("tenant", Adaptive(5, min=1, max=20), keyed=True), Tier("all", 100))
    assert_type(await tiers.changes("tenant", "acme"), list[Change])
    assert_type(await tiers.release("id", outcome="ok"), bool)
    await tiers.freeze("tenant", 4, key="acme")
    assert_type(await tiers.at(tenant="acme").release("id", outcome="ignored"), bool)

    @limited("backend", Adaptive(5, min=1, max=20))
    async def call() -> int:
        return 1

    assert_type(await call(), int)
