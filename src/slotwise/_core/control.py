"""Controlled: a verb that changes a limit for everybody is data on its way to the rules.

A public method checks its arguments and calls `Controlled._control`; the driver hands the verb to
its ledger or its scripts in ``_apply``. Hooks are told here, whatever the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, TypeAlias

from slotwise._core import events
from slotwise._core.twins import twin

Verb: TypeAlias = Literal[
    "resize",
    "pause",
    "freeze",
    "thaw",
    "settle",
    "refill",
    "close_everywhere",
    "reopen",
    "forget",
]

# A tier, and a key of it; without a key it is all of the tier, without a tier all of the limit.
Where: TypeAlias = tuple[str | None, str | None]
WHOLE: Where = (None, None)

_TOLD_AS: dict[str, events.Kind] = {
    "freeze": "frozen",
    "pause": "paused",
    "reopen": "reopened",
    "thaw": "thawed",
}


class Controlled(ABC):
    """A semaphore, or tiers of one driver."""

    __slots__ = ()

    @abstractmethod
    async def _apply(self, verb: Verb, where: Where, *args: Any) -> Any:
        """Change it by the rules.

        Return the value that it has now for "freeze", and for "forget" whether nobody uses it and
        all that was remembered of it is gone. Limits in memory have no "forget".

        Raises:
            SemaphoreClosed: it is closed, unless that is what the verb is about.
        """

    @property
    @abstractmethod
    def _reported(self) -> tuple[str | None, str]:
        """Its name and its scope, as hooks hear of them."""

    async def _control(self, verb: Verb, where: Where = WHOLE, *args: Any) -> Any:
        """Change it for everybody who shares it: the only way from a public method to the rules."""
        result = await self._apply(verb, where, *args)
        if events.hooks:
            if verb in ("resize", "freeze"):
                value = args[0] if verb == "resize" else result
                events.changed("resized", *self._reported, *where, value=value)
            if verb in _TOLD_AS:
                seconds = args[0] if verb == "pause" else None
                events.changed(_TOLD_AS[verb], *self._reported, *where, seconds=seconds)
        return result

    _control_sync = twin(_control)
