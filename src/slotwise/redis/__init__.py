"""The Redis driver: limits for all processes that use one Redis server."""

try:
    import hiredis as _hiredis  # noqa: F401  # before any module here needs them
    import redis as _redis  # noqa: F401
except ImportError as error:
    from slotwise.redis._diagnosis import INSTALL

    raise ImportError(INSTALL) from error

from slotwise._core.stats import Claimant
from slotwise.redis._config import RedisConfig
from slotwise.redis._semaphore import RedisSemaphore

__all__ = ["Claimant", "RedisConfig", "RedisSemaphore"]
