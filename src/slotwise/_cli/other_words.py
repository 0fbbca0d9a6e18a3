"""Suggest the flag or command that was meant by a typo, or by another tool's word.

The words of other tools stand here and nowhere else. They are only suggested: a word that changes
what a command does should be one that its help explains. Imported only for messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

# Our flags and arguments, and what flock, sem, timeout, find, docker, Python's own semaphores and
# others call them. If a command has several that a word may stand for, the first is suggested.
_FLAGS = {
    "--wait": "wait-time wait-timeout acquire-timeout lock-timeout max-wait"
    " max-acquire-time blocking-timeout semaphore-timeout st w t",
    "--no-wait": "nonblock non-blocking no-blocking nb try try-lock fail-fast n",
    "--limit": "max value count concurrency max-concurrency max-concurrent max-slots max-parallel"
    " permits parallel parallelism jobs workers replicas size capacity j P",
    "--slots": "weight cost amount units take n",
    "--ttl": "lease lease-time expire expires expiry expire-after max-age max-time max-hold"
    " max-runtime run-timeout time-limit hold lifetime duration",
    "--grace": "kill-after kill-timeout stop-timeout grace-period k",
    "--replace": "steal takeover preempt cancel-in-progress kill-existing",
    "--on-loss": "on-lost if-lost",
    "--keep-descendants": "keep-children no-kill-children",
    "--busy-exit": "conflict-exit-code exit-code busy-code E",
    "--quiet": "silent no-output s",
    "--label": "comment description tag title note message m",
    "--reason": "message comment why because m",
    "--for-pid": "pid owner p",
    "--every": "interval refresh delay period n d",
    "--deadline": "timeout max-time time-limit max-runtime",
    "--used": "active busy held in-use",
    "--keys": "top max limit",
    "--key": "tenant user k",
    "--tier": "level",
    "--json": "format output raw o j",
    "--yes": "force assume-yes no-confirm no-prompt non-interactive f",
    "--host": "bind address addr listen interface",
    "--port": "p",
    "--open": "browser",
    "--token": "password auth secret api-key",
    "--allow-steer": "allow-control allow-write writable read-write",
    "--max-age-days": "days mtime",
    "--max-age": "older older-than age",
    "--max-concurrency-deletion": "concurrency jobs workers parallel j P",
    "--max-files-to-delete": "max-files max-deletions limit",
    "--max-delete-per-second": "rate rps throttle",
    "--remove-empty-dirs": "empty-dirs empty prune-empty-dirs",
    "--include": "pattern glob match iname",
    "--exclude": "ignore skip",
    "--min-depth": "mindepth",
    "--one-file-system": "xdev x",
    "--dry-run": "simulate what-if plan print n",
    "--log-level": "verbose debug loglevel v",
    "--audit": "log log-file",
    "PATH": "path dir directory root",
    "--url": "redis redis-url redis-uri server backend broker broker-url uri dsn connection"
    " dir directory folder path host port db fleet namespace u H",
    "N": "value limit max count slots size rate",
    "TIME": "for time seconds duration ttl timeout wait until",
    "NAME": "name semaphore lock key id",
    "ID": "id acquisition acquisition-id",
    "SHELL": "shell bash zsh fish",
}

_COMMANDS = {
    "run": "exec with wrap limit sem flock",
    "acquire": "lock hold take wait",
    "release": "unlock free",
    "ls": "list names stats all",
    "show": "status info inspect describe holders waiters who get ps",
    "top": "watch monitor htop live",
    "explain": "why",
    "web": "serve ui dashboard page",
    "export": "metrics prometheus exporter",
    "resize": "set scale update change limits",
    "pause": "suspend sleep",
    "thaw": "unfreeze melt",
    "refill": "reset",
    "kick": "kill evict cancel",
    "close": "stop shut shutdown disable",
    "open": "reopen resume unpause start enable",
    "forget": "delete del rm remove drop",
    "doctor": "check health ping test diagnose",
    "purge": "clean cleanup sweep",
    "demo": "example tutorial",
    "completion": "completions autocomplete",
    "--help": "help usage",
    "--version": "version",
}


def suggest_flag(typed: str, known: Iterable[str]) -> str:
    """Return ``; did you mean --limit?``, or an empty string.

    ``known`` are the flags of the command and what its help calls its arguments: NAME.
    """
    meant = _meant(_bare(typed), {_bare(each): each for each in known}, _FLAGS)
    if meant.isupper():
        return f"; {meant} is given without a flag"
    return _did_you_mean(meant)


def suggest_command(typed: str, known: Iterable[str]) -> str:
    """Return ``; did you mean ls?``, or an empty string."""
    return _did_you_mean(_meant(typed, {each: each for each in known}, _COMMANDS))


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """Return ``; did you mean NAME?``, of names that no other tool has."""
    return _did_you_mean(_meant(typed, {each: each for each in known}, {}))


def _meant(typed: str, own: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Return which of the values of ``own`` was meant, or an empty string."""
    foreign: dict[str, str] = {}
    for ours, words in others.items():
        if ours in own.values():
            for word in words.split():
                foreign.setdefault(word, ours)
    if typed in foreign and typed not in own:
        return foreign[typed]
    # A typo in a word of another tool is less likely than one in ours, so it has to be closer.
    for known, least_alike in ((own, 0.6), (foreign, 0.85)):
        near = get_close_matches(typed, [*known], 1, least_alike)
        if near:
            return known[near[0]]
    return ""


def _bare(flag: str) -> str:
    """Return a flag as the table has it; others write -j4, -timeout or --no_wait."""
    if flag[2:].isdigit():
        flag = flag[:2]
    return flag.lstrip("-").replace("_", "-")


def _did_you_mean(meant: str) -> str:
    return f"; did you mean {meant}?" if meant else ""
