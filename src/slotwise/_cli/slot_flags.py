"""What ``run`` and ``acquire`` have in common: flags for slots, the semaphore, and exit codes.

The slot that they hold is waited for in a thread: the main thread is busy with signals and
processes, so events of the slot arrive through a file descriptor that it can poll. That needs no
asyncio, which is slow to import.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from slotwise import _urls
from slotwise._cli.flags import Either, Flag, UsageError, count, exit_code, seconds, some_seconds
from slotwise._cli.output import print_any, print_error
from slotwise._cli.signals import readable
from slotwise._core import events
from slotwise._core.adaptive import Adaptive
from slotwise._core.limit import TRY_LIMIT
from slotwise._core.messages import display
from slotwise._core.results import AcquisitionResult
from slotwise._core.semaphore import Semaphore
from slotwise.errors import (
    AcquireTimeout,
    BackendError,
    SemaphoreClosed,
    SlotwiseError,
    ValueConflict,
)

NO_SLOT, OWN_FAILURE = 75, 125

ID = "SLOTWISE_ACQUISITION_ID"  # in the environment of a command
_OUTER_IDS = "SLOTWISE_OUTER_IDS"  # those of all runs around it, itself included


class WaitsForItself(SlotwiseError):
    """The slots that are waited for are held by whoever started this."""


def check(given: argparse.Namespace) -> None:
    """Check what `flags` have read.

    Raises:
        UsageError: it makes no sense.
    """
    if not given.name:
        raise UsageError("NAME must not be empty")
    if given.limit is not None and given.slots > given.limit:
        raise UsageError(f"--slots {given.slots} is more than --limit {given.limit} ever gives")
    if given.no_wait:
        given.wait = 0.0


def limit(text: str) -> int:
    """A number of slots, or a percentage of the cores that this process may use."""
    percentage = text.removesuffix("%")
    try:
        number = float(percentage) if percentage != text else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a whole number, or a percentage of the cores such as 50%, not {text!r}"
        ) from None
    if percentage == text:
        return count(text)
    if not 0 < number <= 100_000:
        raise argparse.ArgumentTypeError(f"must be more than 0% and at most 100000%, not {text}")
    return max(int(number / 100 * cores()), 1)


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def flags(who: str, ttl_words: str) -> list[Flag]:
    """Return the flags of a command that takes slots."""
    return [
        Flag("name", metavar="NAME", help="the semaphore; created if it does not exist"),
        Flag(
            "--limit",
            type=limit,
            metavar="N",
            help="how many may run at once: a number, or 50%% of the cores that slotwise may use"
            " [the value of the semaphore; 1 if it is new];"
            " a value set by 'slotwise resize' wins",
        ),
        Flag("--slots", type=count, default=1, metavar="n", help=f"how many slots {who} takes [1]"),
        Either(
            Flag(
                "--wait",
                "--timeout",
                type=seconds,
                metavar="TIME",
                help="wait at most this long for a slot, such as 30, 250ms, 10m, 1h [no limit]",
            ),
            Flag("--no-wait", action="store_true", help="don't wait at all: the same as --wait 0"),
        ),
        Flag(
            "--label",
            metavar="TEXT",
            help="what others see in 'slotwise show', and while they wait",
        ),
        Flag("--quiet", "-q", action="store_true", help="say nothing if there is no slot"),
        Flag(
            "--busy-exit",
            type=exit_code,
            default=NO_SLOT,
            metavar="N",
            help="the exit code if there is no slot, 0 to 255 [75]",
        ),
        Flag("--ttl", type=some_seconds, metavar="TIME", help=ttl_words),
    ]


def semaphore_of(given: argparse.Namespace, ttl: float | None, time_left: TimeLeft) -> Semaphore:
    """Return the semaphore that the flags name."""
    url = given.url or _urls.url_of_environment() or "process://"
    scheme = _urls.scheme_of(url)
    if scheme == "memory":
        raise ValueError(
            "memory:// ends with this process; use process:// for this machine or redis://"
        )
    options: dict[str, Any] = {} if ttl is None else {"ttl": ttl}
    if scheme == "process":
        from slotwise.processes import ProcessSemaphore

        options["directory"] = _urls.directory_of(url)
        if given.limit is None:
            try:
                semaphore = ProcessSemaphore(1, name=given.name, **options)
                return semaphore._open_existing(time_left.for_a_look())
            except LookupError:
                pass
        return ProcessSemaphore(given.limit or 1, name=given.name, **options)
    limit = given.limit or _value_on_redis(given.name, url, time_left) or 1
    return _urls.semaphore(given.name, limit, url, **options)


def _value_on_redis(name: str, url: str, time_left: TimeLeft) -> int | Adaptive | None:
    """Return the value of the semaphore, or how it finds that, if there is one."""
    from slotwise.redis import RedisSemaphore
    from slotwise.redis._survey import survey_sync

    # Somebody is waiting at the terminal: fail soon instead of retrying for long.
    config = _urls.redis_config(url, attempts=2)
    found = survey_sync(config, [("semaphore", name)], at_most=time_left.for_a_look())
    if found.errors:
        raise found.errors[0]
    if name not in found.semaphores:
        return None
    value = found.semaphores[name].max_slots
    semaphore = RedisSemaphore(value, name=name, config=config)
    return semaphore._rules_sync(time_left.for_a_look()) or value


def check_nested(semaphore: Semaphore, slots: int, time_left: TimeLeft) -> None:
    """Raise if this was started by a run that holds what it would wait for.

    Raises:
        WaitsForItself: it was; the slots can't become free while this waits.
    """
    outer = {os.environ.get(ID), *os.environ.get(_OUTER_IDS, "").split()} - {None, ""}
    if not outer:
        return
    holders = semaphore._holders_within_sync(time_left.for_a_look())
    held = sum(each.slots for each in holders if each.acquisition_id in outer)
    if held and held + slots > semaphore.value:
        raise WaitsForItself(
            f"{display(semaphore.name)} is held by the run that started this one: it would wait for"
            f" itself"
        )


def environment_of(acquired: AcquisitionResult) -> dict[str, str]:
    """Return what is added to the environment of a command that holds slots."""
    outer = [*os.environ.get(_OUTER_IDS, "").split(), acquired.acquisition_id]
    more = {
        ID: acquired.acquisition_id,
        "SLOTWISE_SLOT_NUMBER": str(acquired.slot_number),
        _OUTER_IDS: " ".join(outer),
    }
    if acquired.fencing_token is not None:
        more["SLOTWISE_FENCING_TOKEN"] = str(acquired.fencing_token)
    return more


def explain(command: str, given: argparse.Namespace, error: Exception) -> int:
    """Print why there is no slot, and return the exit code."""
    is_busy = isinstance(error, AcquireTimeout | SemaphoreClosed)
    if is_busy and not isinstance(error, BackendError):  # then nobody knows if there was a slot
        if not given.quiet:
            print_error(command, error)
        return int(given.busy_exit)
    if isinstance(error, ValueConflict) and error.rules is not None:
        print_error(command, f"{given.name!r} finds its value ({error.rules}): leave out --limit")
    elif isinstance(error, ValueConflict):
        from slotwise._admin import text  # rarely needed

        remedy = text.command_hint("resize", given.name, str(given.limit or 1), url=given.url)
        slots = text.count(error.value or 0, "slot")
        print_error(command, f"{given.name!r} is in use with {slots}: {remedy}")
    else:
        print_any(command, error)
    return OWN_FAILURE


def warn_if_resized(command: str, given: argparse.Namespace, semaphore: Semaphore) -> None:
    if given.limit is not None and semaphore.value != given.limit:
        print_error(
            command,
            f"{given.name!r} was resized to {semaphore.value}: --limit {given.limit} is ignored",
        )


# How long a server has for a call, in seconds, even if an earlier call used up the time.
_SECOND_CALL = 0.5
_CANCEL_LIMIT = 3.0  # seconds that a server has to confirm that nobody waits any more


class TimeLeft:
    """What is left of ``--wait``: whatever is looked up before the wait counts as well.

    It counts from the first time that it is asked for: imports before that are not part of the
    wait, and must not use up the time of a slow server. The times are rounded, because messages
    show them.
    """

    def __init__(self, wait: float | None) -> None:
        self._wait = wait
        self._started: float | None = None

    def for_a_look(self) -> float | None:
        """Return how long a look at the semaphore may take; None leaves it to the driver."""
        if self._wait is None:
            return None
        # A distant server has to be connected to first, even if nothing is waited for.
        return _rounded(max(max(self._wait, TRY_LIMIT) - self._elapsed(), _SECOND_CALL))

    def for_the_slot(self) -> float | None:
        """Return how long to wait for a slot; None is without a limit."""
        if self._wait is None:
            return None
        return _rounded(max(self._wait - self._elapsed(), 0.0))

    def _elapsed(self) -> float:
        now = time.monotonic()
        if self._started is None:
            self._started = now
        return now - self._started


def _rounded(seconds: float) -> float:
    return round(seconds, 1 if seconds >= 1 else 2)


class Slot:
    """Slots of a semaphore: requested by `start`, then acquired or failed, then perhaps lost."""

    def __init__(
        self,
        semaphore: Semaphore,
        slots: int,
        time_left: TimeLeft,
        label: str | None,
        *,
        replace: bool = False,
        on_requested: Callable[[str], object] | None = None,
    ) -> None:
        """``replace``: take the slots of the oldest holder if none are free.

        ``on_requested`` is called with the id, in another thread, before it can hold or wait.
        """
        self.semaphore = semaphore
        self._replace = replace
        self._on_requested = on_requested
        self._arguments = slots, time_left, label
        self._reading, self._writing = os.pipe()
        self._result: AcquisitionResult | None = None
        self._failure: BaseException | None = None
        self.is_decided = False  # whether it was acquired, or failed
        self.lost_reason: str | None = None

    def start(self) -> None:
        """Request the slots; don't wait."""
        threading.Thread(target=self._work, name="slotwise-slot", daemon=True).start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something for `poll`."""
        return self._reading

    def poll(self) -> None:
        """Update `is_decided` and `lost_reason`, when there is something to read."""
        written = os.read(self._reading, 10)
        self.is_decided = True
        if b"l" in written:
            assert self._result is not None
            self.lost_reason = self._result.lost.reason

    def result(self) -> AcquisitionResult:
        """Return the acquisition, or raise why there is none; once it is decided."""
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """Leave the queue; release what was granted at the same moment."""
        self.semaphore.close_sync()
        if not self.is_decided and not readable(self._reading, timeout=_CANCEL_LIMIT):
            return  # the server is stuck: it will notice that this process has ended
        if self._result is not None:
            self.release()

    def release(self) -> None:
        self.semaphore.release_sync(self.result())

    def _work(self) -> None:
        slots, time_left, label = self._arguments
        timeout = time_left.for_the_slot()
        if self._on_requested is not None:
            events.add_hook(self._on_event)
        try:
            if self._replace:
                self._result = self.semaphore.acquire_sync(
                    slots, timeout=timeout, label=label, on_full="replace"
                )
            elif timeout == 0:
                answer = time_left.for_a_look() or TRY_LIMIT
                self._result = self.semaphore._acquire_at_once_sync(slots, label, answer)
            else:
                self._result = self.semaphore.acquire_sync(slots, timeout=timeout, label=label)
        except BaseException as error:
            self._failure = error
        if self._on_requested is not None:
            events.remove_hook(self._on_event)
        os.write(self._writing, b"d")
        if self._result is not None and self._result.lost.wait():
            os.write(self._writing, b"l")

    def _on_event(self, event: events.Event) -> None:
        if event.kind == "requested" and event.acquisition_id and self._on_requested is not None:
            self._on_requested(event.acquisition_id)
