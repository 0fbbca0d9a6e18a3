"""Tiers: several limits taken together, narrow to wide.

It chooses the backend, which decides who gets what (`slotwise._core.path_backend`). What the
arguments of a call mean is in `_path_arguments`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core.adaptive import Change, Outcome, check_outcome
from slotwise._core.arguments import (
    UNSET,
    OnUnreachable,
    Order,
    Shed,
    Unset,
    check_count,
    check_flag,
    check_label,
    check_limit,
    check_name,
    check_pause,
    check_required_seconds,
    check_seconds,
    check_timeout,
)
from slotwise._core.closing import ClosedByBlock
from slotwise._core.control import WHOLE
from slotwise._core.copying import Recipe, same_when_copied
from slotwise._core.limit import AcquisitionContext
from slotwise._core.overload import check_max_waiting, check_shed, overload_of
from slotwise._core.paths import (
    KeyStats,
    Path,
    TierStats,
)
from slotwise._core.rates import Rate
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.shared_name import SharedName
from slotwise._core.stats import Claimant
from slotwise._core.twins import twin
from slotwise._core.unreachable import check_unreachable
from slotwise._urls import parsed
from slotwise.errors import SemaphoreClosed
from slotwise.tiers._backends import choose_backend
from slotwise.tiers._explain import explain
from slotwise.tiers._fair import fair_specs
from slotwise.tiers._options import LocalValue, OptionAttributes, TiersOptions, check_tiers
from slotwise.tiers._path_arguments import NO_PRIORITY, ONE, PathArguments, Resolved, Slots
from slotwise.tiers._path_limit import PathLimit
from slotwise.tiers._tier import Tier

if TYPE_CHECKING:
    from slotwise._core.explain import Explanation
    from slotwise.redis import RedisConfig

T = TypeVar("T")

MAX_IDLE_KEYS = 10_000


@same_when_copied
class Tiers(OptionAttributes, SharedName, ClosedByBlock):
    """Limits from narrow to wide; work takes a slot, or several, of each of them::

        tiers = Tiers(Tier("tenant", 5, keyed=True), Tier("all", 100))
        async with tiers.cm(tenant="acme") as acquired:
            ...

    Every coroutine has a twin whose name ends in ``_sync``, for plain threads;
    ``cm`` works with ``with`` as well. A block of the object itself, ``async with tiers:`` or
    ``with tiers:``, closes it at its end. `at` makes a `Limit` of one path. Copies and unpickled
    ones share their slots; private ones can't be pickled.

    Args:
        tiers: narrow to wide.
        atomic: must be True.
        url: where the slots are kept: ``memory://`` for this process, a url of Redis or a
            RedisConfig for a fleet, ``process://`` for this machine. Without one it is
            ``SLOTWISE_URL`` in the environment, or else ``memory://``.
        name: the name that Tiers objects share; None makes private ones. Other tiers or values
            for a name in use are a ValueConflict: when they acquire or, in memory, when the object
            is made.
        max_acquire_time: the longest wait in seconds, for all tiers together; None waits
            forever.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took them.
        heartbeat_max_interval: how long a process may be silent before it counts
            as dead (Redis).
        ping_interval: how often it sends a heartbeat (Redis).
        cancel_task_on_loss: cancel the task whose slots were lost by silence (in memory nothing
            is lost).
        max_idle_keys: how many idle keys of each tier are kept, those used last.
        max_waiting: how many may wait; beyond it, newcomers that would have to wait get a
            LimitFull. None lets any number wait.
        order: "fifo" serves requests in the order of their arrival; in "fair" order the keys of
            one tier take turns, and requests of one key are served in the order of arrival.
        fair_by: the keyed tier whose keys take turns.
        weight: how much more than others a key gets while it waits: a number, the same for
            all keys, or a function of the key, which must not block.
        fair_cost: the rate whose reserved units count; None counts slots of the widest tier.
        shed: "deadline" also refuses callers whose timeout is shorter than the expected wait
            (see `estimate`); None, the default, refuses nobody for that.
        on_unreachable: what is done while a server is away: "raise" raises a BackendError,
            "open" grants everything, "local" has limits of this process (Redis).
        local_value: their values for each process, by the names of tiers: ints, or Rates; those
            left out stay as they are. An int is the value of each tier with slots.
        unreachable_after: for how many seconds a server may be silent before it counts as
            away. It does at once when connections are refused or cut.
    """

    def __init__(
        self,
        *tiers: Tier,
        atomic: bool = True,
        url: str | RedisConfig | None = None,
        name: str | None = None,
        max_acquire_time: float | None = None,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        heartbeat_max_interval: float | None = None,
        ping_interval: float | None = None,
        cancel_task_on_loss: bool = False,
        max_idle_keys: int = MAX_IDLE_KEYS,
        max_waiting: int | None = None,
        shed: Shed | None = None,
        on_unreachable: OnUnreachable = "raise",
        local_value: LocalValue | None = None,
        unreachable_after: float = 1.0,
        order: Order = "fifo",
        fair_by: str | None = None,
        weight: float | Callable[[str], float] = 1,
        fair_cost: str | None = None,
        closed_error: Callable[..., SemaphoreClosed] = SemaphoreClosed,
    ) -> None:
        if atomic is not True:
            raise TypeError(
                "atomic=False is gone: nest cm() blocks, one per tier; see docs/how-to.md,"
                " 'take limits one after the other'"
            )
        check_tiers(tiers)
        self._tiers = {tier.name: tier for tier in tiers}
        self._arguments = PathArguments(self._tiers)
        self._options = options = TiersOptions(
            url=parsed(url),
            name=check_name(name),
            max_acquire_time=check_seconds("max_acquire_time", max_acquire_time),
            ttl=check_seconds("ttl", ttl),
            cancel_task_after_ttl=check_flag("cancel_task_after_ttl", cancel_task_after_ttl),
            heartbeat_max_interval=check_seconds("heartbeat_max_interval", heartbeat_max_interval),
            ping_interval=check_seconds("ping_interval", ping_interval),
            cancel_task_on_loss=check_flag("cancel_task_on_loss", cancel_task_on_loss),
            max_idle_keys=check_limit("max_idle_keys", max_idle_keys),
            max_waiting=check_max_waiting(max_waiting),
            shed=check_shed(shed),
            unreachable=check_unreachable(on_unreachable, local_value, unreachable_after),
            order=order,
            fair_by=fair_by,
            weight=weight,
            fair_cost=fair_cost,
            closed_error=closed_error,
        )
        options.check_with(tiers)
        specs = fair_specs(tiers, order=order, fair_by=fair_by, weight=weight, fair_cost=fair_cost)
        self._name, self._max_acquire_time = options.name, options.max_acquire_time
        overload = overload_of(options.max_waiting, shed, [tier.max_waiting for tier in tiers])
        self._backend = choose_backend(specs, options, overload)
        # Makes the context manager of a path; its arguments have been checked.
        self._context = self._backend.cm
        self._does_io = self._backend._does_io

    def _recipe(self) -> Recipe | None:
        is_private = self._name is None and (self.url is None or isinstance(self.url, str))
        return None if is_private else Recipe(Tiers, self.tiers, self._options.arguments())

    @property
    def ttl(self) -> float | None:
        """The longest hold in seconds; None means unlimited."""
        return self._options.ttl

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers, narrow to wide, as they were given."""
        return tuple(self._tiers.values())

    @property
    def cancel_task_after_ttl(self) -> bool:
        """Whether the task that took slots is cancelled when their ttl ends."""
        return self._options.cancel_task_after_ttl

    @property
    def cancel_task_on_loss(self) -> bool:
        """Whether the task whose slots were lost by silence is cancelled."""
        return self._options.cancel_task_on_loss

    @property
    def order(self) -> str:
        """Who is next: "fifo" or "fair"."""
        return self._options.order

    @property
    def fair_by(self) -> str | None:
        """The tier whose keys take turns, in fair order."""
        return self._options.fair_by

    @property
    def weight(self) -> float | Callable[[str], float]:
        """How much more than others a key gets, or a function of the key, in fair order."""
        return self._options.weight

    @property
    def fair_cost(self) -> str | None:
        """The rate whose reserved units count, in fair order."""
        return self._options.fair_cost

    @property
    def max_idle_keys(self) -> int:
        """How many idle keys of each tier are kept."""
        return self._options.max_idle_keys

    @property
    def closed_error(self) -> Callable[..., SemaphoreClosed]:
        """What makes the error that acquiring raises once it is closed."""
        return self._options.closed_error

    @property
    def local_value(self) -> LocalValue | None:
        """The values of the tiers in each process while a server is away, with "local"."""
        given: LocalValue | None = self._options.unreachable.local_value
        return given

    def _run(self, start: Callable[[], Coroutine[Any, Any, T]], *, completes: bool = False) -> T:
        """Run a coroutine for a plain thread; see `twin`."""
        return self._backend._run(start, completes=completes)

    # ------------------------------------------------------------- acquiring

    def _begin(
        self, path: Path, slots: Slots | Resolved, timeout: float | Unset | None, label: str | None
    ) -> Awaitable[AcquisitionResult]:
        """Acquire a path, for a caller that awaits it at once; see `PathBackend.begin`."""
        needs = self._arguments.needs(slots)
        seconds = check_timeout(timeout, self._max_acquire_time)
        return self._backend.begin(path, seconds, check_label(label), needs)

    def _try(
        self, path: Path, slots: Slots | Resolved, label: str | None
    ) -> Awaitable[AcquisitionResult | None]:
        return self._backend.try_acquire(path, check_label(label), self._arguments.needs(slots))

    def at(self, *, costs: Mapping[str, int] | None = None, **keys: str | int) -> PathLimit:
        """Return the path of these keys as a `Limit`, for code that takes any limit.

        Each acquisition takes the same costs of rates. Its statistics are those of the tier
        with the fewest free slots.
        """
        path, needs = self._arguments.resolve(keys, 1, costs)
        return PathLimit(self, path, needs if isinstance(needs, Resolved) else None)

    async def acquire(
        self,
        /,
        slots: Slots = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        costs: Mapping[str, int] | None = None,
        priority: float = 0,
        **keys: str | int,
    ) -> AcquisitionResult:
        """Wait for slots of every tier.

        A wait that is cancelled or times out takes nothing.

        Args:
            slots: how many of every tier, except for rates; or a dict of tier names to how
                many, 1 of those left out. All are granted together or none is.
            timeout: the longest wait in seconds, for all tiers together; 0 does not
                wait, None waits forever. Left out, it is ``max_acquire_time``.
            label: what the slots are for; ``holders()`` and ``waiters()`` show it.
            costs: what it takes of rates, by the names of their tiers; 1 of those left out.
            priority: a head start in seconds: the request comes before those that arrived less
                than that much earlier or, if it is negative, after those that arrive within that
                time. In fair order it affects only requests of one key.
            keys: the key of every keyed tier, by the tier's name; and the costs of rates that
                have no keys of their own.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first; it tells which tier was full.
            LimitFull: it would have to wait, and ``max_waiting`` others do.
            SemaphoreClosed: closed before or during the wait.
            TypeError: a key is missing, unknown or not a str.
            ValueError: ``slots`` is more than a tier has, or a cost more than the burst of a
                rate, now or after a `resize`.
        """
        return await self._begin(
            *self._arguments.resolve(keys, slots, costs, priority), timeout, label
        )

    acquire_sync = twin(acquire, waits=True)

    async def try_acquire(
        self,
        /,
        slots: Slots = 1,
        *,
        label: str | None = None,
        costs: Mapping[str, int] | None = None,
        priority: float = 0,
        **keys: str | int,
    ) -> AcquisitionResult | None:
        """Take a slot of every tier if that needs no wait; else return None."""
        return await self._try(*self._arguments.resolve(keys, slots, costs, priority), label)

    try_acquire_sync = twin(try_acquire)

    def cm(
        self,
        slots: Slots = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        costs: Mapping[str, int] | None = None,
        priority: float = 0,
        **keys: str | int,
    ) -> AcquisitionContext:
        """Return a context manager for one acquisition, valid for one ``with`` block.

        The arguments, and what entering it raises, are those of `acquire`.
        """
        if costs is not None or priority is not NO_PRIORITY or slots is not ONE:
            return self._cm(*self._arguments.resolve(keys, slots, costs, priority), timeout, label)
        arguments = self._arguments
        # `resolve` and `_cm` for the most frequent cases, inlined.
        needs = None
        if not arguments.rates:
            path = arguments.path(keys)
        else:
            needs = arguments.take_costs(keys) if keys else arguments.defaults
            without_keys = arguments.without_keys
            path = arguments.path(keys) if keys or without_keys is None else without_keys
        if label is not None:
            label = check_label(label)
        seconds = self._max_acquire_time if timeout is UNSET else check_timeout(timeout, None)
        return self._context(path, seconds, label, needs)

    hold = cm

    def _cm(
        self, path: Path, slots: Slots | Resolved, timeout: float | Unset | None, label: str | None
    ) -> AcquisitionContext:
        if label is not None:
            label = check_label(label)
        seconds = self._max_acquire_time if timeout is UNSET else check_timeout(timeout, None)
        if slots is ONE:
            return self._context(path, seconds, label, None)
        return self._context(path, seconds, label, self._arguments.needs(slots))

    @property
    def _title(self) -> str:
        return self._backend._title

    # ------------------------------------------------------------- releasing

    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        """Release a slot of every tier; False if the acquisition had ended before.

        ``outcome`` is how the work ended, as for `Limit.release`.
        """
        if outcome is not None:
            check_outcome(outcome)
        return await self._backend.release(acquisition_id, outcome=outcome)

    release_sync = twin(release, completes=True)

    # ----------------------------------------------- inspecting, controlling

    async def stats(self) -> dict[str, TierStats]:
        """Return how full the tiers are, by name, narrow to wide."""
        return self._scoped(await self._backend.stats())

    stats_sync = twin(stats)

    def _scoped(self, stats: dict[str, TierStats]) -> dict[str, TierStats]:
        scope = self._backend.scope
        if scope == "memory" or any(each.scope != "memory" for each in stats.values()):
            return stats
        return {name: replace(each, scope=scope) for name, each in stats.items()}

    async def explain(self, acquisition_or_id: str | AcquisitionResult) -> Explanation:
        """Explain why an acquisition of any process waits; ``at(...).explain()``: a newcomer."""
        return await explain(self, None, acquisition_or_id)

    explain_sync = twin(explain)

    async def estimate(
        self,
        /,
        slots: Slots = 1,
        *,
        costs: Mapping[str, int] | None = None,
        **keys: str | int,
    ) -> float | None:
        """Return in about how many seconds a newcomer with these keys and costs would be served.

        0.0 if it would be at once; None if that isn't known, because no hold has ended since
        somebody waited. It is an estimate, not a bound.
        """
        path, resolved = self._arguments.resolve(keys, slots, costs)
        return await self._backend.estimate(path, self._arguments.needs(resolved))

    estimate_sync = twin(estimate)

    async def holders(self) -> list[Claimant]:
        """Return who holds slots now, the longest first."""
        return await self._backend.holders()

    holders_sync = twin(holders)

    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool:
        """End somebody's acquisition, of all its tiers; False if it had ended.

        The next waiters get its slots at once, and its holder's ``lost`` is set. A
        request that still waits is left alone.
        """
        return await self._backend.kick(acquisition_id_of(acquisition_id))

    kick_sync = twin(kick)

    async def busiest(self, tier: str, n: int = 10) -> list[tuple[str, KeyStats]]:
        """Return the keys of a tier with the most slots held, then the most waiting."""
        self._arguments.check_tier(tier, keyed=True)
        check_count("n", n)
        keys = [*(await self.stats())[tier].keys.items()]
        keys.sort(key=lambda item: (-item[1].active, -item[1].waiting, item[0]))
        return keys[:n]

    busiest_sync = twin(busiest)

    async def settle(self, /, acquisition_id: str | AcquisitionResult, **costs: int) -> None:
        """State what an acquisition has really taken of rates; the last call wins.

        Less than it took at first is given back, more becomes debt that later requests wait
        for. It works in any process while the slots are held, and for one ``per`` of the rates
        afterwards, at least 60 s.

        Raises:
            LookupError: the acquisition is unknown, or no longer known.
        """
        self._arguments.check_settle(costs)
        await self._backend.control("settle", WHOLE, acquisition_id_of(acquisition_id), costs)

    settle_sync = twin(settle)

    async def refill(self, tier: str, key: str | None = None) -> None:
        """Forgive the debt of a rate, or of one key of it, and fill it."""
        self._arguments.check_refill(tier, key)
        await self._backend.control("refill", (tier, key))

    refill_sync = twin(refill)

    async def resize(self, tier: str, value: int | Rate, key: str | None = None) -> None:
        """Change the value of a tier, or of one key of it, while it is in use.

        After a shrink nothing is granted there until what is held fits. A rate is changed to
        another Rate: what is left of it stays, cut to the new burst. An adaptive tier is frozen.
        """
        value = self._arguments.check_resize(tier, value, key)
        await self._backend.control("resize", (tier, key), value)

    resize_sync = twin(resize)

    async def changes(self, tier: str, key: str | None = None) -> list[Change]:
        """Return how the value of an adaptive tier has moved; of a keyed one, that of a key.

        Oldest first, without short probes. A key that is not in use may be forgotten.

        Raises:
            TypeError: the tier has a fixed value, or keys and none is given.
        """
        self._arguments.check_adaptive(tier, key)
        if key is None and self._tiers[tier].keyed:
            raise TypeError(f"tier {tier!r} has keys, each with its own changes: give one")
        return await self._backend.changes(tier, key)

    changes_sync = twin(changes)

    async def freeze(self, tier: str, value: int | None = None, key: str | None = None) -> None:
        """Keep the value of an adaptive tier where it is, or at ``value``, until `thaw`.

        Without a key this applies to all keys, including later ones.

        Raises:
            ValueError: it is outside min and max.
            TypeError: the tier has a fixed value.
        """
        value = self._arguments.check_freeze(tier, value, key)
        await self._backend.control("freeze", (tier, key), value)

    freeze_sync = twin(freeze)

    async def thaw(self, tier: str, key: str | None = None) -> None:
        """Let the value of an adaptive tier, or of one key of it, move again from where it is."""
        self._arguments.check_adaptive(tier, key)
        await self._backend.control("thaw", (tier, key))

    thaw_sync = twin(thaw)

    async def pause(self, /, seconds: float, **key: str) -> None:
        """Grant nothing for ``seconds``: to anybody, or to those with this key of a tier.

        Newcomers and waiters wait in line meanwhile, and trying gets None; holders keep what
        they have. If there are several pauses, the one that ends last counts; `reopen` ends all of
        them. ``tiers.at(...).pause()`` pauses the narrowest tier that has a key there.
        """
        where = self._arguments.paused_key(key)
        await self._backend.control("pause", where, check_pause(seconds))

    pause_sync = twin(pause)

    async def forget_idle(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        """Forget keys that nobody holds or waits for; return how many.

        Those idle for ``older_than`` seconds, and the longest idle beyond ``keep_at_most``.
        """
        self._arguments.check_tier(tier, keyed=True)
        seconds = check_required_seconds("older_than", older_than, zero=True)
        if keep_at_most is not None:
            check_count("keep_at_most", keep_at_most, least=0)
        return self._backend.forget_idle(tier, seconds, keep_at_most)

    forget_idle_sync = twin(forget_idle)

    def __repr__(self) -> str:
        tiers = ", ".join(tier.spec.words for tier in self._tiers.values())
        return f"<Tiers {tiers}{'' if self._name is None else f' of {self._name!r}'}>"
