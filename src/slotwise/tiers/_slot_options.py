"""SlotOptions: the arguments of a SlotManager; SlotStats: its statistics."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from slotwise._core.arguments import (
    check_flag,
    check_limit,
    check_name,
    check_required_seconds,
    check_seconds,
)
from slotwise._core.redaction import redact
from slotwise._urls import parsed

if TYPE_CHECKING:
    from slotwise.redis import RedisConfig

PREFIX = "SLOTWISE_"


@dataclass(frozen=True, slots=True)
class SlotStats:
    """How full a SlotManager is; a maximum of 0 means unlimited.

    ``user_slots_count`` counts the users with an upload slot held, waited for or remembered.
    """

    downloads_active: int
    downloads_max: int
    uploads_active: int
    uploads_max: int
    user_slots_count: int


@dataclass(frozen=True, slots=True)
class SlotOptions:
    """The arguments of a SlotManager, which documents them."""

    max_downloads: int = 10
    max_uploads: int = 10
    max_uploads_per_user: int = 1
    cleanup_interval: float = 60
    idle_threshold: float = 900
    max_idle_users: int = 10_000
    name: str | None = None
    url: str | RedisConfig | None = None
    ttl: float | None = None
    heartbeat_max_interval: float | None = None
    ping_interval: float | None = None
    cancel_task_after_ttl: bool = False
    cancel_task_on_loss: bool = False

    def __post_init__(self) -> None:
        for what in ("max_downloads", "max_uploads", "max_uploads_per_user", "max_idle_users"):
            check_limit(what, getattr(self, what))
        for what in ("cleanup_interval", "idle_threshold"):
            check_required_seconds(what, getattr(self, what), zero=True)
        for what in ("ttl", "heartbeat_max_interval", "ping_interval"):
            check_seconds(what, getattr(self, what))
        check_flag("cancel_task_after_ttl", self.cancel_task_after_ttl)
        check_flag("cancel_task_on_loss", self.cancel_task_on_loss)
        object.__setattr__(self, "name", check_name(self.name))
        # For a server this is its RedisConfig, which shows no password.
        object.__setattr__(self, "url", parsed(self.url))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> SlotOptions:
        """The options that the environment names, one variable for each field.

        ``SLOTWISE_MAX_DOWNLOADS`` and so on; ``SLOTWISE_URL`` says where the slots are
        kept. What is not set, or empty, has its default.

        Raises:
            ValueError: a variable can't be understood; it is named.
        """
        environ = os.environ if environ is None else environ
        given: dict[str, Any] = {}
        for field in fields(cls):
            variable = PREFIX + field.name.upper()
            text = environ.get(variable, "").strip()
            if not text:
                continue
            try:
                value = _READERS[field.name](text)
                cls(**{field.name: value})  # checked alone, so that the error names the right one
            except (ValueError, TypeError) as wrong:
                # Without the text: a credential may have slipped into the wrong variable.
                raise ValueError(f"{variable}: {redact(str(wrong))}") from None
            given[field.name] = value
        return cls(**given)


def _reader(kind: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:  # whose message has the text
            raise ValueError(f"not a {what}") from None

    return read


_whole_number, _number = _reader(int, "whole number"), _reader(float, "number")


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(f"not one of {', '.join(words)}")
    return words[text.lower()]


_READERS: dict[str, Callable[[str], Any]] = {
    "max_downloads": _whole_number,
    "max_uploads": _whole_number,
    "max_uploads_per_user": _whole_number,
    "cleanup_interval": _number,
    "idle_threshold": _number,
    "max_idle_users": _whole_number,
    "name": str,
    "url": str,
    "ttl": _number,
    "heartbeat_max_interval": _number,
    "ping_interval": _number,
    "cancel_task_after_ttl": _flag,
    "cancel_task_on_loss": _flag,
}
