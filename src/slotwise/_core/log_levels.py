"""The fastest way to learn that nobody listens to a logger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from logging import DEBUG


def cached_levels(logger: logging.Logger) -> Callable[[int, bool], bool]:
    """A function that takes a level and True: whether that level is perhaps logged.

    A Logger remembers what ``isEnabledFor`` found in a dict that it empties
    when levels change. Looking in there costs a third of the call; True means
    "yes, or not known: ask properly".
    """
    answers: dict[int, bool] | None = getattr(logger, "_cache", None)
    if answers is None:
        return lambda level, _: logger.isEnabledFor(level)
    logger.isEnabledFor(DEBUG)  # so that there is an answer from the start
    return answers.get
