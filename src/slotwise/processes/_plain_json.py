"""Encode and decode records as JSON, with the C functions behind the json module.

In every call, `json.loads` detects the encoding and `JSONEncoder.encode` makes a new C encoder:
both take as long as the work itself. Importing json takes longer than one change of a file.
Where Python has no such functions, json does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _ScannerSettings:
    """The settings that the C scanner reads: those of `json.loads` without arguments."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.get


def _not_plain(value: object) -> object:
    raise TypeError(f"{type(value).__name__} can't be encoded")


def _make() -> tuple[Callable[[object], str], Callable[[bytes], Any]]:
    """Return what encodes plain values, and what decodes them."""
    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner

        chunks = make_encoder(
            None, _not_plain, encode_basestring_ascii, None, ":", ",", False, False, False
        )
        scan = make_scanner(_ScannerSettings)  # type: ignore[arg-type]
    except (ImportError, TypeError):
        import json

        return json.JSONEncoder(separators=(",", ":")).encode, json.loads

    return lambda value: "".join(chunks(value, 0)), lambda body: scan(body.decode(), 0)[0]


encode, decode = _make()


def encode_record(record: list[Any]) -> str:
    """Return what `encode` returns; most requests and releases are encoded right here."""
    if len(record) == 4 and record[0] == "release":
        _, now, wall_us, key = record
        if _needs_no_escapes(key):
            return f'["release",{now!r},{wall_us},"{key}"]'
    elif len(record) == 10 and record[0] == "request":
        _, now, wall_us, key, wanted, ttl, wait_until, value, pid, label = record
        if (
            ttl is wait_until is label is None
            and type(wanted) is type(value) is int
            and _needs_no_escapes(key)
        ):
            return f'["request",{now!r},{wall_us},"{key}",{wanted},null,null,{value},{pid},null]'
    return encode(record)


def _needs_no_escapes(key: str) -> bool:
    return key.isascii() and key.replace("-", "").isalnum()
