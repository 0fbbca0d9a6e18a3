"""RedisBackend: limits of all processes that use one Redis server: semaphores and tiers.

It connects an object with the `SharedClient` of its process, and acquires, releases, closes,
inspects and controls, for coroutines and for plain threads. Who gets what is decided by the scripts
on the server (lua/).
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from slotwise._core import events, log
from slotwise._core.adaptive import Adaptive, Change, Outcome, check_outcome, outside_of_adaptive
from slotwise._core.arguments import check_flag, check_label, check_name, check_seconds
from slotwise._core.closing import Closure
from slotwise._core.control import Verb, Where
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.limit import EXIT_LIMIT, TRY_LIMIT, require_asyncio
from slotwise._core.messages import fixed_value, unknown_acquisition
from slotwise._core.outcomes import not_replaceable, too_many_for_adaptive
from slotwise._core.path_backend import PathBackend, Timeout
from slotwise._core.paths import (
    SEMAPHORE_PATH,
    SEMAPHORE_TIER,
    Needs,
    NodeStats,
    Path,
    PathStats,
    RankedNeeds,
    TierSpec,
    TierStats,
    check_costs,
    is_semaphore,
    most_of,
    options_of,
    weight_for,
)
from slotwise._core.rates import Rate
from slotwise._core.redaction import kind_of
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.stats import Claimant
from slotwise._core.unreachable import UnreachableOptions, check_heartbeat, local_specs
from slotwise.errors import BackendError, SemaphoreClosed
from slotwise.redis import _fallback, _inspect, _log, _protocol
from slotwise.redis import _shared_client as shared_clients
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._batching import send_release
from slotwise.redis._config import RedisConfig
from slotwise.redis._diagnosis import GARBAGE, Unreachable, logger, may_pass, not_ours
from slotwise.redis._fallback import (
    FallbackAcquisition,
    close_local,
    is_fallback_id,
    open_count,
    release_fallback,
    settle_fallback,
)
from slotwise.redis._loop_client import look_limit
from slotwise.redis._net.call import Call, into
from slotwise.redis._scripts import Script
from slotwise.redis._shared_client import NameRecord, SharedClient, shared_client_for
from slotwise.redis._writing import (
    read_node,
    write_needs,
    write_node,
    write_path,
    write_rule,
    write_shape,
    write_value,
)

if TYPE_CHECKING:
    from slotwise._core.overload import Overload

T = TypeVar("T")

_NO_OPTIONS = UnreachableOptions()

_MAX_IDLE_KEYS = 10_000  # of each tier of a local limit

# For how long a resize is remembered at least when nobody holds or waits, in seconds.
_REMEMBERED = 12 * 3600

# Each slot of a semaphore is a member of a sorted set, as documented, and the server does nothing
# else while it adds them: this takes it about 20 ms.
_MAX_SLOTS = 10_000


class RedisBackend(PathBackend):
    """A `PathBackend` for all processes that use one Redis server.

    Objects of one name, namespace and server share their slots, in any process, and must agree
    about them. On Cluster one object lives on one shard.

    Args:
        tiers: narrow to wide; or that of a semaphore.
        name: the name that objects share.
        config: the server.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took the slots.
        heartbeat_max_interval: how long a process may be silent, in seconds,
            before what it holds and its places in the queue are given to others; None is the
            default.
        ping_interval: how often it sends a heartbeat; a fifth of that by default, at most 5 s.
        cancel_task_on_loss: cancel the task whose slots were lost by silence.
        max_idle_keys: how many idle keys of each tier this object remembers.
        overload: which newcomers it refuses at once.
        unreachable: what it does while the server is away.
        closed_error: makes what acquiring raises once it is closed.
        is_private: whether its name is random, and of no interest to anybody.
    """

    scope = "redis"

    # Whether it was made for a name that somebody else uses, whatever its value is.
    accepts_any = False

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        *,
        name: str,
        config: RedisConfig,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        heartbeat_max_interval: float | None = 15,
        ping_interval: float | None = None,
        cancel_task_on_loss: bool = False,
        max_idle_keys: float = inf,
        overload: Overload | None = None,
        unreachable: UnreachableOptions = _NO_OPTIONS,
        closed_error: Callable[..., SemaphoreClosed] = SemaphoreClosed,
        is_private: bool = False,
    ) -> None:
        super().__init__(tiers, closed_error)
        if check_name(name) is None:
            raise TypeError("name must be a str, not None")
        if not isinstance(config, RedisConfig):
            raise TypeError(f"config must be a RedisConfig, not {kind_of(config)}")
        self._kind = "semaphore" if is_semaphore(tiers) else "tiers"
        self._name = name
        self.name = None if is_private else name  # in logs
        self.reported_as = self.name  # how events name it
        self._overload = overload
        self._ttl = check_seconds("ttl", ttl)
        self._cancel_task_after_ttl = check_flag("cancel_task_after_ttl", cancel_task_after_ttl)
        self._adaptive = options_of(tiers)  # how the work under it counts, if a value adapts
        # What all objects of a name must agree about.
        self._shape = "" if is_semaphore(tiers) else write_shape(tiers)
        self._declared = ",".join(map(write_rule, tiers))
        limited = [tier.value for tier in tiers if tier.value and isinstance(tier.value, int)]
        self._value = limited[-1] if limited else 0
        # Those with a rate, by name. If there are only rates, nothing is held.
        self._rates = {
            tier.name: index for index, tier in enumerate(tiers) if isinstance(tier.value, Rate)
        }
        self._holds_nothing = len(self._rates) == len(tiers)
        # What a request tells the server about its keys: their values and weights.
        self._by_key = [index for index, tier in enumerate(tiers) if tier.by_key]
        weighed = (index for index, tier in enumerate(tiers) if tier.weight_of is not None)
        self._weighed = next(weighed, None)
        self._max_idle_keys = max_idle_keys
        self._config = config
        self._cancel_task_on_loss = check_flag("cancel_task_on_loss", cancel_task_on_loss)
        self.grace = 0.0  # how long what it acquires keeps its slots after a kick
        self._unreachable = unreachable
        self._local_specs = self._specs
        if unreachable.policy == "local":
            self._local_specs = local_specs(self._specs, unreachable.local_value)
        self._interval, self._ping_interval = check_heartbeat(heartbeat_max_interval, ping_interval)
        self._closing_key = (config.endpoint, config.namespace, self._kind, name)
        self._generation = shared_clients.generations.current(self._closing_key)
        self._attach()

    def _attach(self) -> None:
        self._shared = shared_client_for(self._config)
        self._record = self._shared.record(self._kind, self._config.namespace, self._name)
        self._record.has_rates = bool(self._rates)
        self._template: bytes | None = None
        self._fork_epoch = shared_clients.fork_epoch
        self._idle = IdleKeys(self._specs, self._max_idle_keys)
        if self._adaptive is not None:
            self._record.adapting = ref(self)

    def _attached(self) -> tuple[SharedClient, NameRecord]:
        """What this process shares; a forked child gets its own."""
        if self._fork_epoch is not shared_clients.fork_epoch:
            self._attach()
        return self._shared, self._record

    def _request_template(self) -> bytes:
        """The beginning of a packed request, which is always the same."""
        if self._template is None:
            self._template = _protocol.request_template(self)
        return self._template

    def _make_local(self) -> Any:
        """Make the limit of this process that stands in while the server is away."""
        from slotwise.memory._backend import MemoryBackend  # it stands in for this, hence only here

        local = MemoryBackend(
            self._local_specs,
            ttl=self._ttl,
            cancel_task_after_ttl=self._cancel_task_after_ttl,
            max_idle_keys=_MAX_IDLE_KEYS,
            overload=self._overload,
            closed_error=self._make_closed_error,
        )
        local.reported_as = self.reported_as
        return local

    def __repr__(self) -> str:
        return f"<RedisBackend {self._name!r} of {self._declared}, {self._config.endpoint}>"

    @property
    def reported_name(self) -> str | None:
        return self._name

    @property
    def _reported(self) -> tuple[str | None, str]:
        return self.reported_as, self.scope

    @property
    def value(self) -> int:
        """How many slots there are: of a semaphore as the server last told, else as made.

        That is the value of the widest tier with a limit; 0 if none has one.
        """
        record = self._record
        return record.value if self._declared in record.values else self._value

    def _slot_values(self) -> dict[str, int]:
        if self._record.is_semaphore:
            return {SEMAPHORE_TIER: self.value}
        return super()._slot_values()

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        """Wait for slots of every tier; see `PathBackend`.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first; it tells which tier was full.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: a tier is in use with another value, or there are other tiers.
            BackendError: the server can't be used, or could not be reached in time.
        """
        return await self.begin(path, timeout, label, needs)

    def begin(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> Awaitable[AcquisitionResult]:
        if self._unreachable.policy == "raise":
            return self._request(path, label, needs, timeout).wait()
        return self._fall_back(path, timeout, label, needs)

    def _fall_back(
        self,
        path: Path,
        timeout: Timeout,
        label: str | None,
        needs: Needs | None,
        *,
        at_once: float | None = None,
    ) -> Awaitable[AcquisitionResult]:
        """Acquire on the server, or as the policy says while it is away."""
        self._check_fits(path, needs)
        return _fallback.acquire(
            self,
            lambda: self._request(path, label, needs, timeout),
            timeout,
            lambda local, left: local.acquire(path, timeout=left, label=label, needs=needs),
            at_once=at_once,
        )

    async def _acquire_at_once(
        self,
        path: Path,
        label: str | None,
        needs: Needs | None,
        seconds: float | None = None,
    ) -> AcquisitionResult:
        """Acquire without waiting for others; the server has ``seconds`` to answer, or as usual."""
        seconds = TRY_LIMIT if seconds is None else seconds
        if self._unreachable.policy == "raise":
            return await self._request(path, label, needs, 0.0).wait(at_once=seconds)
        return await self._fall_back(path, 0.0, label, needs, at_once=seconds)

    def _request(
        self, path: Path, label: str | None, needs: Needs | None, timeout: float | None
    ) -> RedisAcquisition:
        """Send a request that may wait for up to ``timeout`` seconds; 0 means not at all.

        Raises:
            SemaphoreClosed: this process closed the instance.
        """
        if needs is not None and self._record.is_semaphore:
            self._check_slots(needs)
        values = [self._value_of(tier, path[tier]) for tier in self._by_key]
        checked_label = "" if label is None else check_label(label) or ""
        acquisition = RedisAcquisition(self, path, checked_label, needs, timeout)
        if values or self._weighed is not None:
            words = [f"{write_node(tier, key)}={value}" for tier, key, value in values]
            if self._weighed is not None:
                node = write_node(self._weighed, path[self._weighed])
                words.insert(0, f"{node}|{weight_for(self._specs, path)!r}")
            acquisition.written_values = " ".join(words)
        if events.hooks:
            now = acquisition.requested_at
            self._tell_requested(acquisition.acquisition_id, needs, now, path)
        if not self._generation.admits(acquisition.shared.has):
            closed = self._closed_error()
            _log.refused(acquisition, closed, waits=True)
            raise closed
        if self._cancel_task_after_ttl or self._cancel_task_on_loss:
            acquisition.task = asyncio.current_task()
        self._idle.enter(path)
        if values:
            self._idle.remember(values)
        acquisition.send_request()
        return acquisition

    def _value_of(self, tier: int, key: str | None) -> tuple[int, str, int]:
        """Return a key that has a value of its own, with it.

        The server knows the values of the keys in use, and this process remembers those of idle
        ones. A function of the user's is called for the others, before anything is requested.
        """
        assert key is not None
        value = self._idle.value_of(tier, key)
        return tier, key, self._specs[tier].ask(key) if value is None else value

    def _check_slots(self, needs: Needs) -> None:
        """Raise unless a semaphore can grant that many slots, as far as this process knows."""
        [count] = needs
        if self._adaptive is not None:
            if count > self._adaptive.min:
                raise too_many_for_adaptive(self._title, count, self._adaptive)
            if isinstance(needs, RankedNeeds) and needs.replaces:
                raise not_replaceable(self._title)
        if count > _MAX_SLOTS:
            raise ValueError(f"slots must be at most {_MAX_SLOTS} at once on Redis, not {count}")

    def _check_fits(self, path: Path, needs: Needs | None) -> None:
        """Raise what the server would raise, if it may be away: the limit never has that much."""
        if needs is None:
            return
        is_one = self._record.is_semaphore
        if is_one:
            self._check_slots(needs)
        for index, tier in enumerate(self._specs):
            most = self.value if is_one else most_of(tier.value)
            if tier.adaptive is not None:
                most = tier.adaptive.min
            if most and needs[index] > most:
                raise _protocol.never_fits(self, path, needs, most, index)

    # ------------------------------------------------------------- releasing

    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        """Release an acquisition; False if it had ended before.

        Raises:
            BackendError: the server did not confirm it within ``cleanup_timeout``. The
                release continues in the background, and silence frees the slots anyway.
        """
        if outcome is not None:
            check_outcome(outcome)
        return await self._release(acquisition_id, self._config.cleanup_timeout, outcome)

    async def _release_on_exit(self, acquired: AcquisitionResult) -> None:
        if not self._holds_nothing:
            await self._release(acquired, EXIT_LIMIT, on_exit=True)

    def _release_soon(self, acquired: AcquisitionResult) -> None:
        if isinstance(acquired, FallbackAcquisition):
            acquired.end()
            return
        assert isinstance(acquired, RedisAcquisition)
        acquired.shared.heartbeat_thread.release_later(acquired)

    async def _release(
        self,
        acquired: str | AcquisitionResult,
        seconds: float,
        outcome: Outcome | None = None,
        *,
        on_exit: bool = False,
    ) -> bool:
        """Release an acquisition, and wait for the reply for at most ``seconds``.

        One that does not come in time is awaited in the background. With ``on_exit`` that raises
        nothing: the work is done.

        Raises:
            BackendError: it is not yet known whether the server has it.
        """
        acquisition_id = acquisition_id_of(acquired)
        shared, record = self._attached()
        holder = shared.holders.get(acquisition_id)
        if holder is not None:
            if holder.record is not record:
                holder = None  # an acquisition of something else
            else:
                shared.holders.pop(acquisition_id, None)
                holder.mark_ended()
        if holder is None:
            if is_fallback_id(acquisition_id):
                return release_fallback(acquisition_id, record)
            if acquisition_id in shared_clients.inherited:
                return False  # its parent process has it
        shared.ttl_cancels.keep_task(acquisition_id, owner=record)

        # What was settled in this tick, and how the work ended, is sent with it.
        if holder is not None:
            if outcome is not None:
                holder._state_outcome(outcome)
            text = acquisition_id + holder.take_settled() + holder.sample()
        elif not acquisition_id.startswith("~") and acquisition_id.split() == [acquisition_id]:
            text = acquisition_id + self._sample_of_other_process(acquired, outcome)
        else:  # it would mean something else to the script
            log.released_nothing(logger, acquisition_id, self.name, issued_here=False)
            return False

        client, interval = shared.client(), self._interval
        try:
            reply = send_release(shared, record, client, text)
            released = await client.reply_within(seconds, reply, record.keys.slot)
        except (BackendError, asyncio.CancelledError) as error:
            # Nobody would see that a cancelled release fails, or that its loop is closed.
            if isinstance(error, asyncio.CancelledError) or may_pass(error):
                shared.heartbeat_thread.finish_release(
                    lambda other: send_release(shared, record, other, text),
                    interval,
                )
            if isinstance(error, asyncio.CancelledError) or not on_exit:
                raise
            _log.unconfirmed(record, interval, error)
            return False
        if holder is not None:
            _log.released(holder)
        elif not released.held:
            issued_here = shared_clients.has_issued(acquisition_id)
            log.released_nothing(logger, acquisition_id, self.name, issued_here=issued_here)
        return released.held

    def _sample_of_other_process(
        self, acquired: str | AcquisitionResult, outcome: Outcome | None
    ) -> str:
        """Return what is sent with the release of an acquisition that this process doesn't hold.

        Of another process's only the server knows since when it is held. One of this process has
        ended before, and the server may not know it yet.
        """
        if isinstance(acquired, RedisAcquisition):
            return acquired.sample()
        is_semaphore = self._record.is_semaphore  # such an object may not know that it adapts
        if (self._adaptive is None and not is_semaphore) or shared_clients.has_issued(
            acquisition_id_of(acquired)
        ):
            return ""
        return f" {(outcome or 'ok')[0]}-"

    # ------------------------------------------------------------ inspecting

    async def stats(self) -> dict[str, TierStats]:
        if self._record.is_semaphore:
            found = await self.stats_of(SEMAPHORE_PATH)
            [node] = found.nodes
            tier = TierStats(
                *(node.active, node.waiting, node.value),
                paused_for=node.paused_for,
                frozen=found.frozen,
                scope=found.scope,
            )
            return {SEMAPHORE_TIER: tier}
        return await self._ask(
            self._tier_stats,
            lambda: {tier.name: TierStats(0, 0, 0, scope="open") for tier in self._specs},
            lambda local: {
                name: replace(stats, scope="local") for name, stats in local.stats_sync().items()
            },
        )

    async def _tier_stats(self) -> dict[str, TierStats]:
        """Return statistics by tier, in one call, or in several if there are many keys."""
        records: dict[bytes, bytes] = {}
        frozen: set[bytes] = set()
        with self._reading():
            for page in await self._pages("nodes"):
                texts, now_us, pauses, waiting, some_frozen, *nodes = page
                frozen.update(some_frozen)
                records.update(zip(nodes[::2], nodes[1::2], strict=True))
            return _inspect.read_tier_stats(
                *(self._specs, texts, int(now_us), waiting, records, self._idle, pauses, frozen)
            )

    async def stats_of(self, path: Path) -> PathStats:
        closed_here = self._generation.closed

        def when_local(local: Any) -> PathStats:
            found: PathStats = local.stats_of_sync(path)
            return replace(found, scope="local")

        def when_open() -> PathStats:
            nodes = (NodeStats(0, 0, 0),) * len(path)
            if self._record.is_semaphore:
                nodes = (NodeStats(open_count(self._record), 0, self.value),)
            return PathStats(nodes, closed_here, scope="open")

        async def ask() -> PathStats:
            closure, _, found = await self._look("path", write_path(path))
            with self._reading():
                nodes, frozen = _inspect.read_nodes(found, self._specs)
                return PathStats((*nodes,), closed_here, closure, "redis", frozen)

        return await self._ask(ask, when_open, when_local)

    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        if needs is not None and self._record.is_semaphore:
            self._check_slots(needs)

        async def ask() -> float | None:
            written = write_path(path) + ("" if needs is None else write_needs(needs))
            closure, _, (estimate, *unfit) = await self._look("estimate", written)
            if closure or self._generation.closed:
                return None
            if estimate == b"0":  # the server knows nothing of it
                self._check_fits(path, needs)
            if unfit:
                raise _protocol.never_fits(self, path, needs, *unfit)
            return _protocol.read_estimate(estimate)

        return await self._ask(ask, lambda: 0.0, lambda local: local.estimate_sync(path, needs))

    async def holders(self) -> list[Claimant]:
        return await self.list_claimants("holders")

    async def waiters(self) -> list[Claimant]:
        return await self.list_claimants("waiters")

    async def list_claimants(self, what: str, at_most: float | None = None) -> list[Claimant]:
        """Return all of them, within that time; very many are listed in several calls."""
        claims: dict[bytes, tuple[bytes, bytes]] = {}
        for flat in await self._pages(what, at_most):
            records = zip(flat[1::3], flat[2::3], strict=True)
            claims |= zip(flat[::3], records, strict=True)
        return _inspect.read_claimants(claims, self._specs)

    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        index = self._indexes[tier]
        _, _, (changes, rules, _) = await self._look("changes", write_node(index, key))
        if not rules and self._specs[index].adaptive is None:
            raise fixed_value(self._title)
        return _inspect.read_changes(changes)

    async def rules(self, at_most: float | None = None) -> Adaptive | None:
        """Return the rules of a semaphore on the server, if it adapts, within that time."""
        _, _, (_, rules, _) = await self._look("changes", write_node(0, None), at_most)
        return Adaptive.read(rules.decode()) if rules else None

    async def _look(
        self, what: str, start: str | bytes = b"", at_most: float | None = None
    ) -> tuple[Closure | None, bytes, list[Any]]:
        """Return whether it is closed, where to continue, and what the server tells of it."""
        shared, record = self._attached()
        client = shared.client()
        args = _protocol.inspect_args(self, what, start)
        call = self._run_script(_protocol.INSPECT, args, at_most)
        (closed, reason, unfinished, go_on, *found), _ = await call
        if isinstance(unfinished, bytes):
            _log.reset(record, unfinished)
        if unfinished:
            shared.continue_serving(record, client)
        return _protocol.read_closed(closed, reason), go_on, found

    async def _pages(self, what: str, at_most: float | None = None) -> list[list[Any]]:
        """Return what the server tells, in as many bounded calls as that takes."""
        pages = []
        go_on = b""
        while True:
            _, go_on, found = await self._look(what, go_on, at_most)
            pages.append(found)
            if not go_on:
                return pages

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Tell that what the server has was not written by our scripts."""
        try:
            yield
        except GARBAGE as error:
            raise not_ours(self._title) from error

    # ----------------------------------------------------------- controlling

    async def kick(self, acquisition_id: str) -> bool:
        """Its holder is told at once, or by its next heartbeat if the message doesn't reach it."""
        _, released = await self._control("kick", acquisition_id)
        return bool(released)

    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        """Have lua/control.lua apply a verb; its comments say what each takes and returns."""
        name, key = where
        index = self._indexes.get(name or SEMAPHORE_TIER, 0)
        node = write_node(index, key)
        if verb == "settle":
            acquisition_id, costs = args
            text = self._write_costs(costs)
            if is_fallback_id(acquisition_id):
                settle_fallback(acquisition_id, self._attached()[1], costs)
            else:
                await self._settle(acquisition_id, text)
        elif verb == "refill":
            await self._control("refill", node)
        elif verb == "pause":
            what = f"{index}" if key is None else node
            await self._control("pause", what, f"{args[0]:.6f}")
        elif verb == "close_everywhere":
            await self._control("close", *([] if args[0] is None else args))
        elif verb == "reopen":
            await self._control("reopen")
        elif verb == "forget":
            _, found = await self._control("forget")
            if found == 0 and self._record.is_semaphore:
                raise LookupError(self._name)
            return found >= 0
        elif verb == "resize":
            await self._resize(index, key, args[0])
        else:
            return await self._steer(verb, where, *args)
        return None

    async def _resize(self, index: int, key: str | None, value: int | Rate) -> None:
        """Change a value for the whole fleet; remembered for a day when nobody is there."""
        node = "" if key is None else write_node(index, key)
        written = write_value(value)
        async for word, *_ in self._steps("resize", index, node, written):
            if word == b"adaptive":
                await self._steer("freeze", (self._specs[index].name, key), value)
            elif self._record.is_semaphore:
                self._record.learn(int(written), self._declared, written)

    async def _steer(self, verb: str, where: Where, value: Any = None) -> int:
        """Freeze or thaw an adaptive tier, or one key of it; return the value."""
        index, key = self._indexes.get(where[0] or SEMAPHORE_TIER, 0), where[1]
        is_all = key is None and self._specs[index].keyed
        node = "" if is_all else write_node(index, key)
        current = 0
        async for word, *more in self._steps(verb, index, node, b"" if value is None else value):
            if word == b"fixed":
                raise fixed_value(self._title)
            if word == b"outside":
                raise outside_of_adaptive(more[0], more[1], value)
            current = int(more[0])
            if self._record.is_semaphore:
                self._record.learn(current, self._declared)
        return current

    async def _steps(self, verb: str, *words: Any) -> AsyncIterator[list[Any]]:
        """Have the server apply a verb; yield what each call says that this takes."""
        go_on = b""
        while True:  # one call looks at a bounded number of nodes and waiters
            reply = await self._control(verb, *words, _REMEMBERED, go_on)
            yield reply
            if reply[0] != b"done" or not reply[-1]:
                return
            go_on = reply[-1]

    async def _settle(self, acquisition_id: str, text: str) -> None:
        _, found = await self._control("settle", acquisition_id, text) if acquisition_id else (0, 0)
        if not found:
            raise unknown_acquisition(self._title, acquisition_id)

    def _write_costs(self, costs: Mapping[str, int]) -> str:
        """Write costs as the scripts take them; raise unless these are rates with costs."""
        check_costs(self._specs, costs, self._title)
        return ",".join(f"{self._rates[name]}={cost}" for name, cost in costs.items())

    async def _control(self, verb: str, *words: Any) -> list[Any]:
        """Have the server apply a verb; return the word and the values of its reply.

        Raises:
            SemaphoreClosed: it is closed, by this process or everywhere.
            ValueConflict: it is in use with other values.
        """
        if verb in _protocol.NEED_OPEN and self._generation.closed:
            raise self._closed_error()
        declared = _protocol.ANY if self.accepts_any else self._declared
        shared, record = self._attached()
        client = shared.client()
        args = _protocol.control_args(self, client.token, declared, verb, *words)
        reply, doubtful = await self._run_script(_protocol.CONTROL, args)
        if reply[0] in (b"closed", b"conflict"):
            raise _protocol.refusal(self, reply)
        result, messages = _protocol.split_control(verb, reply)
        shared.dispatch_all(messages, record, client)
        if verb == "kick" and doubtful:
            return [b"done", 1]  # sent twice: the first may have been the one that ended it
        return result

    def forget_idle(self, tier: str, older_than: float, keep_at_most: int | None = None) -> int:
        """Forget idle keys that this object remembers; the server remembers none."""
        return self._idle.forget(self._indexes[tier], older_than, keep_at_most)

    def _on_adapted(self, message: bytes) -> None:
        """Tell the hooks of "adapted node value reason"."""
        _, node, value, reason = message.split(b" ", 3)
        if self._record.is_semaphore:
            self._record.learn(int(value), self._declared)
        self._tell_adapted(*read_node(node), int(value), reason.decode(errors="replace"))

    # --------------------------------------------------------------- closing

    async def close(self) -> None:
        """Close all instances of the name that this process made so far.

        Returns when their waiters have left the queue, or after ``cleanup_timeout``; then
        that continues in the background.
        """
        if not self._generation.closed:
            require_asyncio()  # before anything is closed
            close_local(self._attached()[1])
            at_most = self._config.cleanup_timeout
            shared, record = self._attached()
            await shared.close_name(record, self._closing_key, at_most)

    # --------------------------------------------------------- calls, threads

    async def _run_script(
        self, script: Script, args: list[Any], at_most: float | None = None
    ) -> tuple[Any, bool]:
        """Return the reply, and whether the call was made twice.

        ``at_most`` is how long to wait for the reply, if not as long as usual.
        """
        shared, record = self._attached()
        client, slot = shared.client(), record.keys.slot
        reply: asyncio.Future[Any] = client.loop.create_future()
        call = Call(script, record.keys.all, args, into(reply), slot)
        client.submit(call)
        return await client.reply_within(look_limit(at_most), reply, slot), call.doubtful

    async def _ask(
        self,
        server: Callable[[], Coroutine[Any, Any, T]],
        when_open: Callable[[], T],
        when_local: Callable[[Any], T],
    ) -> T:
        """Return what the ``server`` says, or what the fallback says while it is away.

        With the policy "local", ``when_local`` asks the limit of this process.
        """
        policy = self._unreachable.policy
        try:
            if policy == "raise" or not _fallback.is_used(self):
                return await server()
        except Unreachable:
            if policy == "raise":
                raise
        if policy == "open":
            return when_open()
        return when_local(_fallback.local_limit(self))

    def _run(self, start: Callable[[], Coroutine[Any, Any, T]], *, completes: bool = False) -> T:
        """Run a coroutine in the heartbeat thread for the calling thread.

        What was granted as the calling thread was interrupted is released.
        """
        thread = self._attached()[0].heartbeat_thread
        if completes:
            return thread.run_to_completion(start)
        granted: list[Any] = []

        async def run() -> T:
            result = await start()
            if isinstance(result, RedisAcquisition):
                result.task = None  # nobody's work runs in the task that acquired it
            if isinstance(result, RedisAcquisition | FallbackAcquisition):
                granted.append(result)
            return result

        try:
            return thread.run(run())
        except BaseException:
            for each in granted:
                self._release_soon(each)
            raise
