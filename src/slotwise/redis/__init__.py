"""Driver 2: the semaphores of a fleet, kept by a Redis server."""

from slotwise._core.results import Claimant
from slotwise.redis._config import RedisConfig
from slotwise.redis._semaphore import RedisSemaphore

__all__ = ["Claimant", "RedisConfig", "RedisSemaphore"]
