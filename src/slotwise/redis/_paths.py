"""RedisPaths: paths through tiers for every process that uses one Redis server.

Acquiring and releasing are in `_limit`. The scripts on the server (lua/tiers) decide who
gets a path; they mirror `slotwise._ledger.paths`, where the rules are written down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from slotwise._core.adaptive import Change, Outcome
from slotwise._core.arguments import check_flag, check_name, check_seconds
from slotwise._core.control import Where
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.limit import TRY_LIMIT
from slotwise._core.messages import unknown_acquisition
from slotwise._core.overload import Overload
from slotwise._core.path_backend import PathBackend, Timeout
from slotwise._core.paths import (
    Needs,
    NodeStats,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    check_costs,
    most_of,
    options_of,
)
from slotwise._core.rates import Rate
from slotwise._core.results import AcquisitionResult, Claimant
from slotwise._core.unreachable import UnreachableOptions, local_specs
from slotwise.errors import SemaphoreClosed, SlotwiseError
from slotwise.redis import _path_stats
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._adaptive import read_changes, sample_of_other_process
from slotwise.redis._config import RedisConfig
from slotwise.redis._diagnosis import GARBAGE, not_ours
from slotwise.redis._dialect import read_estimate
from slotwise.redis._fallback import Fallback, is_fallback_id, settle_fallback
from slotwise.redis._key_values import KeyValues
from slotwise.redis._limit import RedisLimit, check_max_value
from slotwise.redis._path_dialect import PATHS, never_fits
from slotwise.redis._path_inspect import read_path_claimants, read_path_stats
from slotwise.redis._path_keys import (
    read_node,
    write_needs,
    write_node,
    write_path,
    write_rule,
    write_value,
)
from slotwise.redis._path_shape import read_tiers_conflict, write_shape
from slotwise.redis._scripts import load
from slotwise.redis._wait_for_grant import wait_for_grant

_MAX_IDLE_KEYS = 10_000  # of each tier of a local limit

# How long at least a resize is remembered when nobody holds or waits, in seconds.
_REMEMBERED = 12 * 3600

_INSPECT = load("tiers/inspect_path")
_SETTLE = load("tiers/settle")


class RedisPaths(RedisLimit, PathBackend):
    """A `PathBackend` for all processes that use one Redis server.

    Objects of one name, namespace and server share their tiers, in any
    process, and must agree about them. On Cluster one object lives on one shard.

    Args:
        tiers: narrow to wide.
        name: the name that objects share.
        config: the server.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took the slots.
        heartbeat_max_interval: how long a process may be silent, in seconds,
            before what it holds and its places in the queue are given to others.
        ping_interval: how often it sends a heartbeat; a fifth of that by default, at most 5 s.
        cancel_task_on_loss: cancel the task whose slots were lost by silence.
        overload: which newcomers it refuses at once.
        max_idle_keys: how many idle keys of each tier this object remembers.
        unreachable: what it does while the server is away.
        closed_error: makes what acquiring raises once it is closed.
    """

    _dialect = PATHS
    scope = "redis"

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        *,
        name: str,
        config: RedisConfig,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        heartbeat_max_interval: float = 15,
        ping_interval: float | None = None,
        cancel_task_on_loss: bool = False,
        max_idle_keys: float = inf,
        overload: Overload | None = None,
        unreachable: UnreachableOptions = UnreachableOptions(),  # noqa: B008 - it can't be changed
        closed_error: Callable[..., SemaphoreClosed] = SemaphoreClosed,
    ) -> None:
        super().__init__(tiers, closed_error)
        self._overload = overload
        self._max_idle_keys = max_idle_keys
        for tier in self._specs:
            if isinstance(tier.value, int):
                check_max_value(tier.value)
        self._key_values = KeyValues(self._specs) or None  # None if there is nothing to tell
        if check_name(name) is None:
            raise TypeError("name must be a str, not None")
        self._name = name
        self._ttl = check_seconds("ttl", ttl)
        self._cancel_task_after_ttl = check_flag("cancel_task_after_ttl", cancel_task_after_ttl)
        # What all objects of a name must agree about.
        self._shape = write_shape(self._specs)
        self._declared = ",".join(map(write_rule, self._specs))
        self._adaptive = options_of(self._specs)
        if self._adaptive is not None:
            for tier in self._specs:
                check_max_value(1 if tier.adaptive is None else tier.adaptive.max)
        limited = [tier.value for tier in self._specs if tier.value and isinstance(tier.value, int)]
        # If there are only rates, nothing is held.
        self._rates = {
            tier.name: i for i, tier in enumerate(self._specs) if isinstance(tier.value, Rate)
        }
        self._holds_nothing = len(self._rates) == len(self._specs)
        self._value = limited[-1] if limited else 0
        self._set_up(
            name,
            config,
            heartbeat_max_interval=heartbeat_max_interval,
            ping_interval=ping_interval,
            cancel_task_on_loss=cancel_task_on_loss,
            unreachable=unreachable,
            make_local=self._make_local,
        )
        if unreachable.policy == "local":
            self._local_tiers = local_specs(self._specs, unreachable.local_value)

    def _make_local(self) -> Any:
        from slotwise.memory._paths import MemoryPaths  # stands in for this driver, hence only here

        local = MemoryPaths(
            self._local_tiers,
            ttl=self._ttl,
            cancel_task_after_ttl=self._cancel_task_after_ttl,
            max_idle_keys=_MAX_IDLE_KEYS,
            overload=self._overload,
            closed_error=self._make_closed_error,
        )
        local._reported_name = self._name
        return local

    def _attach(self) -> None:
        super()._attach()
        self._idle = IdleKeys(self._specs, self._max_idle_keys)
        if self._adaptive is not None:
            self._record.tell_changes_to(self)

    def __repr__(self) -> str:
        return f"<RedisPaths {self._name!r} of {self._shape}, {self._config.endpoint}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def reported_name(self) -> str:
        return self._name

    @property
    def value(self) -> int:
        """The value of the widest tier with a limit, as it was made; 0 if none has one."""
        return self._value

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
        if self._fallback is None:
            return wait_for_grant(self._request(path, label, needs, timeout), timeout)
        return self._fall_back(self._fallback, path, timeout, label, needs)

    def _fall_back(
        self,
        fallback: Fallback,
        path: Path,
        timeout: Timeout,
        label: str | None,
        needs: Needs | None,
        *,
        at_once: float | None = None,
    ) -> Awaitable[AcquisitionResult]:
        """Acquire on the server, or as the policy says while it is away."""
        self._check_fits(path, needs)
        return fallback.acquire(
            self,
            lambda: self._request(path, label, needs, timeout),
            timeout,
            lambda local, left: local.acquire(path, timeout=left, label=label, needs=needs),
            at_once=at_once,
        )

    async def _acquire_at_once(
        self, path: Path, label: str | None, needs: Needs | None
    ) -> AcquisitionResult:
        if self._fallback is None:
            acquisition = self._request(path, label, needs, 0.0)
            return await wait_for_grant(acquisition, 0.0, at_once=TRY_LIMIT)
        return await self._fall_back(self._fallback, path, 0.0, label, needs, at_once=TRY_LIMIT)

    def _request(
        self, path: Path, label: str | None, needs: Needs | None, timeout: float | None
    ) -> RedisAcquisition:
        values: list[tuple[int, str, int]] = []
        told = ""
        if self._key_values is not None:
            values, told = self._key_values.of(path, self._idle)
        acquisition = self._new_acquisition(1, label, path, needs)
        acquisition.written_path = write_path(path)
        self._idle.enter(path)
        if values:
            self._idle.remember(values)
        if told:
            acquisition.written_values = told
        acquisition.timeout = timeout
        acquisition.send_request(wait=timeout != 0)
        return acquisition

    def _check_fits(self, path: Path, needs: Needs | None) -> None:
        """Raise if the tiers, as declared, can never have that much."""
        for index, tier in enumerate(self._specs if needs is not None else ()):
            most = most_of(tier.value) if tier.adaptive is None else tier.adaptive.min
            if needs is not None and most and needs[index] > most:
                raise never_fits(self, path, needs, most, index)

    def _on_ended(self, acquisition: RedisAcquisition) -> None:
        self._idle.leave(acquisition.path)

    # ------------------------------------------------------------ inspecting

    async def stats(self) -> dict[str, TierStats]:
        return await self._ask(
            lambda: _path_stats.collect(*self._attached(), self._specs, self._idle, self._limits),
            lambda: {tier.name: TierStats(0, 0, 0, scope="open") for tier in self._specs},
            lambda local: {
                name: replace(stats, scope="local") for name, stats in local.stats_sync().items()
            },
        )

    async def stats_of(self, path: Path) -> PathStats:
        closed_here = self._generation.closed

        async def ask() -> PathStats:
            reply = await self._inspect("path", write_path(path))
            try:
                return read_path_stats(reply, self._specs, path, closed_here=closed_here)
            except GARBAGE as error:
                raise not_ours(self._title) from error

        return await self._ask(
            ask,
            lambda: PathStats((NodeStats(0, 0, 0),) * len(path), closed_here, scope="open"),
            lambda local: replace(local.stats_of_sync(path), scope="local"),
        )

    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        return await self._ask(
            lambda: self._estimate(path, needs),
            lambda: 0.0,
            lambda local: local.estimate_sync(path, needs),
        )

    async def _estimate(self, path: Path, needs: Needs | None) -> float | None:
        written = write_path(path) + ("" if needs is None else write_needs(needs))
        closed, _, _, _, estimate, *unfit = await self._inspect("estimate", written)
        if closed or self._generation.closed:
            return None
        if estimate == b"0":  # the server knows nothing of it
            self._check_fits(path, needs)
        if unfit:
            raise never_fits(self, path, needs, *unfit)
        return read_estimate(estimate)

    async def holders(self) -> list[Claimant]:
        return await self._list("holders")

    async def waiters(self) -> list[Claimant]:
        return await self._list("waiters")

    async def _list(self, what: str) -> list[Claimant]:
        """Return all of them; very many are listed in several calls."""
        claims: dict[bytes, tuple[bytes, bytes]] = {}
        go_on = b""
        while True:
            _, _, _, go_on, *flat = await self._inspect(what, go_on)
            records = zip(flat[1::3], flat[2::3], strict=True)
            claims |= zip(flat[::3], records, strict=True)
            if not go_on:
                return read_path_claimants(claims, self._specs)

    async def _inspect(self, *what: str | bytes) -> list[Any]:
        reply: list[Any] = await self._run_script(_INSPECT, [b"", *what])
        if reply[2]:
            shared, record = self._attached()
            shared.continue_serving(record, shared.client())
        return reply

    # -------------------------------------------------------------- adapting

    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        node = write_node(self._indexes[tier], key)
        _, _, _, _, changes, *_ = await self._inspect("changes", node)
        return read_changes(changes)

    async def _freeze(self, where: Where, value: int | None) -> int:
        return await self._steer(b"freeze", where, value)

    async def _thaw(self, where: Where) -> None:
        await self._steer(b"thaw", where, None)

    async def _steer(self, verb: bytes, where: Where, value: int | None) -> int:
        """Freeze or thaw a tier, or one key of it; returns the value."""
        index, key = self._indexes[str(where[0])], where[1]
        node = "" if key is None and self._specs[index].keyed else write_node(index, key)
        wanted = b"" if value is None else value
        args = index, node, verb, wanted, _REMEMBERED
        current: int
        _, current, *messages = await self._change(self._dialect.control.freeze, *args)
        self._dispatch(messages)
        return current

    def _on_adapted(self, message: bytes) -> None:
        """Tell the hooks of "adapted node value reason"."""
        _, node, value, reason = message.split(b" ", 3)
        self._tell_adapted(*read_node(node), int(value), reason.decode(errors="replace"))

    def _sample_of_other_process(
        self, acquired: str | AcquisitionResult, outcome: Outcome | None
    ) -> str:
        return "" if self._adaptive is None else sample_of_other_process(acquired, outcome)

    # ----------------------------------------------------------- controlling

    async def kick(self, acquisition_id: str) -> bool:
        client = self._attached()[0].client()
        ended, *told = await self._run_script(
            self._dialect.control.kick, [b"", acquisition_id, client.token]
        )
        self._dispatch(told)
        return bool(ended)

    async def _resize(self, where: Where, value: int | Rate) -> None:
        """Change a value for the whole fleet; remembered for a day when nobody is there.

        Raises:
            ValueConflict: the name is in use with other tiers or values.
        """
        if isinstance(value, int):
            check_max_value(value)
        index, key = self._indexes[str(where[0])], where[1]
        if self._specs[index].adaptive is not None:
            assert isinstance(value, int)
            await self._freeze(where, value)
            return
        node = "" if key is None else write_node(index, key)
        args = index, node, write_value(value), _REMEMBERED
        go_on = b""  # one call looks at a bounded number of keys
        while True:
            reply = await self._change(self._dialect.control.resize, *args, go_on)
            _, go_on, *messages = reply
            self._dispatch(messages)
            if not go_on:
                return

    async def _pause(self, where: Where, seconds: float) -> None:
        index, key = self._indexes[str(where[0])], where[1]
        node = f"{index}" if key is None else write_node(index, key)
        _, *messages = await self._change(self._dialect.control.pause, node, f"{seconds:.6f}")
        self._dispatch(messages)

    async def _settle(self, _: Where, acquisition_id: str, costs: Mapping[str, int]) -> None:
        text = self._write_costs(costs)
        if is_fallback_id(acquisition_id):
            settle_fallback(acquisition_id, self._attached()[1], costs)
            return
        # An empty id is how the script is asked to fill a bucket.
        if not acquisition_id or not await self._send_costs(acquisition_id, text):
            raise unknown_acquisition(self._title, acquisition_id)

    async def _refill(self, where: Where) -> None:
        await self._send_costs("", write_node(self._indexes[str(where[0])], where[1]))

    async def _send_costs(self, acquisition_id: str, what: str) -> bool:
        client = self._attached()[0].client()
        found, *told = await self._run_script(_SETTLE, [b"", client.token, acquisition_id, what])
        self._dispatch(told)
        return bool(found)

    def _write_costs(self, costs: Mapping[str, int]) -> str:
        """Write costs as the scripts take them; raise unless these are rates with costs."""
        check_costs(self._specs, costs, self._title)
        for cost in costs.values():
            check_max_value(cost)
        return ",".join(f"{self._rates[name]}={cost}" for name, cost in costs.items())

    async def _forget(self, _: Where) -> bool:
        return bool(await self._run_script(self._dialect.control.forget, [b""]) >= 0)

    def forget_idle(self, tier: str, older_than: float, keep_at_most: int | None = None) -> int:
        """Forget idle keys that this object remembers; the server remembers none."""
        return self._idle.forget(self._indexes[tier], older_than, keep_at_most)

    async def _close_everywhere(self, _: Where, reason: str | None) -> None:
        token = self._attached()[0].client().token
        args = [b"", token, *([] if reason is None else [reason])]
        await self._refuse_waiters(await self._run_script(self._dialect.control.close, args))

    async def _reopen(self, _: Where) -> None:
        _, *messages = await self._run_script(
            self._dialect.control.reopen, [b"", self._attached()[0].client().token]
        )
        self._dispatch(messages)

    # -------------------------------------------------------------- messages

    def _declaration(self) -> list[Any]:
        return [self._shape, self._declared]

    def _conflict(self, reply: list[Any]) -> SlotwiseError:
        try:
            return read_tiers_conflict(self._name, self._specs, reply)
        except GARBAGE:
            return not_ours(self._title)
