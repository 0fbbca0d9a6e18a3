"""SlotOptions: what is right is taken, what is wrong is named."""

from __future__ import annotations

import pytest

from slotwise import SlotManager, SlotOptions
from slotwise.redis import RedisConfig


def test_the_defaults_are_those_of_the_manager():
    with SlotManager() as slots:
        assert slots.options == SlotOptions()


def test_a_manager_is_made_from_options():
    options = SlotOptions(max_downloads=3, max_uploads=0, cleanup_interval=0)
    with SlotManager.from_options(options) as slots:
        assert slots.options == options
        assert slots.stats_sync().downloads_max == 3


def test_each_field_has_a_variable():
    environ = {
        "SLOTWISE_MAX_DOWNLOADS": "1",
        "SLOTWISE_MAX_UPLOADS": "2",
        "SLOTWISE_MAX_UPLOADS_PER_USER": "3",
        "SLOTWISE_CLEANUP_INTERVAL": "4.5",
        "SLOTWISE_IDLE_THRESHOLD": "5",
        "SLOTWISE_MAX_IDLE_USERS": "6",
        "SLOTWISE_NAME": "transfers",
        "SLOTWISE_URL": "redis://127.0.0.1:1",
        "SLOTWISE_TTL": "7",
        "SLOTWISE_HEARTBEAT_MAX_INTERVAL": "8",
        "SLOTWISE_PING_INTERVAL": "2",
        "SLOTWISE_CANCEL_TASK_AFTER_TTL": "0",
    }
    options = SlotOptions.from_env(environ)
    assert options == SlotOptions(
        max_downloads=1,
        max_uploads=2,
        max_uploads_per_user=3,
        cleanup_interval=4.5,
        idle_threshold=5,
        max_idle_users=6,
        name="transfers",
        url=options.url,
        ttl=7,
        heartbeat_max_interval=8,
        ping_interval=2,
    )
    assert isinstance(options.url, RedisConfig)


def test_what_is_not_set_or_empty_has_its_default(monkeypatch):
    assert SlotOptions.from_env({"SLOTWISE_MAX_UPLOADS": " "}) == SlotOptions()
    monkeypatch.setenv("SLOTWISE_MAX_UPLOADS", "12")
    assert SlotOptions.from_env().max_uploads == 12


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SLOTWISE_MAX_DOWNLOADS", "many"),
        ("SLOTWISE_MAX_UPLOADS", "-1"),
        ("SLOTWISE_MAX_UPLOADS_PER_USER", "1.5"),
        ("SLOTWISE_CLEANUP_INTERVAL", "soon"),
        ("SLOTWISE_IDLE_THRESHOLD", "-3"),
        ("SLOTWISE_CANCEL_TASK_AFTER_TTL", "perhaps"),
        ("SLOTWISE_TTL", "0"),
        ("SLOTWISE_URL", "carrier-pigeon://"),
    ],
)
def test_bad_text_is_a_value_error_that_names_the_variable(variable, text):
    with pytest.raises(ValueError, match=variable):
        SlotOptions.from_env({variable: text})


@pytest.mark.parametrize("limit", ["max_downloads", "max_uploads", "max_uploads_per_user"])
@pytest.mark.parametrize(
    ("wrong", "error"), [(-1, ValueError), (True, TypeError), (1.0, TypeError), ("1", TypeError)]
)
def test_a_limit_that_makes_no_sense_is_refused(limit, wrong, error):
    for make in (SlotManager, SlotOptions):
        with pytest.raises(error, match=limit):
            make(**{limit: wrong})
