"""RateLimit: a rate alone, as a Limit.

It is a path through one tier; who gets what, and when, is decided there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from slotwise._core.adaptive import Outcome, check_outcome
from slotwise._core.arguments import (
    UNSET,
    OnUnreachable,
    Shed,
    Unset,
    check_count,
    check_label,
    check_timeout,
)
from slotwise._core.copying import Recipe
from slotwise._core.limit import AcquisitionContext, Limit
from slotwise._core.paths import TierStats
from slotwise._core.priorities import check_priority
from slotwise._core.rates import RATE_TIER, Rate
from slotwise._core.redaction import kind_of
from slotwise._core.results import AcquisitionResult
from slotwise._core.shared_name import SharedName
from slotwise._core.twins import Wider, twin
from slotwise.tiers._explain import explain
from slotwise.tiers._options import OptionAttributes
from slotwise.tiers._path_arguments import Resolved
from slotwise.tiers._tier import Tier
from slotwise.tiers._tiers import Tiers

if TYPE_CHECKING:
    from slotwise._core.explain import Explanation
    from slotwise.redis import RedisConfig

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_PATH = (None,)
_ONE = 1  # compared by identity, which tells it from True and 1.0
_NO_PRIORITY = 0


class RateLimit(OptionAttributes, SharedName, Limit):
    """A number of units per time, shared by all who ask::

        crm = RateLimit("crm", Rate(10, per=1))
        await crm.acquire()
        async with crm.cm(cost=3):
            ...

    What is taken comes back by time, so there is nothing to release, and a block only waits at
    its beginning. Requests are granted in the order of their arrival: one that costs more than
    is left is not passed by cheaper ones.

    Args:
        name: the name that objects share; None makes a private rate.
        rate: how many units per time.
        url: where it is kept, as for `Tiers`.
        max_acquire_time: the longest wait in seconds; None waits forever.
        max_waiting: how many may wait; beyond it, newcomers that would have to wait get a
            LimitFull. None lets any number wait.
        shed: "deadline" also refuses callers whose timeout is shorter than the expected wait
            (see `estimate`); None, the default, refuses nobody for that.
        heartbeat_max_interval: how long the process of a waiter may be silent before it counts
            as dead (Redis).
        ping_interval: how often it sends a heartbeat (Redis).
        on_unreachable: what is done while a server is away: "raise" raises a BackendError,
            "open" grants everything, "local" has a rate of this process (Redis).
        local_value: that rate, for each process.
        unreachable_after: for how many seconds a server may be silent before it counts as
            away. It does at once when connections are refused or cut.
    """

    __slots__ = ("_backend", "_local_value", "_options", "_rate", "_tiers")

    _path = _PATH

    def __init__(
        self,
        name: str | None,
        rate: Rate,
        *,
        url: str | RedisConfig | None = None,
        max_acquire_time: float | None = None,
        max_waiting: int | None = None,
        shed: Shed | None = None,
        heartbeat_max_interval: float | None = None,
        ping_interval: float | None = None,
        on_unreachable: OnUnreachable = "raise",
        local_value: Rate | None = None,
        unreachable_after: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(rate, Rate):
            raise TypeError(f"rate must be a Rate, not {kind_of(rate)}")
        self._rate = rate
        self._tiers = Tiers(
            Tier(RATE_TIER, rate=rate),
            name=name,
            url=url,
            max_acquire_time=max_acquire_time,
            max_waiting=max_waiting,
            shed=shed,
            heartbeat_max_interval=heartbeat_max_interval,
            ping_interval=ping_interval,
            on_unreachable=on_unreachable,
            local_value=None if local_value is None else {RATE_TIER: local_value},
            unreachable_after=unreachable_after,
        )
        self._options = self._tiers._options
        self._local_value = local_value
        self._backend = self._tiers._backend

    @property
    def rate(self) -> Rate:
        """As it was given; `resize` may have changed it since."""
        return self._rate

    @property
    def local_value(self) -> Rate | None:
        """The rate of each process while a server is away, with "local"."""
        return self._local_value

    def __repr__(self) -> str:
        return f"<RateLimit {self.name!r}: {self._rate}>"

    def _recipe(self) -> Recipe | None:
        if self._tiers._recipe() is None:
            return None
        options = {
            "url": self.url,
            "max_acquire_time": self.max_acquire_time,
            "max_waiting": self.max_waiting,
            "shed": self.shed,
            "heartbeat_max_interval": self.heartbeat_max_interval,
            "ping_interval": self.ping_interval,
            "on_unreachable": self.on_unreachable,
            "local_value": self.local_value,
            "unreachable_after": self.unreachable_after,
        }
        return Recipe(RateLimit, (self.name, self._rate), options)

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        cost: int | None = None,
        priority: float = 0,
    ) -> AcquisitionResult:
        """Wait until that much is left; ``cost`` and ``slots`` mean the same.

        ``priority`` is a head start in seconds, as for `Tiers.acquire`.
        """
        needs = self._needs(slots, cost, priority)
        if label is not None:
            label = check_label(label)
        default = self._options.max_acquire_time
        seconds = default if timeout is UNSET else check_timeout(timeout, None)
        return await self._backend.begin(_PATH, seconds, label, needs)

    acquire_sync = Wider(acquire, waits=True).twin

    async def try_acquire(
        self,
        slots: int = 1,
        *,
        label: str | None = None,
        cost: int | None = None,
        priority: float = 0,
    ) -> AcquisitionResult | None:
        return await self._tiers._try(_PATH, self._needs(slots, cost, priority), label)

    try_acquire_sync = Wider(try_acquire).twin

    def cm(
        self,
        slots: int = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        cost: int | None = None,
        priority: float = 0,
    ) -> AcquisitionContext:
        needs = self._needs(slots, cost, priority)
        seconds = check_timeout(timeout, self._options.max_acquire_time)
        return self._backend.cm(_PATH, seconds, check_label(label), needs)

    hold = cm

    def _needs(self, slots: object, cost: object, priority: float = 0) -> Resolved:
        if cost is None:
            if slots is _ONE and priority is _NO_PRIORITY:
                return self._tiers._arguments.one_of_each
        elif slots != 1:
            raise TypeError("cost and slots mean the same: only one of them can be given")
        needs = Resolved((check_count("cost", slots if cost is None else cost),))
        if priority is not _NO_PRIORITY:
            needs.head_start = check_priority(priority)
        return needs

    # ------------------------------------------------------------- releasing

    async def release(
        self,
        acquisition_id: str | AcquisitionResult,  # noqa: ARG002
        *,
        outcome: Outcome | None = None,
    ) -> bool:
        """Return False: nothing is held."""
        if outcome is not None:
            check_outcome(outcome)
        return False

    async def _release_on_exit(self, acquired: AcquisitionResult) -> None: ...

    # ----------------------------------------------- inspecting, controlling

    async def estimate(self, slots: int = 1, *, cost: int | None = None) -> float | None:
        """In how many seconds a newcomer would be served; 0.0 if it would be at once."""
        return await self._backend.estimate(_PATH, self._needs(slots, cost))

    estimate_sync = Wider(estimate).twin

    async def explain(
        self, acquisition_or_id: str | AcquisitionResult | None = None
    ) -> Explanation:
        """Explain why an acquisition of any process waits; None: a newcomer here."""
        return await explain(self._tiers, _PATH, acquisition_or_id)

    async def level(self) -> TierStats:
        """What is left, and in how many seconds it is full."""
        return (await self._tiers.stats())[RATE_TIER]

    level_sync = twin(level)

    async def settle(self, acquisition_id: str | AcquisitionResult, cost: int) -> None:
        """State what an acquisition has really cost; see `Tiers.settle`."""
        await self._tiers.settle(acquisition_id, **{RATE_TIER: cost})

    settle_sync = twin(settle)

    async def refill(self) -> None:
        """Forgive debt, and fill it."""
        await self._tiers.refill(RATE_TIER)

    refill_sync = twin(refill)

    async def resize(self, rate: Rate) -> None:
        """Change the rate; what is left stays, cut to the new burst."""
        await self._tiers.resize(RATE_TIER, rate)

    resize_sync = twin(resize)

    async def pause(self, seconds: float) -> None:
        await self._tiers.pause(seconds)
