"""Do outside the section what was decided inside: wake those whose wait has ended.

Calls are posted inside, and made by whichever thread comes first outside: the thread that posted
one may not get to run, or a signal handler may raise in it. Nobody waits for anybody here, so the
order of the posts is not kept between threads. Where order matters, `_wait.wakers` keeps it.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Hashable
from typing import Protocol


class _PostedCall(Hashable, Protocol):
    def __call__(self) -> object: ...


posted: dict[_PostedCall, None] = {}  # nothing has to be delivered while it is empty
_delivering: set[int] = set()  # the threads that do


def post(call: Callable[[], object]) -> None:
    """Have ``call`` called after the section; it must not wait for anybody.

    It is called again if a signal handler raises in it. One that is posted several times may be
    called once, but after the last post.
    """
    posted[call] = None


def deliver_posted(_: object = None) -> None:
    """Make the posted calls, except for those that another thread is making.

    If it interrupts itself, by a garbage collection or a signal handler, or if one of the calls
    posts another, what is left is done when the interrupted call continues.
    """
    while posted:
        me = get_ident()
        if me in _delivering:
            return
        try:
            _delivering.add(me)
            for call in list(posted):
                _make(call)
        except BaseException:  # raised by a signal handler: the others are still woken
            _delivering.discard(me)
            deliver_posted()
            raise
        finally:
            _delivering.discard(me)


def _make(call: _PostedCall) -> None:
    # The deletion decides between threads. It is not a call, after which a signal handler
    # could raise, and it comes first, so that what is posted from now on is not forgotten.
    try:
        del posted[call]
    except KeyError:
        return
    try:
        call()
    except BaseException:
        call()
        raise
