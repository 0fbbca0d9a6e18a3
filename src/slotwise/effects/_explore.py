"""explore: run a program under every interleaving of its tasks, up to a bound.

A program is run from its beginning for each schedule; there is no saved state.
Code between two yields shares variables with all other code, so any two steps
may conflict, and every choice between ready tasks is explored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slotwise._core.arguments import check_count
from slotwise._core.redaction import redacted_repr
from slotwise.effects._custom import Handler
from slotwise.effects._errors import ScheduleMismatch
from slotwise.effects._program import as_program
from slotwise.effects._run import WarningReport, collect, issue
from slotwise.effects._schedules import (
    MAX_TURNS,
    Failure,
    Invariant,
    MakeProgram,
    Schedule,
    ScheduleRun,
    describe,
)


@dataclass(frozen=True, slots=True)
class Exploration:
    """What `explore` found.

    Attributes:
        schedules: how many were run.
        exhaustive: there are no others.
        failure: the first that failed, and how.
        warnings: texts about leaks and unretrieved errors in any of them.
    """

    schedules: int
    exhaustive: bool
    failure: Failure | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.failure is None


def explore(
    make_program: MakeProgram[Any],
    invariant: Invariant | None = None,
    max_schedules: int = 10_000,
    preemptions: int | None = None,
    handlers: Mapping[Any, Handler] | None = None,
    max_turns: int = MAX_TURNS,
) -> Exploration:
    """Run a program under its schedules until one fails or none is left.

    Schedules with few preemptions are tried first: most bugs show there.

    Args:
        make_program: called for each schedule; it has to recreate everything that the program
            changes. A ``@do`` function without parameters will do.
        invariant: called without arguments after every step; False or an
            AssertionError is a failure. So are an exception that leaves the root,
            a deadlock, and a run that takes too many turns.
        max_schedules: how many to try at most.
        preemptions: skip schedules with more than this many switches away from a task that could
            have continued.
        handlers: as for `run`.
        max_turns: how many turns tasks may take in one schedule; beyond that it
            fails with StepLimitExceeded.

    Raises:
        ScheduleMismatch: the program doesn't run the same way twice.
    """
    if not callable(make_program):
        raise TypeError(
            f"make_program must be a callable without arguments, not {redacted_repr(make_program)}"
        )
    check_count("max_schedules", max_schedules)
    check_count("max_turns", max_turns)
    if preemptions is not None:
        check_count("preemptions", preemptions + 1 if preemptions == 0 else preemptions)
    frontier = Frontier(preemptions)
    schedules = 0
    reports: dict[WarningReport, None] = {}
    prefix: list[int] | None = []
    preempted = 0
    while prefix is not None and schedules < max_schedules:
        one = ScheduleRun(prefix, invariant, handlers, max_turns)
        try:
            error = one.run(as_program(make_program(), "explore"))
        except ScheduleMismatch as mismatch:
            raise _not_repeatable(str(mismatch)) from mismatch
        if error is None and len(one.choices) < len(prefix):
            raise _not_repeatable(f"it ended after {len(one.choices)} choices of {len(prefix)}")
        schedules += 1
        scheduler = one.scheduler
        if scheduler.left_behind or scheduler.failed:
            reports.update(dict.fromkeys(collect(scheduler)))
        if error is not None:
            schedule = Schedule(one.choices, invariant, handlers, max_turns)
            failure = describe(make_program, schedule, error)
            return Exploration(schedules, False, failure, _texts(reports))
        if one.options:
            frontier.add(one, len(prefix), preempted, max_schedules - schedules)
        prefix, preempted = frontier.next()
    issue(reports)
    exhaustive = prefix is None and not frontier.left_out
    return Exploration(schedules, exhaustive, None, _texts(reports))


def _not_repeatable(why: str) -> ScheduleMismatch:
    return ScheduleMismatch(
        "the program doesn't run the same way twice; does make_program recreate everything"
        f" that it changes? ({why})"
    )


def _texts(reports: Mapping[WarningReport, None]) -> tuple[str, ...]:
    return tuple(report.message for report in reports)


class Frontier:
    """The schedules that are known but not yet run, by their number of preemptions.

    Each is the beginning of a schedule that was run, with another choice at its end. The run
    continues from there with the simplest choices, and every alternative that it passes becomes a
    schedule of its own. So each schedule is run exactly once.
    """

    __slots__ = ("_bound", "_by_preemptions", "left_out")

    def __init__(self, bound: int | None) -> None:
        # (the choices of the run it branches off from, where, and to whom)
        self._by_preemptions: list[list[tuple[list[int], int, int]]] = [[]]
        self._bound = bound
        self.left_out = False

    def add(self, one: ScheduleRun, start: int, preempted: int, room: int) -> None:
        """Add the alternatives to a run's choices, from choice ``start`` on."""
        choices = one.choices
        buckets = self._by_preemptions
        for position, (numbers, preempting) in enumerate(one.options, start):
            # Before `position` this run has preempted nobody beyond its prefix.
            cost = preempted + preempting
            if self._bound is not None and cost > self._bound:
                self.left_out = True
                continue
            while len(buckets) <= cost:
                buckets.append([])
            if sum(len(bucket) for bucket in buckets[: cost + 1]) > room:
                # They would never run: too many others come first.
                self.left_out = True
                continue
            bucket = buckets[cost]
            for number in numbers[1:]:
                bucket.append((choices, position, number))

    def next(self) -> tuple[list[int] | None, int]:
        """Return the prefix of the next schedule and its preemptions; None when all have run."""
        for preempted, bucket in enumerate(self._by_preemptions):
            if bucket:
                choices, position, number = bucket.pop()
                return [*choices[:position], number], preempted
        return None, 0
