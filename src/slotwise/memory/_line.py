"""The line: where blocks of ``async with semaphore:`` wait without the lock.

The tasks of one event loop, the *home* of the semaphore, wait there as futures, which only that
loop adds and takes without the lock. The ledger serves it before all other waiters. Which claims
wait elsewhere, and who is granted what, is up to the ledger.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from slotwise._core.trio_run import TrioRun
from slotwise._ledger.path_nodes import LineGrant
from slotwise._wait.section import exclusive, exclusive_or_later
from slotwise._wait.wakers import Refusals, Waker

if TYPE_CHECKING:
    from slotwise._ledger.paths import PathLedger
    from slotwise.memory._tracker import Tracker

# A line is tidied when more than half of it, and more than this, has ended.
_FEW_ENDED = 32


class LineHome(NamedTuple):
    """The one event loop that may use the line outside the section, or none.

    A home never changes, it is replaced: so a giver that reads it once gets the loop and its
    attributes from the same moment.
    """

    loop: asyncio.AbstractEventLoop | None
    has_moved: bool = False  # whether another loop was the home before
    is_shut: bool = False  # whether nobody may use the line any more


# What a tracker has before anybody has waited, and once nobody may wait there any more.
NO_HOME = LineHome(None)
SHUT = LineHome(None, has_moved=True, is_shut=True)


# --------------------------------------------------------------------- its home


def at_home(tracker: Tracker, loop: asyncio.AbstractEventLoop) -> bool:
    """Whether ``loop`` may use the line; it is opened for it if nobody else waits."""
    if tracker.home.loop is loop:
        return True
    if isinstance(cast("object", loop), TrioRun):
        return False  # its tasks wait one by one, as those of other loops do
    return exclusive(_at_home, tracker, loop)


def _at_home(tracker: Tracker, loop: asyncio.AbstractEventLoop) -> bool:
    ledger = tracker.ledger
    if not (ledger.line or ledger.waiting or ledger.closed or tracker.home.is_shut):
        # Once it has moved, futures of either loop may be found in the line.
        has_moved = tracker.home.has_moved or tracker.home.loop not in (None, loop)
        tracker.home = LineHome(loop, has_moved=has_moved)
        ledger.open_line()
        tracker.expect_waking()
    return tracker.home.loop is loop


# --------------------------------------------------------------------- waiting


def take_another(tracker: Tracker, loop: asyncio.AbstractEventLoop) -> int:
    """Take a number for a block of ``loop`` that the quick lane didn't give; 0 if it waits.

    Fresh numbers may be needed, or somebody was woken whom it need not let pass.
    """
    ledger = tracker.ledger
    if ledger.line or tracker.woken.any_of(loop):
        return 0
    return ledger.node()._pop_free() or exclusive(_take_fresh, tracker)


def _take_fresh(tracker: Tracker) -> int:
    ledger = tracker.ledger
    if ledger.line or ledger.waiting or ledger.closed or ledger.paused:
        return 0
    return ledger.node().take_one() or 0


def join(tracker: Tracker, ledger: PathLedger[Any], future: asyncio.Future[int]) -> None:
    """Look after a future whose loop saw the quick lane close while it queued."""
    tracker.change_or_later(_join, tracker, ledger, future)


def _join(tracker: Tracker, ledger: PathLedger[Any], future: asyncio.Future[int]) -> list[Any]:
    if ledger is not tracker.ledger:
        ledger.line.clear()
        return [LineGrant(future, 0)]  # it asks again
    # If the home changed in that very moment, the new one may have tidied
    # the line and missed it. Being in it twice does no harm.
    if not future.done() and future not in ledger.line:
        ledger.line.append(future)
    return tracker.serve()


def leave(tracker: Tracker, future: asyncio.Future[int]) -> None:
    """Stop the wait of a block: hand its grant on, or leave an ended ticket behind."""
    tracker.woken.discard(future)
    if not future.cancelled():
        if future.done():
            if future.exception() is None:
                tracker.withdraw(LineGrant(future, future.result()))
            return
        try:
            future.cancel()  # garbage-collected with its loop while still pending
        except RuntimeError:
            pass  # it is cancelled; the closed loop can't tell anybody
    tracker.ended_tickets += 1
    ledger = tracker.ledger
    node = ledger.node()
    if node.free or node.circulating < node.value:
        tracker.look_around((node,))  # interrupted before its last check
    if (
        tracker.ended_tickets > _FEW_ENDED
        and tracker.ended_tickets * 2 > len(ledger.line)
        and _get_running_loop() is tracker.home.loop
    ):
        exclusive_or_later(_tidy, tracker, then=lambda _: keep_order(tracker))


def _tidy(tracker: Tracker) -> None:
    # Home is here and all others are outside the section. A giver that looks
    # at the line without it finds the old one or the new one, and never none.
    # A former home that was about to queue may use the old one: see above.
    ledger = tracker.ledger
    ledger.line = deque(future for future in list(ledger.line) if not future.done())
    tracker.ended_tickets = 0


# ---------------------------------------------------------------------- giving


def hand_to_first(tracker: Tracker, number: int) -> bool:
    """Hand a slot to the first in the line, if this is its home; False if nobody took it."""
    home, ledger = tracker.home, tracker.ledger  # read once: the home may change meanwhile
    is_here = home.loop is not None and home.loop is _get_running_loop()
    if not is_here or ledger.attention or tracker.woken.under_way:
        return False
    line = ledger.line
    while line:
        try:
            future = line.popleft()
        except IndexError:
            break
        if home.has_moved and future.get_loop() is not home.loop:
            # It came while the home was about to change.
            keep_order(tracker)
            tracker.change_or_later(list, (LineGrant(future, number),))
            return True
        try:
            if not line:  # else newcomers see the line, and wait in it
                tracker.woken.add(future)
            future.set_result(number)
            return True
        except asyncio.InvalidStateError:  # cancelled, and still in the line
            tracker.woken.discard(future)
            tracker.ended_tickets -= 1
            keep_order(tracker)
    return False


def keep_order(tracker: Tracker) -> None:
    """If nobody is left in the line, let those who were woken from it run before newcomers.

    Only the last of a line is in ``woken``. If that one was cancelled, nobody is.
    """
    if not tracker.ledger.line and tracker.home.loop is not None:
        tracker.woken.hold_newcomers_back(tracker.home.loop)


def pass_on(tracker: Tracker, grants: list[LineGrant]) -> None:
    """Hand on what was granted to tickets that have ended."""
    keep_order(tracker)
    while grants:
        grant = grants[-1]
        del grants[-1]
        tracker.withdraw(grant)


# --------------------------------------------------------------------- refusing


def take_tickets(tracker: Tracker) -> deque[asyncio.Future[int]]:
    """Empty the line, *in the section*, and return what was in it.

    There may be very many. One that is about to queue finds the section busy, and is looked after.
    """
    tickets = deque(tracker.ledger.line)
    if tickets:
        tracker.ledger.line = deque()
    return tickets


def refuse(
    tracker: Tracker,
    tickets: deque[asyncio.Future[int]],
    error: Callable[[], Exception | None],
) -> None:
    """Tell those who had these tickets that they get nothing; outside the section.

    Without an error they ask again.
    """
    refusals: Refusals[Any] = Refusals(tracker)
    for future in tickets:
        if future.done():
            tracker.ended_tickets -= 1
        else:
            refusals.add(cast("Waker", future), LineGrant(future, 0), 0, error())
    refusals.send()


def about(tracker: Tracker) -> int:
    """About how many wait in the line, without walking it: there may be many that have ended."""
    return max(len(tracker.ledger.line) - max(tracker.ended_tickets, 0), 0)
