"""What the values of flags can be."""

from __future__ import annotations

import argparse

import pytest

from slotwise._cli.flags import duration, seconds, some_seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("90", 90.0), ("0.5", 0.5), ("10s", 10.0), ("250ms", 0.25), ("10m", 600.0)),
        *(("1h", 3600.0), ("1.5d", 129600.0), ("0ms", 0.0), ("1e3", 1000.0)),
    ],
)
def test_a_duration_is_seconds_or_has_a_unit(text, expected):
    assert duration(text) == seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "m", "h1", "1x", "1 week", "nan", "inf", "infs", "nanms", "1h30", "ten", "1mm"]
)
def test_what_is_not_a_duration_is_refused(text):
    assert duration(text) is None
    with pytest.raises(argparse.ArgumentTypeError, match=r"10m, 1h or 1\.5d"):
        seconds(text)


def test_bounds_hold_for_units_too():
    for text in ("0", "0s", "-1h"):
        with pytest.raises(argparse.ArgumentTypeError, match="more than 0"):
            some_seconds(text)
