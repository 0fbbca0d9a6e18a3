"""MemoryContext: what acquisitions of semaphores and of tiers have in common.

One object is the context manager, the ledger's claim and the caller's result. How slots are taken
and given back is in `_acquisition` for a semaphore, in `_path_acquisition` for tiers.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self

from slotwise._core.messages import context_not_entered, context_not_yet_entered, context_reused
from slotwise._core.twins import refuse_to_block_a_loop, run_here
from slotwise._ledger.claims import NO_SLOTS
from slotwise._wait.at_once import DONE
from slotwise.memory._ids import id_of, next_key


class MemoryContext:
    """A mixin before an AcquisitionResult.

    Only ``cm()`` makes it, and sets its attributes itself: a call of ``__init__`` would cost a
    tenth of an uncontended acquisition.
    """

    __slots__ = NO_SLOTS

    __init__ = object.__init__

    key: int | None  # None until it is entered
    since: float
    _slot_number: int

    if TYPE_CHECKING:

        @property
        def _title(self) -> str:
            """The limit, as messages name it."""

        def _leave_with(self, exc_type: type[BaseException] | None) -> None: ...

    @property
    def acquisition_id(self) -> str:
        if self.key is None:
            raise context_not_yet_entered(self._title)
        return id_of(self.key)

    @property
    def slot_number(self) -> int:
        if self.key is None:
            raise context_not_yet_entered(self._title)
        return self._slot_number

    @property
    def waited(self) -> float:
        # Computed when somebody asks: the quick lane doesn't read the clock.
        began: float | None = getattr(self, "arrived", None)
        return 0.0 if began is None else max(self.since - began, 0.0)

    def __eq__(self, other: object) -> bool:
        return self is other or (self.key is not None and super().__eq__(other))

    def __hash__(self) -> int:
        return object.__hash__(self) if self.key is None else super().__hash__()

    def __repr__(self) -> str:
        if self.key is None:
            return f"<cm() of {self._title}, not entered yet>"
        return super().__repr__()

    # --------------------------------------------------------------- its life

    def take(self) -> bool:
        """Take what is free by the quick lane; False if the tracker has to be asked."""
        raise NotImplementedError

    def wait(self) -> Coroutine[Any, Any, None]:
        """Get what the quick lane did not give, waiting if need be."""
        raise NotImplementedError

    def give(self) -> bool:
        """Give back what it holds; False if it has ended before."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._enter()
        if not self.take():
            await self.wait()
        return self

    def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> Coroutine[Any, Any, None]:
        self.__exit__(exc_type, exc, traceback)
        return DONE

    def __enter__(self) -> Self:
        if _get_running_loop() is not None:
            refuse_to_block_a_loop("'with'")
        self._enter()
        if not self.take():
            run_here(self.wait)
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        if self.key is None:
            raise context_not_entered(self._title)
        self._leave_with(exc_type)
        self.give()

    def _enter(self) -> None:
        key = next_key()
        if self.key is not None:  # nothing runs between this check and the next line
            raise context_reused(self._title)
        self.key = key
