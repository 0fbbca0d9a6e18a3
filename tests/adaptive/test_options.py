"""The options of adaptive values: read-only, equal by their fields, copied and pickled."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from slotwise import Adaptive, Change, Errors, Latency

VALUES = [
    Latency(2.0, 70),
    Errors(),
    Adaptive(10, 1, 100, algorithm=Errors(), drop_on=(KeyError,), pause_on_retry_after=True),
    Change(1.5, 3, 4, "more"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_copies_are_equal_and_nothing_can_be_changed(value) -> None:
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert (other, hash(other), repr(other)) == (value, hash(value), repr(value))
    for name in type(value).__slots__:
        with pytest.raises(AttributeError):
            setattr(value, name, 1)
        with pytest.raises(AttributeError):
            delattr(value, name)
    assert value != next(each for each in VALUES if each is not value)


def test_they_say_what_they_are() -> None:
    assert repr(Latency()) == "Latency(window=1.0, samples=50)"
    assert repr(Adaptive(2, 1, 3)).startswith("Adaptive(start=2, min=1, max=3, algorithm=Latency(")
    assert Adaptive(2, 1, 3) == Adaptive(2, 1, 3) != Adaptive(2, 1, 4)
    assert "algorithm" in inspect.signature(Adaptive).parameters
    match Change(1.0, 2, 3, "why"):
        case Change(_, old, new, _):
            assert (old, new) == (2, 3)
