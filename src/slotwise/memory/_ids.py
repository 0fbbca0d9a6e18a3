"""Acquisition ids of this process: a number after a prefix.

The number is the key that a ledger files an acquisition under; the text is made when somebody
reads it.
"""

from __future__ import annotations

import itertools
import secrets

from slotwise._core import fork

next_key = itertools.count(1).__next__


def _new_prefix() -> str:
    return f"m{secrets.token_hex(4)}-"


# A forked child has its own prefix, from the number at which it was forked.
_prefixes: list[tuple[int, str]] = [(0, _new_prefix())]  # the newest first

fork.in_child(fork.Step.FORGET, lambda: _prefixes.insert(0, (next_key(), _new_prefix())))


def id_of(key: int) -> str:
    """Return the acquisition id of a key."""
    first, prefix = _prefixes[0]
    if key >= first:
        return f"{prefix}{key}"
    return next(f"{prefix}{key}" for first, prefix in _prefixes if key >= first)


def key_of(acquisition_id: str) -> int | None:
    """Return the key of an id; None if this process never issued it."""
    digits = acquisition_id.rpartition("-")[2]
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        return None
    key = int(digits)
    # Asking the counter uses up a number, which does no harm.
    return key if 0 < key < next_key() and id_of(key) == acquisition_id else None


def id_of_block(which: str) -> str:
    """Return what stands for the id of a block, which has no acquisition."""
    return f"{_prefixes[0][1]}block-{which}"
