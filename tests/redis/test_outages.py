"""Which answers end an outage, and which failures begin another."""

from __future__ import annotations

import logging
import time

import pytest

from slotwise.redis import _outages


@pytest.mark.soak
def test_what_a_server_answered_before_an_outage_does_not_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A connection may have been opened just before, and be taken over just after."""
    caplog.set_level(logging.WARNING, "slotwise.redis")
    before = time.monotonic()
    _outages.begin("Redis at nowhere", ConnectionError("it broke"), broken=True)
    _outages.end("Redis at nowhere", before)
    assert len(caplog.records) == 1
    _outages.end("Redis at nowhere", time.monotonic())
    _outages.end("Redis at nowhere", time.monotonic())
    [_, back] = caplog.messages
    assert back.startswith("Redis at nowhere is back after ")


@pytest.mark.soak
def test_what_failed_before_an_outage_ended_does_not_begin_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "slotwise.redis")
    broke, before = ConnectionError("it broke"), time.monotonic()
    _outages.begin("Redis at nowhere", broke, broken=True)
    _outages.end("Redis at nowhere", time.monotonic())
    _outages.begin("Redis at nowhere", broke, broken=True, asked_at=before)
    assert len(caplog.records) == 2
    _outages.begin("Redis at nowhere", broke, broken=True, asked_at=time.monotonic())
    _outages.end("Redis at nowhere", time.monotonic())
    assert len(caplog.records) == 4
