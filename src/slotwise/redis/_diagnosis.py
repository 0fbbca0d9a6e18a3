"""Turn Redis errors into messages that name the server, the cause and the remedy.

Nothing here connects or retries. A message names the server as the url does, without its
password.
"""

from __future__ import annotations

import logging
import socket
import ssl

from slotwise._core.redaction import quoted
from slotwise.errors import BackendError

logger = logging.getLogger("slotwise.redis")


class Refused(BackendError):
    """The server replied with an error that repeating the call wouldn't change."""


# What reading a reply may raise if none of our code wrote what it is made of.
GARBAGE = (ValueError, LookupError, TypeError, ArithmeticError)


def not_ours(what: str) -> Refused:
    """Return the error of a reply that is `GARBAGE`; ``what`` names the limit."""
    return Refused(f"{what} can't be read: slotwise did not write its contents")


class Unusable(Refused):
    """No call can be made to this server: every name has the same problem."""


def is_of_one_name(error: object) -> bool:
    """Whether a call failed because of its own keys, so that those of other names can succeed."""
    return isinstance(error, Refused) and not isinstance(error, Unusable)


class Unreachable(BackendError):
    """The server didn't reply; it may later."""


class ServerAway(Exception):
    """Internal: the server is away, and the request no longer waits for it."""


def may_pass(error: object) -> bool:
    """Whether the server may do later what it didn't do now: it is back, or has memory."""
    return isinstance(error, Unreachable | Refused) and not isinstance(error, Unusable)


INSTALL = (
    "Redis needs the packages redis and hiredis, which are not installed here:"
    " pip install 'slotwise[redis]'"
)


def unreachable(server: object, error: BaseException) -> BackendError:
    """Return the error for a connection that couldn't be opened, or broke."""
    if isinstance(error, BackendError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return Unusable(
            f"{server} has a certificate that can't be trusted ({error.verify_message});"
            f" add the CA that signed it with ssl_ca_certs= in the url"
        )
    if isinstance(error, ssl.SSLError):
        said = said_by(server, error)
        return Unusable(f"{server} failed the TLS handshake ({said}); is it redis:// instead?")
    if isinstance(error, socket.gaierror):
        return Unreachable(f"{server}: unknown host name; check the url ({error})")
    if isinstance(error, TimeoutError):
        return Unreachable(f"{server} did not answer in time; is it overloaded or stopped?")
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return Unreachable(f"{server} can't be reached; is it running, and is the url right?")
    return Unreachable(f"the connection to {server} broke: {said_by(server, error)}")


def no_thread(server: object, error: RuntimeError) -> BackendError:
    """Return the error for a connection that couldn't be opened because threads are exhausted."""
    return Unreachable(f"no thread could be started to connect to {server} ({error})")


def unusable(server: object, error: BaseException) -> BackendError:
    """Return the error for a failure of code: the user's, redis-py's or ours."""
    said = said_by(server, error)
    return Unusable(f"{server} can't be used: {type(error).__name__}: {said}")


# What an error reply may begin with. If it answers a greeting with a password, nothing else of it
# is quoted: it may repeat the password, in whatever form.
_CODES = frozenset(
    {
        *("ERR", "WRONGPASS", "NOAUTH", "NOPERM", "NOPROTO", "DENIED", "MISCONF", "BUSY"),
        *("LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "OOM"),
    }
)


def said_by(server: object, words: object) -> str:
    """Return what a server said, or what is said about it, as a message may quote it."""
    if getattr(words, "may_repeat_password", False):
        code = str(words).partition(" ")[0]
        return code if code in _CODES else "an error"
    return quoted(words, getattr(server, "secrets", ()))


def not_redis(server: object, where: str, answer: object) -> BackendError:
    """Return the error for a port where something other than Redis listens.

    With None for ``answer``, nothing is quoted.
    """
    if isinstance(answer, bytes):
        answer = answer.partition(b"\n")[0].strip()[:60].decode(errors="backslashreplace")
    said = "" if answer is None else f": it answered {said_by(server, answer)!r}"
    return Unusable(f"{where} does not speak Redis{said}")


_GRANT_MORE = (
    "doesn't give this user enough rights; grant it the keys of the namespace, the channels"
    " slotwise:*, the commands of @scripting, @pubsub, @sortedset and @hash, and"
    " +time +exists +del +unlink +pexpire +pttl +get +set +rpush +zscan"
)
_WRONG_TYPE = (
    "has a key of another type where slotwise notes the names in use; delete it, or choose"
    " another namespace="
)

# What a reply contains, and the diagnosis.
_DIAGNOSES = (
    ("WRONGPASS", "refuses the user or password; check them in the url"),
    ("invalid username", "refuses the user or password; check them in the url"),  # by redis-py
    ("invalid password", "refuses the password; check it in the url"),
    ("no password is set", "has no password, but the url has one; leave it out"),
    ("NOAUTH", "requires a password; put it into the url, redis://:password@host"),
    ("NOPERM", _GRANT_MORE),
    ("can't run this command", _GRANT_MORE),  # one that a script uses
    ("ACL failure in script", _GRANT_MORE),  # the same, since Redis 7.2 and in Valkey
    ("READONLY", "is a read-only replica; the url must name the primary, or use redis+sentinel://"),
    ("WRONGTYPE", _WRONG_TYPE),
    ("OOM", "has no memory left; raise its maxmemory"),
    ("NOPROTO", "is too old; slotwise needs Redis 6.2 or later"),
    ("unknown command", "is too old, or has commands disabled; slotwise needs Redis 6.2 or later"),
    (
        "Unknown Redis command",  # one that a script calls
        (
            "lacks a command, which our scripts call; remove its rename-command from the server's"
            " configuration ('slotwise doctor' lists all that are missing)"
        ),
    ),
    ("DB index is out of range", "doesn't have that database; check the number in the url"),
    ("invalid DB index", "doesn't have that database; check the number in the url"),
    ("MISCONF", "refuses writes because it can't write to its disk; see its log"),
    ("max number of clients", "has reached its limit of connections; raise its maxclients"),
)


def refused(server: object, reply: BaseException, kind: type[Refused] = Refused) -> BackendError:
    """Return the error for an error reply of the server."""
    text = str(reply)
    for word, diagnosis in _DIAGNOSES:
        if word in text:
            return kind(f"{server} {diagnosis} (it said: {said_by(server, reply)})")
    return kind(f"{server} refused a command: {said_by(server, reply)}")


def denies_eval(reply: BaseException) -> bool:
    """Whether a reply says that this user may run scripts by SHA, but not send them."""
    text = str(reply)
    return text.startswith(("NOPERM", "ERR unknown command")) and "'eval'" in text.lower()


def scripts_missing(server: object, reply: BaseException) -> BackendError:
    """Return the error for scripts that are missing and that this user may not load."""
    return Unusable(
        f"{server} doesn't have slotwise's scripts, and this user may not load them; let an"
        f" administrator run 'slotwise doctor --load-scripts', or allow this user +eval"
        f" (it said: {said_by(server, reply)})"
    )


# Error replies that are gone after a while.
_TEMPORARY = (
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "BUSY ",
    "UNKILLABLE",
    "NOREPLICAS",
)


def is_temporary(reply: BaseException) -> bool:
    """Whether a reply reports something that passes by itself."""
    text = str(reply)
    # Before Redis 7, a script runs until its first write is refused, and the reply begins with
    # the script's name. It has changed nothing by then.
    return text.startswith(_TEMPORARY) or "-NOREPLICAS" in text


def too_old(server: object, version: str) -> BackendError:
    """Return the error for a server without the commands that we need."""
    version = said_by(server, version)
    return Unusable(f"{server} is version {version}; slotwise needs Redis 6.2 or later")


_warned: set[str] = set()


def warn_of_eviction(server: object, policy: str) -> None:
    """Warn once per server that it may evict the keys of semaphores."""
    if policy != "noeviction" and str(server) not in _warned:
        _warned.add(str(server))
        logger.warning(
            "%s evicts keys when its memory is full (maxmemory-policy %s): semaphores may lose"
            " their keys, and so their holders; set maxmemory-policy to noeviction",
            server,
            said_by(server, policy),
        )
