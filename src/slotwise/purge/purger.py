"""AsyncEFSPurger: the purger for programs with an event loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Unpack

from slotwise.purge.options import PurgeFlags, PurgeOptions
from slotwise.purge.plan import make_plan
from slotwise.purge.report import PurgeReport
from slotwise.purge.run import Run


class AsyncEFSPurger:
    """Deletes old files below ``root``, and directories that are or become empty.

    Args:
        root: a directory, no symlink. It is never removed itself.
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
        """Purge, in threads; the loop stays free.

        A cancellation begins nothing any more and waits for what is in flight.

        Raises:
            RootRefused: the root is none that may be purged.
            AuditRefused: the audit file can't be used.
        """
        import asyncio  # loaded, if anybody can call this; `slotwise purge` starts without it

        loop = asyncio.get_running_loop()
        plan = make_plan(self.root, self.options)
        try:
            run = Run(plan, self._on_progress)
            ended: asyncio.Future[PurgeReport] = loop.create_future()

            def work() -> None:
                try:
                    report = run.run()
                except BaseException as error:
                    loop.call_soon_threadsafe(ended.set_exception, error)
                else:
                    loop.call_soon_threadsafe(ended.set_result, report)

            threading.Thread(target=work, name="slotwise-purge-watch", daemon=True).start()
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
    """`AsyncEFSPurger.purge` for callers without an event loop; blocks."""
    plan = make_plan(root, PurgeOptions(**flags))
    try:
        return Run(plan, on_progress).run()
    finally:
        plan.close()
