"""AsyncEFSPurger: the purger for programs with an event loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from slotwise.purge._options import PurgeFlags, PurgeOptions
from slotwise.purge._plan import make_plan
from slotwise.purge._report import PurgeReport
from slotwise.purge._run import Run

if TYPE_CHECKING:
    from concurrent.futures import Future


class AsyncEFSPurger:
    """Deletes old files below ``root``, and directories that are or become empty.

    Args:
        root: a directory, not a symlink. It is never removed itself.
        on_progress: called with a report about ten times a second and at the end, in a thread.
        **flags: the flags of ``slotwise purge`` with underscores (`PurgeFlags`).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        on_progress: Callable[[PurgeReport], object] | None = None,
        **flags: Unpack[PurgeFlags],
    ) -> None:
        self.root = root
        self.options = PurgeOptions(**flags)
        self._on_progress = on_progress

    async def purge(self) -> PurgeReport:
        """Purge in threads; the event loop stays free.

        After a cancellation nothing more is started, and operations in flight are waited for.

        Raises:
            RootRefused: the root must not be purged.
            AuditRefused: the audit file can't be used.
        """
        import asyncio  # already loaded if this is called; `slotwise purge` starts without it

        plan = make_plan(self.root, self.options)
        try:
            run = Run(plan, self._on_progress)
            ended = asyncio.wrap_future(_started(run))
            try:
                return await asyncio.shield(ended)
            except asyncio.CancelledError as cancellation:
                run.stop("cancelled")
                while not ended.done():
                    try:
                        await asyncio.shield(ended)
                    except asyncio.CancelledError:
                        continue
                    except BaseException:
                        break
                if not ended.cancelled() and ended.exception() is None:
                    cancellation.report = ended.result()  # type: ignore[attr-defined]
                raise
        finally:
            plan.close()


def purge(
    root: str | os.PathLike[str],
    *,
    on_progress: Callable[[PurgeReport], object] | None = None,
    **flags: Unpack[PurgeFlags],
) -> PurgeReport:
    """`AsyncEFSPurger.purge` for callers without an event loop; blocks.

    After Ctrl-C nothing more is started; it is raised when operations in flight have ended.
    """
    from concurrent.futures import wait  # slow, and `slotwise purge` doesn't need it

    plan = make_plan(root, PurgeOptions(**flags))
    interruption: BaseException | None = None
    try:
        run = Run(plan, on_progress)
        ended = _started(run)
        while not ended.done():
            try:
                wait([ended])
            except BaseException as error:
                interruption = interruption or error
                run.stop("cancelled")
    finally:
        plan.close()
    if interruption is not None:
        raise interruption
    return ended.result()


def _started(run: Run) -> Future[PurgeReport]:
    """Start a run in a thread of its own.

    An exception that a signal raises anywhere in the watch could leave workers behind, and they
    must never outlive the root's descriptor.
    """
    from concurrent.futures import Future

    ended: Future[PurgeReport] = Future()

    def work() -> None:
        try:
            ended.set_result(run.run())
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=work, name="slotwise-purge-watch", daemon=True).start()
    return ended
