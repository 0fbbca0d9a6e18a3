"""Settle what acquisitions took of rates: at once, with the next change, or in a thread.

The ledger in the file decides what that changes. A holder's correction waits until the end of this
tick of the event loop, so that it is written together with a release; every change of the file by
this process includes it, so nobody here reads an older state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Mapping
from functools import partial
from typing import Any

from slotwise._core.messages import unknown_acquisition
from slotwise._core.results import DONE
from slotwise._core.twins import run_here
from slotwise.processes import _operations as operations
from slotwise.processes._attachment import Attachment
from slotwise.processes._errors import Busy


async def settle(
    attachment: Attachment, acquisition_id: str, costs: Mapping[str, int], title: str
) -> None:
    """Correct what an acquisition of any process took; ``title`` is how messages name the limit.

    Raises:
        LookupError: it is unknown, or no longer known.
    """
    known = await attachment.call(operations.charge, acquisition_id, costs)
    _check(title, acquisition_id, known)


def settle_soon(
    attachment: Attachment, acquisition_id: str, costs: Mapping[str, int], title: str
) -> Awaitable[None]:
    """Like `settle`, for a caller that may await it or not; without an event loop it is done."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        run_here(partial(settle, attachment, acquisition_id, costs, title))
        return DONE
    file = attachment.file()
    if acquisition_id in file.claims.by_id:
        file.charge_next(acquisition_id, costs)
        loop.call_soon(file.finish_pending)
        return _Pending(attachment)
    try:
        known = attachment.call_inline(operations.charge, acquisition_id, costs)
    except Busy:
        task = loop.create_task(settle(attachment, acquisition_id, costs, title))
        task.add_done_callback(_ignore_failure)
        return task
    _check(title, acquisition_id, known)
    return DONE


def _check(title: str, acquisition_id: str, known: bool) -> None:
    if not known:
        raise unknown_acquisition(title, acquisition_id)


def _ignore_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # nobody has to await it


class _Pending:
    """What the next change of the file does first; whoever awaits this makes that change."""

    __slots__ = ("_attachment",)

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    def __await__(self) -> Generator[Any, Any, None]:
        return self._attachment.call(operations.finish_pending).__await__()
