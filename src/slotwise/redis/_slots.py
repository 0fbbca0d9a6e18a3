"""RedisSlots: the slots of a semaphore for all processes that use one Redis server.

Acquiring and releasing are in `_backend`; the scripts on the server (lua/semaphore) decide who gets
a slot.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from slotwise._core.adaptive import Adaptive, Change, Outcome, outside_of_adaptive
from slotwise._core.control import Where
from slotwise._core.messages import fixed_value, too_many_slots
from slotwise._core.outcomes import not_replaceable, too_many_for_adaptive
from slotwise._core.paths import (
    SEMAPHORE_PATH,
    SEMAPHORE_TIER,
    Needs,
    NodeStats,
    Path,
    PathStats,
    RankedNeeds,
    TierStats,
    head_start_of,
)
from slotwise._core.results import AcquisitionResult, Claimant, SemaphoreStats
from slotwise.errors import ValueConflict
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._adaptive import read_changes, read_conflict, sample_of_other_process
from slotwise.redis._backend import RedisBackend
from slotwise.redis._closing import read_closed
from slotwise.redis._dialect import read_estimate, read_waiting
from slotwise.redis._fallback import open_count
from slotwise.redis._inspect import read_claimants
from slotwise.redis._release_batching import send_kick
from slotwise.redis._reply_limits import INSPECT, reply_within
from slotwise.redis._scripts import load
from slotwise.redis._semaphore_dialect import SEMAPHORE

# How long a resize is remembered when nobody holds or waits, in seconds.
_REMEMBERED = 24 * 3600

# Each slot is a member of a sorted set, as documented, and the server does nothing else while it
# adds them: this takes it about 20 ms.
_MAX_SLOTS = 10_000

_INSPECT = load("semaphore/inspect")


class RedisSlots(RedisBackend):
    """The one tier of a semaphore; see `RedisBackend`."""

    _dialect = SEMAPHORE

    # Whether it was made for a name that somebody else uses, whatever its value is.
    accepts_any = False

    def _attach(self) -> None:
        [spec] = self._specs
        self._declared = spec.rules or spec.slots
        super()._attach()

    def _make_local(self) -> Any:
        from slotwise.memory import MemorySemaphore  # stands in for this driver, hence only here

        overload = self._overload
        local = MemorySemaphore(
            self._unreachable.local_value,
            ttl=self._ttl,
            cancel_task_after_ttl=self._cancel_task_after_ttl,
            max_waiting=None if overload is None else overload.max_waiting,
            shed="deadline" if overload is not None and overload.sheds else None,
        )
        local._backend.reported_as = self.reported_as
        return local

    @property
    def value(self) -> int:
        """How many slots there are, as the server last told this process."""
        record = self._record
        return record.value if self._declared in record.values else self._value

    def _slot_values(self) -> dict[str, int]:
        return {self._specs[0].name: self.value}

    # ------------------------------------------------------------- acquiring

    def _request(
        self, path: Path, label: str | None, needs: Needs | None, timeout: float | None
    ) -> RedisAcquisition:
        del path  # a semaphore has one
        acquisition = self._new_acquisition(
            self.check_slots(needs), label, head_start=head_start_of(needs)
        )
        acquisition.timeout = timeout
        acquisition.replaces = isinstance(needs, RankedNeeds) and needs.replaces
        acquisition.send_request(wait=timeout != 0)
        return acquisition

    def check_slots(self, needs: Needs | None) -> int:
        """Return how many slots are needed, if they can ever be granted."""
        if needs is None:
            return 1
        [count] = needs
        if self._adaptive is not None:
            if count > self._adaptive.min:
                raise too_many_for_adaptive(self._title, count, self._adaptive)
            if isinstance(needs, RankedNeeds) and needs.replaces:
                raise not_replaceable(self._title)
        if count > _MAX_SLOTS:
            raise ValueError(f"slots must be at most {_MAX_SLOTS} at once on Redis, not {count}")
        return count

    def _check_fits(self, path: Path, needs: Needs | None) -> None:
        """Raise what the server would raise, if it may be away."""
        del path
        slots = self.check_slots(needs)
        if slots > self.value:
            raise too_many_slots(self._title, slots, self.value)

    def _acquire_locally(
        self, local: Any, path: Path, left: float | None, label: str | None, needs: Needs | None
    ) -> Awaitable[AcquisitionResult]:
        del path
        ranked = needs if isinstance(needs, RankedNeeds) else RankedNeeds(needs or (1,))
        acquired: Awaitable[AcquisitionResult] = local.acquire(
            ranked[0],
            timeout=left,
            label=label,
            on_full="replace" if ranked.replaces else "wait",
            priority=ranked.head_start / 1_000_000,
        )
        return acquired

    async def kick(self, acquisition_id: str) -> bool:
        """Its holder is told at once, or by its next heartbeat if the message doesn't reach it."""
        shared, record = self._attached()
        client = shared.client()
        args = [b"", acquisition_id, client.token, self._interval, record.keys.notification]
        kicked = send_kick(shared, record, client, self._dialect.control.kick, args, self._limits)
        return await reply_within(INSPECT, kicked, client, record.keys.slot)

    # ------------------------------------------------------------ inspecting

    async def stats(self) -> dict[str, TierStats]:
        found = await self.stats_of(SEMAPHORE_PATH)
        [node] = found.nodes
        tier = TierStats(
            *(node.active, node.waiting, node.value),
            paused_for=node.paused_for,
            frozen=found.frozen,
            scope=found.scope,
        )
        return {SEMAPHORE_TIER: tier}

    async def stats_of(self, path: Path) -> PathStats:
        del path
        closed_here = self._generation.closed
        return await self._ask(
            lambda: self._count(closed_here=closed_here),
            lambda: PathStats(
                (NodeStats(open_count(self._attached()[1]), 0, self.value),),
                closed_here,
                scope="open",
            ),
            lambda local: _of_local(local.stats_sync()),
        )

    async def _count(self, *, closed_here: bool) -> PathStats:
        known_value, held, written, closed, reason, *_, frozen = await self._inspect("counts")
        waiting, paused_for = read_waiting(written)
        value = known_value or self._value
        kept = max(value - held, 0) if waiting else 0  # what is free is for those who wait
        node = NodeStats(held, waiting, value, kept, paused_for)
        return PathStats((node,), closed_here, read_closed(closed, reason), "redis", bool(frozen))

    async def estimate(self, path: Path, needs: Needs | None = None) -> float | None:
        del path
        wanted = self.check_slots(needs)
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

    async def holders(self) -> list[Claimant]:
        found = {each.acquisition_id: each for each in await self.list_claimants("holders")}
        return list(found.values())

    async def waiters(self) -> list[Claimant]:
        return await self.list_claimants("waiters")

    async def list_claimants(self, what: str, at_most: float | None = None) -> list[Claimant]:
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

    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        del tier, key
        *_, rules, _, changes = await self._inspect("changes")
        if not rules and self._adaptive is None:
            raise fixed_value(self._title)
        return read_changes(changes)

    async def rules(self, at_most: float | None = None) -> Adaptive | None:
        """Return the rules of the semaphore on the server, if it adapts, within that time."""
        *_, rules, _, _ = await self._inspect("changes", at_most=at_most)
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
            declared = b"" if self.accepts_any else self._declared
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
        self._tell_adapted(0, None, int(value), reason)

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
            raise LookupError(self._name)
        return bool(found > 0)

    def forget_idle(self, tier: str, older_than: float, keep_at_most: int | None = None) -> int:
        """A semaphore has no keys."""
        del tier, older_than, keep_at_most
        return 0

    def _declaration(self) -> list[Any]:
        return [self._attached()[1].keys.notification, self._declared]

    def _conflict(self, reply: list[Any]) -> ValueConflict:
        return read_conflict(self._attached()[1].name, self._declared, reply)


def _of_local(stats: SemaphoreStats) -> PathStats:
    """Return the statistics of the semaphore of this process as those of a path."""
    value = stats.max_slots
    kept = max(value - stats.acquired_slots, 0) if stats.waiting else 0
    node = NodeStats(stats.acquired_slots, stats.waiting, value, kept, stats.paused_for)
    return PathStats((node,), stats.closed, scope="local", frozen=stats.frozen)
