"""TiersOptions: what a Tiers object is made with, checked; some of it only goes together.

`Tiers` documents the arguments, `_fair` checks those of fair order, and `_backends` chooses the
driver by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from slotwise._core.rates import Rate
from slotwise._core.redaction import kind_of
from slotwise._core.unreachable import (
    UnreachableOptions,
    check_heartbeat,
    local_specs,
)
from slotwise.errors import SemaphoreClosed
from slotwise.tiers._tier import Tier

if TYPE_CHECKING:
    from slotwise.redis import RedisConfig

# The values of tiers while a server is away.
LocalValue: TypeAlias = int | Mapping[str, int | Rate]


class TiersOptions(NamedTuple):
    """The arguments of a Tiers object, apart from its tiers."""

    # Not a frozen dataclass: making one takes a tenth of the time of making the object.

    url: str | RedisConfig | None
    name: str | None
    max_acquire_time: float | None
    ttl: float | None
    cancel_task_after_ttl: bool
    heartbeat_max_interval: float | None
    ping_interval: float | None
    cancel_task_on_loss: bool
    max_idle_keys: int
    max_waiting: int | None
    shed: str | None
    unreachable: UnreachableOptions
    order: str
    fair_by: str | None
    weight: float | Callable[[str], float]
    fair_cost: str | None
    closed_error: Callable[..., SemaphoreClosed]

    def check_with(self, tiers: Sequence[Tier]) -> None:
        """Raise if these options don't go together, or not with ``tiers``."""
        check_heartbeat(self.heartbeat_max_interval, self.ping_interval)
        if self.unreachable.policy == "local":
            local_specs([tier.spec for tier in tiers], self.unreachable.local_value)

    def arguments(self) -> dict[str, Any]:
        """Return them as `Tiers` takes them."""
        given = self._asdict()
        policy, local_value, after = given.pop("unreachable")
        return given | {
            "on_unreachable": policy,
            "local_value": local_value,
            "unreachable_after": after,
        }


class OptionAttributes:
    """The arguments that `Tiers` and `RateLimit` both have, as attributes."""

    __slots__ = ()

    _options: TiersOptions

    @property
    def name(self) -> str | None:
        """The name that objects share, or None."""
        return self._options.name

    @property
    def url(self) -> str | RedisConfig | None:
        """Where it is kept."""
        return self._options.url

    @property
    def max_acquire_time(self) -> float | None:
        """The longest wait in seconds where no ``timeout`` is given; None waits forever."""
        return self._options.max_acquire_time

    @property
    def heartbeat_max_interval(self) -> float | None:
        """How long a process may be silent, in seconds; None for the driver's default."""
        return self._options.heartbeat_max_interval

    @property
    def ping_interval(self) -> float | None:
        """How often a heartbeat is sent, in seconds; None for the driver's default."""
        return self._options.ping_interval

    @property
    def max_waiting(self) -> int | None:
        """How many may wait before newcomers are refused; None for any number."""
        return self._options.max_waiting

    @property
    def shed(self) -> str | None:
        """Whether it also refuses callers whose timeout can't be met: "deadline" or None."""
        return self._options.shed

    @property
    def on_unreachable(self) -> str:
        """What is done while a server is away: "raise", "open" or "local"."""
        return self._options.unreachable.policy

    @property
    def unreachable_after(self) -> float:
        """For how many seconds a server may be silent before it counts as away."""
        return self._options.unreachable.after


def check_tiers(tiers: Sequence[object]) -> None:
    """Raise unless these are one or more tiers with different names."""
    if not tiers or not all(isinstance(tier, Tier) for tier in tiers):
        given = ", ".join(kind_of(each) for each in tiers) or "none"
        raise TypeError(f"Tiers takes one or more Tier objects, not {given}")
    names = [tier.name for tier in tiers if isinstance(tier, Tier)]
    if len({*names}) < len(names):
        raise ValueError(f"two tiers have the same name: {', '.join(names)}")
