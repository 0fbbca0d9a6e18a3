"""Supervise the command of ``slotwise run`` while it runs.

Signals sent to slotwise are forwarded to the command. When the slot ends, by its ttl, a kick or
a loss, the command is ended together with everything it started: TERM, then KILL after the
grace period. So are the leftovers of a command that ended after a TERM; a command that ends by
itself may leave processes behind.
"""

from __future__ import annotations

import select
import signal
import time

from slotwise._cli.child import Child
from slotwise._cli.guard import IN_VAIN
from slotwise._cli.output import print_error
from slotwise._cli.signals import ReceivedSignal, SignalQueue
from slotwise._cli.slot_flags import Slot
from slotwise._core.messages import KICKED, ttl_ended

ENDED_BY_US = 124

_JOB_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_RETRY = 0.02  # seconds between two kills, while something is left
_NEVER = float("inf")
_LONGEST_WAIT = 86400.0  # poll() can't wait for much longer


class Supervisor:
    """Supervises a running command until it and its slot have ended.

    Args:
        ttl: the seconds after which the command is ended, or None.
        grace: the seconds between TERM and KILL.
        continue_on_loss: let the command keep running when its slot is lost.
    """

    def __init__(
        self,
        child: Child,
        slot: Slot,
        signals: SignalQueue,
        *,
        ttl: float | None,
        grace: float,
        continue_on_loss: bool,
    ) -> None:
        self._child = child
        self._slot = slot
        self._signals = signals
        self._ttl = ttl
        self._grace = grace
        self._continue_on_loss = continue_on_loss
        self._ttl_ends_at = _NEVER if ttl is None else time.monotonic() + ttl
        self._kill_at = _NEVER  # set while it is being ended
        self._was_terminated = False  # whether slotwise got a TERM
        self._ended_by_us = False
        self._is_left_alone = False
        self._could_not_send: set[int] = set()
        self._in_vain = 0  # how many kills in a row met nobody

    def run(self) -> int:
        """Wait for everything that has to end, and return the exit code."""
        poller = select.poll()
        child, slot = self._child, self._slot
        for each in (self._signals.fileno(), slot.fileno(), child.fileno()):
            if each >= 0:
                poller.register(each, select.POLLIN)
        while True:
            wake_at = min(self._ttl_ends_at, self._kill_at)
            if child.fileno() < 0 and self._kill_at != _NEVER:  # no report of its leftovers
                wake_at = min(wake_at, time.monotonic() + _RETRY)
            wait = min(max(wake_at - time.monotonic(), 0.0), _LONGEST_WAIT)
            ready = {fd for fd, _ in poller.poll(int(wait * 1000) + 1)}
            for received in self._signals.read():
                self._pass_on(received)
            stopped_by = child.poll()
            # The shell watches slotwise alone, and has to see that the job stops.
            if stopped_by in _JOB_STOPS and self._signals.stop_here(stopped_by, child.is_stopped):
                self._send(signal.SIGCONT)
            if slot.fileno() in ready:
                slot.poll()
                self._on_lost()
            if self._see_to_end(time.monotonic()):
                return ENDED_BY_US if self._ended_by_us else child.exit_code or 0

    def _pass_on(self, received: ReceivedSignal) -> None:
        child, number = self._child, received.number
        if number == signal.SIGTERM:
            self._was_terminated = True
        has_it = received.to_all or received.sender == child.pid  # it knows what it has sent
        if number != signal.SIGCHLD and (
            not has_it or (number == signal.SIGCONT and child.stopped)
        ):
            self._send(number)

    def _on_lost(self) -> None:
        reason = self._slot.lost_reason
        if reason is None or self._ended_by_us:
            return
        if self._continue_on_loss and reason != KICKED:
            print_error("run", f"{reason}: {self._child.command[0]!r} continues without its slot")
            return
        self._end_command(reason)

    def _end_command(self, reason: str) -> None:
        self._ended_by_us = True
        self._end_all()
        print_error("run", f"{reason}: ending {self._child.command[0]!r}")

    def _end_all(self) -> None:
        self._kill_at = time.monotonic() + self._grace
        self._send_all(signal.SIGTERM)
        self._send_all(signal.SIGCONT)  # a stopped process would not get the other

    def _see_to_end(self, now: float) -> bool:
        """Do what is due, and return whether everything has ended."""
        child = self._child
        if now >= self._ttl_ends_at:
            self._ttl_ends_at = _NEVER
            if child.exit_code is None and not self._ended_by_us:
                self._end_command(ttl_ended(self._ttl))
        is_being_ended = self._kill_at != _NEVER
        if now >= self._kill_at:
            self._kill_at = now + _RETRY
            self._in_vain = 0 if self._send_all(signal.SIGKILL) else self._in_vain + 1
            if self._in_vain >= IN_VAIN and child.exit_code is not None:
                child.leave_alone()
        if child.exit_code is not None and not is_being_ended and not self._is_left_alone:
            if self._was_terminated and not child.all_ended and not child.only_command:
                self._end_all()
            else:
                self._is_left_alone = True
                child.leave_alone()
                child.poll()
        return child.exit_code is not None and child.all_ended

    def _send(self, number: int) -> None:
        try:
            self._child.send(number)
        except PermissionError:
            self._cannot_send(number)

    def _send_all(self, number: int) -> bool:
        try:
            return self._child.send_all(number)
        except PermissionError:
            self._cannot_send(number)
            return True

    def _cannot_send(self, number: int) -> None:
        if number not in self._could_not_send:
            self._could_not_send.add(number)
            name, pid = signal.Signals(number).name, self._child.pid
            print_error("run", f"pid {pid} runs as another user and can't be sent {name}")
