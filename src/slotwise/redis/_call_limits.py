"""CallLimits: how long, and how often, one call tries to reach the server.

They belong to the caller: configurations of one server share its connections, and each call
keeps the limits of its own configuration. What exists once per connection follows
`ServerSettings`. Waiting for the calls is done in `_net`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.redis._config import RedisConfig


# Compared by identity, which is cheap: `call_limits` returns the same object for equal limits.
@dataclass(frozen=True, slots=True, eq=False)
class CallLimits:
    """The limits of `RedisConfig` that apply to each call by itself."""

    connect_timeout: float
    reply_timeout: float
    attempts: int
    backoff: float
    max_backoff: float

    def pause(self, failures: int) -> float:
        """Return the longest pause after this many failed attempts in a row."""
        return min(self.backoff * 2.0 ** min(failures - 1, 30), self.max_backoff)


call_limits = lru_cache(maxsize=256)(CallLimits)


class ServerSettings:
    """What the connections of this process to one server follow.

    They are as patient as the most patient configuration that this process has used for the
    server: an attempt to connect may take the longest ``connect_timeout``, and the pause before
    the next one is the shortest. The calls of the heartbeat thread use the same limits.
    """

    __slots__ = ("config",)

    def __init__(self, config: RedisConfig) -> None:
        self.config = config

    def include(self, config: RedisConfig) -> None:
        """Be patient enough for another configuration of the same server."""
        ours, theirs = self.config, config
        if ours.limits is not theirs.limits:
            self.config = replace(
                ours,
                connect_timeout=max(ours.connect_timeout, theirs.connect_timeout),
                reply_timeout=max(ours.reply_timeout, theirs.reply_timeout),
                attempts=max(ours.attempts, theirs.attempts),
                backoff=min(ours.backoff, theirs.backoff),
                max_backoff=min(ours.max_backoff, theirs.max_backoff),
            )
