"""semaphore(): make a semaphore of the scope that a url names.

How a scope works is up to its driver, which is imported when its url is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from slotwise._core.redaction import kind_of, scheme_of_unreadable
from slotwise._core.semaphore import Semaphore

if TYPE_CHECKING:
    from typing import Unpack

    from slotwise._core.adaptive import Adaptive
    from slotwise._semaphore_options import SemaphoreOptions
    from slotwise.redis import RedisConfig

ENVIRONMENT = "SLOTWISE_URL"

_REDIS = (
    *("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"),
    *("redis+sentinel", "rediss+sentinel"),
)
_SCOPES = (
    "memory:// (this process), process:// or process:///directory (this machine),"
    " redis://host:port or rediss://, unix://, redis+cluster://, redis+sentinel:// (a fleet)"
)


def semaphore(
    name: str | None,
    value: int | Adaptive,
    url: str | RedisConfig | None = None,
    **options: Unpack[SemaphoreOptions],
) -> Semaphore:
    """Return a semaphore of the scope that ``url`` names.

    Moving from one process to a fleet changes no code: leave ``url`` out, and set
    ``SLOTWISE_URL``. Without either it is ``memory://``.

    ========================================  ================================================
    ``memory://``                             tasks and threads of this process
    ``process://``, ``process:///directory``  processes of one user on this machine
    ``redis://...``, ``rediss://...``, and    all processes that use that server
    what else `RedisConfig` knows, or a
    `RedisConfig` itself
    ========================================  ================================================

    Args:
        name: what semaphores are shared by; None for a private one.
        value: how many slots there are; or an `Adaptive`, which finds out.
        url: the scope, as a str or a `RedisConfig`.
        options: those of the scope's class. ``max_acquire_time``, ``ttl``,
            ``cancel_task_after_ttl``, ``max_waiting`` and ``shed`` exist everywhere. So do those
            about heartbeats and about a server that is away, which only Redis uses. Redis also
            takes those of `RedisConfig`.

    Raises:
        ValueError: the url doesn't name a scope, or can't be read.
        TypeError: the scope has no such option.
    """
    given = cast("dict[str, Any]", options)
    where = url if url is not None else url_of_environment() or "memory://"
    scheme = scheme_of(where)
    if isinstance(where, str) and scheme == "memory":
        from slotwise.memory import MemorySemaphore

        _nothing_behind(where)
        known = _options_of(MemorySemaphore)
        return MemorySemaphore(name=name, value=value, **_used(given, known, "memory://"))
    if isinstance(where, str) and scheme == "process":
        from slotwise.processes import ProcessSemaphore

        known = _options_of(ProcessSemaphore) - {"directory"}
        used = _used(given, known, "process://")
        return ProcessSemaphore(name=name, value=value, directory=directory_of(where), **used)
    if not isinstance(where, str):
        return _on_redis(name, value, where, given)
    from dataclasses import fields

    from slotwise.redis import RedisConfig, RedisSemaphore

    of_semaphore = _options_of(RedisSemaphore) - {"config"}
    of_server = {each.name for each in fields(RedisConfig)} - {"url", "endpoint"}
    _checked(given, of_semaphore | of_server, f"{scheme}://")
    config = redis_config(where, **{o: given[o] for o in given if o in of_server})
    return _on_redis(name, value, config, {o: given[o] for o in given if o in of_semaphore})


def _on_redis(
    name: str | None, value: int | Adaptive, config: RedisConfig, options: Mapping[str, Any]
) -> Semaphore:
    from slotwise.redis import RedisSemaphore

    known = _options_of(RedisSemaphore) - {"config"}
    checked = _checked(options, known, "a semaphore of a RedisConfig")
    return RedisSemaphore(name=name, value=value, config=config, **checked)


def url_of_environment() -> str | None:
    """Return what ``SLOTWISE_URL`` is set to; None if it is unset or empty."""
    return os.environ.get(ENVIRONMENT) or None


def scheme_of(url: object) -> str:
    """Return the scheme of a url; ``redis`` for a RedisConfig.

    Raises:
        ValueError: it doesn't name a scope; the message shows no password.
    """
    if not isinstance(url, str):
        if not _is_redis_config(url):
            raise TypeError(f"url must be a str or a RedisConfig, not {kind_of(url)}")
        return "redis"
    scheme, separator, _ = url.partition("://")
    if separator and scheme in ("memory", "process", *_REDIS):
        return scheme
    raise ValueError(f"url must be one of {_SCOPES}; not {scheme_of_unreadable(url)}")


def parsed(url: object) -> str | RedisConfig | None:
    """Check ``url`` and return it, as a RedisConfig if it names a server: its repr hides passwords.

    None stands for what ``SLOTWISE_URL`` is set to, and is returned if that is not set either.

    Raises:
        TypeError: it is neither a str nor a RedisConfig nor None.
        ValueError: it doesn't name a scope, or can't be read.
    """
    if url is None:
        url = url_of_environment()
    if url is None:
        return None
    scheme = scheme_of(url)
    if not isinstance(url, str):
        return cast("RedisConfig", url)
    if scheme == "memory":
        _nothing_behind(url)
        return url
    if scheme == "process":
        directory_of(url)
        return url
    return redis_config(url)


def _is_redis_config(url: object) -> bool:
    # Importing that module is slow; if nobody has, this can't be a RedisConfig.
    module = sys.modules.get("slotwise.redis")
    return module is not None and isinstance(url, module.RedisConfig)


def directory_of(url: str) -> str | None:
    """Return the directory in a ``process://`` url; None for the default one."""
    if url == "process://":
        return None
    from urllib.parse import unquote, urlsplit  # most start without it

    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("the url process://... can't be parsed: unbalanced brackets") from None
    if parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "a url of this machine must be process:// or process:///an/absolute/directory, with"
            " three slashes and nothing else ('?' is written %3F, '#' %23)"
        )
    return unquote(parts.path) or None


def redis_config(url: str, **options: Any) -> RedisConfig:
    """Return the server that a url names; the driver is imported for that."""
    from slotwise.redis import RedisConfig

    return RedisConfig(url, **options)


def _nothing_behind(url: str) -> None:
    if url != "memory://":
        raise ValueError("a url of this process must be exactly memory://")


def _options_of(driver: Callable[..., object]) -> set[str]:
    import inspect  # slow to import; `slotwise run` doesn't use it

    return {*inspect.signature(driver).parameters} - {"name", "value"}


def _used(options: Mapping[str, Any], known: set[str], scope: str) -> Mapping[str, Any]:
    """Return the options that a scope without a server uses; check those that it doesn't."""
    of_server = _options_of(_check_unused)
    _checked(options, known | of_server, scope)
    _check_unused(**{option: options[option] for option in options if option in of_server})
    return {option: options[option] for option in options if option in known}


def _check_unused(
    *,
    heartbeat_max_interval: object = None,
    ping_interval: object = None,
    cancel_task_on_loss: object = False,
    on_unreachable: object = "raise",
    local_value: object = None,
    unreachable_after: object = 1.0,
) -> None:
    """Check what a semaphore without a server accepts and doesn't use, as one on a server does."""
    from slotwise._core import arguments, unreachable  # most give none of these

    arguments.check_flag("cancel_task_on_loss", cancel_task_on_loss)
    value = unreachable.check_local_slots(local_value)
    unreachable.check_unreachable(on_unreachable, value, unreachable_after)
    unreachable.check_heartbeat(heartbeat_max_interval, ping_interval)


def _checked(options: Mapping[str, Any], known: set[str], scope: str) -> Mapping[str, Any]:
    unknown = sorted(options.keys() - known)
    if unknown:
        raise TypeError(
            f"{scope} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}"
        )
    return options
