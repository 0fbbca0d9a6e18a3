"""The fixtures of the command line: its server and shells."""

from __future__ import annotations

from tests.cli.conftest import any_shell, redis_server, redis_shell, server, shell

__all__ = ["any_shell", "redis_server", "redis_shell", "server", "shell"]
