"""Says what a history proves: which promises of docs/guarantees.md were broken in it.

It knows the promises and their documented limits, and nothing of how they are kept: it
shares no code with slotwise. What it sees is what callers see, so a hold begins when the
caller has its grant and ends when the caller begins to release it. That is inside of what the
server thinks, hence two holds that overlap here did overlap.

A machine that has too much to do makes everybody late. What is subtracted for that is what the
kernel has measured for these processes at that time (`_starved`), and nothing else.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.soak._history import Event, Fault, fault_of
from tests.soak._starved import Starved

# A task learns of its loss through a thread and an event loop, on a busy machine.
NOTICE = 0.25
# A service that is not disturbed grants at least this often, in seconds.
PULSE = 1.0
# How long callers wait for an answer at least, and how long one takes at most that is not kept
# from running.
PATIENCE, ANSWER = 2.0, 0.5
# How far apart calls of two processes must be to have an order, where no server tells it.
APART = 0.5


@dataclass
class Hold:
    """One request, and what became of it."""

    pid: int
    object: str
    limits: tuple[str, ...]
    slots: int
    asked: float
    granted: float = math.inf
    ended: float = math.inf
    token: int = -1
    arrival: int | None = None
    loss: str | None = None
    lost_at: float = math.inf


@dataclass
class Report:
    """What was found; everything but the figures has to be empty."""

    requests: int = 0
    grants: int = 0
    overlaps: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # filled by who looks at what is left behind
    # Figures: grants whose order was checked, losses and errors that a fault explains, and the
    # longest until a grant after a fault.
    in_order: int = 0
    explained_losses: int = 0
    explained_errors: int = 0
    starved_losses: int = 0  # that the machine explains
    starved_errors: int = 0
    excused: float = 0.0  # the longest that it kept those from running who were late
    back: float = 0.0
    over: float = 0.0  # the longest that more than the value was held, excused or not
    stood_still: float = 0.0  # the longest that a process did not run; it excuses nothing

    @property
    def broken(self) -> dict[str, list[str]]:
        kinds = ("overlaps", "tokens", "losses", "passed", "errors", "late", "unfinished", "left")
        return {kind: getattr(self, kind) for kind in kinds if getattr(self, kind)}


class _History:
    def __init__(self, events: Iterable[Event]) -> None:
        self.values: dict[str, int] = {}
        self.intervals: dict[str, tuple[float, float] | None] = {}
        self.holds: dict[tuple[int, int], Hold] = {}
        self.faults: list[Fault] = []
        self.errors: list[tuple[float, Hold, str]] = []
        self.last_seen: dict[int, float] = {}
        self.ended: set[int] = set()
        self.deaf: list[tuple[float, float]] = []
        self.stood_still = 0.0
        self.starved = Starved()
        seen: list[tuple[float, list[str]]] = []
        ids: dict[str, Hold] = {}
        for event in events:
            kind = event["kind"]
            self.starved.add(event)
            if kind == "object":
                self.values.update(event["limits"])
                interval = event["interval"]
                self.intervals[event["object"]] = interval and (interval, event["ping"])
            elif kind == "fault":
                self.faults.append(fault_of(event))
            elif kind == "arrival":
                seen.append((event["at"], event["ids"]))
            elif kind == "deaf":
                self.deaf.append((event["since"], event["at"]))
            elif kind == "stood still":
                self.stood_still = max(self.stood_still, event["at"] - event["since"])
            elif kind == "end":
                self.ended.add(event["pid"])
            elif kind == "waited":
                pass
            else:
                hold = self._note(kind, event)
                if kind == "grant":
                    ids[event["id"]] = hold
        arrivals: dict[str, int] = {}
        ordered = sorted(seen, key=lambda each: each[0])  # of several servers
        for number, (_, arrived) in enumerate(ordered):
            for claim_id in arrived:  # in one write, which may be in any order
                arrivals.setdefault(claim_id, number)
        for claim_id, hold in ids.items():
            if not any(hold.asked < at and hold.granted > since for since, at in self.deaf):
                hold.arrival = arrivals.get(claim_id)
        self.faults.sort(key=lambda fault: fault.at)
        self._silences: dict[tuple[int, str], list[Fault]] = {}
        self.granted = sorted(
            (hold for hold in self.holds.values() if hold.granted < math.inf),
            key=lambda hold: hold.granted,
        )

    def _note(self, kind: str, event: Event) -> Hold:
        at, pid = event["at"], event["pid"]
        self.last_seen[pid] = max(at, self.last_seen.get(pid, 0.0))
        key = pid, event["n"]
        if kind == "request":
            hold = Hold(pid, event["object"], tuple(event["limits"]), event["slots"], at)
            self.holds[key] = hold
            return hold
        hold = self.holds[key]
        if kind == "grant":
            hold.granted, hold.token = at, event["token"]
        elif kind == "release":
            hold.ended = min(hold.ended, at)
        elif kind == "released":
            if not event["freed"] and hold.loss is None:
                hold.loss, hold.lost_at = "released, and nothing was there", at
        elif kind == "lost":
            hold.loss, hold.lost_at = event["reason"], at
            hold.ended = min(hold.ended, at - NOTICE)
        elif kind == "error":
            self.errors.append((at, hold, event["error"]))
        return hold

    def faults_of(self, hold: Hold, *effects: str) -> list[Fault]:
        return [
            fault
            for fault in self.faults
            if fault.effect in effects
            and (fault.pids is None or hold.pid in fault.pids)
            and (fault.objects is None or hold.object in fault.objects)
        ]

    def starvations_of(self, hold: Hold) -> list[Fault]:
        """When the machine kept its process, or the server, from running for the interval."""
        times = self.intervals[hold.object]
        if times is None:
            return []
        key = hold.pid, hold.object
        if key not in self._silences:
            self._silences[key] = [
                Fault("no processor", "stopped", start, end, pids=(hold.pid,))
                for start, end in self.starved.silences(hold.pid, *times)
            ]
        return self._silences[key]

    def silence_ends_it(self, fault: Fault, hold: Hold) -> bool:
        """Whether it lasted long enough for the server to give the slot to others."""
        times = self.intervals[hold.object]
        return times is not None and fault.until - fault.at >= times[0] - 2 * times[1]


def check(events: Iterable[Event]) -> Report:
    """Check everything, and report what does not hold."""
    history = _History(events)
    report = Report(
        requests=len(history.holds), grants=len(history.granted), stood_still=history.stood_still
    )
    _check_overlaps(history, report)
    _check_tokens(history, report)
    _check_losses(history, report)
    _check_order(history, report)
    _check_errors(history, report)
    _check_service(history, report)
    dead = {pid for fault in history.faults if fault.effect == "death" for pid in fault.pids or ()}
    report.unfinished += [
        f"process {pid} never ended: last seen at {at:.3f}"
        for pid, at in history.last_seen.items()
        if pid not in history.ended and pid not in dead
    ]
    return report


# -------------------------------------------------------------------- never over the value


def _check_overlaps(history: _History, report: Report) -> None:
    for limit, since, until, most, last in _overlaps(history, _live_spans):
        report.overlaps.append(
            f"{limit}: {most} of {history.values[limit]} for {1000 * (until - since):.1f} ms"
            f" from {since:.6f}, when {_who(last)} came"
        )
    raw = _overlaps(history, _believed_span)
    report.over = max((until - since for _, since, until, _, _ in raw), default=0.0)


def _overlaps(
    history: _History, spans_of: Callable[[_History, Hold], list[tuple[float, float]]]
) -> Iterator[tuple[str, float, float, int, Hold]]:
    """Each limit that was exceeded, from when to when, by how many slots, and who came last."""
    changes: dict[str, list[tuple[float, int, Hold]]] = defaultdict(list)
    for hold in history.granted:
        for start, end in spans_of(history, hold):
            for limit in hold.limits:
                changes[limit].append((start, hold.slots, hold))
                changes[limit].append((end, -hold.slots, hold))
    for limit, steps in changes.items():
        steps.sort(key=lambda step: step[:2])  # at one instant those who leave come first
        live, over_since = 0, None
        for at, slots, hold in steps:
            live += slots
            if live > history.values[limit] and over_since is None:
                over_since = at, live, hold
            elif live <= history.values[limit] and over_since is not None:
                since, most, last = over_since
                yield limit, since, at, most, last
                over_since = None


def _believed_span(history: _History, hold: Hold) -> list[tuple[float, float]]:
    """When its caller believed in it."""
    end = min(hold.ended if hold.loss is None else math.inf, hold.lost_at)
    for fault in history.faults_of(hold, "death"):
        end = min(end, fault.at)
    end = history.last_seen[hold.pid] if end == math.inf else end
    return [(hold.granted, end)] if hold.granted < end else []


def _live_spans(history: _History, hold: Hold) -> list[tuple[float, float]]:
    """When it counted as a live holder by the documented limits."""
    end = hold.ended
    for fault in history.faults_of(hold, "death"):
        end = min(end, fault.at)
    if end == math.inf:
        end = history.last_seen[hold.pid]
    spans = [(hold.granted, end)]
    for start, stop in _excused(history, hold):
        spans = [
            part
            for span in spans
            for part in ((span[0], min(span[1], start)), (max(span[0], stop), span[1]))
            if part[0] < part[1]
        ]
    return [span for span in spans if span[0] < span[1]]


def _excused(history: _History, hold: Hold) -> Iterable[tuple[float, float]]:
    times = history.intervals[hold.object]
    if times is None:
        return
    interval, ping = times
    for fault in history.faults_of(hold, "stopped") + history.starvations_of(hold):
        # Silent for the interval it is not live any more, and has a ping to learn of it. That goes
        # for a grant it had; one that is read after the stop was confirmed before.
        if hold.granted <= fault.at and history.silence_ends_it(fault, hold):
            yield fault.at + interval - 2 * ping, fault.until + ping
    for fault in history.faults_of(hold, "amnesia"):
        if hold.asked <= fault.until:
            # What is damaged may be read much later: then the name is reset, and its holders learn
            # of it by their next heartbeat. `_check_losses` says whether that explains a loss.
            is_lost = hold.loss is not None and hold.lost_at <= fault.until + PULSE + interval
            noticed = hold.lost_at if is_lost else fault.until + ping
            yield fault.at, max(noticed, fault.until + ping) + PULSE


# ---------------------------------------------------------------------------- fencing tokens


def _check_tokens(history: _History, report: Report) -> None:
    """A token is larger than that of every grant that was known before the request."""
    of_objects = defaultdict(list)
    for hold in history.granted:
        of_objects[hold.object].append(hold)
    for name, holds in of_objects.items():
        seen: dict[int, Hold] = {}
        for hold in holds:
            if hold.token in seen:
                report.tokens.append(f"{name}: {hold.token} twice: {_who(hold)}")
            seen[hold.token] = hold
        known, highest = 0, -1
        for hold in sorted(holds, key=lambda hold: hold.asked):
            while known < len(holds) and holds[known].granted < hold.asked:
                highest = max(highest, holds[known].token)
                known += 1
            if hold.token <= highest:
                report.tokens.append(f"{name}: {hold.token} came after {highest}: {_who(hold)}")


# ------------------------------------------------------------------------------------ losses


def _check_losses(history: _History, report: Report) -> None:
    for hold in history.granted:
        if hold.loss is None:
            continue
        times = history.intervals[hold.object]
        grace = PULSE + (times[0] if times else 0.0)
        explained = any(
            fault.at <= hold.lost_at <= fault.until + grace
            for fault in history.faults_of(hold, "amnesia", "stopped", "silence")
            if fault.effect == "amnesia" or history.silence_ends_it(fault, hold)
        )
        if explained:
            report.explained_losses += 1
        elif _is_during(history.starvations_of(hold), hold.lost_at, grace):
            report.starved_losses += 1
        else:
            report.losses.append(f"{_who(hold)} at {hold.lost_at:.3f}: {hold.loss}")


def _is_during(faults: list[Fault], at: float, grace: float) -> bool:
    return any(fault.at <= at <= fault.until + grace for fault in faults)


def _check_errors(history: _History, report: Report) -> None:
    for at, hold, error in history.errors:
        faults = history.faults_of(hold, "amnesia", "stopped", "silence", "trouble")
        if any(fault.at <= at <= fault.until + fault.within for fault in faults):
            report.explained_errors += 1
        elif history.starved.call(hold.pid, at - PATIENCE, at) > PATIENCE - ANSWER:
            report.starved_errors += 1
        else:
            report.errors.append(f"{_who(hold)} at {at:.3f}: {error}")


# ------------------------------------------------------------------------------------- order


def _check_order(history: _History, report: Report) -> None:
    """Of two living requests for the same, the one that arrived first is granted first."""
    lines: dict[tuple[str, ...], list[tuple[float, float, Hold]]] = defaultdict(list)
    for hold in history.granted:
        if _may_lose_its_place(history, hold):
            continue
        line = lines[hold.object, *hold.limits]
        if history.intervals[hold.object] is None:
            # It arrives when its process runs, and whoever has the file's lock.
            waited = history.starved.service(hold.asked, hold.granted, has_server=False)
            line.append((hold.asked, APART + waited, hold))
        elif hold.arrival is not None:
            line.append((float(hold.arrival), 0.0, hold))
    for holds in lines.values():
        report.in_order += len(holds)
        holds.sort(key=lambda entry: entry[2].token)
        latest, passer = -math.inf, None
        for arrived, apart, hold in holds:
            if passer is not None and arrived + apart < latest:
                report.passed.append(f"{_who(hold)} was passed by {_who(passer)}")
            if arrived > latest:
                latest, passer = arrived, hold


def _may_lose_its_place(history: _History, hold: Hold) -> bool:
    of_files = history.intervals[hold.object] is None
    if of_files:  # one that stopped amid a change of the file keeps all others from arriving
        faults = [fault for fault in history.faults if fault.effect == "stopped"]
    else:
        faults = [
            fault
            for fault in history.faults_of(hold, "amnesia", "stopped", "silence")
            if fault.effect == "amnesia" or history.silence_ends_it(fault, hold)
        ] + history.starvations_of(hold)
    return any(hold.asked <= fault.until + PULSE and hold.granted >= fault.at for fault in faults)


# ----------------------------------------------------------------------------------- service


def _check_service(history: _History, report: Report) -> None:
    """Every object grants again within the time after a fault, and all the time without one."""
    grants: dict[str, list[float]] = defaultdict(list)
    for hold in history.granted:
        grants[hold.object].append(hold.granted)
    end = max(history.last_seen.values(), default=0.0)
    for name in history.intervals:
        times = grants[name]
        faults = [f for f in history.faults if f.objects is None or name in f.objects]
        for number, fault in enumerate(faults):
            position = bisect_left(times, fault.until)
            after = times[position] if position < len(times) else math.inf
            last, due = fault, fault.until + fault.within
            for other in faults[number + 1 :]:
                if other.at < min(after, due):  # the next one came before it was over
                    last, due = other, max(due, other.until + other.within)
            if after == math.inf and end < due:
                continue  # the history ends before it could tell
            if last is fault:
                report.back = max(report.back, after - fault.until)
            if after > due and _excuse(history, report, name, last.until, after) < after - due:
                report.late.append(
                    f"{name}: {after - last.until:.3f} s after {last.name} at {last.until:.3f}"
                )
        for earlier, later in pairwise(times):
            if later - earlier <= PULSE:
                continue
            spans = list(_undisturbed(history, name, earlier, later))
            pause = sum(stop - start for start, stop in spans)
            if pause > PULSE:
                excused = sum(_excuse(history, report, name, *span) for span in spans)
                if pause - excused > PULSE:
                    report.late.append(f"{name}: nothing from {earlier:.3f} to {later:.3f}")


def _excuse(history: _History, report: Report, name: str, start: float, end: float) -> float:
    """For how long of that time those who serve it have waited for a processor."""
    has_server = history.intervals[name] is not None
    excused = history.starved.service(start, min(end, start + 60), has_server=has_server)
    report.excused = max(report.excused, excused)
    return excused


def _undisturbed(
    history: _History, name: str, start: float, end: float
) -> Iterator[tuple[float, float]]:
    """When in that time no fault was going on, or had just ended."""
    reached = start
    for fault in history.faults:
        if fault.objects is None or name in fault.objects:
            begin, stop = max(fault.at, reached), min(fault.until + fault.within, end)
            if begin < stop:
                if reached < begin:
                    yield reached, begin
                reached = stop
    if reached < end:
        yield reached, end


def _who(hold: Hold) -> str:
    return f"{hold.object} token {hold.token} of process {hold.pid}, asked {hold.asked:.6f}"
