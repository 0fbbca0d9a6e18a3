"""The verbs that change a limit for everybody: data on their way from a public method to the rules.

`PathBackend.control` is the only way; the driver hands the verb to its ledger or its scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from slotwise._core import events

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


def tell(
    verb: Verb, where: Where, args: Sequence[Any], result: Any, name: str | None, scope: str
) -> None:
    """Tell the hooks what was changed, whatever the driver."""
    if verb in ("resize", "freeze"):
        value = args[0] if verb == "resize" else result
        events.changed("resized", name, scope, *where, value=value)
    if verb in _TOLD_AS:
        seconds = args[0] if verb == "pause" else None
        events.changed(_TOLD_AS[verb], name, scope, *where, seconds=seconds)
