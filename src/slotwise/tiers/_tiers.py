"""Tiers: several limits taken together, narrow to wide.

It checks arguments, and chooses the backend, which decides who gets what:
all at one instant (`slotwise._core.paths`), or stage by stage (`_staged`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from slotwise._core.arguments import (
    UNSET,
    Unset,
    check_count,
    check_flag,
    check_label,
    check_limit,
    check_name,
    check_reason,
    check_seconds,
    check_text,
    check_timeout,
)
from slotwise._core.copying import Recipe, SameWhenCopied
from slotwise._core.limit import AcquiringContext, AcquisitionContext, refuse_to_block_a_loop
from slotwise._core.paths import KeyStats, Needs, Path, TierStats
from slotwise._core.redaction import redacted_repr
from slotwise._core.results import AcquisitionResult, Claimant, acquisition_id_of
from slotwise._urls import parsed
from slotwise.errors import SemaphoreClosed
from slotwise.memory._paths import MemoryPaths
from slotwise.tiers._backends import choose_backend
from slotwise.tiers._path_limit import PathLimit
from slotwise.tiers._tier import Tier

if TYPE_CHECKING:
    from slotwise.redis import RedisConfig

MAX_IDLE_KEYS = 10_000

# Compared by identity, which is quick and tells it from True and 1.0.
_ONE = 1

# How many slots: of every tier, or by the names of tiers.
Slots: TypeAlias = int | Mapping[str, int]

_MakeContext = Callable[[Path, float | None, str | None, Needs | None], AcquisitionContext]


class Tiers(SameWhenCopied):
    """Limits from narrow to wide, of each of which work takes a slot, or several::

        tiers = Tiers(Tier("tenant", 5, keyed=True), Tier("all", 100))
        async with tiers.cm(tenant="acme") as acquired:
            ...

    Every coroutine has a twin with ``_sync`` behind its name, for plain threads;
    ``cm`` works with ``with`` as well. `at` makes a `Limit` of one path. Copies and unpickled
    ones share their slots, by name; private ones are their own copies, and can't be pickled.

    Args:
        tiers: narrow to wide.
        atomic: take all tiers at one instant, holding nothing while waiting; False
            takes them one after the other, narrow to wide, holding what it has.
        url: where the slots are kept: None or ``memory://`` for this process, a url of Redis
            or a RedisConfig for a fleet; ``process://`` for this machine, not atomic.
        name: what Tiers objects share their slots by; None makes private ones, and
            on Redis stands for ``tiers``.
        max_acquire_time: the longest wait in seconds, for all tiers together; None waits
            forever.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took them (atomic only).
        heartbeat_max_interval: how long a process may be silent before it is taken
            for dead (Redis).
        ping_interval: how often it shows that it lives (Redis).
        cancel_task_on_loss: cancel the task whose slots were lost by silence (atomic
            only; in memory nothing is lost).
        max_idle_keys: how many idle keys of each tier are kept, those used last.
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
        closed_error: Callable[..., SemaphoreClosed] = SemaphoreClosed,
    ) -> None:
        if not tiers or not all(isinstance(tier, Tier) for tier in tiers):
            raise TypeError(f"Tiers takes one or more Tier objects, not {redacted_repr(tiers)}")
        names = [tier.name for tier in tiers]
        if len({*names}) < len(names):
            raise ValueError(f"two tiers have the same name: {', '.join(names)}")
        self._tiers = {tier.name: tier for tier in tiers}
        self._url = parsed(url)
        self._private = name is None and (self._url is None or isinstance(self._url, str))
        self._options: dict[str, Any] = {
            "atomic": atomic,
            "url": self._url,
            "name": name,
            "max_acquire_time": max_acquire_time,
            "ttl": ttl,
            "cancel_task_after_ttl": cancel_task_after_ttl,
            "heartbeat_max_interval": heartbeat_max_interval,
            "ping_interval": ping_interval,
            "cancel_task_on_loss": cancel_task_on_loss,
            "max_idle_keys": max_idle_keys,
            "closed_error": closed_error,
        }
        self._keyed = frozenset(tier.name for tier in tiers if tier.keyed)
        self._name = check_name(name)
        self._max_acquire_time = check_seconds("max_acquire_time", max_acquire_time)
        self._ttl = check_seconds("ttl", ttl)
        self._closed_error = closed_error
        self._max_idle_keys = check_limit("max_idle_keys", max_idle_keys)
        self._backend = choose_backend(
            [tier.spec for tier in tiers],
            atomic=check_flag("atomic", atomic),
            url=self._url,
            name=self._name,
            ttl=self._ttl,
            cancel_task_after_ttl=check_flag("cancel_task_after_ttl", cancel_task_after_ttl),
            heartbeat_max_interval=check_seconds("heartbeat_max_interval", heartbeat_max_interval),
            ping_interval=check_seconds("ping_interval", ping_interval),
            cancel_task_on_loss=check_flag("cancel_task_on_loss", cancel_task_on_loss),
            max_idle_keys=self._max_idle_keys,
            closed_error=closed_error,
        )
        # Makes the context manager of a path; its arguments have been checked.
        self._context: _MakeContext = self._slow_context
        self._does_io = True
        if isinstance(self._backend, MemoryPaths):
            self._context = self._backend.cm
            self._does_io = False

    def _recipe(self) -> Recipe | None:
        return None if self._private else Recipe(Tiers, self.tiers, self._options)

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def url(self) -> str | RedisConfig | None:
        """Where the slots are kept."""
        return self._url

    @property
    def atomic(self) -> bool:
        """Whether all tiers are taken at one instant."""
        return bool(self._options["atomic"])

    @property
    def max_acquire_time(self) -> float | None:
        """The longest wait in seconds where no ``timeout`` is given; None waits forever."""
        return self._max_acquire_time

    @property
    def ttl(self) -> float | None:
        """The longest hold in seconds; None is no limit."""
        return self._ttl

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers, narrow to wide, as they were given."""
        return tuple(self._tiers.values())

    @property
    def cancel_task_after_ttl(self) -> bool:
        """Whether the task that took slots is cancelled when their ttl ends."""
        return bool(self._options["cancel_task_after_ttl"])

    @property
    def cancel_task_on_loss(self) -> bool:
        """Whether the task whose slots were lost by silence is cancelled."""
        return bool(self._options["cancel_task_on_loss"])

    @property
    def heartbeat_max_interval(self) -> float | None:
        """How long a process may be silent, in seconds; None for the driver's default."""
        return check_seconds("heartbeat_max_interval", self._options["heartbeat_max_interval"])

    @property
    def ping_interval(self) -> float | None:
        """How often a heartbeat is sent, in seconds; None for the driver's default."""
        return check_seconds("ping_interval", self._options["ping_interval"])

    @property
    def max_idle_keys(self) -> int:
        """How many idle keys of each tier are kept."""
        return self._max_idle_keys

    # ------------------------------------------------------------- acquiring

    def at(self, **keys: str) -> PathLimit:
        """Return the path of these keys as a `Limit`, for what takes any limit.

        Its statistics are those of the tier with the fewest free slots.
        """
        return PathLimit(self, self._path(keys))

    async def acquire(
        self,
        slots: Slots = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        **keys: str,
    ) -> AcquisitionResult:
        """Wait for slots of every tier.

        A wait that is cancelled or times out takes nothing.

        Args:
            slots: how many of every tier; or a dict of tier names to how many, 1 of those
                left out. All are granted together or none is.
            timeout: the longest wait in seconds, for all tiers together; 0 does not
                wait, None waits forever. Left out, it is ``max_acquire_time``.
            label: what the slots are for; ``holders()`` and ``waiters()`` show it.
            keys: the key of every keyed tier, by the tier's name.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first; it tells which tier was full.
            SemaphoreClosed: closed before or during the wait.
            TypeError: a key is missing, unknown or not a str.
            ValueError: ``slots`` is more than a tier has, now or after a `resize`.
        """
        return await self._acquire(self._path(keys), slots, timeout, label)

    def acquire_sync(
        self,
        slots: Slots = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        **keys: str,
    ) -> AcquisitionResult:
        """Like `acquire`, blocking this thread."""
        return self._acquire_sync(self._path(keys), slots, timeout, label)

    async def try_acquire(
        self, slots: Slots = 1, *, label: str | None = None, **keys: str
    ) -> AcquisitionResult | None:
        """Take a slot of every tier if that needs no wait; else return None."""
        return await self._try_acquire(self._path(keys), slots, label)

    def try_acquire_sync(
        self, slots: Slots = 1, *, label: str | None = None, **keys: str
    ) -> AcquisitionResult | None:
        """Like `try_acquire`; it doesn't wait for others, so it may be called anywhere."""
        return self._try_acquire_sync(self._path(keys), slots, label)

    def cm(
        self,
        slots: Slots = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        **keys: str,
    ) -> AcquisitionContext:
        """Return a context manager for one acquisition, good for one ``with`` block.

        The arguments, and what entering it raises, are those of `acquire`.
        """
        return self._cm(self._path(keys), slots, timeout, label)

    async def _acquire(
        self, path: Path, slots: Slots, timeout: float | Unset | None, label: str | None
    ) -> AcquisitionResult:
        needs, seconds, label = self._needs(slots), self._timeout(timeout), check_label(label)
        try:
            return await self._backend.acquire(path, timeout=seconds, label=label, needs=needs)
        except SemaphoreClosed as closed:
            self._reraise(closed)

    def _acquire_sync(
        self, path: Path, slots: Slots, timeout: float | Unset | None, label: str | None
    ) -> AcquisitionResult:
        refuse_to_block_a_loop("acquire_sync()")
        needs, seconds, label = self._needs(slots), self._timeout(timeout), check_label(label)
        try:
            return self._backend.acquire_sync(path, timeout=seconds, label=label, needs=needs)
        except SemaphoreClosed as closed:
            self._reraise(closed)

    async def _try_acquire(
        self, path: Path, slots: Slots, label: str | None
    ) -> AcquisitionResult | None:
        needs = self._needs(slots)
        try:
            return await self._backend.try_acquire(path, check_label(label), needs)
        except SemaphoreClosed as closed:
            self._reraise(closed)

    def _try_acquire_sync(
        self, path: Path, slots: Slots, label: str | None
    ) -> AcquisitionResult | None:
        needs = self._needs(slots)
        try:
            return self._backend.try_acquire_sync(path, check_label(label), needs)
        except SemaphoreClosed as closed:
            self._reraise(closed)

    def _cm(
        self, path: Path, slots: Slots, timeout: float | Unset | None, label: str | None
    ) -> AcquisitionContext:
        if label is not None:
            check_label(label)
        seconds = self._max_acquire_time if timeout is UNSET else self._timeout(timeout)
        if slots is _ONE:
            return self._context(path, seconds, label, None)
        return self._context(path, seconds, label, self._needs(slots))

    def _slow_context(
        self, path: Path, timeout: float | None, label: str | None, needs: Needs | None
    ) -> AcquisitionContext:
        slots = 1 if needs is None else dict(zip(self._tiers, needs, strict=True))
        return AcquiringContext(PathLimit(self, path), slots, timeout, label)

    def _needs(self, slots: Slots) -> Needs | None:
        """What ``slots`` takes of each tier; None for one slot of each."""
        if slots is _ONE:
            return None
        if isinstance(slots, Mapping):
            for name, count in slots.items():
                self._check_tier(name, keyed=False)
                check_count(f"the slots of tier {name!r}", count)
            needs = tuple(slots.get(name, 1) for name in self._tiers)
        else:
            needs = (check_count("slots", slots),) * len(self._tiers)
        return None if max(needs) == 1 else needs

    def _timeout(self, timeout: float | Unset | None) -> float | None:
        return check_timeout(timeout, self._max_acquire_time)

    def _reraise(self, closed: SemaphoreClosed) -> NoReturn:
        if type(closed) is not SemaphoreClosed or self._closed_error is SemaphoreClosed:
            raise closed
        raise self._closed_error(str(closed), reason=closed.reason) from closed

    def _path(self, keys: dict[str, str]) -> Path:
        if keys.keys() != self._keyed:
            missing, unknown = self._keyed - keys.keys(), keys.keys() - self._keyed
            wrong = [f"missing: {', '.join(sorted(missing))}"] if missing else []
            wrong += [f"unknown: {', '.join(sorted(unknown))}"] if unknown else []
            known = ", ".join(name for name in self._tiers if name in self._keyed) or "no"
            raise TypeError(f"these tiers take {known} key(s); {'; '.join(wrong)}")
        for name, key in keys.items():
            _check_key(name, key)
        return tuple(keys.get(name) for name in self._tiers)

    def _keys_of(self, path: Path) -> dict[str, str]:
        pairs = zip(self._tiers, path, strict=True)
        return {name: key for name, key in pairs if key is not None}

    def _title_of(self, path: Path) -> str:
        """How messages name a path."""
        pairs = zip(self._tiers, path, strict=True)
        tiers = ", ".join(name if key is None else f"{name} {key!r}" for name, key in pairs)
        return f"the tiers {tiers}" + ("" if self._name is None else f" of {self._name!r}")

    # ------------------------------------------------------------- releasing

    async def release(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Release a slot of every tier; False if the acquisition had ended before."""
        freed = await self._backend.release(acquisition_id_of(acquisition_id))
        self._bound_idle()
        return freed

    def release_sync(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Like `release`; it does not wait for others, so it may be called anywhere."""
        freed = self._backend.release_sync(acquisition_id_of(acquisition_id))
        self._bound_idle()
        return freed

    async def _release_on_exit(self, acquired: AcquisitionResult) -> None:
        """`release` for a block that is left; see `Semaphore._release_on_exit`."""
        await self._backend.release_on_exit(acquired.acquisition_id)
        self._bound_idle()

    def _release_on_exit_sync(self, acquired: AcquisitionResult) -> None:
        self._backend.release_on_exit_sync(acquired.acquisition_id)
        self._bound_idle()

    def _bound_idle(self) -> None:
        """Where the backend does not do it by itself, forget keys beyond the bound."""
        if not isinstance(self._backend, MemoryPaths):
            for name in self._keyed:
                self._backend.forget_idle_sync(name, float("inf"), self._max_idle_keys)

    # ----------------------------------------------- inspecting, controlling

    async def stats(self) -> dict[str, TierStats]:
        """How full the tiers are, by name, narrow to wide."""
        return await self._backend.stats()

    def stats_sync(self) -> dict[str, TierStats]:
        return self._backend.stats_sync()

    async def holders(self) -> list[Claimant]:
        """Who holds slots now, the longest first."""
        return await self._backend.holders()

    def holders_sync(self) -> list[Claimant]:
        """Like `holders`."""
        return self._backend.holders_sync()

    async def waiters(self) -> list[Claimant]:
        """Who waits now, in the order of arrival."""
        return await self._backend.waiters()

    def waiters_sync(self) -> list[Claimant]:
        """Like `waiters`."""
        return self._backend.waiters_sync()

    async def kick(self, acquisition_id: str | AcquisitionResult) -> bool:
        """End somebody's acquisition, of all its tiers; False if it had ended.

        The next waiters get its slots at once, and its holder's ``lost`` is set. A
        request that still waits is left alone.
        """
        return await self._backend.kick(acquisition_id_of(acquisition_id))

    def kick_sync(self, acquisition_id: str | AcquisitionResult) -> bool:
        """Like `kick`."""
        return self._backend.kick_sync(acquisition_id_of(acquisition_id))

    async def busiest(self, tier: str, n: int = 10) -> list[tuple[str, KeyStats]]:
        """The keys of a tier with the most slots held, then the most waiting."""
        self._check_tier(tier, keyed=True)
        return _busiest(await self.stats(), tier, n)

    def busiest_sync(self, tier: str, n: int = 10) -> list[tuple[str, KeyStats]]:
        self._check_tier(tier, keyed=True)
        return _busiest(self.stats_sync(), tier, n)

    async def resize(self, tier: str, value: int, key: str | None = None) -> None:
        """Change the value of a tier, or of one key of it, while it is in use.

        After a shrink nothing is granted there until what is held fits.
        """
        self._check_resize(tier, value, key)
        await self._backend.resize(tier, value, key)

    def resize_sync(self, tier: str, value: int, key: str | None = None) -> None:
        self._check_resize(tier, value, key)
        self._backend.resize_sync(tier, value, key)

    async def forget_idle(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        """Forget keys that nobody holds or waits for; how many were.

        Those idle for ``older_than`` seconds, and the longest idle beyond ``keep_at_most``.
        """
        self._check_tier(tier, keyed=True)
        return await self._backend.forget_idle(tier, older_than, keep_at_most)

    def forget_idle_sync(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        self._check_tier(tier, keyed=True)
        return self._backend.forget_idle_sync(tier, older_than, keep_at_most)

    async def close(self) -> None:
        """Close every Tiers object of the name that this process has made so far.

        Their waiters and newcomers fail with SemaphoreClosed; holders may still release.
        One made afterwards works once the earlier holders of this process have left.
        Other processes don't notice.
        """
        await self._backend.close()

    def close_sync(self) -> None:
        """Like `close`."""
        self._backend.close_sync()

    async def close_everywhere(self, reason: str | None = None) -> None:
        """Close the name for everybody who shares it, until `reopen`.

        Waiters and newcomers fail with SemaphoreClosed, which carries ``reason``, in
        objects made later too; holders may still release.
        """
        await self._backend.close_everywhere(check_reason(reason))

    def close_everywhere_sync(self, reason: str | None = None) -> None:
        """Like `close_everywhere`."""
        self._backend.close_everywhere_sync(check_reason(reason))

    async def reopen(self) -> None:
        """Undo `close_everywhere`; what this process closed by `close` stays closed."""
        await self._backend.reopen()

    def reopen_sync(self) -> None:
        """Like `reopen`."""
        self._backend.reopen_sync()

    async def __aenter__(self) -> Tiers:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _check_resize(self, tier: str, value: int, key: str | None) -> None:
        self._check_tier(tier, keyed=key is not None)
        check_limit("value", value)
        if key is not None:
            _check_key(tier, key)
        elif callable(self._tiers[tier].value):
            raise TypeError(f"each key of tier {tier!r} has its own value: resize a key")

    def _check_tier(self, tier: str, *, keyed: bool) -> None:
        if tier not in self._tiers:
            raise ValueError(f"there is no tier {tier!r}; there are: {', '.join(self._tiers)}")
        if keyed and tier not in self._keyed:
            raise TypeError(f"tier {tier!r} has no keys")

    def __repr__(self) -> str:
        tiers = ", ".join(tier.spec.words for tier in self._tiers.values())
        return f"<Tiers {tiers}{'' if self._name is None else f' of {self._name!r}'}>"


def _check_key(tier: str, key: object) -> None:
    if not isinstance(key, str):
        raise TypeError(f"the key of tier {tier!r} must be a str, not {redacted_repr(key)}")
    check_text(f"the key of tier {tier!r}", key)


def _busiest(stats: dict[str, TierStats], tier: str, n: int) -> list[tuple[str, KeyStats]]:
    keys: list[tuple[str, KeyStats]] = [*stats[tier].keys.items()]
    keys.sort(key=lambda item: (-item[1].active, -item[1].waiting, item[0]))
    return keys[:n]
