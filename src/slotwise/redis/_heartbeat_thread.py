"""HeartbeatThread: the daemon thread that decides when heartbeats and other timed work are due.

It has its own event loop, so that a user's loop that blocks doesn't cost its holders their
slots. It decides when something is due, and others do it: `_heartbeats` sends the heartbeats,
and has waiters served when somebody has run out of time, `_shared_client` finds out what has ended,
`_silence` whether a silent server still answers. It also runs the calls of
plain threads.

The thread sleeps while this process holds nothing and waits for nothing, and ends after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from random import SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar, cast

from slotwise._core import fork
from slotwise.errors import BackendError
from slotwise.redis._diagnosis import logger, may_pass
from slotwise.redis._endpoint import Address
from slotwise.redis._heartbeats import HeartbeatSender
from slotwise.redis._primary import PrimaryWatch
from slotwise.redis._silence import ServerProbe

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import SharedClient

T = TypeVar("T")

# Sends a release through a loop client; returns a future of its result.
Send = Callable[["LoopClient"], "asyncio.Future[Any]"]

# Not the random module's own: its seed belongs to others, and forked children share it.
_jitter = SystemRandom()

# After this long without a holder, a waiter or a call, the thread ends and connections are closed.
IDLE = 10.0
_SOON = 0.05  # how soon to check again whether a connection is still in use

# The shortest time between two checks of ttls.
_GRAIN = 0.02

# A loss is put down to this thread if it ran this much later than planned, in seconds.
_STALL = 1.0


class HeartbeatThread:
    """The thread, its loop, and its schedule."""

    # Whenever `_starting` is free:
    #   H1  while anybody holds or waits, the thread runs
    #   H2  interval is at most the ping_interval of each of them, and _next_heartbeat at most one
    #       interval away
    # Newcomers join the waiters before they read `interval`, without the lock. So `interval` is
    # made longer before newcomers are looked for: at least one of the two sees the other.

    def __init__(self, shared: SharedClient) -> None:
        self._shared = shared
        self._starting = fork.new_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._woken: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None
        self.heartbeats = HeartbeatSender(shared)
        self.interval = math.inf  # between heartbeats; inf while there is nothing to keep alive
        self.next_ttl = math.inf  # when the next ttl ends
        self._next_heartbeat = math.inf
        self._is_ending = False  # whether the process is ending
        self._callers: set[object] = set()  # one for each thread that is blocked in `run`
        self._posted = self._done = 0  # callbacks posted, and run: to tell whether all have run
        self._stops_when_idle = False  # set by the last close
        self._began_at = 0.0
        self._primary = PrimaryWatch(shared)
        self._probes: dict[Address | None, ServerProbe] = {}  # of each node, if it is a cluster

    # ----------------------------------------------------- from other threads

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this thread's loop, blocking the calling thread.

        Raises:
            BackendError: the process ends, and with it this thread.
            RuntimeError: the calling thread is this one, which would wait for itself.
        """
        if self._is_current():
            coroutine.close()
            raise RuntimeError(
                "a blocking call in the heartbeat thread would wait for itself; hooks, log handlers"
                " and finalizers may run there: make the call in another thread"
            )
        future: Future[T] | None = None
        caller = object()
        try:
            self._callers.add(caller)  # first, so that the loop is not stopped meanwhile
            future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
            return future.result()
        except BaseException as error:
            # The calling thread was interrupted: the coroutine cleans up after itself.
            if future is None:
                coroutine.close()  # nobody will await it
            else:
                future.cancel()
            was_ended = isinstance(error, RuntimeError) and self._is_ending
            if was_ended or isinstance(error, CancelledError):
                raise BackendError("the process ends, and the call to Redis with it") from None
            raise
        finally:
            self._callers.discard(caller)

    def run_to_completion(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Like `run`, for a release, which is possible anywhere.

        In the heartbeat thread itself, where the garbage collector may run a finalizer, it is only
        started, and the result is None.
        """
        if self._is_current():
            self._run_soon(start)
            return cast("T", None)
        return self.run(start())

    def heartbeat_every(self, interval: float) -> None:
        """Send heartbeats at least every ``interval`` seconds from now on."""
        with self._starting:
            self.interval = min(self.interval, interval)
            self._next_heartbeat = min(self._next_heartbeat, time.monotonic() + interval)
        self.wake()

    def schedule_ttl(self, when: float) -> None:
        """Check the ttls at ``when`` or earlier."""
        if when < self.next_ttl:
            self.next_ttl = when
            self.wake()

    def heartbeat_soon(self) -> None:
        """Ask the server at once for the state of all acquisitions: messages may be missing."""
        self.heartbeats.again = True
        self._next_heartbeat = 0.0
        self.wake()

    def on_silence(self, address: Address | None, since: float) -> None:
        """Find out whether the server answers: a connection has had no reply ``since`` then.

        Each node of a cluster is asked separately: another node's answer says nothing about it.
        """
        if address is None and self._shared.is_in_doubt():  # the silence is longer than a moment
            self.heartbeat_soon()
        self._post(lambda: self._start_probe(address, since))

    def release_later(self, acquired: RedisAcquisition) -> None:
        """Release what nobody will use: its loop is closed, or its thread was interrupted."""
        self._shared.holders.pop(acquired.acquisition_id, None)
        self._run_soon(acquired.release_quietly)

    def finish_release(self, send: Send, seconds: float) -> None:
        """Continue an unconfirmed release, from any thread, for at most ``seconds``.

        By then this process's silence has freed the slots.
        """
        until = time.monotonic() + seconds
        self._run_soon(lambda: self._release_in_attempts(send, until))

    async def _release_in_attempts(self, send: Send, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            try:
                # Not `wait_for`: in Python 3.11 an attempt that fails while this is cancelled
                # swallows the cancellation, and the next attempt would keep the thread alive.
                async with asyncio.timeout(left):
                    # Not by `reply_within`, which keeps the connection open: nobody waits for this.
                    await send(self._shared.client())
            except (BackendError, TimeoutError) as error:
                if not may_pass(error):
                    return
                await asyncio.sleep(min(self._shared.settings.config.max_backoff, left))
            else:
                return

    def _run_soon(self, start: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine in the thread; failures are ignored, since silence frees the slots.

        The coroutine is created there: if the thread ended first, Python would warn of a
        coroutine that was never awaited.
        """

        async def run() -> None:
            with contextlib.suppress(BackendError):
                await start()

        self._post(lambda: self.spawn(run()))

    def end(self) -> None:
        self._is_ending = True
        loop, thread = self._loop, self._thread  # the thread may forget both at any moment
        if loop is not None and thread is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)
                thread.join(1)

    def close_sockets(self) -> None:
        """Close the sockets that no loop client has, in a forked child."""
        self._primary.close_sockets()

    def ensure_running(self) -> None:
        """Start the thread if it isn't running, since a call is about to be made."""
        if self._loop is None:
            self.wake()

    def stop_when_idle(self) -> None:
        """Stop as soon as nobody holds or waits and no instance is open."""
        self._stops_when_idle = True
        if self._loop is not None:
            self.wake()

    def wake(self) -> None:
        self._post(self._set_woken)

    def _set_woken(self) -> None:
        woken = self._woken
        if woken is not None:  # else another thread is about to continue
            woken.set()

    def _post(self, callback: Callable[[], object]) -> None:
        """Run a callback in the thread, which doesn't stop before it has run.

        Nothing happens if the process ends, or has no thread left.
        """

        def run() -> None:
            self._done += 1
            callback()

        with self._starting, contextlib.suppress(RuntimeError):
            self._started().call_soon_threadsafe(run)
            self._posted += 1

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                if self._is_ending:  # also after the thread stopped by itself: nobody would end it
                    raise RuntimeError("this process ends")
                self._loop, self._woken = asyncio.new_event_loop(), asyncio.Event()
                self._began_at = time.monotonic()
                self._thread = threading.Thread(
                    target=self._main,
                    args=(self._loop, self._woken),
                    name="slotwise-heartbeat",
                    daemon=True,
                )
                try:
                    self._thread.start()
                except RuntimeError:  # none is left: the next call tries again
                    self._loop.close()
                    self._loop = self._thread = self._woken = None
                    raise
            return self._loop

    def _is_current(self) -> bool:
        # Not `self._loop is not None` first: if the thread forgot it then, no loop would be it.
        running = asyncio._get_running_loop()
        return running is not None and running is self._loop

    # -------------------------------------------------------------- the thread

    def _main(self, loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
        asyncio.set_event_loop(loop)
        running = loop.create_task(self._run(loop, woken))
        try:
            loop.run_forever()
        finally:
            # Another thread may have been started meanwhile, with its own loop and tasks.
            tasks = [running, *(task for task in list(self._tasks) if task.get_loop() is loop)]
            if self._loop is loop:
                self._primary.close()
                if not self._is_ending:  # a hook or a log handler tried to end the process
                    with self._starting:
                        self._forget_thread(loop)
                        self._posted = self._done = 0
            cancelled: set[asyncio.Task[Any]] = set()
            while tasks:  # callbacks that were posted meanwhile may start others
                # Whatever `task.cancelling()` says: its own timeout cancels a task, which goes on.
                for task in {*tasks} - cancelled:
                    task.cancel()
                    cancelled.add(task)
                # The loop is stopped a second time if the process ends at this very moment.
                with contextlib.suppress(RuntimeError):
                    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
            loop.close()

    def _forget_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next call start another thread; the caller holds the lock."""
        self._loop = self._thread = self._woken = self._sending = None
        self._was_idle = False
        self.heartbeats.due.clear()
        self._shared.forget_loop(loop)

    async def _run(self, loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
        planned = math.inf
        while self._loop is loop:
            woken.clear()
            now = time.monotonic()
            if now - planned > _STALL:
                self._shared.stalled = (planned, now)
            try:
                delay = self._run_due(now)
            except Exception:  # whatever it is, heartbeats must go on
                logger.exception("an error in the heartbeat thread, which continues")
                delay = 1.0
            planned = math.inf if delay is None else now + delay
            try:
                async with asyncio.timeout(delay):
                    await woken.wait()
            except TimeoutError:
                pass
        loop.stop()  # another thread has taken its place

    def _run_due(self, now: float) -> float | None:
        """Do what is due, and return after how many seconds more is due; None if nothing is."""
        self._shared.forget_closed_loops()
        if now >= self.next_ttl:
            self.next_ttl = math.inf
            self.schedule_ttl(max(self._shared.expire(now), now + _GRAIN))
        silence_ends = self._shared.lose_silent(now)
        if now >= self._next_heartbeat:
            self._start_heartbeat()
            self._schedule_next(now)
        next_check = self.heartbeats.run_checks(now)
        self._primary.refresh(wanted=self.interval < math.inf)
        soonest = min(self._next_heartbeat, self.next_ttl, silence_ends, next_check)
        soonest = min(soonest, self._stop_if_idle(now))
        return max(soonest - now, 0.0) if soonest < math.inf else None

    def _stop_if_idle(self, now: float) -> float:
        """Stop the thread and close the connections when they have been unused for long enough.

        Return when to check that again. The next call starts another thread.
        """
        idle_since = self._shared.idle_since()
        if idle_since == math.inf:
            # The last release does not wake this thread: that would cost every release.
            return now + (10 * _SOON if self._stops_when_idle else IDLE / 4)
        wanted = not self._stops_when_idle or self._shared.has_open_instances()
        leave_at = max(idle_since, self._began_at) + (IDLE if wanted else 0.0)
        if now < leave_at:
            return leave_at
        if not self._tasks and self._shared.close_idle() and self._stop():
            return math.inf
        return now + (_SOON if not wanted else 10 * _SOON)

    def _stop(self) -> bool:
        loop = asyncio.get_running_loop()
        with self._starting:
            if self._callers or self._posted != self._done:
                return False
            self.interval = self._next_heartbeat = math.inf
            newcomers = self._acquisitions()
            if newcomers:  # they may have seen us running
                self.heartbeat_every(min(each.limit._ping_interval for each in newcomers))
                return False
            self._forget_thread(loop)
            self._primary.close()
        loop.stop()
        return True

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _schedule_next(self, now: float) -> None:
        """Set the time of the next heartbeat, if there is anything to keep alive."""
        with self._starting:
            before = self.interval
            self.interval = self._next_heartbeat = math.inf
            intervals = [each.limit._ping_interval for each in self._acquisitions()]
            if intervals:
                self.interval = min(intervals)
                self._was_idle = False
            elif not self._was_idle and before < math.inf:
                # Stay awake for one more round: a busy process would otherwise
                # wake this thread for every acquisition.
                self.interval = before
                self._was_idle = True
            else:
                return
            self._next_heartbeat = now + self.interval * _jitter.uniform(0.9, 1.0)

    def _acquisitions(self) -> list[RedisAcquisition]:
        # Waiters first: one that is granted its slots is among the holders before it leaves them.
        shared = self._shared
        return [*list(shared.waiters.values()), *list(shared.holders.values())]

    _was_idle = False

    # -------------------------------------------------------------- heartbeats

    def _start_heartbeat(self) -> None:
        if self._sending is not None and not self._sending.done():
            return  # it sends once more by itself if it was asked to
        self._sending = self.spawn(self.heartbeats.heartbeat())

    def _start_probe(self, address: Address | None, silent_since: float) -> None:
        self._primary.ask_now()
        probe = self._probes.get(address)
        if probe is None:
            probe = self._probes[address] = ServerProbe(
                self._shared.settings,
                address,
                lambda asked_at: self._shared.server_answered(asked_at, address),
            )
        probe.start(silent_since)
