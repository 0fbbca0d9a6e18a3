"""Receive signals in the order in which they arrive, each with its sender.

Ctrl-C in a terminal sends a signal to every process of the foreground job, ``kill`` to one
process. Only the kernel's record of the sender tells the two apart, and Python's handlers don't
get it. On Linux a signalfd has it; elsewhere we have to guess.

What a signal means is decided in `run` and `supervise`. The C functions for it, and waits for any
descriptor, are here too.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import select
import signal
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

_SENT_BY_KERNEL = 0x80  # SI_KERNEL
_INFO = struct.Struct("=IiiI")  # the start of a signalfd_siginfo: number, errno, code, sender
_INFO_SIZE = 128
_SET_SIZE = 128  # bytes of a sigset_t, in glibc and in musl

_KEYS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)  # what a terminal's keys send
# Left alone: faults of this very process, what can't be caught, and what the kernel sends to a
# background process that uses its terminal.
_NOT_RECEIVED = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
    *(signal.SIGTRAP, signal.SIGSYS, signal.SIGXFSZ, signal.SIGXCPU),
}

# Kept pending: the kernel discards it when a SIGCONT arrives. So it can be seen without a race
# whether one has arrived, even if a later stop signal has discarded that one in turn.
_NOT_CONTINUED = signal.SIGTTOU

# Those that don't end a process by default.
NOT_ENDING = {signal.SIGCHLD, signal.SIGCONT, signal.SIGWINCH, signal.SIGURG}


class ReceivedSignal:
    """One signal. ``to_all``: the other processes of the group got it as well."""

    def __init__(self, number: int, to_all: bool = False, sender: int = 0) -> None:
        self.number = number
        self.to_all = to_all
        self.sender = sender


class SignalQueue:
    """Blocks signals, and returns them in the order in which they arrived.

    Create it before any thread is started, since threads inherit the mask, and use it in the
    thread that has created it. The mask is never undone:
    a signal at the very end is too late to matter, and must not change the exit code.

    Signals that were ignored when this process was started (by ``nohup``, or as a script's
    background job) stay ignored, here and in what it starts.
    """

    def __init__(self) -> None:
        numbers = [
            number
            for number in signal.valid_signals() - _NOT_RECEIVED
            if signal.getsignal(number) is not signal.SIG_IGN
        ]
        self.mask_before: set[int] = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if sys.platform == "linux":
            signal.pthread_sigmask(signal.SIG_BLOCK, [*numbers, _NOT_CONTINUED])
            self._fd = signalfd(numbers)
            self._await_continue()
            return
        self._fd, writing = os.pipe()
        os.set_blocking(self._fd, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _nothing)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a signal has arrived."""
        return self._fd

    def read(self) -> list[ReceivedSignal]:
        """Remove and return the signals that have arrived; don't wait."""
        try:
            data = os.read(self._fd, 16 * _INFO_SIZE)
        except BlockingIOError:
            return []
        if sys.platform != "linux":
            foreground = in_foreground()
            return [ReceivedSignal(each, each in _KEYS and foreground) for each in data]
        received = []
        for at in range(0, len(data), _INFO_SIZE):
            number, _, code, sender = _INFO.unpack_from(data, at)
            to_all = code == _SENT_BY_KERNEL and not (
                # When a terminal hangs up, only the leader of its session is told.
                number == signal.SIGHUP and os.getsid(0) == os.getpid()
            )
            received.append(ReceivedSignal(number, to_all, sender))
            if number == signal.SIGCONT or (
                # A stop signal discards any SIGCONT before it, but not one after it.
                number == signal.SIGTSTP and signal.SIGCONT not in signal.sigpending()
            ):
                self._await_continue()
        return received

    def stop_here(self, number: int, is_due: Callable[[], bool] = lambda: True) -> bool:
        """Stop this process as ``number`` does by default; return once it is continued.

        It isn't stopped if a SIGCONT has arrived that was not read yet, or if ``is_due``, which
        is called at the last moment, returns False. The kernel doesn't stop a process that no
        shell could continue.

        Return whether a SIGCONT has arrived. It is not read again.
        """
        if number == _NOT_CONTINUED:
            number = signal.SIGTTIN
        handler = signal.getsignal(number)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # pending for now, and discarded by a SIGCONT
        if self._was_continued or not is_due():
            signal.signal(number, signal.SIG_IGN)  # which discards it, too
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            signal.signal(number, handler)
        was_continued = self._was_continued
        if was_continued:
            self._await_continue()
        return was_continued

    @property
    def _was_continued(self) -> bool:
        return sys.platform == "linux" and _NOT_CONTINUED not in signal.sigpending()

    def _await_continue(self) -> None:
        """Note from now on whether a SIGCONT arrives; one that was not read yet is discarded."""
        # To this thread, which blocks it: threads that are older than the queue may not.
        signal.pthread_kill(_thread.get_ident(), _NOT_CONTINUED)


def in_foreground() -> bool:
    """Whether this process may use its terminal, if it has one."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _nothing(*_: object) -> None:
    """Handle a signal whose number is in the pipe already."""


def signalfd(numbers: Iterable[int]) -> int:
    """Return a descriptor from which blocked signals can be read."""
    bits = struct.calcsize("L") * 8
    words = [0] * (_SET_SIZE * 8 // bits)
    for number in numbers:
        words[(number - 1) // bits] |= 1 << ((number - 1) % bits)
    chosen = struct.pack(f"{len(words)}L", *words)
    # The two flags of signalfd are those of open(2).
    descriptor = call_c("signalfd", -1, chosen, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError("signals can't be received: are too many files open?")
    return descriptor


@contextmanager
def handling(handle: Callable[[int], object], *numbers: int) -> Iterator[None]:
    """Call ``handle`` at these signals, instead of what they do otherwise."""
    before = {each: signal.signal(each, lambda number, _: handle(number)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def call_c(name: str, *args: int | bytes) -> int:
    """Call a function of the C library that returns an int, such as prctl."""
    result: int = ctypes.CDLL(None)[name](*args)
    return result


def readable(*descriptors: int, timeout: float | None = None) -> set[int]:
    """Return those that can be read, once there are some or ``timeout`` seconds are over.

    ``select.select`` refuses numbers from 1,024 on, which a process with many connections has.
    """
    poller = select.poll()
    for each in descriptors:
        poller.register(each, select.POLLIN)
    return {fd for fd, _ in poller.poll(None if timeout is None else timeout * 1000)}
