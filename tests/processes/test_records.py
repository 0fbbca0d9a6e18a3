"""Records, as text."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.processes._plain_json import decode, encode, encode_record


@pytest.mark.parametrize(
    "record",
    [
        [
            "request",
            11163.7986212,
            1763357187123456,
            "p0123456789abcde-17",
            1,
            *[None] * 2,
            1,
            7,
            None,
        ],
        ["request", 1e300, 5, "p1-1", 3, None, None, 2**53, 12345, None],
        ["request", 1.5, 5, "p1-1", 1, 2.5, None, 1, 7, None],
        ["request", 1.5, 5, "p1-1", 1, None, 9.25, 1, 7, None],
        ["request", 1.5, 5, "p1-1", 1, None, None, 1, 7, 'a "label"'],
        ["request", 1.5, 5, "p1-1", [1, 5], None, None, 1, 7, None],
        ["request", 1.5, 5, "p1-1", 1, None, None, None, 7, None],
        ["request", 1.5, 5, "p1-1", 1, None, None, 1, 7, None, 0.5],
        ["request", 1.5, 5, 'p"1', 1, None, None, 1, 7, None],
        ["release", 1.5, 5, "p1-1"],
        ["release", 0.1 + 0.2, 5, "p1-1"],
        ["release", 1.5, 5, "ü\n"],
        ["release", 1.5, 5, '"'],
        ["release", 1.5, 5, "p1-1", "dropped", None, 7],
        ["expire", 1.5, 5],
    ],
)
def test_what_is_written_out_is_what_the_encoder_writes(record: list[Any]) -> None:
    assert encode_record(record) == encode(record)
    assert decode(encode_record(record).encode()) == record
