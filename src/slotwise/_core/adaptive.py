"""Adaptive: the options of a value that adapts itself between a minimum and a maximum.

How a value moves is in `slotwise._ledger.adaptation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from slotwise._core.arguments import (
    MOST_SLOTS,
    check_count,
    check_flag,
    check_required_seconds,
    check_word,
)
from slotwise._core.redaction import kind_of

Outcome = Literal["ok", "dropped", "ignored"]
"""How the work under a slot ended, as far as the limit is concerned."""

OUTCOMES = ("ok", "dropped", "ignored")


def check_outcome(given: object) -> Outcome:
    """Return an outcome."""
    outcome: Outcome = check_word("outcome", given, OUTCOMES)
    return outcome


@dataclass(frozen=True, slots=True)
class Latency:
    """For a service whose latency shows how busy it is: a service of your own.

    Compare what is finished per second at the current value with what is finished a little
    below it, and move to where more slots no longer pay. A window ends after ``window`` seconds
    and ``samples`` finished calls, whichever is later.
    """

    window: float = 1.0
    samples: int = 50

    def __post_init__(self) -> None:
        check_required_seconds("window", self.window, most=3600)
        check_count("samples", self.samples, most=1_000_000)

    def __str__(self) -> str:
        return f"latency, windows of {self.window:g} s and {self.samples} samples"


@dataclass(frozen=True, slots=True)
class Errors:
    """For somebody else's service, whose latency says nothing: only refusals count.

    It adds a slot for every ``value`` successes in a row, and takes away three tenths at a drop.
    """

    def __str__(self) -> str:
        return "errors"


_BY_LATENCY = Latency()


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A value that starts at ``start`` and moves between ``min`` and ``max``.

    ``drop_on`` are the exceptions that count as "the service is overloaded" if they leave the
    block. Until the time that ``dropped(retry_after=)`` states, the value doesn't grow; with
    ``pause_on_retry_after`` nothing is granted until then either.

    Raises:
        ValueError: not 1 <= min <= start <= max.
        TypeError: not ints, not exception classes, or an unknown algorithm.
    """

    start: int
    min: int
    max: int
    algorithm: Latency | Errors = field(default=_BY_LATENCY, kw_only=True)
    drop_on: tuple[type[BaseException], ...] = field(
        default=(TimeoutError, ConnectionError), kw_only=True
    )
    pause_on_retry_after: bool = field(default=False, kw_only=True)
    # The rules as they are stored: min max start, and of `Latency` window_us samples. All users
    # of a name must agree on them; which errors are drops is up to each caller.
    written: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        start, least, most = self.start, self.min, self.max
        for name, number in (("start", start), ("min", least), ("max", most)):
            check_count(name, number, most=MOST_SLOTS)
        if not least <= start <= most:
            raise ValueError(
                f"min <= start <= max must hold, not min={least}, start={start}, max={most}"
            )
        algorithm: object = self.algorithm
        if not isinstance(algorithm, Latency | Errors):
            raise TypeError(f"algorithm must be Latency() or Errors(), not {kind_of(algorithm)}")
        drop_on: object = self.drop_on
        if not isinstance(drop_on, tuple) or not all(
            isinstance(each, type) and issubclass(each, BaseException) for each in drop_on
        ):
            raise TypeError("drop_on must be a tuple of exception classes")
        check_flag("pause_on_retry_after", self.pause_on_retry_after)
        words = [least, most, start]
        if isinstance(algorithm, Latency):
            words += [round(algorithm.window * 1_000_000), algorithm.samples]
        object.__setattr__(self, "written", " ".join(map(str, words)))

    @property
    def rules(self) -> str:
        """What all users of a name must agree on, in words."""
        return f"{self.min} to {self.max} from {self.start}, {self.algorithm}"

    @classmethod
    def read(cls, written: str) -> Adaptive:
        """Return the rules in ``written``; which errors count as drops isn't stored.

        Raises:
            ValueError: they are not rules.
        """
        least, most, start, *more = map(int, written.split(" "))
        if not more:
            return cls(start, least, most, algorithm=Errors())
        window_us, samples = more
        return cls(start, least, most, algorithm=Latency(window_us / 1_000_000, samples))

    def check_value(self, value: int) -> int:
        """Return a value that it may be frozen at.

        Raises:
            ValueError: it is outside min and max.
        """
        if not self.min <= value <= self.max:
            raise outside_of_adaptive(self.min, self.max, value)
        return value

    def __str__(self) -> str:
        return f"adaptive, {self.min} to {self.max}"


@dataclass(frozen=True, slots=True)
class Change:
    """One move of an adaptive value: when (epoch seconds), from, to, and why."""

    at: float
    old: int
    new: int
    reason: str


def outside_of_adaptive(least: int, most: int, value: int | None) -> ValueError:
    return ValueError(f"an adaptive value must be within {least} and {most}, not {value}")
