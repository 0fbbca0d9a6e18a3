"""How an adaptive value moves: samples in, a new limit with its reason out.

Pure: no clock, no lock. Every acquisition that ends is one sample: when, for how long its slots
were held, and whether its work succeeded. The ledger takes the limit from here.

What it looks for. With n slots in use and x calls finished per second, a call takes n / x seconds.
Throughput over latency, x / (n / x) = x² / n, is greatest where one per cent more slots brings
half a per cent more throughput: its *elasticity* there is 1/2. Below the knee of a service it
is 1 (more slots, more work), far above it 0 (more slots, more waiting). So the algorithm
never needs to know which latency is "normal": it takes a short probe a little below the
current value, compares, and moves until the elasticity is what is wanted. There is no
baseline that could be measured under overload, grow old, or drift.

How many slots were in use is not sampled: the sum of all holds, divided by the time, is the
same number (Little's law). So a sample is one addition, wherever it is counted.

Everything is computed in integers and in doubles by additions, multiplications, divisions and
comparisons, in an order that lua/rules/adaptation.lua repeats bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar

from slotwise._core.adaptive import Adaptive, Change, Latency, Outcome

# A probe is this far below the value: far enough to tell 15 % fewer calls from noise with 50
# samples, near enough to cost little throughput while it lasts.
PROBE = 0.85
# Windows at the value between two probes, once it has settled: then a probe costs 15 % of the
# throughput in one of six windows at most.
CALM = 4
# The elasticity that is sought. 1/2 is the most throughput per latency; somewhat lower, since
# callers mind 5 % less throughput more than 10 % more latency.
WANTED = 0.4
# How much of the difference one step covers: at most 30 % up or 20 % down, so that one bad
# measurement does little harm.
GAIN = 0.5
# A second step in the same direction is this many times as large (only for growth).
BOLD = 2.0
# A step of more than this is a move; the next probe follows without a rest.
MOVE = 0.1
# This share of the slots of a probe must have been in use. Otherwise demand was the limit, and the
# comparison would say nothing about the service.
BOUND = 0.8
# Two measurements whose use differs by less are the same one.
DISTINCT = 0.02
# More than one failure in this many calls is a refusal by the service and not an accident.
FAILURES = 20
# After a refusal the value stays this far below where it happened...
MARGIN = 0.95
# ...and comes nearer by this much each time that it got there without another.
FADE = 1.06
# Growth never goes beyond this many times what was really in use.
GROWTH = 3.0
# How long (us) at most to wait for the calls of the old value before a window begins.
LONGEST_SETTLING = 60_000_000
# How long (us) what was learnt is remembered while nobody uses it, as on a server.
REMEMBERED_US = 3_600_000_000
# Kept for `changes()`: a day of them at one in 15 minutes, or the last hour of a restless value.
CHANGES = 100

# The cut of `Errors` at a drop. TCP halves; a fleet that shares one value needs less.
ERRORS_CUT = 0.7

STEADY, BELOW, ABOVE = 0, 1, 2

# The reason of a change by hand.
FROZEN = "frozen"

# Numbers that are counted exactly.
_LARGEST = 2.0**53


class Adaptation(ABC):
    """The moving value of one limit.

    Between any two calls:
      A1  options.min <= value <= options.max, and so is limit
      A2  limit is value, except during a probe
      A3  while it is frozen, nothing but freeze and thaw changes limit
    """

    __slots__ = (
        *("changes", "epoch_us", "frozen", "grows_after_us", "limit", "options", "told", "value"),
    )

    # What is kept of it between two calls, in this order: on a server, and in a snapshot.
    FIELDS: ClassVar[tuple[str, ...]] = ("value", "limit", "frozen", "grows_after_us")

    _begin_us: int  # since when what is counted now is counted

    def __init__(self, options: Adaptive, now_us: int) -> None:
        self.options = options
        self.limit = self.value = options.start
        self.frozen = False
        self.grows_after_us = now_us  # until then the service asked for no more
        self.changes: deque[Change] = deque(maxlen=CHANGES)
        self.told: Change | None = None  # the last change that `take_change` has returned
        self.epoch_us = 0  # added to its clock, the time of `changes`

    def end(
        self, now_us: int, held_us: int, outcome: Outcome, retry_after_us: int = 0, slots: int = 1
    ) -> bool:
        """Count an acquisition that ended; return whether the limit has changed."""
        if retry_after_us > 0:
            self.grows_after_us = max(self.grows_after_us, now_us + retry_after_us)
        if self.frozen:
            return False
        before = self.limit
        self._count(now_us, held_us, outcome, slots)
        return self.limit != before

    def is_worth_keeping(self, now_us: int) -> bool:
        """Whether forgetting it while nobody uses it would lose something."""
        has_moved = self.value != self.options.start
        return self.frozen or (has_moved and now_us - self._begin_us < REMEMBERED_US)

    def freeze(self, now_us: int, value: int | None = None) -> bool:
        """Freeze at a value, or at the current one; return whether the limit has changed."""
        if value is not None:
            self.options.check_value(value)
        before, self.frozen = self.limit, True
        self._move(now_us, self.value if value is None else value, FROZEN)
        return self.limit != before

    def begin_frozen(self, value: int | None) -> None:
        """Be frozen from the beginning, at a value or where it starts."""
        self.frozen = True
        self.limit = self.value = self.options.start if value is None else value

    def thaw(self, now_us: int) -> None:
        """Move again, from the current value."""
        if self.frozen:
            self.frozen = False
            self._resume(now_us)

    def take_change(self) -> Change | None:
        """Return the last change, once, for hooks; not one by hand, which they know of."""
        last = self.changes[-1] if self.changes else None
        if last is None or last is self.told or last.reason == FROZEN:
            return None
        self.told = last
        return last

    def keep_changes(self, most: int) -> None:
        """Keep no more changes than that from now on."""
        self.changes = deque(self.changes, most)

    def dump(self) -> str:
        """Return its whole state except for the changes, as text."""
        return " ".join(f"{getattr(self, name):.17g}" for name in self.FIELDS)

    def restore(self, text: str) -> None:
        """Continue from what `dump` returned.

        Raises:
            ValueError: the text is not one of these.
        """
        for name, word in zip(self.FIELDS, text.split(" "), strict=True):
            kind = type(getattr(self, name))
            number = float(word)
            if not 0 <= number <= _LARGEST:
                raise ValueError(f"not an adaptive value: {text[:100]!r}")
            setattr(self, name, kind(number) if kind is not int else int(word))
        least, most = self.options.min, self.options.max
        if not (least <= self.value <= most and least <= self.limit <= most):
            raise ValueError(f"not a value within {least} and {most}: {text[:100]!r}")

    def _move(self, now_us: int, value: float, reason: str) -> None:
        """Take another value, which becomes the limit."""
        new = min(max(int(value + 0.5), self.options.min), self.options.max)
        if new != self.value:
            at = (now_us + self.epoch_us) / 1_000_000
            self.changes.append(Change(at, self.value, new, reason))
        self.value = self.limit = new
        self._restart(now_us, 0)

    @abstractmethod
    def _count(self, now_us: int, held_us: int, outcome: Outcome, slots: int) -> None: ...

    @abstractmethod
    def _resume(self, now_us: int) -> None:
        """Begin anew at the value."""

    @abstractmethod
    def _restart(self, now_us: int, settling_us: int) -> None:
        """Begin to count anew, when what was begun before has ended."""


class LatencyAdaptation(Adaptation):
    """Between two windows at the value, one below it: compare, and move.

    At the minimum there is nothing below, so one more slot is tried instead.
    """

    __slots__ = (
        *("_begin_us", "_busy_us", "_calls", "_ceiling", "_exact", "_failed_us"),
        *("_mean_us", "_need", "_phase", "_rest", "_steady_busy_us", "_steady_calls", "_steady_us"),
        *("_streak", "_succeeded", "_window_us"),
    )

    FIELDS = (
        *Adaptation.FIELDS,
        *("_exact", "_phase", "_steady_calls", "_steady_busy_us", "_steady_us", "_rest", "_streak"),
        *("_ceiling", "_mean_us", "_begin_us", "_calls", "_succeeded", "_busy_us", "_failed_us"),
    )

    def __init__(self, options: Adaptive, now_us: int) -> None:
        super().__init__(options, now_us)
        algorithm = options.algorithm
        assert isinstance(algorithm, Latency)
        self._window_us, self._need = round(algorithm.window * 1_000_000), algorithm.samples
        self._exact = float(options.start)  # the value, unrounded
        self._phase = STEADY
        # Of all windows since the last move.
        self._steady_calls = self._steady_busy_us = self._steady_us = 0
        self._rest = 0  # windows until the next probe
        self._streak = 0  # moves upward, one after the other
        self._ceiling = 0.0  # where the service refused calls, 0 if nowhere
        self._mean_us = 0  # a call's time in the last window
        self._restart(now_us, 0)

    def _resume(self, now_us: int) -> None:
        self._exact, self._streak, self._mean_us = float(self.value), 0, 0
        self._be_steady(now_us, 0)

    def _restart(self, now_us: int, settling_us: int) -> None:
        self._begin_us = now_us + settling_us
        self._calls = self._succeeded = self._busy_us = self._failed_us = 0

    def _count(self, now_us: int, held_us: int, outcome: Outcome, slots: int) -> None:
        if now_us < self._begin_us:
            if now_us < self._begin_us - LONGEST_SETTLING:
                self._restart(now_us, 0)  # the clock was set back
            return
        self._busy_us += held_us * slots
        if outcome == "ignored":
            return  # it was in use, but tells nothing about the service
        self._calls += 1
        if outcome == "ok":
            self._succeeded += 1
        else:
            self._failed_us += held_us * slots
        if now_us >= self._begin_us + self._window_us and self._calls >= self._need:
            self._end_window(now_us)

    def _end_window(self, now_us: int) -> None:
        took_us = now_us - self._begin_us
        self._mean_us = min(self._busy_us // self._calls, LONGEST_SETTLING)
        if (self._calls - self._succeeded) * FAILURES > self._calls:
            self._retreat(now_us, took_us)
        elif self._phase == STEADY:
            self._end_steady_window(now_us, took_us)
        else:
            seen = (self._succeeded, self._busy_us, took_us)
            steady = (self._steady_calls, self._steady_busy_us, self._steady_us)
            low, high = (seen, steady) if self._phase == BELOW else (steady, seen)
            self._compare(now_us, low, high)

    def _end_steady_window(self, now_us: int, took_us: int) -> None:
        if self._busy_us * 2 < self.value * took_us:
            self._restart(now_us, 0)  # less than half is used: nothing can be learnt
            return
        self._steady_calls += self._succeeded
        self._steady_busy_us += self._busy_us
        self._steady_us += took_us
        if self._rest > 0:
            self._rest -= 1
            self._restart(now_us, 0)
            return
        below = min(int(self.value * PROBE), self.value - 1)
        if below >= self.options.min:
            self._probe(now_us, BELOW, below)
        elif self.value < self.options.max and now_us >= self.grows_after_us:
            self._probe(now_us, ABOVE, self.value + 1)
        else:
            self._settle(now_us)

    def _probe(self, now_us: int, phase: int, limit: int) -> None:
        self._phase, self.limit = phase, limit
        self._restart(now_us, self._mean_us)

    def _settle(self, now_us: int) -> None:
        """Go on at the value."""
        self.limit = self.value
        self._be_steady(now_us, CALM)

    def _be_steady(self, now_us: int, rest: int) -> None:
        self._phase, self._rest = STEADY, rest
        self._steady_calls = self._steady_busy_us = self._steady_us = 0
        self._restart(now_us, self._mean_us)

    def _compare(self, now_us: int, low: tuple[int, int, int], high: tuple[int, int, int]) -> None:
        low_rate, low_used = low[0] / low[2], low[1] / low[2]  # per us
        high_rate, high_used = high[0] / high[2], high[1] / high[2]
        probed = self.limit if self._phase == BELOW else self.value
        more_used = (high_used - low_used) / (high_used + low_used)
        if more_used < DISTINCT or low_used < BOUND * probed:
            self._streak = 0
            self._settle(now_us)
            return
        elasticity = (high_rate - low_rate) / (high_rate + low_rate) / more_used
        step = (min(max(elasticity, 0.0), 1.0) - WANTED) * GAIN
        self._streak = self._streak + 1 if step > MOVE else 0
        if self._streak > 1:
            step *= BOLD
        value = self._exact * (1.0 + step)
        if step > 0.0:
            value = self._grown(now_us, value, high_used)
        reason = (
            f"{low_rate * 1e6:.3g}/s with {low_used:.1f} in use,"
            f" {high_rate * 1e6:.3g}/s with {high_used:.1f}"
        )
        value = min(max(value, float(self.options.min)), float(self.options.max))
        moved = int(value + 0.5) != self.value
        if not moved:
            self._streak = 0
        is_shrinking = moved and step < -MOVE
        self._go_to(now_us, value, reason, 0 if self._streak or is_shrinking else CALM)

    def _grown(self, now_us: int, value: float, used: float) -> float:
        """Return how far it may grow: below where calls were refused, not far beyond its use."""
        if now_us < self.grows_after_us:
            return self._exact
        value = min(value, max(GROWTH * used, self._exact))
        if self._ceiling > 0.0 and value > self._ceiling * MARGIN:
            value = max(self._ceiling * MARGIN, self._exact)
            self._streak = 0
            self._ceiling *= FADE
        return value

    def _retreat(self, now_us: int, took_us: int) -> None:
        """Go below where the service refused calls: at most to half at once."""
        succeeding = (self._busy_us - self._failed_us) / took_us
        if succeeding * 2 > self.limit:
            # Most still pass, so it is the number that is too high, and not the service that fails.
            self._ceiling = float(self.limit)
        failed = self._calls - self._succeeded
        value = max(min(succeeding, self.limit * MARGIN), self.limit * 0.5)
        self._streak = 0
        self._go_to(now_us, value, f"{failed} of {self._calls} dropped", CALM)

    def _go_to(self, now_us: int, value: float, reason: str, rest: int) -> None:
        self._move(now_us, value, reason)
        self._exact = min(max(value, float(self.options.min)), float(self.options.max))
        self._be_steady(now_us, rest)


class ErrorsAdaptation(Adaptation):
    """Add a slot for as many successes as there are slots; cut the value at a drop.

    Drops of calls that began before the last cut say nothing about the new value.
    """

    __slots__ = ("_begin_us", "_cut_us", "_succeeded", "_used_us")

    FIELDS = (*Adaptation.FIELDS, "_cut_us", "_begin_us", "_succeeded", "_used_us")

    def __init__(self, options: Adaptive, now_us: int) -> None:
        super().__init__(options, now_us)
        self._cut_us = 0  # never
        self._restart(now_us, 0)

    def _resume(self, now_us: int) -> None:
        self._restart(now_us, 0)

    def _restart(self, now_us: int, settling_us: int) -> None:
        self._begin_us, self._succeeded, self._used_us = now_us + settling_us, 0, 0

    def _count(self, now_us: int, held_us: int, outcome: Outcome, slots: int) -> None:
        self._used_us += held_us * slots
        if outcome == "dropped":
            if now_us - held_us >= self._cut_us or now_us < self._cut_us:
                self._cut_us = now_us
                cut = max(min(int(self.value * ERRORS_CUT), self.value - 1), self.options.min)
                self._move(now_us, cut, "a call was dropped")
        elif outcome == "ok":
            self._succeeded += 1
            if self._succeeded >= self.value:
                self._grow(now_us)

    def _grow(self, now_us: int) -> None:
        took_us = max(now_us - self._begin_us, 1)
        is_used = self._used_us * 2 >= self.value * took_us
        if is_used and now_us >= self.grows_after_us and self.value < self.options.max:
            self._move(now_us, self.value + 1, f"{self._succeeded} calls without a drop")
        else:
            self._restart(now_us, 0)


def adaptation(options: Adaptive, now_us: int) -> Adaptation:
    """Return the moving value that options describe."""
    kind = LatencyAdaptation if isinstance(options.algorithm, Latency) else ErrorsAdaptation
    return kind(options, now_us)
