"""Rate: a number of units per time, counted in exact integers.

What is left of a rate, and who waits for it, is in `slotwise._ledger.rate_nodes`; on a Redis server
the scripts count in the same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from math import gcd
from typing import ParamSpec

from slotwise._core.arguments import check_count, check_required_seconds
from slotwise._core.redaction import redacted_repr

# The only tier of a `RateLimit`, so that its settle() takes cost=.
RATE_TIER = "cost"

# What is counted must be less than this: Lua counts in doubles.
EXACT = 2**53


P = ParamSpec("P")


def _show_the_call(init: Callable[P, None]) -> Callable[P, None]:
    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        # The first argument is the rate itself.
        if len(args) > 2 or "per" not in kwargs or (len(args) < 2 and "count" not in kwargs):
            raise TypeError(
                "a rate is a count and a time, which is named: Rate(600, per=60), or with burst=10"
                " too"
            )
        init(*args, **kwargs)

    return checked


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` units per ``per`` seconds, of which at most ``burst`` can be saved up.

    In any time t, at most ``count * t / per + burst`` units are granted. A cost above
    ``burst`` is never granted. By default ``burst`` is a tenth of ``count``, at least 1.

    Inside, what is left is counted in *parts*: a unit is ``unit`` of them, and ``gain`` come
    back in every microsecond, so that nothing is ever rounded.
    """

    count: int
    per: float = field(kw_only=True)
    burst: int = field(kw_only=True, default=0)
    gain: int = field(init=False, repr=False, compare=False)
    unit: int = field(init=False, repr=False, compare=False)
    full: int = field(init=False, repr=False, compare=False)  # the parts of a full bucket

    @_show_the_call
    def __init__(self, count: int, *, per: float, burst: int | None = None) -> None:
        check_count("the count of a rate", count)
        seconds = check_required_seconds("the per of a rate", per)
        per_us = round(seconds * 1_000_000)
        if per_us < 1 or per_us / 1_000_000 != seconds:
            raise ValueError(
                f"the per of a rate must be whole microseconds, not {redacted_repr(per)}"
            )
        if burst is None:
            burst = max(count // 10, 1)
        check_count("the burst of a rate", burst)
        common = gcd(count, per_us)
        for name, value in (
            *(("count", count), ("per", per), ("burst", burst)),
            *(("gain", count // common), ("unit", per_us // common)),
            ("full", burst * (per_us // common)),
        ):
            object.__setattr__(self, name, value)
        if max(self.gain, self.full) >= EXACT:
            raise ValueError(
                f"{self} is too fine to be counted exactly: burst times per, in microseconds and"
                f" divided by what it has in common with count, must be below 2**53"
            )

    def __str__(self) -> str:
        return f"{self.count} per {self.per:g} s, burst {self.burst}"
