"""RedisPaths: paths through tiers for every process that uses one Redis server.

Acquiring and releasing are in `_limit`. The scripts on the server (lua/tiers) decide who
gets a path; they mirror `slotwise._ledger.paths`, where the rules are written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from slotwise._core.adaptive import Change, Outcome
from slotwise._core.control import Where
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.messages import unknown_acquisition
from slotwise._core.paths import (
    Needs,
    NodeStats,
    Path,
    PathStats,
    TierSpec,
    TierStats,
    check_costs,
    most_of,
)
from slotwise._core.rates import Rate
from slotwise._core.results import AcquisitionResult, Claimant
from slotwise._core.unreachable import UnreachableOptions, local_specs
from slotwise.errors import SlotwiseError
from slotwise.redis import _path_stats
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._adaptive import read_changes, sample_of_other_process
from slotwise.redis._backend import RedisBackend, check_max_value
from slotwise.redis._config import RedisConfig
from slotwise.redis._diagnosis import GARBAGE, not_ours
from slotwise.redis._dialect import read_estimate
from slotwise.redis._fallback import is_fallback_id, settle_fallback
from slotwise.redis._key_values import KeyValues
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

_MAX_IDLE_KEYS = 10_000  # of each tier of a local limit

# How long at least a resize is remembered when nobody holds or waits, in seconds.
_REMEMBERED = 12 * 3600

_INSPECT = load("tiers/inspect_path")
_SETTLE = load("tiers/settle")


class RedisPaths(RedisBackend):
    """Tiers on a Redis server; see `RedisBackend`.

    ``max_idle_keys`` is how many idle keys of each tier this object remembers.
    """

    _dialect = PATHS

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        *,
        name: str,
        config: RedisConfig,
        max_idle_keys: float = inf,
        unreachable: UnreachableOptions = UnreachableOptions(),  # noqa: B008 - it can't be changed
        **options: Any,
    ) -> None:
        self._max_idle_keys = max_idle_keys
        self._key_values = KeyValues(tuple(tiers)) or None  # None if there is nothing to tell
        # What all objects of a name must agree about.
        self._shape = write_shape(tiers)
        self._declared = ",".join(map(write_rule, tiers))
        super().__init__(tiers, name=name, config=config, unreachable=unreachable, **options)
        if unreachable.policy == "local":
            self._local_tiers = local_specs(self._specs, unreachable.local_value)

    def _make_local(self) -> Any:
        # It stands in for this driver, hence only here.
        from slotwise.memory._backend import MemoryBackend

        local = MemoryBackend(
            self._local_tiers,
            ttl=self._ttl,
            cancel_task_after_ttl=self._cancel_task_after_ttl,
            max_idle_keys=_MAX_IDLE_KEYS,
            overload=self._overload,
            closed_error=self._make_closed_error,
        )
        local.reported_as = self._name
        return local

    def _attach(self) -> None:
        super()._attach()
        self._idle = IdleKeys(self._specs, self._max_idle_keys)

    def __repr__(self) -> str:
        return f"<RedisPaths {self._name!r} of {self._shape}, {self._config.endpoint}>"

    @property
    def value(self) -> int:
        """The value of the widest tier with a limit, as it was made; 0 if none has one."""
        return self._value

    # ------------------------------------------------------------- acquiring

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
        adaptive = self._specs[self._indexes[str(where[0])]].adaptive
        if value is not None and adaptive is not None:  # the script would take the nearest one
            adaptive.check_value(value)
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
