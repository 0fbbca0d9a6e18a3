"""Stepping real threads through every interleaving of lock-free code.

One thread runs at a time. Before each access to something that threads share
it hands the baton on, and a depth-first search tries everybody who could have
it. Runs that reach a state that an earlier run was in are not continued: what
can follow is known. Nothing here knows what is right; the tests do.

What is a step: an attribute of the ledger read or written, a call of an atomic
list, dict or deque operation, a look at the line. All else is local to its
thread, so when it happens makes no difference.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import linecache
import os
import re
import sys
import threading
from _thread import LockType
from asyncio import events
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from types import CodeType, CoroutineType, FrameType, FunctionType, MethodType
from typing import Any

from tests._timers import end_timers, no_timers

import slotwise
from slotwise._wait import clock
from slotwise._wait.clock import Timekeeper
from slotwise._wait.section import lock as _real_lock
from slotwise._wait.woken import Woken

# Scenarios of many steps are played with few interruptions only, unless somebody has
# some minutes: SLOTWISE_ALL_SCHEDULES=1 plays them under every schedule too.
EXHAUSTIVELY = bool(os.environ.get("SLOTWISE_ALL_SCHEDULES"))

_HOME = slotwise.__path__[0]
_STEPPED = tuple(
    f"{_HOME}/{name}.py"
    for name in (
        "_ledger/deadlines",
        "_ledger/path_nodes",
        "_ledger/paths",
        "_ledger/path_queue",
        "_ledger/slots",
        "_wait/wakers",
        "memory/_acquisition",
        "memory/_backend",
        "memory/_line",
        "memory/_quick_lane",
        "memory/_registry",
        "memory/_semaphore",
        "memory/_tracker",
    )
)
assert all(map(os.path.exists, _STEPPED)), "a module was renamed, and would not be stepped through"
_SHARED = {
    "attention",
    "alarm",
    "busy",
    "circulating",
    "free",
    "home",
    "line",
    "tables",
    "under_way",
    "value",
    "woken",
}
_ATTACHMENT = {"tracker", "ledger", "lane"}
_ATOMIC = re.compile(
    # Heaps of paths that only who has the lock knows of are no steps.
    r"heap(?:pop|push)\((?!work|parked|ages|self\.(?:work|_parked|_ages))|popleft\(|\.pop\(|popitem\("
    r"|(?:line|_numbers)\.(?:append|clear|extend)\(|\.done\(|set_result\(|future\.cancel\("
)
_LOOK_AT_LINE = re.compile(r"\b(?:while|if|not|and|or) line\b|\bin line\b")
_TABLE = re.compile(r"holders\[|young\[|self\.nodes\[")
_NODE = re.compile(r"\bnodes\[(?:key|part)\]")


# Tracing crashes 3.12.1, and leaves out instructions since 3.13 if several threads are traced.
_MONITORED = sys.version_info >= (3, 12)


class TooManySchedules(AssertionError):
    """The search was not exhausted."""


class _Abandoned(BaseException):
    """Ends the threads of a run in which everybody is stuck."""


@dataclass(frozen=True, slots=True)
class _Step:
    block: int  # the basic block it is in
    is_one_of_several: bool  # in its block
    # It reads what is written under the lock only: no step for who has the lock.
    is_guarded_read: bool


def _steps_of(code: CodeType, shared: frozenset[str]) -> dict[int, _Step]:
    """The steps in ``code`` by their offsets."""
    if code.co_name == "__init__":
        return {}  # nobody else knows the object yet
    found: dict[int, tuple[int, bool]] = {}
    line_number = code.co_firstlineno
    block = 0
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line_number = instruction.positions.lineno
        text = linecache.getline(code.co_filename, line_number)
        name = instruction.opname
        if instruction.is_jump_target:
            block += 1
        is_guarded_read = False
        if name in ("LOAD_ATTR", "STORE_ATTR", "LOAD_METHOD"):
            is_step = instruction.argval in shared and not (
                instruction.argval in ("free", "line") and _ATOMIC.search(text)
            )
            is_guarded_read = name != "STORE_ATTR" and instruction.argval not in ("free", "line")
        elif name.startswith("CALL"):
            is_step = _ATOMIC.search(text) is not None
        elif name.startswith("LOAD_FAST"):
            # 3.13 fuses two loads into one instruction, with a tuple of names.
            loaded = instruction.argval
            names = loaded if isinstance(loaded, tuple) else (loaded,)
            is_step = "line" in names and _LOOK_AT_LINE.search(text) is not None
        elif name == "BINARY_SUBSCR":
            is_step = _NODE.search(text) is not None
        else:
            is_table = name in ("STORE_SUBSCR", "DELETE_SUBSCR") and _TABLE.search(text)
            is_step = bool(is_table)
        if is_step:
            found[instruction.offset] = (block, is_guarded_read)
        if "JUMP" in name:
            block += 1
    blocks = [block for block, _ in found.values()]
    return {
        offset: _Step(block, blocks.count(block) > 1, is_guarded_read)
        for offset, (block, is_guarded_read) in found.items()
    }


class _Steps:
    """The steps of all code, found when it is first run."""

    def __init__(self, shared: frozenset[str]) -> None:
        self._shared = shared
        self._codes: list[CodeType] = []  # kept, so that no other one gets their ids
        # By the id of the code: to hash the code itself would take long.
        self._of: dict[int, dict[int, _Step]] = {}
        self._lines: dict[int, frozenset[int]] = {}

    def __getitem__(self, code: CodeType) -> dict[int, _Step]:
        steps = self._of.get(id(code))
        if steps is None:
            stepped = code.co_filename in _STEPPED
            self._codes.append(code)
            self._of[id(code)] = steps = _steps_of(code, self._shared) if stepped else {}
        return steps

    def lines_of(self, code: CodeType) -> frozenset[int]:
        """Return the lines that have steps."""
        lines = self._lines.get(id(code))
        if lines is None:
            line_of = {
                instruction.offset: instruction.positions.lineno
                for instruction in dis.get_instructions(code)
                if instruction.positions is not None
            }
            found = {line_of.get(offset) for offset in self[code]}
            assert None not in found, "a step without a line would not be seen"
            self._lines[id(code)] = lines = frozenset(found)  # type: ignore[arg-type]
        return lines


_PLAIN = _Steps(frozenset(_SHARED))
_WITH_ATTACHMENT = _Steps(frozenset(_SHARED | _ATTACHMENT))


@dataclass
class Scenario:
    """One scenario, made for one run: who acts, what they share, what must hold at the end."""

    acts: list[Callable[[], None]]
    shared: list[object]
    check: Callable[[], None]
    # What a value that a thread has just read, and not stored yet, can depend on.
    glance: Callable[[], Hashable]


_LEFT_OUT = frozenset(("last_used", "since", "registry", "_lost", "__weakref__", "former_values"))
_VALUES = frozenset((type(None), int, float, bool, str))


@cache
def _slots_of(kind: type) -> tuple[str, ...] | None:
    """The attributes of ``kind`` that a state has; None for things that are not ours."""
    if kind is Run or not kind.__module__.startswith(("slotwise", "tests.")):
        return None
    return tuple(
        name
        for base in kind.__mro__
        for name in base.__dict__.get("__slots__", ())
        if name not in _LEFT_OUT
    )


class _Canon:
    """A state as nested tuples, equal for states that differ in identities only."""

    def __init__(self) -> None:
        # What it has met: nothing that is gone before the state is complete, for another
        # thing could have its id then, and would be taken for it.
        self._seen: dict[int, int] = {}

    def of_locals(self, frame: FrameType) -> Hashable:
        of = self.of
        return tuple([(name, of(value)) for name, value in frame.f_locals.items()])

    def of(self, thing: Any) -> Hashable:
        kind = type(thing)
        if kind in _VALUES:
            return thing
        of, seen = self.of, self._seen
        number = seen.get(id(thing))
        if number is not None:
            return ("seen", number)
        seen[id(thing)] = len(seen)
        if kind is list or kind is tuple or kind is deque:
            return (kind.__name__, *[of(item) for item in thing])
        if kind is dict or kind is OrderedDict:
            return ("dict", *[(of(key), of(value)) for key, value in thing.items()])
        if kind is Woken:  # ids and futures of tasks that are seen to elsewhere
            return ("woken", len(thing), len(thing.under_way))
        if kind is set:  # of nodes
            return ("set", *[of(item) for item in sorted(thing, key=lambda node: node.key)])
        if kind is CoroutineType:
            frame = thing.cr_frame
            place = () if frame is None else (frame.f_lasti, self.of_locals(frame))
            # Of one that is running, CPython reads what it awaits from where nothing is.
            awaits = None if thing.cr_running else thing.cr_await
            return (thing.__name__, place, of(awaits))
        if kind is MethodType:
            return ("method", thing.__name__, of(thing.__self__))
        slots = _slots_of(kind)
        if slots is not None:
            parts: list[Hashable] = [kind.__name__]
            parts += [of(getattr(thing, name, "unset")) for name in slots]
            for name, value in getattr(thing, "__dict__", {}).items():
                if name[0] != "_":
                    parts.append(of(value))
            return tuple(parts)
        if isinstance(thing, asyncio.Future):
            result = thing._result if thing.done() else None
            return ("future", thing._state, result, of(thing.get_loop()))
        return kind.__name__


class _Player:
    """A thread that acts in one run after another: to start one for each run takes longer.

    It waits for its baton before it acts, and whenever somebody else is to go on.
    """

    def __init__(self) -> None:
        # What it does next, and returns what it hands on, when it refers to nothing of the run.
        self.act: Callable[[], LockType] | None = None
        self.baton = threading.Lock()
        self.baton.acquire()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.baton.release()
        self._thread.join()

    def _play(self) -> None:
        while True:
            self.baton.acquire()
            act, self.act = self.act, None
            if act is None:
                return
            next_baton = act()
            act = None
            next_baton.release()


class _Players:
    """As many threads as the scenarios of one search need."""

    def __init__(self) -> None:
        self._players: list[_Player] = []

    def first(self, count: int) -> list[_Player]:
        while len(self._players) < count:
            self._players.append(_Player())
        return self._players[:count]

    def __enter__(self) -> _Players:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for player in self._players:
            player.end()


class Run:
    """One schedule, from the first step of its threads to the last."""

    def __init__(
        self,
        prefix: tuple[int, ...],
        seen: set[int],
        steps: _Steps,
        interruptions: float,
        players: _Players,
    ) -> None:
        self._players = players
        self._prefix = prefix
        self._interruptions_left = interruptions
        self._seen = seen
        self._steps = steps
        self.taken: list[int] = []
        self.branches: list[tuple[int, ...]] = []
        self.stuck = False
        self.lock_owner: int | None = None
        # Nothing is left to choose: an earlier run was here, or nobody can be interrupted any more.
        self._decided = False
        self._me: dict[int, int] = {}
        self._batons: list[LockType] = []
        self._finished: list[bool] = []
        self._until: list[Callable[[], object] | None] = []
        self._where: list[FrameType | None] = []
        self._trails: dict[int, tuple[int, list[Hashable]]] = {}
        self._all_finished = threading.Lock()
        self._failure: BaseException | None = None
        self._story: Scenario | None = None

    def play(self, scenario: Scenario) -> None:
        """Run the acts under this schedule, then check."""
        if _MONITORED:
            _monitor()
        self._story = scenario
        count = len(scenario.acts)
        self._finished = [False] * count
        self._decided = self._is_decided()
        self._until = [None] * count
        self._where = [None] * count
        self._all_finished.acquire()
        players = self._players.first(count)
        self._batons = [player.baton for player in players]
        for number, (player, act) in enumerate(zip(players, scenario.acts, strict=True)):
            player.act = partial(self._act, number, act)
        self._batons[self._choose(0)].release()
        self._all_finished.acquire()
        if self._failure is not None:
            raise self._failure
        assert not self.stuck, "a thread waits forever"
        scenario.check()

    def step(self, until: Callable[[], object] | None = None) -> None:
        """Let anybody go on; with ``until`` the caller only once that is true."""
        me = self.me()
        if me is None:
            assert until is None or until(), "the world hand would wait forever"
            return
        tracing = sys.gettrace()
        sys.settrace(None)  # or all that happens in here would be reported too
        try:
            self._pause(me, sys._getframe(1), until)
        finally:
            if not self._decided:
                sys.settrace(tracing)

    def me(self) -> int | None:
        """The number of the calling thread; None for the one that made the scenario."""
        return self._me.get(threading.get_ident())

    def _act(self, me: int, act: Callable[[], None]) -> LockType:
        self._me[threading.get_ident()] = me
        if _MONITORED:
            _runs[threading.get_ident()] = self
        else:
            sys.settrace(self._trace_call)
        try:
            if not self.stuck:
                act()
        except _Abandoned:
            pass
        except BaseException as failure:
            self._failure = self._failure or failure
        finally:
            sys.settrace(None)
            _runs.pop(threading.get_ident(), None)
        self._finished[me] = True
        self._where[me] = None
        return self._all_finished if all(self._finished) else self._batons[self._choose(me)]

    def _trace_call(self, frame: FrameType, event: str, arg: object) -> Any:
        if self._decided:
            sys.settrace(None)
            return None
        steps = self._steps[frame.f_code]
        if not steps:
            return None
        # Until the first line is reported: a coroutine goes on in the midst of one.
        frame.f_trace_opcodes = True
        step_at = steps.get
        lines_with_steps = self._steps.lines_of(frame.f_code)

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            # Called for every instruction of a line that has steps, and else once for each line:
            # most of the time of a search is spent here.
            if event == "opcode":
                step = step_at(frame.f_lasti)
                if step is not None:
                    if self._decided:
                        sys.settrace(None)
                        return None
                    self._take_step(frame, step)
            elif event == "line":
                frame.f_trace_opcodes = frame.f_lineno in lines_with_steps
            elif event == "return":
                self._trails.pop(id(frame), None)
            return trace

        return trace

    def take_monitored_step(self, frame: FrameType, offset: int) -> None:
        step = self._steps[frame.f_code].get(offset)
        if step is not None and not self._decided:
            self._take_step(frame, step)

    def begin_frame(self, frame: FrameType) -> None:
        self._trails.pop(id(frame), None)

    def _take_step(self, frame: FrameType, step: _Step) -> None:
        me = self._me[threading.get_ident()]
        if step.is_guarded_read and self.lock_owner == me:
            return
        if not step.is_one_of_several:
            self._pause(me, frame, None)
            return
        # What this step reads is on the stack at the next one of its block,
        # where it can't be seen: remember what it may have been.
        trail = self._trails.get(id(frame))
        if trail is None or trail[0] != step.block:
            self._trails[id(frame)] = trail = (step.block, [])
        self._pause(me, frame, None)
        assert self._story is not None
        trail[1].append((frame.f_lasti, self._story.glance()))

    def _pause(self, me: int, frame: FrameType, until: Callable[[], object] | None) -> None:
        if self.stuck:
            raise _Abandoned
        self._where[me] = frame
        self._until[me] = until
        chosen = self._choose(me)
        if chosen != me:
            self._batons[chosen].release()
            self._batons[me].acquire()
        self._until[me] = None
        if self.stuck:
            raise _Abandoned

    def _choose(self, me: int) -> int:
        """Who has the baton next."""
        able = [
            number
            for number, finished in enumerate(self._finished)
            if not finished and ((until := self._until[number]) is None or until())
        ]
        if not able or self.stuck:
            self.stuck = True
            return self._finished.index(False)
        usual = me if me in able else able[0]
        if len(able) == 1 or self._decided:
            return usual
        depth = len(self.taken)
        if depth < len(self._prefix):
            chosen = self._prefix[depth]
            assert chosen in able, "the same choices led elsewhere: the scenario is not repeatable"
        else:
            chosen = usual
            if me not in able or self._interruptions_left > 0:
                # Who runs is part of it where interruptions are counted: to go on is none.
                running = None if self._interruptions_left == inf else usual
                state = hash((self._interruptions_left, running, self._state()))
                if state in self._seen:
                    self._decided = True
                    return usual
                self._seen.add(state)
                self.branches += [(*self.taken, other) for other in able if other != chosen]
        if me in able and chosen != me:
            self._interruptions_left -= 1
        self.taken.append(chosen)
        self._decided = self._is_decided()
        return chosen

    def _is_decided(self) -> bool:
        """Of two threads, one goes on for as long as it can, and then the other one does."""
        return self._interruptions_left <= 0 and len(self._finished) <= 2

    def _state(self) -> Hashable:
        assert self._story is not None
        canon = _Canon()
        places: list[Hashable] = []
        for number, frame in enumerate(self._where):
            places.append((self._finished[number], self._until[number] is None))
            while frame is not None and frame.f_code is not Run._act.__code__:
                trail = self._trails.get(id(frame), (0, ()))[1]
                where = (frame.f_code.co_name, frame.f_lasti, tuple(trail))
                if frame.f_code.co_filename != __file__ or frame.f_code.co_name == "drive":
                    places.append((where, canon.of_locals(frame)))
                frame = frame.f_back
        return (*places, *[canon.of(thing) for thing in self._story.shared])


_runs: dict[int, Run] = {}  # by the threads that play in them


def _on_instruction(_: CodeType, offset: int) -> None:
    run = _runs.get(threading.get_ident())
    if run is not None:
        run.take_monitored_step(sys._getframe(1), offset)


def _on_start(_: CodeType, _offset: int) -> None:
    run = _runs.get(threading.get_ident())
    if run is not None:
        run.begin_frame(sys._getframe(1))


@cache
def _monitor() -> None:
    """Have every instruction of the modules reported that are stepped through."""
    monitoring = sys.monitoring
    events = monitoring.events
    tool = monitoring.OPTIMIZER_ID - 1
    monitoring.use_tool_id(tool, "stepping")
    monitoring.register_callback(tool, events.INSTRUCTION, _on_instruction)
    monitoring.register_callback(tool, events.PY_START, _on_start)
    gc.unfreeze()  # what there was before the first test is frozen, and would not be listed
    there = gc.get_objects()
    gc.freeze()
    for thing in there:
        # Not `isinstance`, which asks proxies for the class of what they stand for.
        if type(thing) is FunctionType and thing.__code__.co_filename in _STEPPED:
            for code in _with_inner(thing.__code__):
                monitoring.set_local_events(tool, code, events.INSTRUCTION | events.PY_START)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


@dataclass
class Explored:
    """What a search has seen."""

    schedules: int = 0
    states: int = 0


def explore(
    make_scenario: Callable[[Run], Scenario],
    *,
    interruptions: float = inf,
    attachment: bool = False,
    at_most: int = 100_000,
) -> Explored:
    """Run the scenario under every schedule; raises what the first failing one raised.

    With ``interruptions``: every schedule in which a thread that could go on has
    to hand the baton on at most so often, at whatever steps; every day, at most once.
    """
    if interruptions < inf and not EXHAUSTIVELY:
        interruptions = 1
    seen: set[int] = set()
    to_try: list[tuple[int, ...]] = [()]
    explored = Explored()
    steps = _WITH_ATTACHMENT if attachment else _PLAIN
    with _Players() as players:
        while to_try:
            if explored.schedules >= at_most:
                raise TooManySchedules(f"{at_most} schedules, and more to come")
            prefix = to_try.pop()
            run = Run(prefix, seen, steps, interruptions, players)
            try:
                run.play(make_scenario(run))
            except BaseException as failure:
                failure.add_note(f"in schedule {run.taken} after {explored.schedules} others")
                raise
            to_try += run.branches
            explored.schedules += 1
    explored.states = len(seen)
    return explored


_strangers_may_go = threading.Event()
_strangers_may_go.set()


class SteppedLock:
    """In place of the section's lock: to wait for it is to hand the baton on.

    Threads that an earlier test left behind want the section too. They wait until this test is
    over (`keep_strangers_out`), and have the real lock then.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._maker = threading.get_ident()
        self.owner: int | None = None
        self.depth = 0

    def acquire(self) -> None:
        me = self._run.me()
        if self._is_stranger(me):
            _strangers_may_go.wait()
            _real_lock.acquire()
            return
        if self.owner != me:
            self._run.step(until=lambda: self.owner is None)
            self.owner = me
            self._run.lock_owner = me
        self.depth += 1

    def release(self) -> None:
        me = self._run.me()
        if self._is_stranger(me):
            _real_lock.release()
            return
        assert self.owner == me
        self.depth -= 1
        if not self.depth:
            self.owner = None
            self._run.lock_owner = None

    def _is_stranger(self, me: int | None) -> bool:
        return me is None and threading.get_ident() != self._maker

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


@contextmanager
def keep_strangers_out() -> Iterator[None]:
    """Let threads of other tests wait until a test that steps through the section is over.

    Call it when the section has its `SteppedLock`, or is about to get it.
    """
    with _own_timers():
        _strangers_may_go.clear()
        try:
            yield
        finally:
            _strangers_may_go.set()


@contextmanager
def _own_timers() -> Iterator[None]:
    """Use a timekeeper of one's own, and let the timers of other tests rest meanwhile.

    Their thread would postpone work for the section before it waits for the lock.
    """
    others = clock.timekeeper
    with no_timers():
        clock.timekeeper = own = Timekeeper()
        try:
            yield
        finally:
            clock.timekeeper = others
            end_timers(own)


class HandLoop(asyncio.AbstractEventLoop):
    """An event loop that is turned by hand, and drives one coroutine at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.ready: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        self.ready.append((callback, args))

    call_soon_threadsafe = call_soon

    def run_ready(self) -> None:
        """Run what is ready."""
        with self.running():
            while self.ready:
                callback, args = self.ready.popleft()
                callback(*args)

    def running(self) -> _Running:
        return _Running(self)

    def drive(
        self,
        method: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        cancel_when_it_waits: bool = False,
    ) -> Any:
        """Run what ``method`` returns to its end, as a task would."""
        throw: BaseException | None = None
        with self.running():
            coroutine = method(*args)
        while True:
            with self.running():
                try:
                    future = coroutine.send(None) if throw is None else coroutine.throw(throw)
                except StopIteration as end:
                    return end.value
            if future is None:  # it lets others run
                self._run.step()
                self.run_ready()
                continue
            future._asyncio_future_blocking = False
            if cancel_when_it_waits:
                cancel_when_it_waits = False
                self._run.step()
                self.run_ready()
                self._run.step()
                with self.running():
                    future.cancel()  # False if it has its result: a task is cancelled all the same
                throw = asyncio.CancelledError()
                continue
            while not future.done():
                self._run.step(until=lambda: self.ready)
                self.run_ready()


class _Running:
    def __init__(self, loop: HandLoop) -> None:
        self._loop = loop
        self._outer: Any = None

    def __enter__(self) -> None:
        self._outer = events._get_running_loop()
        events._set_running_loop(self._loop)

    def __exit__(self, *exc_info: object) -> None:
        events._set_running_loop(self._outer)
