"""Adaptive: the options of a value that adapts itself between a minimum and a maximum.

How a value moves is in `slotwise._ledger.adaptation`.
"""

from __future__ import annotations

from typing import Literal

from slotwise._core.arguments import MOST_SLOTS, check_count, check_flag, check_required_seconds
from slotwise._core.frozen import Frozen
from slotwise._core.redaction import kind_of, redacted_repr

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
    raise ValueError(f"outcome must be 'ok', 'dropped' or 'ignored', not {redacted_repr(given)}")


class Latency(Frozen):
    """For a service whose latency shows how busy it is: a service of your own.

    Compare what is finished per second at the current value with what is finished a little
    below it, and move to where more slots no longer pay. A window ends after ``window`` seconds
    and ``samples`` finished calls, whichever is later.
    """

    __slots__ = _fields = __match_args__ = ("window", "samples")

    window: float
    samples: int

    def __init__(self, window: float = 1.0, samples: int = 50) -> None:
        check_required_seconds("window", window, most=3600)
        check_count("samples", samples, most=1_000_000)
        super().__init__(window=window, samples=samples)

    def __str__(self) -> str:
        return f"latency, windows of {self.window:g} s and {self.samples} samples"


class Errors(Frozen):
    """For somebody else's service, whose latency says nothing: only refusals count.

    It adds a slot for every ``value`` successes in a row, and takes away three tenths at a drop.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

    def __str__(self) -> str:
        return "errors"


_BY_LATENCY = Latency()


class Adaptive(Frozen):
    """A value that starts at ``start`` and moves between ``min`` and ``max``.

    ``drop_on`` are the exceptions that count as "the service is overloaded" if they leave the
    block. Until the time that ``dropped(retry_after=)`` states, the value doesn't grow; with
    ``pause_on_retry_after`` nothing is granted until then either.

    Raises:
        ValueError: not 1 <= min <= start <= max.
        TypeError: not ints, not exception classes, or an unknown algorithm.
    """

    _fields = ("start", "min", "max", "algorithm", "drop_on", "pause_on_retry_after")
    __slots__ = (*_fields, "written")
    __match_args__ = ("start", "min", "max")

    start: int
    min: int
    max: int
    algorithm: Latency | Errors
    drop_on: tuple[type[BaseException], ...]
    pause_on_retry_after: bool
    # The rules as they are stored: min max start, and of `Latency` window_us samples. All users
    # of a name must agree on them; which errors are drops is up to each caller.
    written: str

    def __init__(
        self,
        start: int,
        min: int,  # noqa: A002
        max: int,  # noqa: A002
        *,
        algorithm: Latency | Errors = _BY_LATENCY,
        drop_on: tuple[type[BaseException], ...] = (TimeoutError, ConnectionError),
        pause_on_retry_after: bool = False,
    ) -> None:
        for name, number in (("start", start), ("min", min), ("max", max)):
            check_count(name, number, most=MOST_SLOTS)
        if not min <= start <= max:
            raise ValueError(
                f"min <= start <= max must hold, not min={min}, start={start}, max={max}"
            )
        if not isinstance(algorithm, Latency | Errors):
            raise TypeError(f"algorithm must be Latency() or Errors(), not {kind_of(algorithm)}")
        given: object = drop_on
        if not isinstance(given, tuple) or not all(
            isinstance(each, type) and issubclass(each, BaseException) for each in given
        ):
            raise TypeError("drop_on must be a tuple of exception classes")
        check_flag("pause_on_retry_after", pause_on_retry_after)
        words = [min, max, start]
        if isinstance(algorithm, Latency):
            words += [round(algorithm.window * 1_000_000), algorithm.samples]
        super().__init__(
            start=start,
            min=min,
            max=max,
            algorithm=algorithm,
            drop_on=drop_on,
            pause_on_retry_after=pause_on_retry_after,
            written=" ".join(map(str, words)),
        )

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


class Change(Frozen):
    """One move of an adaptive value: when (epoch seconds), from, to, and why."""

    __slots__ = _fields = __match_args__ = ("at", "old", "new", "reason")

    at: float
    old: int
    new: int
    reason: str

    def __init__(self, at: float, old: int, new: int, reason: str) -> None:
        super().__init__(at=at, old=old, new=new, reason=reason)


def outside_of_adaptive(least: int, most: int, value: int | None) -> ValueError:
    return ValueError(f"an adaptive value must be within {least} and {most}, not {value}")
