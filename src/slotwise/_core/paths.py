"""Describe tiers in plain values: TierSpec, Path, PathStats.

Also the words for tiers in messages. What a driver of tiers can do is in `path_backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from slotwise._core.adaptive import Adaptive
from slotwise._core.arguments import check_limit
from slotwise._core.closing import Closure
from slotwise._core.messages import display
from slotwise._core.priorities import check_weight
from slotwise._core.rates import EXACT, RATE_TIER, Rate
from slotwise._core.redaction import kind_of
from slotwise.errors import ValueConflict

if TYPE_CHECKING:
    from slotwise._core.stats import SemaphoreStats

# One entry for each tier, narrow to wide: its key, or None for a tier without keys.
Path: TypeAlias = tuple[str | None, ...]

# What a request needs of each tier, narrow to wide.
Needs: TypeAlias = tuple[int, ...]


class RankedNeeds(tuple[int, ...]):
    """What a request needs of each tier, if it has a head start or replaces holders."""

    head_start: int = 0  # in microseconds
    replaces: bool = False  # only of a semaphore


def head_start_of(needs: Needs | None) -> int:
    return needs.head_start if isinstance(needs, RankedNeeds) else 0


@dataclass(frozen=True, slots=True)
class TierSpec:
    """What a backend needs to know about a tier; a value of 0 means unlimited.

    With ``by_key`` it has no value of its own, and each key has what `ask` returns.
    """

    name: str
    value: int | Rate
    keyed: bool
    by_key: bool = False
    key_of: str | None = None  # the tier whose key it uses, if that is another one
    # What it is for fair order: "by" if its keys take turns, "cost" if what is taken of it
    # counts, "by cost" for both.
    fair: str = ""
    value_of: Callable[[str], int] | None = field(default=None, compare=False, repr=False)
    weight_of: Callable[[str], float] | None = field(default=None, compare=False, repr=False)
    # How its value adapts, and the part of that on which all objects must agree; then ``value`` is
    # where it starts.
    adaptive: Adaptive | None = field(default=None, compare=False, repr=False)
    rules: str = ""
    # How many may wait for one key of it; each object of a name has its own.
    max_waiting: int | None = field(default=None, compare=False, repr=False)

    def ask(self, key: str) -> int:
        """Return the value of a new key, from the user's function.

        Raises what that raises, or a TypeError or ValueError if it returns nonsense.
        """
        assert self.value_of is not None
        return check_limit(f"the value of tier {self.name!r} for {key!r}", self.value_of(key))

    def ask_weight(self, key: str) -> float:
        """Return the weight of a key, from the user's function; raises as `ask` does."""
        assert self.weight_of is not None
        return check_weight(f"the weight of {self.name} {key!r}", self.weight_of(key))

    def node(self, key: object) -> str:
        """How messages name one key of it."""
        return f"{self.name} {key!r}" if self.keyed else self.name

    @property
    def words(self) -> str:
        """How messages name it."""
        roles = {"by": " in fair order", "cost": " as fair_cost"}
        fair = "".join(roles[role] for role in self.fair.split())
        each = " each" if self.keyed else ""
        if self.key_of is not None:
            each = f" for each {self.key_of}"
        if self.by_key:
            return f"{self.name} by key{'' if self.key_of is None else each}{fair}"
        if self.adaptive is not None:
            return f"{self.name} adaptive ({self.adaptive.rules}){each}{fair}"
        return f"{self.name}={self.value}{each}{fair}"

    @property
    def slots(self) -> int:
        """The value of a tier without a rate."""
        assert isinstance(self.value, int)
        return self.value


def options_of(specs: Sequence[TierSpec]) -> Adaptive | None:
    """Return how the outcome of an acquisition counts; None if no tier is adaptive.

    An exception that is a drop for one of them is one for all: it has one outcome.
    """
    adaptive = [spec.adaptive for spec in specs if spec.adaptive is not None]
    if len(adaptive) < 2:
        return adaptive[0] if adaptive else None
    drop_on = dict.fromkeys(error for options in adaptive for error in options.drop_on)
    pauses = any(options.pause_on_retry_after for options in adaptive)
    first = adaptive[0]
    return Adaptive(
        *(first.start, first.min, first.max), drop_on=(*drop_on,), pause_on_retry_after=pauses
    )


def pausing(specs: Sequence[TierSpec], path: Path) -> list[tuple[int, str | None]]:
    """Return which tiers of a path are paused after a drop with a retry_after, with their keys."""
    return [
        (index, key)
        for index, (spec, key) in enumerate(zip(specs, path, strict=True))
        if spec.adaptive is not None and spec.adaptive.pause_on_retry_after
    ]


def fair_tiers(specs: Sequence[TierSpec]) -> tuple[int | None, int | None]:
    """Which tier's keys take turns, and which rate counts; None for none."""
    by = [index for index, spec in enumerate(specs) if "by" in spec.fair.split()]
    cost = [index for index, spec in enumerate(specs) if "cost" in spec.fair.split()]
    return by[0] if by else None, cost[0] if cost else None


def weight_for(specs: Sequence[TierSpec], path: Sequence[object]) -> float:
    """The weight of the key of a path, asked of the user's function if there is one."""
    for spec, key in zip(specs, path, strict=True):
        if spec.weight_of is not None:
            return spec.ask_weight(str(key))
    return 1.0


def check_costs(specs: Sequence[TierSpec], costs: Mapping[str, int], title: str) -> None:
    """Raise unless these are names of rates, each with a cost that can be settled."""
    if not costs:
        raise TypeError("settle() takes the actual costs, by the names of their tiers")
    rates = {spec.name: spec.value for spec in specs if isinstance(spec.value, Rate)}
    for name, cost in costs.items():
        if name not in rates:
            raise TypeError(f"{name!r} is not a rate of {title}")
        if isinstance(cost, bool) or not isinstance(cost, int):
            raise TypeError(f"the cost of {name!r} must be an int, not {kind_of(cost)}")
        if cost < 0:
            raise ValueError(f"the cost of {name!r} must be at least 0, not {cost}")
        if cost * rates[name].unit >= EXACT:
            raise ValueError(f"the cost of {name!r} is too large to be counted: {cost}")


def specs_in_use(specs: Sequence[TierSpec], values: Iterable[int | Rate | None]) -> list[TierSpec]:
    """Return what was declared with the values of the tiers now, which may have been resized."""
    pairs = zip(specs, values, strict=True)
    return [replace(spec, value=value or 0) for spec, value in pairs]


def tiers_conflict(
    name: str | None, used: Sequence[TierSpec], own: Sequence[TierSpec]
) -> ValueConflict:
    """Return the error of an object with other tiers than those in use; it names the difference."""
    words = [
        [str(specs[0].value)] if is_rate_limit(specs) else [spec.words for spec in specs]
        for specs in (used, own)
    ]
    remedy = ""
    if [spec.name for spec in used] == [spec.name for spec in own] and words[0] != words[1]:
        differing = [pair for pair in zip(*words, strict=True) if pair[0] != pair[1]]
        words = [*map(list, zip(*differing, strict=True))]
        if all(map(_differ_in_value, used, own)):
            what = "rate" if is_rate_limit(used) else "value of a tier"
            remedy = f"; resize() changes the {what} in use"
    in_use, given = (", ".join(each) for each in words)
    # Don't name the tiers twice, first all of them and then those that differ.
    subject = subject_of(used, name) if is_rate_limit(used) else f"the tiers of {name!r} are"
    return ValueConflict(f"{subject} in use as {in_use}, not {given}{remedy}")


def _differ_in_value(used: TierSpec, own: TierSpec) -> bool:
    """Whether two tiers are the same except for their values, which `resize` can change."""
    same_kind = isinstance(used.value, Rate) == isinstance(own.value, Rate)
    return same_kind and replace(used, value=0) == replace(own, value=0)


def most_of(value: int | Rate | None) -> int:
    """A value as statistics show it: 0 for unlimited, the burst of a rate."""
    return value.burst if isinstance(value, Rate) else value or 0


def slots_needed(specs: Sequence[TierSpec], needs: Needs | None) -> int:
    """How many slots of the widest tier are needed; 1 for rates alone."""
    if needs is None:
        return 1
    pairs = zip(specs, needs, strict=True)
    return [1, *(need for spec, need in pairs if isinstance(spec.value, int))][-1]


def keys_by_name(specs: Sequence[TierSpec], path: Sequence[object]) -> dict[str, str]:
    """The keys of a path, by the names of their tiers."""
    return {spec.name: str(key) for spec, key in zip(specs, path, strict=True) if spec.keyed}


def needs_by_name(specs: Sequence[TierSpec], needs: Needs | None) -> dict[str, int]:
    """What is needed of each tier, by its name; nothing for one slot of each, or a semaphore."""
    if needs is None or is_semaphore(specs):
        return {}
    return {spec.name: need for spec, need in zip(specs, needs, strict=True)}


@dataclass(frozen=True, slots=True)
class KeyStats:
    """How full one key of a keyed tier is; ``value`` 0 means unlimited.

    Of a ``rate``, ``value`` is its burst, ``level`` what is left, negative while there is debt, and
    ``full_in`` in how many seconds it is full if nobody takes anything. ``paused_for`` is in how
    many seconds a pause of the key, or of its tier, ends. ``frozen`` says whether an adaptive value
    is kept where it is.
    """

    active: int
    waiting: int
    value: int
    level: float | None = field(default=None, repr=False)
    full_in: float | None = field(default=None, repr=False)
    rate: Rate | None = field(default=None, repr=False)
    paused_for: float = field(default=0.0, repr=False, compare=False, kw_only=True)
    frozen: bool = field(default=False, repr=False, compare=False, kw_only=True)


# The only tier of a semaphore, which is a path with one node. No `Tier` can be called like that.
SEMAPHORE_TIER = ""
SEMAPHORE_PATH: Path = (None,)


@lru_cache(maxsize=256)  # names come and go by the hundred thousand, with few values
def semaphore_spec(value: int | Adaptive) -> TierSpec:
    if isinstance(value, Adaptive):
        rules = value.written
        return TierSpec(SEMAPHORE_TIER, value.start, keyed=False, adaptive=value, rules=rules)
    return TierSpec(SEMAPHORE_TIER, value, keyed=False)


def is_semaphore(tiers: Sequence[TierSpec]) -> bool:
    return bool(tiers) and tiers[0].name == SEMAPHORE_TIER


def is_rate_limit(tiers: Sequence[TierSpec]) -> bool:
    """Whether these are the tiers of a `RateLimit`: a single one, which nobody has named."""
    first = tiers[0]
    return len(tiers) == 1 and first.name == RATE_TIER and isinstance(first.value, Rate)


def title_of(tiers: Sequence[TierSpec], name: str | None) -> str:
    """Return the name of tiers in messages, or of a semaphore or a `RateLimit`."""
    if is_semaphore(tiers):
        return display(name)
    if is_rate_limit(tiers):
        return "a private rate" if name is None else f"the rate {display(name)}"
    names = ", ".join(tier.name for tier in tiers)
    return f"the tiers {names}" + ("" if name is None else f" of {display(name)}")


def subject_of(tiers: Sequence[TierSpec], name: str | None) -> str:
    """Return `title_of` followed by its verb."""
    return f"{title_of(tiers, name)} {'is' if _is_single(tiers) else 'are'}"


def _is_single(tiers: Sequence[TierSpec]) -> bool:
    """Whether messages name the limit, and not its tier."""
    return is_semaphore(tiers) or is_rate_limit(tiers)


def part_of(tiers: Sequence[TierSpec], name: str | None, index: int, key: object) -> str:
    """Return the name of one key of a tier in messages."""
    title = title_of(tiers, name)
    return title if _is_single(tiers) else f"{tiers[index].node(key)} of {title}"


def blame(tiers: Sequence[TierSpec], index: int, key: object, why: str) -> str:
    """Return which tier has no room, and why."""
    return why if _is_single(tiers) else f"{tiers[index].node(key)}: {why}"


@dataclass(frozen=True, slots=True)
class TierStats:
    """How full a tier is.

    ``waiting`` counts the requests that wait and whose path goes through the
    tier, whichever tier they wait for. ``value`` is that of the tier, or of each
    of its keys unless it was changed for one; 0 means unlimited, or that each key has its
    own. ``keys`` has the keys of a keyed tier that are held, waited for or not forgotten yet.
    Of a rate, ``rate`` is that of the tier, or of each of its keys like ``value``; of one without
    keys, ``level`` and ``full_in`` are those of `KeyStats`.
    ``paused_for`` is in how many seconds a pause of the tier ends. ``frozen`` says whether its
    adaptive value is kept where it is, and that of keys to come. ``scope`` is who shares it:
    memory, process or redis; open or local while a server is away.
    """

    active: int
    waiting: int
    value: int
    keys: Mapping[str, KeyStats] = field(default_factory=dict)
    level: float | None = field(default=None, repr=False)
    full_in: float | None = field(default=None, repr=False)
    rate: Rate | None = field(default=None, repr=False)
    paused_for: float = field(default=0.0, repr=False, compare=False, kw_only=True)
    frozen: bool = field(default=False, repr=False, compare=False, kw_only=True)
    scope: str = field(default="memory", repr=False, compare=False, kw_only=True)


class NodeStats(NamedTuple):
    """How full one tier of a path is; ``value`` 0 means unlimited.

    ``kept`` slots are free, but not for newcomers: an older request waits for them.
    ``paused_for`` is in how many seconds a pause ends.
    """

    active: int
    waiting: int
    value: int
    kept: int = 0
    paused_for: float = 0.0


@dataclass(frozen=True, slots=True)
class PathStats:
    """How full the tiers of one path are, narrow to wide, and whether they are closed."""

    nodes: tuple[NodeStats, ...]
    closed: bool = False
    closure: Closure | None = None
    scope: str = "memory"  # unless the backend has another one
    frozen: bool = False  # whether the adaptive value of a semaphore is

    @property
    def locked(self) -> bool:
        """Whether a newcomer would have to wait, or would be refused."""
        if self.scope == "open":
            return self.closed
        full = any(node.value and node.active + node.kept >= node.value for node in self.nodes)
        return full or self.closed or self.closure is not None or self.paused_for > 0

    @property
    def paused_for(self) -> float:
        """In how many seconds the last pause on the path ends."""
        return max((node.paused_for for node in self.nodes), default=0.0)

    def tightest(self) -> SemaphoreStats:
        """Return the statistics of the tier with the fewest free slots, or of the widest one."""
        from slotwise._core.stats import SemaphoreStats  # not needed to acquire

        limited = [node for node in self.nodes if node.value]
        node = min(limited, key=lambda node: node.value - node.active, default=self.nodes[-1])
        reason = None if self.closure is None else self.closure.reason
        return SemaphoreStats(
            *(node.active, node.value, node.waiting, self.closure is not None, reason),
            scope=self.scope,
            paused_for=self.paused_for,
            frozen=self.frozen,
        )


def slot_values(tiers: Sequence[TierSpec]) -> dict[str, int]:
    """What the tiers that have slots were made with, by name; 0 means unlimited, or unknown."""
    return {
        tier.name: 0 if tier.by_key else tier.value for tier in tiers if isinstance(tier.value, int)
    }
