"""SlotManager: slots for downloads, and for uploads per user and in total.

It uses Tiers: one object for downloads and one for uploads. It adds the documented verbs,
and the clean-up of users that have not been seen for long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

from slotwise._core.arguments import check_seconds, check_text
from slotwise._core.closing import ClosedByBlock
from slotwise._core.copying import Recipe, same_when_copied
from slotwise._core.limit import AcquisitionContext
from slotwise._core.paths import TierStats
from slotwise._core.redaction import redacted_repr
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise._core.twins import twin
from slotwise.errors import SlotManagerClosed
from slotwise.tiers._cleaner import Cleaner
from slotwise.tiers._ownership import Ownership, What
from slotwise.tiers._slot_options import SlotOptions, SlotStats
from slotwise.tiers._tier import Tier
from slotwise.tiers._tiers import Tiers

if TYPE_CHECKING:
    from slotwise.redis import RedisConfig

T = TypeVar("T")

_log = logging.getLogger("slotwise.tiers")

DEFAULT_NAME = "slots"

_DOWNLOAD: What = ("download",)
_NO_KEYS = (None,)


@same_when_copied
class SlotManager(ClosedByBlock):
    """Limits concurrent transfers: downloads in total, uploads per user and in total.

        async with SlotManager(max_downloads=4) as slots:
            async with slots.upload("alice"):
                ...

    A limit of 0 means unlimited: it never blocks, but slots are still counted. Every
    coroutine has a twin whose name ends in ``_sync``, for plain threads, and
    ``download()`` and ``upload()`` work with plain ``with``.

    Args:
        max_downloads: at once, of all users together.
        max_uploads: at once, of all users together.
        max_uploads_per_user: at once, of each user.
        cleanup_interval: seconds between two searches for idle users; 0 never searches.
        idle_threshold: for how many seconds a user must have been idle to be forgotten.
        max_idle_users: beyond this many, the longest idle are forgotten at once.
        atomic: must be True.
        name: managers of one name share their slots; None makes private ones, and on
            Redis stands for ``slots``.
        url: where the slots are kept; see `Tiers`.
        ttl: the longest hold in seconds; then the slots are freed, whoever has them.
        heartbeat_max_interval: how long a process may be silent before it counts
            as dead (Redis).
        ping_interval: how often it sends a heartbeat (Redis).
        cancel_task_after_ttl: also cancel the task that took a slot.
        cancel_task_on_loss: cancel the task whose slot was lost by silence (in memory nothing is
            lost).
    """

    def __init__(
        self,
        max_downloads: int = 10,
        max_uploads: int = 10,
        max_uploads_per_user: int = 1,
        cleanup_interval: float = 60,
        idle_threshold: float = 900,
        max_idle_users: int = 10_000,
        atomic: bool = True,
        name: str | None = None,
        *,
        url: str | RedisConfig | None = None,
        ttl: float | None = None,
        heartbeat_max_interval: float | None = None,
        ping_interval: float | None = None,
        cancel_task_after_ttl: bool = False,
        cancel_task_on_loss: bool = False,
    ) -> None:
        self.options = SlotOptions(
            max_downloads=max_downloads,
            max_uploads=max_uploads,
            max_uploads_per_user=max_uploads_per_user,
            cleanup_interval=cleanup_interval,
            idle_threshold=idle_threshold,
            max_idle_users=max_idle_users,
            name=name,
            url=url,
            ttl=ttl,
            heartbeat_max_interval=heartbeat_max_interval,
            ping_interval=ping_interval,
            cancel_task_after_ttl=cancel_task_after_ttl,
            cancel_task_on_loss=cancel_task_on_loss,
        )
        name, url = self.options.name, self.options.url
        if name is None and url is not None and not isinstance(url, str):
            name = DEFAULT_NAME
        passed_on: dict[str, Any] = {
            "atomic": atomic,
            "url": url,
            "ttl": ttl,
            "heartbeat_max_interval": heartbeat_max_interval,
            "ping_interval": ping_interval,
            "cancel_task_after_ttl": cancel_task_after_ttl,
            "cancel_task_on_loss": cancel_task_on_loss,
            "max_idle_keys": max_idle_users,
            "closed_error": _closed,
        }
        self._downloads = Tiers(
            Tier("downloads", max_downloads), name=name and f"{name}:downloads", **passed_on
        )
        self._uploads = Tiers(
            Tier("user", max_uploads_per_user, keyed=True),
            Tier("uploads", max_uploads),
            name=name and f"{name}:uploads",
            **passed_on,
        )
        self._download_context = self._downloads._context
        self._upload_context = self._uploads._context
        self._ownership = Ownership()
        self._cleaner: Cleaner | None = None
        if cleanup_interval:
            self._cleaner = Cleaner(cleanup_interval, self._clean_up)

    @classmethod
    def from_options(cls, options: SlotOptions) -> Self:
        """Make a manager with these options, as `SlotOptions.from_env` reads them."""
        return cls(**_arguments(options))

    def _recipe(self) -> Recipe | None:
        if self._uploads._recipe() is None:
            return None
        return Recipe(SlotManager, (), _arguments(self.options))

    def __repr__(self) -> str:
        options = self.options
        return (
            f"<SlotManager downloads={options.max_downloads} uploads={options.max_uploads}"
            f" per user={options.max_uploads_per_user}>"
        )

    def _run(self, start: Callable[[], Coroutine[Any, Any, T]], *, completes: bool = False) -> T:
        return self._uploads._run(start, completes=completes)

    # ---------------------------------------------------------------- blocks

    def download(self, *, timeout: float | None = None) -> AcquisitionContext:
        """A download slot for one ``async with`` or ``with`` block.

        Raises, when entered:
            AcquireTimeout: ``timeout`` seconds passed first.
            SlotManagerClosed: closed before or during the wait.
        """
        if timeout is not None:
            timeout = check_seconds("timeout", timeout, zero=True)
        return self._download_context(_NO_KEYS, timeout, None, None)

    def upload(self, username: str, *, timeout: float | None = None) -> AcquisitionContext:
        """An upload slot, of the user and of all, for one ``async with`` or ``with`` block.

        ``timeout`` is for both together. Raises what `download` raises.
        """
        # Valid arguments are not checked twice.
        if type(username) is not str or not username.isascii():
            username = _check_username(username)
        if timeout is not None:
            timeout = check_seconds("timeout", timeout, zero=True)
        return self._upload_context((username, None), timeout, None, None)

    # ------------------------------------------------------ the documented verbs

    async def acquire_download_slot(self, *, timeout: float | None = None) -> AcquisitionResult:
        """Wait for a download slot; `release_download_slot` takes its result.

        A wait that is cancelled or times out takes nothing.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first.
            SlotManagerClosed: closed before or during the wait.
        """
        acquired = await self._downloads.acquire(timeout=timeout)
        self._ownership.add(acquired, _DOWNLOAD)
        return acquired

    def acquire_download_slot_sync(self, *, timeout: float | None = None) -> AcquisitionResult:
        """Like `acquire_download_slot`."""
        acquired = self._downloads.acquire_sync(timeout=timeout)
        self._ownership.add(acquired, _DOWNLOAD)
        return acquired

    async def release_download_slot(
        self, acquisition_id: str | AcquisitionResult | None = None
    ) -> bool:
        """Release a download slot; False if there was nothing to release.

        Without an id it is the latest that the calling task or thread got
        from `acquire_download_slot`; if there is none, nothing is freed, with a warning.
        Releasing twice never frees the slot of somebody else.
        """
        found = self._which(acquisition_id, _DOWNLOAD)
        return found is not None and await self._downloads.release(found)

    def release_download_slot_sync(
        self, acquisition_id: str | AcquisitionResult | None = None
    ) -> bool:
        """Like `release_download_slot`."""
        found = self._which(acquisition_id, _DOWNLOAD)
        return found is not None and self._downloads.release_sync(found)

    async def acquire_upload_slot(
        self, username: str, *, timeout: float | None = None
    ) -> AcquisitionResult:
        """Wait for an upload slot of a user and of all.

        ``timeout`` is for both together. Raises what `acquire_download_slot` raises.
        """
        acquired = await self._uploads.acquire(user=_check_username(username), timeout=timeout)
        self._ownership.add(acquired, ("upload", username))
        return acquired

    def acquire_upload_slot_sync(
        self, username: str, *, timeout: float | None = None
    ) -> AcquisitionResult:
        """Like `acquire_upload_slot`."""
        acquired = self._uploads.acquire_sync(user=_check_username(username), timeout=timeout)
        self._ownership.add(acquired, ("upload", username))
        return acquired

    async def release_upload_slot(
        self, username: str, acquisition_id: str | AcquisitionResult | None = None
    ) -> bool:
        """Release an upload slot, of the user and of all; see `release_download_slot`."""
        found = self._which(acquisition_id, ("upload", _check_username(username)))
        return found is not None and await self._uploads.release(found)

    def release_upload_slot_sync(
        self, username: str, acquisition_id: str | AcquisitionResult | None = None
    ) -> bool:
        """Like `release_upload_slot`."""
        found = self._which(acquisition_id, ("upload", _check_username(username)))
        return found is not None and self._uploads.release_sync(found)

    def _which(self, acquisition_id: str | AcquisitionResult | None, what: What) -> str | None:
        """Return the id of what is to be released, which nobody owns from now on."""
        if acquisition_id is None:
            found = self._ownership.latest(what)
        else:
            found = acquisition_id_of(acquisition_id)
        if found is None:
            _log.warning(
                "nothing released: this task or thread has acquired no %s slot%s itself",
                what[0],
                f" of {what[1]!r}" if len(what) > 1 else "",
            )
        else:
            self._ownership.remove(found, what[0])
        return found

    # ------------------------------------------------------ looking, steering

    async def stats(self) -> SlotStats:
        """How many slots are held, of how many, and how many users are known."""
        return _stats(await self._downloads.stats(), await self._uploads.stats())

    stats_sync = twin(stats)

    async def cleanup_idle_user_slots(self, threshold: float | None = None) -> int:
        """Forget users who have been idle for ``threshold`` seconds; return how many.

        Left out, it is the ``idle_threshold``. A user who holds or waits is never forgotten.
        """
        return self.cleanup_idle_user_slots_sync(threshold)

    def cleanup_idle_user_slots_sync(self, threshold: float | None = None) -> int:
        """Like `cleanup_idle_user_slots`."""
        seconds = check_seconds("threshold", threshold, zero=True)
        older_than = self.options.idle_threshold if seconds is None else seconds
        return self._uploads._backend.forget_idle("user", older_than, self.options.max_idle_users)

    def _clean_up(self) -> None:
        self.cleanup_idle_user_slots_sync()
        if self.options.ttl is not None or not isinstance(self.options.url, str | None):
            self._ownership.forget_lost()

    async def pause(self, seconds: float, username: str | None = None) -> None:
        """Grant nothing for ``seconds`` to anybody, or no upload to one user.

        Newcomers and waiters wait meanwhile; holders keep their slots. If there are several pauses,
        the one that ends last counts; `reopen` ends all of them.
        """
        if username is None:
            await self._downloads.pause(seconds)
            await self._uploads.pause(seconds)
        else:
            await self._uploads.pause(seconds, user=_check_username(username))

    pause_sync = twin(pause)

    async def close(self) -> None:
        """Close every manager of the name that this process has made so far.

        Waiters and newcomers fail with SlotManagerClosed; holders may still
        release. A manager made afterwards works once the earlier holders of this process
        have left. The clean-up in the background of this one has ended when this returns.
        Closing again does no harm.
        """
        if self._cleaner is not None:
            self._cleaner.stop()
        try:
            await self._downloads.close()
        finally:
            await self._uploads.close()

    close_sync = twin(close)

    async def close_everywhere(self, reason: str | None = None) -> None:
        """Close the name for everybody who shares it, until `reopen`.

        Waiters and newcomers fail with SlotManagerClosed, which carries ``reason``, in
        managers made later too; holders may still release. The clean-up continues.
        """
        await self._downloads.close_everywhere(reason)
        await self._uploads.close_everywhere(reason)

    close_everywhere_sync = twin(close_everywhere)

    async def reopen(self) -> None:
        """Undo `close_everywhere`, and end pauses; what was closed by `close` stays closed."""
        await self._downloads.reopen()
        await self._uploads.reopen()

    reopen_sync = twin(reopen)


def _arguments(options: SlotOptions) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in fields(options)}


def _closed(_what: str, *, reason: str | None = None) -> SlotManagerClosed:
    why = "" if reason is None else f": {reason}"
    return SlotManagerClosed(f"the slot manager is closed{why}", reason=reason)


def _check_username(username: object) -> str:
    if not isinstance(username, str):
        raise TypeError(f"username must be a str, not {redacted_repr(username)}")
    return check_text("username", username)


def _stats(downloads: dict[str, TierStats], uploads: dict[str, TierStats]) -> SlotStats:
    return SlotStats(
        downloads_active=downloads["downloads"].active,
        downloads_max=downloads["downloads"].value,
        uploads_active=uploads["uploads"].active,
        uploads_max=uploads["uploads"].value,
        user_slots_count=len(uploads["user"].keys),
    )
