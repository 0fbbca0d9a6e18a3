"""Bad weather, put into words: what is wrong with which server, and the remedy.

Nothing here connects or retries. A message names the server as the url does,
without its password.
"""

from __future__ import annotations

import logging
import socket
import ssl

from slotwise._core.redaction import quoted
from slotwise.errors import BackendError

logger = logging.getLogger("slotwise.redis")


class Refused(BackendError):
    """The server answered, and the answer will not change by asking again."""


class Unusable(Refused):
    """No call at all can be made there: what one name meets all others meet too."""


class Unreachable(BackendError):
    """The server did not answer; it may later."""


INSTALL = (
    "RedisSemaphore needs redis-py with hiredis, which are not installed here:"
    " pip install 'slotwise[redis]'"
)


def unreachable(server: object, error: BaseException) -> BackendError:
    """A connection that could not be opened, or broke."""
    if isinstance(error, BackendError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return Unusable(
            f"{server} showed a certificate that can't be trusted ({error.verify_message});"
            f" name its authority with ssl_ca_certs= in the url"
        )
    if isinstance(error, ssl.SSLError):
        said = said_by(server, error)
        return Unusable(f"{server} does not speak TLS with us ({said}); is it redis:// instead?")
    if isinstance(error, socket.gaierror):
        return Unreachable(f"{server} has a host name that nobody knows; check the url ({error})")
    if isinstance(error, TimeoutError):
        return Unreachable(f"{server} does not answer in time; is it overloaded or stopped?")
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return Unreachable(f"{server} can't be reached; is it running, and the url right?")
    return Unreachable(f"the connection to {server} broke: {said_by(server, error)}")


def said_by(server: object, words: object) -> str:
    """What a server said, or what is said of it, as a message may quote it."""
    return quoted(words, getattr(server, "secrets", ()))


def not_redis(server: object, where: str, answer: object) -> BackendError:
    """Something listens at ``where`` that is no Redis server."""
    if isinstance(answer, bytes):
        answer = answer.partition(b"\n")[0].strip()[:60].decode(errors="backslashreplace")
    return Unusable(f"{where} does not speak Redis: it answered {said_by(server, answer)!r}")


_GRANT_MORE = (
    "does not allow this user enough; grant it the keys of the namespace, the channels slotwise:*,"
    " the commands of @scripting, @pubsub, @sortedset and @hash, and"
    " +time +exists +del +pexpire +pttl +get +set +rpush +blpop +scan"
)
_STRANGE_KEY = (
    "has a key of the wrong type where the semaphore wants its own; delete that key, or choose"
    " another namespace= or name="
)

# What a reply contains, and what to say about it.
_DIAGNOSES = (
    ("WRONGPASS", "refuses the user or password; check them in the url"),
    ("invalid username", "refuses the user or password; check them in the url"),  # by redis-py
    ("invalid password", "refuses the password; check it in the url"),
    ("no password is set", "has no password set, but the url gives one; leave it out"),
    ("NOAUTH", "wants a password; put it into the url, redis://:password@host"),
    ("NOPERM", _GRANT_MORE),
    ("can't run this command", _GRANT_MORE),  # one that a script uses
    ("ACL failure in script", _GRANT_MORE),  # the same, since Redis 7.2 and in Valkey
    ("READONLY", "is a read-only replica; the url must name the primary, or use redis+sentinel://"),
    ("WRONGTYPE", _STRANGE_KEY),
    ("OOM", "has no memory left; raise its maxmemory"),
    ("NOPROTO", "is too old; slotwise needs Redis 6.2 or later"),
    ("unknown command", "is too old, or has commands disabled; slotwise needs Redis 6.2 or later"),
    ("DB index is out of range", "does not have that database; check the number in the url"),
    ("invalid DB index", "does not have that database; check the number in the url"),
    ("MISCONF", "can't write to its disk, and so takes no writes; see its log"),
    ("max number of clients", "has no connection left for us; raise its maxclients"),
)


def refused(server: object, reply: BaseException, kind: type[Refused] = Refused) -> BackendError:
    """An error that the server replied with."""
    text = str(reply)
    for word, diagnosis in _DIAGNOSES:
        if word in text:
            return kind(f"{server} {diagnosis} (it said: {said_by(server, text)})")
    return kind(f"{server} refused a command: {said_by(server, text)}")


def denies_eval(reply: BaseException) -> bool:
    """Whether a reply says that this user may not send scripts, only name them."""
    text = str(reply)
    return text.startswith(("NOPERM", "ERR unknown command")) and "'eval'" in text.lower()


def scripts_missing(server: object, reply: BaseException) -> BackendError:
    """The server does not know our scripts, and this user may not teach it."""
    return Unusable(
        f"{server} does not know slotwise's scripts, and this user may not load them; let an"
        f" administrator run 'slotwise doctor --load-scripts', or allow this user +eval"
        f" (it said: {said_by(server, reply)})"
    )


# Replies after which the same question may soon have an answer.
_PASSING = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "UNKILLABLE", "NOREPLICAS")


def passes(reply: BaseException) -> bool:
    """Whether a reply tells of something that passes by itself."""
    text = str(reply)
    # Before Redis 7 a script runs until its first write, which then is refused in
    # the script's name. It has changed nothing by then.
    return text.startswith(_PASSING) or "-NOREPLICAS" in text


def too_old(server: object, version: str) -> BackendError:
    version = said_by(server, version)
    return Unusable(f"{server} is version {version}; slotwise needs Redis 6.2 or later")


_warned: set[str] = set()


def warn_of_eviction(server: object, policy: str) -> None:
    """Say once that the server may throw semaphores away."""
    if policy != "noeviction" and str(server) not in _warned:
        _warned.add(str(server))
        logger.warning(
            "%s evicts keys when its memory is full (maxmemory-policy %s): a semaphore's keys may"
            " vanish, and its holders with them; set maxmemory-policy to noeviction",
            server,
            said_by(server, policy),
        )
