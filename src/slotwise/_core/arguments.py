"""Check arguments; the error names the argument.

If the type is wrong, it names the type and not the value, which may be a misplaced credential.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Literal

from slotwise._core.redaction import kind_of, redacted_repr


class _Unset(Enum):
    UNSET = "the semaphore's own"

    def __repr__(self) -> str:
        return "..."


UNSET: Final = _Unset.UNSET
"""Stands for an argument that was left out, where None already means something."""

Unset = Literal[_Unset.UNSET]

# The words of arguments that limits share.
Order = Literal["fifo", "fair"]
Shed = Literal["deadline"]
OnUnreachable = Literal["raise", "open", "local"]
WaitOrReplace = Literal["wait", "replace"]


# 31 years. Threads can't sleep for longer than ten times that, and Redis counts
# microseconds in doubles.
MOST_SECONDS = 1e9


# The largest integer that a double holds exactly: Redis scripts compute in doubles. The same
# limit applies on every driver, so that a value can be moved to Redis.
MOST_SLOTS = 2**53


def check_count(
    what: str, given: object, *, least: int = 1, most: int | None = None, note: str = ""
) -> int:
    """Return a plain int within these; an enum member or the like becomes its number."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{what} must be an int, not {kind_of(given)}")
    if given < least:
        raise ValueError(f"{what} must be at least {least}{note}, not {given}")
    if most is not None and given > most:
        raise ValueError(f"{what} must be at most {most}, not {given}")
    return given if type(given) is int else int(given)


def check_word(what: str, given: object, words: Sequence[str], other: str = "") -> Any:
    """Return one of some words; ``other`` is what else could have been given."""
    *most, last = [*map(repr, words), *filter(None, [other])]
    allowed = f"{', '.join(most)} or {last}"
    if not isinstance(given, str):
        raise TypeError(f"{what} must be {allowed}, not {kind_of(given)}")
    for word in words:
        if given == word:
            return word
    raise ValueError(f"{what} must be {allowed}, not {redacted_repr(given)}")


def check_seconds(
    what: str, given: object, *, zero: bool = False, most: float = MOST_SECONDS
) -> float | None:
    """Return seconds above 0 (or 0, with ``zero``) up to ``most``; or None."""
    if given is None:
        return None
    return _check_seconds(what, given, zero=zero, most=most, optional=True)


def check_required_seconds(
    what: str, given: object, *, zero: bool = False, most: float = MOST_SECONDS
) -> float:
    """Like `check_seconds`, where None is refused."""
    return _check_seconds(what, given, zero=zero, most=most, optional=False)


def _check_seconds(what: str, given: object, *, zero: bool, most: float, optional: bool) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        none = " or None" if optional else ""
        raise TypeError(f"{what} must be a number of seconds{none}, not {kind_of(given)}")
    try:
        seconds = float(given)
    except OverflowError:  # an int beyond the largest float
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        least = "0 or more" if zero else "above 0"
        raise ValueError(f"{what} must be finite and {least}, not {given}")
    if seconds > most:
        none = "; None, where accepted, means unlimited" if optional else ""
        raise ValueError(f"{what} must be at most {most:g} s, not {seconds:g}{none}")
    return seconds


def check_timeout(given: float | Unset | None, default: float | None) -> float | None:
    """Return the longest wait in seconds, None for no limit; ``default`` if left out."""
    return default if given is UNSET else check_seconds("timeout", given, zero=True)


def check_pause(given: object) -> float:
    """Return the length of a pause in seconds."""
    return check_required_seconds("seconds", given, zero=True)


def check_name(given: object) -> str | None:
    """Return a non-empty str, or None for a private semaphore."""
    if given == "":
        raise ValueError("name must not be empty; leave it out for a private semaphore")
    return check_optional_text("name", given)


def check_names(given: object) -> None:
    """Refuse a single name where several are expected: its letters are not names."""
    if isinstance(given, str):
        raise TypeError(f"names must be an iterable of names, not the str {redacted_repr(given)}")


def check_text(what: str, given: str) -> str:
    """Return a plain str that can be encoded: one without lone surrogates."""
    if not given.isascii():
        try:
            given.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{what} must be text in UTF-8 (lone surrogates not allowed),"
                f" not {redacted_repr(given)}"
            ) from None
    # A member of an enum is formatted in various ways; what is shared is its text.
    return given if type(given) is str else str.__str__(given)


def check_optional_text(what: str, given: object) -> str | None:
    """Return text that can be stored, or None."""
    if given is None:
        return None
    if not isinstance(given, str):
        raise TypeError(f"{what} must be a str or None, not {kind_of(given)}")
    return check_text(what, given)


def check_label(given: object) -> str | None:
    """Return what an acquisition is for."""
    return check_optional_text("label", given)


def check_on_full(given: object) -> bool:
    """Return whether a request replaces a holder if it finds no free slot; else it waits."""
    return given != "wait" and check_word("on_full", given, ("wait", "replace")) == "replace"


def check_flag(what: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise TypeError(f"{what} must be True or False, not {kind_of(given)}")
    return given


def check_reason(given: object) -> str | None:
    """Return why something is closed; None if it is empty."""
    return check_optional_text("reason", given) or None


def check_limit(what: str, given: object) -> int:
    """Return a plain int of at least 0, which means unlimited."""
    return check_count(what, given, least=0, most=MOST_SLOTS, note=" (0 means unlimited)")


def check_value(given: object) -> int:
    """Return how many slots there are, as it can be moved to any driver."""
    return check_count("value", given, most=MOST_SLOTS)
