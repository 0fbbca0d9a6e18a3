"""Schedules: record, follow and show which task ran whenever several could.

`explore` decides which schedules are worth trying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from slotwise.effects._custom import Handler
from slotwise.effects._effects import Effect
from slotwise.effects._errors import InvariantViolated, ScheduleMismatch, StepLimitExceeded
from slotwise.effects._permits import holders_of
from slotwise.effects._program import Program, as_program
from slotwise.effects._run import complete, conclude, failure_of
from slotwise.effects._scheduler import ENDED, Scheduler
from slotwise.effects._semaphores import Semaphore, queue_of
from slotwise.effects._tasks import Task

T = TypeVar("T")

Invariant = Callable[[], object]
MakeProgram = Callable[[], Program[T] | Effect[T]]

# Only the end of a long table is shown: that is where things went wrong.
_ROWS_SHOWN = 200
_WIDEST_EFFECT = 60

# How many checkpoints in a row a task may pass before others get their turn.
_LONGEST_STREAK = 100

# After this many steps a run is considered endless.
MAX_TURNS = 100_000

# How many steps such a run may still take to unwind.
_TURNS_TO_UNWIND = 10_000


class Schedule(tuple[int, ...]):
    """The numbers of the tasks that were chosen, in order; for `replay`.

    It also has the invariant and the handlers that it was found with. A plain tuple of the same
    numbers, for example in a test, works too if those are passed again.
    """

    invariant: Invariant | None
    handlers: Mapping[Any, Handler] | None
    max_turns: int

    def __new__(
        cls,
        numbers: Iterable[int],
        invariant: Invariant | None = None,
        handlers: Mapping[Any, Handler] | None = None,
        max_turns: int = MAX_TURNS,
    ) -> Schedule:
        schedule = super().__new__(cls, numbers)
        schedule.invariant = invariant
        schedule.handlers = handlers
        schedule.max_turns = max_turns
        return schedule


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One step of a schedule, as it is shown."""

    step: int
    task: str
    effect: str
    semaphores: str


@dataclass(frozen=True, eq=False)
class Failure:
    """What failed, under which schedule; ``str()`` shows a table of the steps."""

    error: BaseException
    schedule: Schedule
    rows: tuple[ScheduleRow, ...] = field(repr=False)
    note: str = ""

    def __str__(self) -> str:
        heads = ScheduleRow("step", "task", "effect", "semaphores")  # type: ignore[arg-type]
        rows = [heads, *self.rows[-_ROWS_SHOWN:]]
        wide_task = max(len(row.task) for row in rows)
        wide_effect = max(len(row.effect) for row in rows)
        lines = [f"{type(self.error).__name__}: {self.error}", f"schedule: {tuple(self.schedule)}"]
        if self.note:
            lines.append(self.note)
        hidden = len(self.rows) - (len(rows) - 1)
        if hidden:
            lines.append(f"({hidden} earlier steps are not shown)")
        for row in rows:
            line = f"{row.step:>5}  {row.task:<{wide_task}}  {row.effect:<{wide_effect}}"
            lines.append(f"{line}  {row.semaphores}".rstrip())
        return "\n".join(lines)


class ScheduleRun:
    """One run: it follows a schedule to its end, and then makes the simplest choices.

    The simplest choice is the same task again or, if that isn't ready, the one that has been ready
    longest. A task that has been chosen for very long has to let the others go first: it may be
    waiting for them in a loop.
    """

    __slots__ = (
        "broken",
        "choices",
        "invariant",
        "options",
        "previous",
        "ready",
        "schedule",
        "scheduler",
        "streak",
        "turns_left",
    )

    def __init__(
        self,
        schedule: tuple[int, ...] | list[int],
        invariant: Invariant | None,
        handlers: Mapping[Any, Handler] | None,
        max_turns: int = MAX_TURNS,
    ) -> None:
        self.schedule = schedule
        self.turns_left = max_turns
        self.invariant = invariant
        self.ready: list[Task[Any]] = []
        self.choices: list[int] = []  # who was chosen, wherever there was a choice
        # Beyond the schedule: who could have been, the one chosen first, and
        # whether any of the others would have been a preemption.
        self.options: list[tuple[list[int], bool]] = []
        self.previous: Task[Any] | None = None
        self.streak = 0  # how often in a row it continued though others were ready
        self.broken: BaseException | None = None  # an error of the invariant itself
        watch = None if invariant is None else self.check
        self.scheduler = Scheduler(self.ready, self.take, handlers, watch=watch)

    def run(self, program: Program[Any]) -> BaseException | None:
        """Run the program; return the error it ended with, if any."""
        complete(self.scheduler, program)
        if self.broken is not None:
            raise self.broken
        error = failure_of(self.scheduler)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        return error

    def take(self) -> Task[Any]:
        ready = self.ready
        self.turns_left -= 1
        if self.turns_left < 0:
            self._stop()
        if len(ready) < 2:
            self.previous = task = ready.pop()
            return task
        if self.scheduler.abort is not None:
            return ready.pop(0)  # the failure is known; the rest is clean-up
        choices = self.choices
        if len(choices) < len(self.schedule):
            number = self.schedule[len(choices)]
            for index, task in enumerate(ready):  # noqa: B007
                if task.number == number:
                    break
            else:
                raise ScheduleMismatch(
                    f"choice {len(choices) + 1} of the schedule is task {number}, but those ready"
                    f" are {', '.join(f'{t.number} ({t.name})' for t in ready)}"
                )
        else:
            # A task at a checkpoint has just been put at the end.
            can_go_on = ready[-1] is self.previous
            index = len(ready) - 1 if can_go_on and self.streak < _LONGEST_STREAK else 0
            task = ready[index]
            numbers = [other.number for other in ready]
            numbers.insert(0, numbers.pop(index))
            self.options.append((numbers, can_go_on))
        del ready[index]
        choices.append(task.number)
        self.streak = self.streak + 1 if task is self.previous else 0
        self.previous = task
        return task

    def _stop(self) -> None:
        """End a run that goes on forever: by cancelling, or at once if that doesn't help."""
        scheduler = self.scheduler
        if scheduler.abort is None:
            names = ", ".join(repr(task.name) for task in self.ready[:5])
            scheduler.abort = StepLimitExceeded(
                f"the tasks took more turns than max_turns and are still running ({names}):"
                " do they wait for each other in a loop?"
            )
            raise IndexError  # none to take: the scheduler unwinds
        if self.turns_left < -_TURNS_TO_UNWIND:
            scheduler.close_all()
            raise IndexError

    def check(self, task: Task[Any], effect: object) -> None:
        if self.scheduler.abort is not None:
            return
        assert self.invariant is not None
        try:
            holds = self.invariant()
        except AssertionError:
            raise
        except BaseException as error:
            self.broken = error
            raise
        if holds is False:
            name = getattr(self.invariant, "__name__", "invariant")
            did = "ended" if effect is ENDED else f"reached {_clip(repr(effect))}"
            raise InvariantViolated(f"{name}() is False after {task.name!r} {did}")


def replay(
    make_program: MakeProgram[T],
    schedule: Iterable[int],
    invariant: Invariant | None = None,
    handlers: Mapping[Any, Handler] | None = None,
) -> T:
    """Run a program under a schedule that `explore` found, and raise the same error.

    If the program has been fixed, its value is returned. Where the schedule ends before the
    program, each task continues as long as it can.

    Raises:
        ScheduleMismatch: the program doesn't have the schedule's choices.
    """
    if invariant is None:
        invariant = getattr(schedule, "invariant", None)
    if handlers is None:
        handlers = getattr(schedule, "handlers", None)
    max_turns = getattr(schedule, "max_turns", MAX_TURNS)
    one = ScheduleRun(tuple(schedule), invariant, handlers, max_turns)
    one.run(as_program(make_program(), "replay"))
    return conclude(one.scheduler)  # type: ignore[no-any-return]


def describe(make_program: MakeProgram[Any], schedule: Schedule, error: BaseException) -> Failure:
    """Run a failing schedule again and record every step."""
    one = ScheduleRun(schedule, schedule.invariant, schedule.handlers, schedule.max_turns)
    rows: list[ScheduleRow] = []
    scheduler = one.scheduler
    semaphores = scheduler.made_semaphores = []

    def add_state() -> None:
        """Record the outcome of the last step."""
        if rows:
            states = "  ".join(_state(scheduler, semaphore) for semaphore in semaphores)
            rows[-1] = replace(rows[-1], semaphores=states)

    def record(task: Task[Any], effect: object) -> None:
        if scheduler.abort is not None:
            return
        add_state()
        rows.append(ScheduleRow(len(rows) + 1, task.name, _text(task, effect), ""))
        if one.invariant is not None:
            one.check(task, effect)

    scheduler.watch = record
    scheduler.before_unwinding = add_state
    try:
        again = one.run(as_program(make_program(), "explore"))
    except ScheduleMismatch as mismatch:
        again = mismatch
    note = ""
    if type(again) is not type(error):
        note = f"a second run along this schedule ended differently: {again!r}"
    return Failure(error, schedule, tuple(rows), note)


def _text(task: Task[Any], effect: object) -> str:
    if effect is not ENDED:
        return _clip(repr(effect))
    if task._error is None:
        return "ends"
    return _clip(f"ends with {type(task._error).__name__}: {task._error}")


def _clip(text: str) -> str:
    return text if len(text) <= _WIDEST_EFFECT else f"{text[: _WIDEST_EFFECT - 3]}..."


def _state(scheduler: Scheduler, semaphore: Semaphore) -> str:
    """``name 1/2 [holders] <- waiters``: held, of how many, by whom."""
    text = f"{semaphore.name} {semaphore._node.in_use}/{semaphore.permits}"
    holders = holders_of(scheduler, semaphore)
    if holders:
        text += f" [{', '.join(task.name for task in holders)}]"
    waiting = queue_of(semaphore)
    if waiting:
        text += f" <- {', '.join(task.name for task in waiting)}"
    return text
