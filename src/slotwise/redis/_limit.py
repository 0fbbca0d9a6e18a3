"""RedisLimit: what semaphores and tiers on a Redis server have in common.

It connects an object with the `SharedClient` of its process, and acquires, releases and closes,
for coroutines and for plain threads. The dialect says which scripts are called; `RedisSemaphore`
and `RedisPaths` have the arguments and their documentation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from slotwise._core import events
from slotwise._core.adaptive import Adaptive, Outcome, check_outcome
from slotwise._core.arguments import MOST_SLOTS, check_flag, check_label
from slotwise._core.closing import Closure, Generation
from slotwise._core.control import Verb, Where
from slotwise._core.limit import EXIT_LIMIT
from slotwise._core.redaction import kind_of
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.unreachable import UnreachableOptions, check_heartbeat
from slotwise.errors import BackendError, SemaphoreClosed, SlotwiseError
from slotwise.redis import _closing, _log
from slotwise.redis import _shared_client as shared_clients
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._call_limits import CallLimits
from slotwise.redis._config import RedisConfig
from slotwise.redis._diagnosis import Unreachable, may_pass
from slotwise.redis._fallback import (
    Fallback,
    FallbackAcquisition,
    close_local,
    is_fallback_id,
    release_fallback,
)
from slotwise.redis._release_batching import send_release
from slotwise.redis._reply_limits import (
    look_limit,
    release_unconfirmed,
    reply_within,
)
from slotwise.redis._scripts import Script
from slotwise.redis._shared_client import NameRecord, SharedClient, shared_client_for

if TYPE_CHECKING:
    from slotwise._core.overload import Overload
    from slotwise._core.paths import Needs, Path
    from slotwise.redis._dialect import Dialect

T = TypeVar("T")


class RedisLimit:
    """A limit on a server, as one object of this process sees it."""

    # For tiers: those with a rate, by name, and whether there are no others.
    _rates: Mapping[str, int] = MappingProxyType({})
    _holds_nothing = False

    _dialect: ClassVar[Dialect]

    _adaptive: Adaptive | None  # how the work under it counts, if a value adapts
    _cancel_task_after_ttl: bool
    _cancel_task_on_loss: bool
    _closing_key: _closing.Key
    _config: RedisConfig
    _declared: int | str  # what it was made with, as scripts have it
    _fallback: Fallback | None
    _fork_epoch: object
    _generation: Generation
    _interval: float
    _limits: CallLimits
    _overload: Overload | None
    _kick_grace: float
    _ping_interval: float
    _record: NameRecord
    _shared: SharedClient
    _template: tuple[bytes, ...] | None
    _ttl: float | None
    _unreachable: UnreachableOptions
    _value: int

    def _set_up(
        self,
        name: str,
        config: RedisConfig,
        *,
        heartbeat_max_interval: float,
        ping_interval: float | None,
        cancel_task_on_loss: bool,
        unreachable: UnreachableOptions,
        make_local: Callable[[], Any],
    ) -> None:
        """Check and keep what only limits on Redis are made with, and share the server."""
        if not isinstance(config, RedisConfig):
            raise TypeError(f"config must be a RedisConfig, not {kind_of(config)}")
        self._config = config
        self._limits = config.limits
        self._cancel_task_on_loss = check_flag("cancel_task_on_loss", cancel_task_on_loss)
        self._kick_grace = 0.0
        self._unreachable = unreachable
        self._fallback = (
            None if unreachable.policy == "raise" else Fallback(unreachable, make_local)
        )
        self._interval, self._ping_interval = check_heartbeat(heartbeat_max_interval, ping_interval)
        self._closing_key = _closing.key_of(config, self._dialect.kind, name)
        self._generation = _closing.generations.current(self._closing_key)
        self._attach()

    def _attach(self) -> None:
        self._shared = shared_client_for(self._config)
        name = self._closing_key[-1]
        self._record = self._shared.record(self._dialect, self._config.namespace, name)
        self._record.has_rates = bool(self._rates)
        self._template = None
        self._fork_epoch = shared_clients.fork_epoch

    def _attached(self) -> tuple[SharedClient, NameRecord]:
        """What this process shares; a forked child gets its own."""
        if self._fork_epoch is not shared_clients.fork_epoch:
            self._attach()
        return self._shared, self._record

    def _request_template(self) -> tuple[bytes, ...]:
        """The parts of a packed request that are always the same."""
        if self._template is None:
            self._template = self._dialect.request_template(self)
        return self._template

    if TYPE_CHECKING:  # both kinds have them

        @property
        def name(self) -> str | None: ...

        @property
        def value(self) -> int: ...

        @property
        def _title(self) -> str: ...

        def _closed_error(self, closure: Closure | None = None) -> SemaphoreClosed: ...

        def _declaration(self) -> list[Any]:
            """Return what it was made with, in the form that the scripts take."""

        def _conflict(self, reply: list[Any]) -> SlotwiseError:
            """Return the error of an object whose values are not those in use."""

    # ------------------------------------------------------------- acquiring

    def _new_acquisition(
        self,
        slots: int,
        label: str | None,
        path: Path = (),
        needs: Needs | None = None,
        head_start: int = 0,
    ) -> RedisAcquisition:
        """Return an acquisition that has not been requested yet.

        Raises:
            SemaphoreClosed: this process closed the instance.
        """
        checked_label = "" if label is None else check_label(label) or ""
        acquisition = RedisAcquisition(self, slots, checked_label, path, needs, head_start)
        if events.hooks:
            limit: Any = self  # a Semaphore, or tiers: both have this
            wanted, now = needs if path else slots, acquisition.requested_at
            limit._tell_requested(acquisition.acquisition_id, wanted, now, path)
        if not self._generation.admits(self._has):
            closed = self._closed_error()
            _log.refused(acquisition, closed, waits=True)
            raise closed
        record = acquisition.record
        if acquisition.requested_at >= record.noted_until:
            acquisition.shared.heartbeat_thread.note_name(record, acquisition.requested_at)
        if self._cancel_task_after_ttl or self._cancel_task_on_loss:
            acquisition.task = asyncio.current_task()
        return acquisition

    def _has(self, acquisition_id: str) -> bool:
        """Whether this process holds it, or waits for it."""
        return self._attached()[0].has(acquisition_id)

    def _on_ended(self, acquisition: RedisAcquisition) -> None:
        """Note, in any thread, that an acquisition no longer holds or waits."""

    # ------------------------------------------------------------- releasing

    async def release(
        self, acquisition_id: str | AcquisitionResult, *, outcome: Outcome | None = None
    ) -> bool:
        """Release an acquisition; False if it had ended before.

        Raises:
            BackendError: the server did not confirm it within ``cleanup_timeout``. The
                release continues in the background, and silence frees the slots anyway.
        """
        if outcome is not None:
            check_outcome(outcome)
        return await self._release(acquisition_id, self._config.cleanup_timeout, outcome)

    async def _release_on_exit(self, acquired: AcquisitionResult) -> None:
        if not self._holds_nothing:
            await self._release(acquired, EXIT_LIMIT, on_exit=True)

    def _release_soon(self, acquired: AcquisitionResult) -> None:
        if isinstance(acquired, FallbackAcquisition):
            acquired.end()
            return
        assert isinstance(acquired, RedisAcquisition)
        with suppress(RuntimeError):  # this process ends
            acquired.shared.heartbeat_thread.release_soon([acquired])

    async def _release(
        self,
        acquired: str | AcquisitionResult,
        seconds: float,
        outcome: Outcome | None = None,
        *,
        on_exit: bool = False,
    ) -> bool:
        """Release an acquisition, and wait for the reply for at most ``seconds``.

        One that does not come in time is awaited in the background. With ``on_exit`` that raises
        nothing: the work is done.

        Raises:
            BackendError: it is not yet known whether the server has it.
        """
        acquisition_id = acquisition_id_of(acquired)
        shared, record = self._attached()
        holder = shared.holders.get(acquisition_id)
        if holder is not None:
            if holder.record is not record:
                holder = None  # an acquisition of something else
            else:
                shared.holders.pop(acquisition_id, None)
                holder.mark_ended()
        if holder is None:
            if is_fallback_id(acquisition_id):
                return release_fallback(acquisition_id, record)
            if acquisition_id in shared_clients.inherited:
                return False  # its parent process has it
        shared.ttl_cancels.keep_task(acquisition_id, owner=record)

        # What was settled in this tick, and how the work ended, is sent with it.
        if holder is not None:
            if outcome is not None:
                holder._state_outcome(outcome)
            settled = "" if holder.settling is None else holder.take_settled()
            text = acquisition_id + settled + holder.sample()
        elif record.dialect.can_be_id(acquisition_id):
            text = acquisition_id + self._sample_of_other_process(acquired, outcome)
        else:
            _log.released_nothing(self, acquisition_id, issued_here=False)
            return False

        client, interval, limits = shared.client(), self._interval, self._limits
        try:
            reply = send_release(shared, record, client, text, interval, limits)
            released = await reply_within(seconds, reply, client, record.keys.slot)
        except (BackendError, asyncio.CancelledError) as error:
            # Nobody would see that a cancelled release fails, or that its loop is closed.
            if isinstance(error, asyncio.CancelledError) or may_pass(error):
                shared.heartbeat_thread.finish_release(
                    lambda other: send_release(shared, record, other, text, interval, limits),
                    interval,
                )
            if isinstance(error, asyncio.CancelledError) or not on_exit:
                raise
            release_unconfirmed(record, interval, error)
            return False
        if holder is not None:
            _log.released(holder)
        elif not released.held:
            issued_here = shared_clients.has_issued(acquisition_id)
            _log.released_nothing(self, acquisition_id, issued_here=issued_here)
        return released.held

    def _sample_of_other_process(
        self,
        acquired: str | AcquisitionResult,  # noqa: ARG002
        outcome: Outcome | None,  # noqa: ARG002
    ) -> str:
        """What is sent with the release of an acquisition that this process doesn't hold."""
        return ""

    # -------------------------------------------------------------- changing

    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        return await getattr(self, f"_{verb}")(where, *args)

    async def _change(
        self, script: Script, *args: Any, declaration: list[Any] | None = None
    ) -> list[Any]:
        """Run a script that resizes, freezes or pauses it for everybody; return the reply.

        ``declaration`` replaces what it was made with.

        Raises:
            SemaphoreClosed: it is closed, by this process or everywhere.
            ValueConflict: it is in use with other values.
        """
        if self._generation.closed:
            raise self._closed_error()
        token = self._attached()[0].client().token
        if declaration is None:
            declaration = self._declaration()
        reply: list[Any]
        reply = await self._run_script(script, [b"", token, self._interval, *declaration, *args])
        if reply[0] == b"closed":
            raise self._closed_error(_closing.read_closure(reply[1:]))
        if reply[0] == b"conflict":
            raise self._conflict(reply[1:])
        return reply

    # --------------------------------------------------------------- closing

    async def close(self) -> None:
        """Close all instances of the name that this process made so far.

        Returns when their waiters have left the queue, or after ``cleanup_timeout``; then
        that continues in the background.
        """
        if not self._generation.closed:
            close_local(self._attached()[1])
            at_most = self._config.cleanup_timeout
            await _closing.close_here(*self._attached(), self._closing_key, at_most)

    async def _refuse_waiters(self, messages: list[bytes]) -> None:
        """Refuse all waiters, in bounded calls, after a script has closed the name."""
        shared, record = self._attached()
        while messages[-1:] == [shared_clients.UNFINISHED]:
            self._dispatch(messages[:-1])
            args = [b"", shared.client().token, self._interval, record.keys.notification, 0, 0]
            [[due_ms, *messages]] = await self._run_script(self._dialect.heartbeat, args)
            if due_ms == 0:
                messages.append(shared_clients.UNFINISHED)
        self._dispatch(messages)

    # --------------------------------------------------------- calls, threads

    async def _run_script(
        self, script: Script, args: list[Any], at_most: float | None = None
    ) -> Any:
        """Return the reply; ``at_most`` is how long to wait for it, if not as long as usual."""
        shared, record = self._attached()
        client = shared.client()
        reply = client.run(script, record.keys.all, args, record.keys.slot, self._limits)
        return await reply_within(look_limit(at_most), reply, client, record.keys.slot)

    async def _ask(
        self,
        server: Callable[[], Coroutine[Any, Any, T]],
        when_open: Callable[[], T],
        when_local: Callable[[Any], T],
    ) -> T:
        """Return what the ``server`` says, or what the fallback says while it is away.

        With the policy "local", ``when_local`` asks the limit of this process.
        """
        fallback = self._fallback
        if fallback is None:
            return await server()
        try:
            if not fallback.is_used(self):
                return await server()
        except Unreachable:
            pass
        if fallback.policy == "open":
            return when_open()
        return when_local(fallback.local(self._attached()[1]))

    def _dispatch(self, messages: list[bytes]) -> None:
        """Pass on the messages that follow the reply to a script."""
        shared, record = self._attached()
        shared.dispatch_all(messages, record, shared.client())

    def _run(self, start: Callable[[], Coroutine[Any, Any, T]], *, completes: bool = False) -> T:
        """Run a coroutine in the heartbeat thread for the calling thread.

        What was granted as the calling thread was interrupted is released.
        """
        thread = self._attached()[0].heartbeat_thread
        if completes:
            return thread.run_to_completion(start)
        granted: list[Any] = []

        async def run() -> T:
            result = await start()
            if isinstance(result, RedisAcquisition):
                result.task = None  # nobody's work runs in the task that acquired it
                granted.append(result)
            elif isinstance(result, FallbackAcquisition):
                granted.append(result)
            return result

        try:
            return thread.run(run())
        except BaseException:
            for each in granted:
                self._release_soon(each)
            raise


def check_max_value(value: int) -> int:
    if value > MOST_SLOTS:  # Lua counts in doubles, and would miscount
        raise ValueError(f"value must be at most {MOST_SLOTS}, not {value}")
    return value
