"""Do outside the section what was decided inside: wake those whose wait has ended.

Calls are posted inside, and made by whichever thread comes first outside: the thread that posted
one may not get to run. Nobody waits for anybody here, so the order of the posts is not kept between
threads. Where order matters, `_wait.wakers` keeps it.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Hashable
from typing import Protocol

from slotwise._core import fork


class _PostedCall(Hashable, Protocol):
    def __call__(self) -> object: ...


posted: dict[_PostedCall, None] = {}  # nothing has to be delivered while it is empty
_delivering: set[int] = set()  # the threads that do


def post(call: Callable[[], object]) -> None:
    """Have ``call`` called after the section; it must not wait for anybody.

    One that is posted several times may be called once, but after the last post.
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
        _delivering.add(me)
        try:
            for call in list(posted):
                # The deletion decides between threads. It comes first, so that what is posted
                # from now on is not forgotten.
                try:
                    del posted[call]
                except KeyError:
                    continue
                call()
        finally:
            _delivering.discard(me)


# The threads of the parent don't exist in a forked child, where new ones may get their idents.
fork.in_child(fork.Step.FORGET, _delivering.clear)
