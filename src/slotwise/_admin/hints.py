"""Name the command to type, in messages that say what to do next."""

from __future__ import annotations

import shlex

from slotwise._core.redaction import redact


def command_hint(*words: str, url: str | None) -> str:
    """Return what to type to run a command at the place that ``--url`` named."""
    if url is not None:
        has_password = "@" in url or redact(url) != url
        words += ("--url", "..." if has_password else url)
    return shlex.join(["slotwise", *words])
