"""RedisSemaphore: a semaphore for every process that uses one Redis server.

It checks arguments, and reads what the server says of the whole name. Acquiring and
releasing are in `_limit`; the scripts on the server decide who gets a slot.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from slotwise._core.adaptive import Adaptive, Change, Outcome, outside_of_adaptive
from slotwise._core.arguments import (
    UNSET,
    OnUnreachable,
    Shed,
    Unset,
    WaitOrReplace,
    check_count,
    check_label,
    check_names,
    check_on_full,
    check_timeout,
    check_value,
)
from slotwise._core.control import Where
from slotwise._core.limit import TRY_LIMIT
from slotwise._core.messages import fixed_value, too_many_slots
from slotwise._core.outcomes import not_replaceable, too_many_for_adaptive
from slotwise._core.priorities import check_priority
from slotwise._core.results import AcquisitionResult, Claimant, SemaphoreStats, acquisition_id_of
from slotwise._core.semaphore import Semaphore
from slotwise._core.unreachable import check_local_slots, check_unreachable
from slotwise.errors import BackendError, ValueConflict
from slotwise.redis import _statistics
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._adaptive import (
    read_changes,
    read_conflict,
    sample_of_other_process,
)
from slotwise.redis._config import RedisConfig
from slotwise.redis._diagnosis import logger
from slotwise.redis._dialect import read_estimate
from slotwise.redis._fallback import open_count
from slotwise.redis._inspect import read_claimants
from slotwise.redis._limit import RedisLimit, check_max_value
from slotwise.redis._release_batching import send_kick
from slotwise.redis._reply_limits import INSPECT, reply_within
from slotwise.redis._scripts import load
from slotwise.redis._semaphore_dialect import SEMAPHORE
from slotwise.redis._shared_client import shared_client_for
from slotwise.redis._statistics import read_stats
from slotwise.redis._wait_for_grant import wait_for_grant

# How long a resize is remembered when nobody holds or waits, in seconds.
_REMEMBERED = 24 * 3600

# Each slot is a member of a sorted set, as documented, and the server does nothing else while it
# adds them: this takes it about 20 ms.
_MAX_SLOTS = 10_000

_INSPECT = load("semaphore/inspect")

_LocalAcquire = Callable[[Any, float | None], Awaitable[AcquisitionResult]]


class RedisSemaphore(RedisLimit, Semaphore):
    """A semaphore for all processes that use one Redis server.

    Instances of one name, namespace and server are one semaphore, in any
    process. ``name=None`` makes a private one, with a random name.

    Args:
        value: how many slots there are; or an `Adaptive`, which finds the number.
        name: the name that instances share.
        max_acquire_time: the longest wait in seconds; None waits forever.
        ttl: the longest hold in seconds; then the slot is freed, whoever has it.
        cancel_task_after_ttl: also cancel the task that took the slot.
        heartbeat_max_interval: how long a process may be silent, in seconds,
            before what it holds and its places in the queue are given to others.
        ping_interval: how often it sends a heartbeat; a fifth of that by default, at most 5 s.
        cancel_task_on_loss: cancel the task whose slot was lost by silence.
        max_waiting: how many may wait, in the whole fleet; beyond it, newcomers that would have
            to wait get a LimitFull. None lets any number wait.
        shed: "deadline" also refuses callers whose timeout is shorter than the expected wait
            (see `Limit.estimate`); None, the default, refuses nobody for that.
        on_unreachable: what is done while the server is away: "raise" raises a BackendError,
            "open" grants everything, "local" has a limit of this process.
        local_value: how many slots that local limit has.
        unreachable_after: for how many seconds the server may be silent before it counts
            as away. It does at once when connections are refused or cut.
        config: the server; ``RedisConfig()`` is the one on this machine.
    """

    _dialect = SEMAPHORE
    _has_a_server = True
    _scope = "redis"

    # Whether it was made for a name that somebody else uses, whatever its value is.
    _is_found = False

    def __init__(
        self,
        value: int | Adaptive,
        *,
        name: str | None = None,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        heartbeat_max_interval: float = 15,
        ping_interval: float | None = None,
        cancel_task_on_loss: bool = False,
        max_waiting: int | None = None,
        shed: Shed | None = None,
        on_unreachable: OnUnreachable = "raise",
        local_value: int | None = None,
        unreachable_after: float = 1.0,
        config: RedisConfig | None = None,
    ) -> None:
        super().__init__(name, max_acquire_time, ttl, cancel_task_after_ttl, max_waiting, shed)
        self._adaptive = None
        if isinstance(value, Adaptive):
            check_max_value(value.max)
            self._adaptive, self._value, self._declared = value, value.start, value.written
        else:
            self._value = self._declared = check_value(value)
        self._written_name = self._name or f"private-{secrets.token_hex(8)}"
        self._set_up(
            self._written_name,
            RedisConfig() if config is None else config,
            heartbeat_max_interval=heartbeat_max_interval,
            ping_interval=ping_interval,
            cancel_task_on_loss=cancel_task_on_loss,
            unreachable=check_unreachable(
                on_unreachable, check_local_slots(local_value), unreachable_after
            ),
            make_local=self._make_local,
        )

    def _attach(self) -> None:
        super()._attach()
        if self._adaptive is not None:
            self._record.tell_changes_to(self)

    def _make_local(self) -> Any:
        from slotwise.memory import MemorySemaphore  # stands in for this driver, hence only here

        local = MemorySemaphore(
            self._unreachable.local_value,
            ttl=self._ttl,
            cancel_task_after_ttl=self._cancel_task_after_ttl,
            max_waiting=self.max_waiting,
            shed=self.shed,
        )
        local._reported_name = getattr(self, "_reported_name", self._name)
        return local

    def __repr__(self) -> str:
        return (
            f"<RedisSemaphore {self._written_name!r} value={self.value}, {self._config.endpoint}>"
        )

    @property
    def _base(self) -> type[RedisSemaphore]:
        return RedisSemaphore

    def _arguments(self) -> dict[str, Any]:
        return {
            "value": self._adaptive or self._value,
            **super()._arguments(),
            "heartbeat_max_interval": self._interval,
            "ping_interval": self._ping_interval,
            "cancel_task_on_loss": self._cancel_task_on_loss,
            "on_unreachable": self.on_unreachable,
            "local_value": self.local_value,
            "unreachable_after": self.unreachable_after,
            "config": self._config,
        }

    @property
    def heartbeat_max_interval(self) -> float:
        """How long a process may be silent, in seconds, before it counts as dead."""
        return self._interval

    @property
    def ping_interval(self) -> float:
        """How often this process sends a heartbeat, in seconds."""
        return self._ping_interval

    @property
    def cancel_task_on_loss(self) -> bool:
        """Whether the task whose slot was lost by silence is cancelled."""
        return self._cancel_task_on_loss

    @property
    def on_unreachable(self) -> str:
        """What is done while the server is away: "raise", "open" or "local"."""
        return self._unreachable.policy

    @property
    def local_value(self) -> int | None:
        """How many slots there are in each process while the server is away, with "local"."""
        value: int | None = self._unreachable.local_value
        return value

    @property
    def unreachable_after(self) -> float:
        """For how many seconds the server may be silent before it counts as away."""
        return self._unreachable.after

    @property
    def config(self) -> RedisConfig:
        """The server."""
        return self._config

    @property
    def value(self) -> int:
        """How many slots there are, as the server last told this process."""
        record = self._record
        return record.value if self._declared in record.values else self._value

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        on_full: WaitOrReplace = "wait",
        priority: float = 0,
    ) -> AcquisitionResult:
        """Wait for ``slots`` slots, in the order of arrival of the whole fleet.

        A wait that is cancelled or times out takes no slot. ``label`` is shown
        by `holders` and `waiters`.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: the name is in use with another value.
            ValueError: ``slots`` is more than the semaphore has, or more than 10,000.
            BackendError: the server can't be used, or could not be reached in time.
        """
        head_start = check_priority(priority)
        seconds = check_timeout(timeout, self._max_acquire_time)
        replaces, wanted = check_on_full(on_full), self._check_slots(slots)
        if replaces and self._adaptive is not None:
            raise not_replaceable(self._title)

        if self._fallback is None:
            acquisition = self._request(wanted, label, head_start, seconds, replaces)
            return await wait_for_grant(acquisition, seconds)
        self._check_fits(wanted, label)
        send = partial(self._request, wanted, label, head_start, seconds, replaces)
        instead = _local_acquire(slots, label=label, on_full=on_full, priority=priority)
        return await self._fallback.acquire(self, send, seconds, instead)

    def _request(
        self,
        slots: int,
        label: str | None,
        head_start: int,
        seconds: float | None,
        replaces: bool = False,
    ) -> RedisAcquisition:
        """Send a request that may wait for up to ``seconds``; 0 means not at all."""
        acquisition = self._new_acquisition(slots, label, head_start=head_start)
        acquisition.timeout = seconds
        acquisition.replaces = replaces
        acquisition.send_request(wait=seconds != 0)
        return acquisition

    async def try_acquire(
        self, slots: int = 1, *, label: str | None = None, priority: float = 0
    ) -> AcquisitionResult | None:
        """Take ``slots`` slots if that neither waits nor passes anybody, else return None.

        With ``priority``, a head start in seconds, it may pass those who have waited for less.

        Raises:
            BackendError: the server can't be used, or did not answer within a second.
        """
        try:
            return await self._acquire_at_once(slots, label, TRY_LIMIT, priority)
        except BackendError:
            raise  # even if it is a timeout too: it is not known whether there was a slot
        except TimeoutError:
            return None

    async def _acquire_at_once(
        self, slots: int, label: str | None, seconds: float, priority: float = 0
    ) -> AcquisitionResult:
        wanted, head_start = self._check_slots(slots), check_priority(priority)

        if self._fallback is None:
            acquisition = self._request(wanted, label, head_start, 0.0)
            return await wait_for_grant(acquisition, 0.0, at_once=seconds)
        self._check_fits(wanted, label)
        send = partial(self._request, wanted, label, head_start, 0.0)
        instead = _local_acquire(slots, label=label, priority=priority)
        return await self._fallback.acquire(self, send, 0.0, instead, at_once=seconds)

    def _check_fits(self, slots: int, label: str | None) -> None:
        """Raise what the server would raise, if it may be away."""
        check_label(label)
        if slots > self.value:
            raise too_many_slots(self._title, slots, self.value)

    def _check_slots(self, slots: object) -> int:
        if slots == 1 and type(slots) is int:  # True equals 1, but is not a number of slots
            return slots
        count = check_count("slots", slots)
        if self._adaptive is not None and count > self._adaptive.min:
            raise too_many_for_adaptive(self._title, count, self._adaptive)
        if count > _MAX_SLOTS:
            raise ValueError(f"slots must be at most {_MAX_SLOTS} at once on Redis, not {slots}")
        return count

    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool:
        """End somebody's acquisition, in any process; False if it had ended before.

        The next waiters get its slots at once. Its holder is told at once, or by
        its next heartbeat if the message does not reach it: its ``lost`` is set, and
        ``cancel_task_on_loss`` applies. Until then two may be working: that is what fencing tokens
        are for. A request that still waits is left alone.
        """
        shared, record = self._attached()
        client = shared.client()
        args = [b"", acquisition_id_of(acquisition_id), client.token, self._interval]
        args.append(record.keys.notification)
        kicked = send_kick(shared, record, client, self._dialect.control.kick, args, self._limits)
        return await reply_within(INSPECT, kicked, client, record.keys.slot)

    # ------------------------------------------------------------ inspecting

    async def _locked(self) -> bool:
        if self._generation.closed:
            return True
        stats = await self.stats()
        if stats.scope == "open":
            return False
        is_stopped = stats.closed or stats.paused_for > 0
        return is_stopped or bool(stats.waiting) or stats.acquired_slots >= stats.max_slots

    async def estimate(self, slots: int = 1) -> float | None:
        wanted = self._check_slots(slots)
        return await self._ask(
            lambda: self._estimate(wanted),
            lambda: 0.0,
            lambda local: local.estimate_sync(wanted),
        )

    async def _estimate(self, wanted: int) -> float | None:
        value, _, _, closed, _, _, estimate = await self._inspect("estimate", b"%d" % wanted)
        if closed or self._generation.closed:
            return None
        if wanted > (value or self._value):
            raise too_many_slots(self._title, wanted, value or self._value)
        return read_estimate(estimate)

    async def stats(self) -> SemaphoreStats:
        return await self._ask(
            self._stats,
            lambda: SemaphoreStats(open_count(self._attached()[1]), self.value, scope="open"),
            lambda local: replace(local.stats_sync(), scope="local"),
        )

    async def _stats(self) -> SemaphoreStats:
        return self._with_totals(read_stats(await self._inspect("counts"), self._value))

    async def holders(self) -> list[Claimant]:
        """Return who holds slots now, in the whole fleet."""
        found = {each.acquisition_id: each for each in await self._list("holders")}
        return list(found.values())

    async def _holders_within(self, at_most: float | None) -> list[Claimant]:
        return await self._list("holders", at_most)

    async def waiters(self) -> list[Claimant]:
        """Return who waits now, in the whole fleet, in the order of the queue."""
        return await self._list("waiters")

    async def _list(self, what: str, at_most: float | None = None) -> list[Claimant]:
        """Return all of them; very many are listed in several calls."""
        listed: list[Claimant] = []
        go_on = b""
        while True:
            _, _, _, _, _, go_on, *claimants = await self._inspect(what, go_on, at_most)
            listed += read_claimants(claimants)
            if not go_on:
                return listed

    async def _inspect(
        self, what: str, go_on: bytes = b"", at_most: float | None = None
    ) -> list[Any]:
        args = [b"", what, self._attached()[1].keys.notification, self._interval, go_on]
        reply: list[Any] = await self._run_script(_INSPECT, args, at_most)
        return reply

    @classmethod
    async def get_acquired_stats(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        config: RedisConfig | None = None,
    ) -> dict[str, SemaphoreStats]:
        """Return the statistics of the semaphores on a server, fullest first.

        Idle ones are left out unless they are asked for by name. So are those that can't be
        read, because somebody has written something else into their keys: each is logged as a
        WARNING.

        Args:
            names: only these; unknown ones are left out.
            limit: return at most this many.
            config: the server and the namespace.
        """
        check_names(names)
        check_count("limit", limit)
        config = RedisConfig() if config is None else config
        shared = shared_client_for(config)
        found, troubles = await _statistics.collect(shared, config, names, limit)
        for trouble in troubles:
            logger.warning("%s", trouble)
        return found

    @classmethod
    def get_acquired_stats_sync(
        cls,
        names: Iterable[str] | None = None,
        limit: int = 100,
        config: RedisConfig | None = None,
    ) -> dict[str, SemaphoreStats]:
        """Like `get_acquired_stats`."""
        shared = shared_client_for(RedisConfig() if config is None else config)
        return shared.heartbeat_thread.run(cls.get_acquired_stats(names, limit, config))

    @classmethod
    def _survey_sync(
        cls,
        names: Iterable[str] | None,
        limit: int,
        config: RedisConfig,
        at_most: float | None = None,
    ) -> tuple[dict[str, SemaphoreStats], list[BackendError]]:
        """`get_acquired_stats_sync`, and what is wrong with those that can't be read."""
        shared = shared_client_for(config)
        return shared.heartbeat_thread.run(
            _statistics.collect(shared, config, names, limit, at_most)
        )

    # ----------------------------------------------------------- controlling

    async def _resize(self, _: Where, value: int) -> None:
        go_on = b""  # one call looks at a bounded number of waiters
        while True:
            word, *more = await self._change(
                self._dialect.control.resize, value, _REMEMBERED, go_on
            )
            if word == b"adaptive":
                await self._steer(b"freeze", value, declared=b"")
                return
            current, go_on, *messages = more
            self._attached()[1].learn(current, self._declared, value)
            self._dispatch(messages)
            if not go_on:
                return

    async def changes(self) -> list[Change]:
        *_, rules, _, changes = await self._inspect("changes")
        if not rules and self._adaptive is None:
            raise fixed_value(self._title)
        return read_changes(changes)

    def _rules_sync(self, at_most: float | None = None) -> Adaptive | None:
        """Return the rules of the semaphore on the server, if it adapts, within that time."""
        *_, rules, _, _ = self._run(partial(self._inspect, "changes", at_most=at_most))
        return Adaptive.read(rules.decode()) if rules else None

    async def _freeze(self, _: Where, value: int | None) -> int:
        return await self._steer(b"freeze", value)

    async def _thaw(self, _: Where) -> None:
        await self._steer(b"thaw", None)

    async def _steer(
        self, verb: bytes, value: int | None, declared: int | str | bytes | None = None
    ) -> int:
        """Freeze or thaw an adaptive value; returns the value.

        ``declared`` is what it was made with if that has to be said differently.
        """
        wanted = b"" if value is None else value
        if declared is None:
            declared = b"" if self._is_found else self._declared
        notification = self._attached()[1].keys.notification
        word, *more = await self._change(
            *(self._dialect.control.freeze, verb, wanted, _REMEMBERED),
            declaration=[notification, declared],
        )
        if word == b"fixed":
            raise fixed_value(self._title)
        if word == b"outside":
            least, most = more
            raise outside_of_adaptive(least, most, value)
        current: int
        current, *messages = more
        self._attached()[1].learn(current, self._declared)
        self._dispatch(messages)
        return current

    def _on_adapted(self, message: bytes) -> None:
        """Tell the hooks of "adapted value reason"."""
        _, value, reason = message.decode(errors="replace").split(" ", 2)
        self._record.learn(int(value), self._declared)
        self._tell_adapted(int(value), reason)

    def _sample_of_other_process(
        self, acquired: str | AcquisitionResult, outcome: Outcome | None
    ) -> str:
        return sample_of_other_process(acquired, outcome)

    async def _pause(self, _: Where, seconds: float) -> None:
        _, *messages = await self._change(self._dialect.control.pause, f"{seconds:.6f}")
        self._dispatch(messages)

    async def _close_everywhere(self, _: Where, reason: str | None) -> None:
        shared, _record = self._attached()
        args = [b"", shared.client().token, self._declared, *([] if reason is None else [reason])]
        await self._refuse_waiters(await self._run_script(self._dialect.control.close, args))

    async def _reopen(self, _: Where) -> None:
        shared, record = self._attached()
        args = [b"", shared.client().token, self._interval, record.keys.notification]
        self._dispatch(await self._run_script(self._dialect.control.reopen, args))

    async def _forget(self, _: Where) -> bool:
        """Remove all that the server knows of it if nobody uses it; return whether it did.

        Raises:
            LookupError: it knows nothing.
        """
        found = await self._run_script(self._dialect.control.forget, [b""])
        if found == 0:
            raise LookupError(self._written_name)
        return bool(found > 0)

    @property
    def _title(self) -> str:
        return repr(self._written_name)

    def _declaration(self) -> list[Any]:
        return [self._attached()[1].keys.notification, self._declared]

    def _conflict(self, reply: list[Any]) -> ValueConflict:
        return read_conflict(self._attached()[1].name, self._declared, reply)


def _local_acquire(slots: int, **options: Any) -> _LocalAcquire:
    """Return what acquires slots of the semaphore of this process, while the server is away."""
    # Not a lambda in the coroutine that may need it: each waiter would keep its variables in
    # cells, which the garbage collector visits.
    return lambda local, left: local.acquire(slots, timeout=left, **options)
