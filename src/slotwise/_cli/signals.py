"""Receive signals in the order in which they come, with who sent them.

A terminal sends Ctrl-C to every process in its foreground, a person with ``kill`` to one:
only what the kernel knows about the sender tells the two apart, and Python's handlers don't
see it. On Linux a signalfd has it. Elsewhere it is guessed.

Nothing here decides what a signal means.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

_SENT_BY_KERNEL = 0x80  # SI_KERNEL
_INFO = struct.Struct("=IiiI")  # the start of a signalfd_siginfo: number, errno, code, sender
_INFO_SIZE = 128
_SET_SIZE = 128  # bytes of a sigset_t, in glibc and in musl

_KEYS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)  # what a terminal's keys send
# Not received: faults of this very process, what can't be caught, and what the kernel sends
# to a process that uses its terminal from the background.
_NOT_RECEIVED = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
    *(signal.SIGTRAP, signal.SIGSYS, signal.SIGXFSZ, signal.SIGXCPU),
}


class ReceivedSignal(NamedTuple):
    """One signal. ``to_all``: the other processes of the group have got it as well."""

    number: int
    to_all: bool = False
    sender: int = 0


class SignalQueue:
    """Keeps signals from taking effect, and returns them in the order in which they came.

    Signals that this process was started with as ignored (``nohup``, a script's
    background jobs) stay ignored, here and in what it starts.
    """

    def __init__(self) -> None:
        self._numbers = [
            number
            for number in signal.valid_signals() - _NOT_RECEIVED
            if signal.getsignal(number) is not signal.SIG_IGN
        ]
        self._queue: asyncio.Queue[ReceivedSignal] = asyncio.Queue()
        self.mask_before: set[int] = set()

    @contextmanager
    def open(self) -> Iterator[SignalQueue]:
        """Begin to receive. Call it before any thread is started: threads inherit the mask."""
        loop = asyncio.get_running_loop()
        self.mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if sys.platform != "linux":
            for number in self._numbers:
                loop.add_signal_handler(number, self._guess, number)
            yield self
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        descriptor = _signalfd(self._numbers)
        loop.add_reader(descriptor, self._read, descriptor)
        try:
            yield self
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            # Still blocked: what comes now is too late to matter, and must not
            # change the exit code.

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, 16 * _INFO_SIZE)
        for at in range(0, len(data), _INFO_SIZE):
            number, _, code, sender = _INFO.unpack_from(data, at)
            to_all = code == _SENT_BY_KERNEL and not (
                # A terminal that goes away tells the leader of its session alone.
                number == signal.SIGHUP and os.getsid(0) == os.getpid()
            )
            self._queue.put_nowait(ReceivedSignal(number, to_all, sender))

    def _guess(self, number: int) -> None:
        self._queue.put_nowait(ReceivedSignal(number, number in _KEYS and in_foreground()))

    async def next(self) -> ReceivedSignal:
        return await self._queue.get()

    def put(self, arrival: ReceivedSignal) -> None:
        """Put something else into the queue."""
        self._queue.put_nowait(arrival)

    def pending(self) -> list[ReceivedSignal]:
        """Remove and return what has come and was not fetched yet."""
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    def stop_here(self, number: int) -> None:
        """Stop this process as ``number`` does by default; returns once it is continued.

        The kernel does not stop processes that no shell could continue.
        """
        handler = signal.getsignal(number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            signal.signal(number, handler)


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


def _signalfd(numbers: Iterable[int]) -> int:
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    chosen = (ctypes.c_ulong * (_SET_SIZE * 8 // bits))()
    for number in numbers:
        chosen[(number - 1) // bits] |= 1 << ((number - 1) % bits)
    libc = ctypes.CDLL(None, use_errno=True)
    # The two flags of signalfd are those of open(2).
    descriptor: int = libc.signalfd(-1, chosen, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return descriptor
