"""RedisBackend: what semaphores and tiers on a Redis server have in common.

It connects an object with the `SharedClient` of its process, and acquires, releases and closes,
for coroutines and for plain threads. The dialect says which scripts are called; `RedisSlots`, of
semaphores, and `RedisPaths`, of tiers, change and inspect what those keep.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from slotwise._core import events
from slotwise._core.adaptive import Outcome, check_outcome
from slotwise._core.arguments import MOST_SLOTS, check_flag, check_label, check_name, check_seconds
from slotwise._core.control import Verb, Where
from slotwise._core.limit import EXIT_LIMIT, TRY_LIMIT, require_asyncio
from slotwise._core.path_backend import PathBackend, Timeout
from slotwise._core.paths import SEMAPHORE_PATH, Needs, Path, TierSpec, options_of
from slotwise._core.rates import Rate
from slotwise._core.redaction import kind_of
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.unreachable import UnreachableOptions, check_heartbeat
from slotwise.errors import BackendError, SemaphoreClosed, SlotwiseError
from slotwise.redis import _closing, _log
from slotwise.redis import _shared_client as shared_clients
from slotwise.redis._acquisition import RedisAcquisition
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
from slotwise.redis._wait_for_grant import wait_for_grant

if TYPE_CHECKING:
    from slotwise._core.overload import Overload
    from slotwise.redis._dialect import Dialect

T = TypeVar("T")

_NO_OPTIONS = UnreachableOptions()


class RedisBackend(PathBackend):
    """A `PathBackend` for all processes that use one Redis server.

    Objects of one name, namespace and server share their slots, in any process, and must agree
    about them. On Cluster one object lives on one shard.

    Args:
        tiers: narrow to wide; or that of a semaphore.
        name: the name that objects share.
        config: the server.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        cancel_task_after_ttl: also cancel the task that took the slots.
        heartbeat_max_interval: how long a process may be silent, in seconds,
            before what it holds and its places in the queue are given to others; None is the
            default.
        ping_interval: how often it sends a heartbeat; a fifth of that by default, at most 5 s.
        cancel_task_on_loss: cancel the task whose slots were lost by silence.
        overload: which newcomers it refuses at once.
        unreachable: what it does while the server is away.
        closed_error: makes what acquiring raises once it is closed.
        is_private: whether its name is random, and of no interest to anybody.
    """

    _dialect: ClassVar[Dialect]
    scope = "redis"

    _declared: int | str  # what it was made with, as scripts have it

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        *,
        name: str,
        config: RedisConfig,
        ttl: float | None = None,
        cancel_task_after_ttl: bool = False,
        heartbeat_max_interval: float | None = 15,
        ping_interval: float | None = None,
        cancel_task_on_loss: bool = False,
        overload: Overload | None = None,
        unreachable: UnreachableOptions = _NO_OPTIONS,
        closed_error: Callable[..., SemaphoreClosed] = SemaphoreClosed,
        is_private: bool = False,
    ) -> None:
        super().__init__(tiers, closed_error)
        for tier in tiers:
            if isinstance(tier.value, int):
                check_max_value(tier.value)
            if tier.adaptive is not None:
                check_max_value(tier.adaptive.max)
        if check_name(name) is None:
            raise TypeError("name must be a str, not None")
        if not isinstance(config, RedisConfig):
            raise TypeError(f"config must be a RedisConfig, not {kind_of(config)}")
        self._name = name
        self.name = None if is_private else name  # in logs
        self.reported_as = self.name  # how events name it
        self._overload = overload
        self._ttl = check_seconds("ttl", ttl)
        self._cancel_task_after_ttl = check_flag("cancel_task_after_ttl", cancel_task_after_ttl)
        self._adaptive = options_of(tiers)  # how the work under it counts, if a value adapts
        limited = [tier.value for tier in tiers if tier.value and isinstance(tier.value, int)]
        self._value = limited[-1] if limited else 0
        # Those with a rate, by name. If there are only rates, nothing is held.
        self._rates = {
            tier.name: index for index, tier in enumerate(tiers) if isinstance(tier.value, Rate)
        }
        self._holds_nothing = len(self._rates) == len(tiers)
        self._config = config
        self._limits = config.limits
        self._cancel_task_on_loss = check_flag("cancel_task_on_loss", cancel_task_on_loss)
        self.grace = 0.0  # how long what it acquires keeps its slots after a kick
        self._unreachable = unreachable
        self._fallback = (
            None if unreachable.policy == "raise" else Fallback(unreachable, self._make_local)
        )
        self._interval, self._ping_interval = check_heartbeat(heartbeat_max_interval, ping_interval)
        self._closing_key = _closing.key_of(config, self._dialect.kind, name)
        self._generation = _closing.generations.current(self._closing_key)
        self._attach()

    def _attach(self) -> None:
        self._shared = shared_client_for(self._config)
        self._record = self._shared.record(self._dialect, self._config.namespace, self._name)
        self._record.has_rates = bool(self._rates)
        self._template: tuple[bytes, ...] | None = None
        self._fork_epoch = shared_clients.fork_epoch
        if self._adaptive is not None:
            self._record.tell_changes_to(self)

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

    @abstractmethod
    def _make_local(self) -> Any:
        """Make the limit of this process that stands in while the server is away."""

    @property
    def reported_name(self) -> str | None:
        return self._name

    @property
    def _reported(self) -> tuple[str | None, str]:
        return self.reported_as, self.scope

    @property
    @abstractmethod
    def value(self) -> int:
        """How many slots there are, of the widest tier with a limit."""

    @abstractmethod
    def _declaration(self) -> list[Any]:
        """Return what it was made with, in the form that the scripts take."""

    @abstractmethod
    def _conflict(self, reply: list[Any]) -> SlotwiseError:
        """Return the error of an object whose values are not those in use."""

    @abstractmethod
    def _on_adapted(self, message: bytes) -> None:
        """Tell the hooks of a value that has moved by itself."""

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> AcquisitionResult:
        """Wait for slots of every tier; see `PathBackend`.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first; it tells which tier was full.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: a tier is in use with another value, or there are other tiers.
            BackendError: the server can't be used, or could not be reached in time.
        """
        return await self.begin(path, timeout, label, needs)

    def begin(
        self, path: Path, timeout: Timeout, label: str | None = None, needs: Needs | None = None
    ) -> Awaitable[AcquisitionResult]:
        if self._fallback is None:
            return wait_for_grant(self._request(path, label, needs, timeout), timeout)
        return self._fall_back(self._fallback, path, timeout, label, needs)

    def _fall_back(
        self,
        fallback: Fallback,
        path: Path,
        timeout: Timeout,
        label: str | None,
        needs: Needs | None,
        *,
        at_once: float | None = None,
    ) -> Awaitable[AcquisitionResult]:
        """Acquire on the server, or as the policy says while it is away."""
        self._check_fits(path, needs)
        return fallback.acquire(
            self,
            lambda: self._request(path, label, needs, timeout),
            timeout,
            lambda local, left: self._acquire_locally(local, path, left, label, needs),
            at_once=at_once,
        )

    async def _acquire_at_once(
        self,
        path: Path,
        label: str | None,
        needs: Needs | None,
        seconds: float | None = None,
    ) -> AcquisitionResult:
        """Acquire without waiting for others; the server has ``seconds`` to answer, or as usual."""
        seconds = TRY_LIMIT if seconds is None else seconds
        if self._fallback is None:
            acquisition = self._request(path, label, needs, 0.0)
            return await wait_for_grant(acquisition, 0.0, at_once=seconds)
        return await self._fall_back(self._fallback, path, 0.0, label, needs, at_once=seconds)

    @abstractmethod
    def _request(
        self, path: Path, label: str | None, needs: Needs | None, timeout: float | None
    ) -> RedisAcquisition:
        """Send a request that may wait for up to ``timeout`` seconds; 0 means not at all."""

    @abstractmethod
    def _check_fits(self, path: Path, needs: Needs | None) -> None:
        """Raise if that much can never be granted, as far as this process knows."""

    def _acquire_locally(
        self, local: Any, path: Path, left: float | None, label: str | None, needs: Needs | None
    ) -> Awaitable[AcquisitionResult]:
        """Acquire from the limit of this process; there are ``left`` seconds left to wait."""
        acquired: Awaitable[AcquisitionResult]
        acquired = local.acquire(path, timeout=left, label=label, needs=needs)
        return acquired

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
            wanted = needs if path or slots == 1 else (slots,)
            now = acquisition.requested_at
            self._tell_requested(acquisition.acquisition_id, wanted, now, path or SEMAPHORE_PATH)
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
            require_asyncio()  # before anything is closed
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
