"""Adaptive: a value that finds itself between a minimum and a maximum, and how.

The options only. How a value moves is in `slotwise._ledger.adaptation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from slotwise._core.arguments import MOST_SLOTS, check_count, check_seconds
from slotwise._core.redaction import kind_of

Outcome = Literal["ok", "dropped", "ignored"]
"""How the work under a slot ended, as far as the limit is concerned."""

OUTCOMES = ("ok", "dropped", "ignored")


def check_outcome(given: object) -> Outcome:
    """Return an outcome."""
    for outcome in OUTCOMES:
        if given == outcome:
            return outcome  # type: ignore[return-value]
    if not isinstance(given, str):
        raise TypeError(f"outcome must be a str, not {kind_of(given)}")
    raise ValueError(f"outcome must be 'ok', 'dropped' or 'ignored', not {given!r}")


@dataclass(frozen=True, slots=True)
class Latency:
    """For a service whose latency shows how busy it is: a service of your own.

    Compare what is finished per second at the current value with what is finished a little
    below it, and move to where more slots no longer pay. A look ends after ``window`` seconds
    and ``samples`` finished calls, whichever is later.
    """

    window: float = 1.0
    samples: int = 50

    def __post_init__(self) -> None:
        if check_seconds("window", self.window, most=3600) is None:
            raise TypeError("window must be a number of seconds, not None")
        check_count("samples", self.samples, most=1_000_000)

    def __str__(self) -> str:
        return f"latency, windows of {self.window:g} s and {self.samples} samples"


@dataclass(frozen=True, slots=True)
class Errors:
    """For a service of somebody else, whose latency says nothing: only refusals count.

    One slot more for every ``value`` successes in a row, three tenths fewer at a drop.
    """

    def __str__(self) -> str:
        return "errors"


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A value that starts at ``start`` and moves between ``min`` and ``max``.

    ``drop_on`` are the exceptions that count as "the service is overloaded" if they leave the
    block. Until the time that ``dropped(retry_after=)`` states, the value doesn't grow.

    Raises:
        ValueError: not 1 <= min <= start <= max.
        TypeError: not ints, not exception classes, or an unknown algorithm.
    """

    start: int
    min: int
    max: int
    algorithm: Latency | Errors = field(kw_only=True, default_factory=Latency)
    drop_on: tuple[type[BaseException], ...] = field(
        kw_only=True, default=(TimeoutError, ConnectionError)
    )

    def __post_init__(self) -> None:
        for name in ("start", "min", "max"):
            check_count(name, getattr(self, name), most=MOST_SLOTS)
        if not self.min <= self.start <= self.max:
            raise ValueError(
                f"min <= start <= max must hold, not min={self.min}, start={self.start},"
                f" max={self.max}"
            )
        if not isinstance(self.algorithm, Latency | Errors):
            raise TypeError(f"algorithm must be Latency() or Errors(), not {self.algorithm!r}")
        given: object = self.drop_on
        if not isinstance(given, tuple) or not all(
            isinstance(each, type) and issubclass(each, BaseException) for each in given
        ):
            raise TypeError("drop_on must be a tuple of exception classes")

    @property
    def rules(self) -> str:
        """What all users of a name must agree on; how it ended is each caller's own business."""
        return f"{self.min} to {self.max} from {self.start}, {self.algorithm}"

    def __str__(self) -> str:
        return f"adaptive, {self.min} to {self.max}"


@dataclass(frozen=True, slots=True)
class Change:
    """One move of an adaptive value: when (epoch seconds), from, to, and why."""

    at: float
    old: int
    new: int
    reason: str
