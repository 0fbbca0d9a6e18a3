"""How much of a random search is done every day; `make soak` does all of it, and more."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest

# How many times as many examples are tried as every day.
TIMES = int(os.environ.get("SLOTWISE_EXAMPLES", "1"))

# How many there are where the time must not grow with the square of their number.
MANY = [20_000, pytest.param(100_000, marks=pytest.mark.soak)]


def examples(count: int, **options: Any) -> hypothesis.settings:
    """Return settings for so many examples every day."""
    return hypothesis.settings(max_examples=count * TIMES, **options)


def seeds(every_day: int, in_total: int) -> list[Any]:
    """Return the first seeds, and the rest for the soak tests."""
    rest = range(every_day, in_total)
    return [*range(every_day), *(pytest.param(seed, marks=pytest.mark.soak) for seed in rest)]
