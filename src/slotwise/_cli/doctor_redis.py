"""The checks of ``slotwise doctor`` for Redis.

They use connections of their own, one command at a time: the retries of the driver would hide what
has to be seen here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import hiredis

from slotwise import _urls
from slotwise._cli.doctor import (
    FAILED,
    OK,
    WARNING,
    Check,
    a_slot,
    first_few,
    problem,
    readable,
)
from slotwise.errors import SlotwiseError
from slotwise.redis import RedisConfig, RedisSemaphore, _diagnosis
from slotwise.redis._endpoint import Address, show_address
from slotwise.redis._keys import KeySet
from slotwise.redis._net.cluster import ask_cluster
from slotwise.redis._net.handshake import Handshake, greet
from slotwise.redis._net.preparation import ask_sentinels, open_connection
from slotwise.redis._scripts import OURS, commands_in, load
from slotwise.redis._survey import survey_sync

_PINGS = 20
_SLOW = 0.1  # seconds of a round trip; heartbeats have three
_CLOCKS_APART = 1.0  # seconds between two clocks; from there on, times in tables look wrong
_PATIENCE = 30.0  # for all answers of one server
_MOST_KEYS = 100_000  # keys that are searched for leftovers
_SCAN = 1000  # keys in one step of that search


def examine(url: str, *, load_scripts: bool = False) -> Iterator[Check]:
    config = _urls.redis_config(url, attempts=1)
    endpoint = config.endpoint
    try:
        addresses: list[Address | None] = [None]
        if endpoint.cluster:
            addresses = [*dict.fromkeys(address for _, address in ask_cluster(config))]
        elif endpoint.service:
            addresses = [ask_sentinels(config)]
        handshakes = [open_connection(config, address, None) for address in addresses]
    except (SlotwiseError, OSError) as error:
        yield problem("server", error)
        return
    try:
        for handshake in handshakes:
            handshake.allow(_PATIENCE)
            if load_scripts:
                yield from _load_scripts(handshake, config)
            yield from _examine_one(handshake, config)
    except OSError as error:
        words = str(_diagnosis.unreachable(endpoint, error))
        yield Check("server", FAILED, words, "see the server's log")
        return
    finally:
        for handshake in handshakes:
            handshake.sock.close()
    try:
        found = survey_sync(config, kinds=["tiers"])  # ends what dead clients hold, too
        yield from readable("tiers", len(found.tiers), found.errors)
    except SlotwiseError as error:
        yield problem("tiers", error, WARNING)
    yield a_slot(RedisSemaphore(value=1, config=config))


def _examine_one(handshake: Handshake, config: RedisConfig) -> Iterator[Check]:
    info = _info(handshake)
    mode = handshake.quoted(info.get("redis_mode", "standalone"))
    version = handshake.quoted(info.get("redis_version", "6.2 or later"))
    yield Check("server", OK, f"{config.endpoint} answers")
    yield Check("version", OK, f"Redis {version}, {mode}")
    yield _role(handshake)
    if config.endpoint.service:
        yield _replication(info)
    yield _eviction(handshake, info)
    yield _round_trip(handshake)
    yield _clock(handshake)
    yield _scripts(handshake, config)
    yield _leftovers(handshake, config)


def _info(handshake: Handshake) -> dict[str, str]:
    reply = handshake.ask("INFO")
    if not isinstance(reply, bytes):  # this user may not ask
        return {}
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _forbidden(check: str, command: str, what: str = "ask") -> Check:
    return Check(check, WARNING, f"this user may not {what} for it", f"allow it +{command}")


def _role(handshake: Handshake) -> Check:
    reply = handshake.ask("ROLE")
    if not isinstance(reply, list):
        return _forbidden("role", "role")
    role = handshake.quoted(reply[0].decode(errors="replace")) if reply else "nobody"
    if role == "master":
        return Check("role", OK, "primary, takes writes")
    return Check(
        *("role", FAILED, f"this is a {role}, which refuses writes"),
        "name the primary in the url, or use redis+sentinel://",
    )


def _replication(info: dict[str, str]) -> Check:
    """Check whether a primary that was cut off from its replicas stops granting."""
    if not info:
        return _forbidden("replication", "info")
    replicas = info.get("connected_slaves", "0")
    good = info.get("min_slaves_good_slaves")  # only there when a minimum is set
    if good is None:
        return Check(
            *("replication", WARNING, "a primary that was replaced keeps granting for seconds"),
            "CONFIG SET min-replicas-to-write 1, on replicas and in redis.conf too; have two"
            " replicas, or the next primary refuses writes until this one is a replica",
        )
    if good == "0":
        return Check(
            *("replication", FAILED, f"none of {replicas} replicas keeps up: writes are refused"),
            "start a replica, or lower min-replicas-to-write",
        )
    return Check("replication", OK, f"{good} of {replicas} replicas keep up; a minimum is set")


def _eviction(handshake: Handshake, info: dict[str, str]) -> Check:
    if "maxmemory_policy" not in info:
        return _forbidden("eviction", "info")
    policy = handshake.quoted(info["maxmemory_policy"])
    if policy == "noeviction":
        return Check("eviction", OK, "noeviction: no semaphore can be evicted")
    remedy = "CONFIG SET maxmemory-policy noeviction, and in redis.conf too"
    if info.get("maxmemory", "0") == "0":
        found = f"{policy}, but with no maxmemory nothing is evicted"
        return Check("eviction", WARNING, found, remedy)
    found = f"{policy}: semaphores in use may be evicted when memory is full"
    return Check("eviction", FAILED, found, remedy)


def _round_trip(handshake: Handshake) -> Check:
    taken = []
    for _ in range(_PINGS):
        started = time.perf_counter()
        handshake.ask("PING")
        taken.append(time.perf_counter() - started)
    median, worst = statistics.median(taken), max(taken)
    found = f"{median * 1000:.2f} ms, the slowest of {_PINGS} {worst * 1000:.2f} ms"
    if median > _SLOW:
        return Check("round trip", WARNING, found, "use a server that is closer, or less busy")
    return Check("round trip", OK, found)


def _clock(handshake: Handshake) -> Check:
    before = time.time()
    reply = handshake.ask("TIME")
    after = time.time()
    if not isinstance(reply, list):
        remedy = "allow this user +time, or remove rename-command TIME from its configuration"
        return Check("clock", FAILED, "the server's time can't be read", remedy)
    there = int(reply[0]) + int(reply[1]) / 1e6
    apart = there - (before + after) / 2
    unsure = (after - before) / 2
    ahead = "ahead of" if apart > 0 else "behind"
    found = f"the server's clock is {abs(apart):.3f} s {ahead} ours (±{unsure:.3f} s)"
    if abs(apart) - unsure > _CLOCKS_APART:
        found += "; limits hold, as only the server's counts, but the ages shown are wrong"
        return Check("clock", WARNING, found, "synchronize both machines by NTP")
    return Check("clock", OK, found)


def _load_scripts(handshake: Handshake, config: RedisConfig) -> Iterator[Check]:
    """Load the scripts into a server and its replicas, one of which may take its place."""
    yield _loaded(handshake, "the server")
    role = handshake.ask("ROLE")
    replicas = role[2] if isinstance(role, list) and role[:1] == [b"master"] else []
    for host, port, *_ in replicas:
        address = (host.decode(), int(port))
        words = f"the replica {show_address(address)}"
        try:
            replica = greet(config, address)
        except (SlotwiseError, OSError, hiredis.ReplyError) as error:
            found = f"{words} can't be used ({handshake.quoted(error)})"
            yield Check("load scripts", WARNING, found, "run this again when it can be reached")
            continue
        try:
            replica.allow(_PATIENCE)
            yield _loaded(replica, words)
        finally:
            replica.sock.close()


def _loaded(handshake: Handshake, where: str) -> Check:
    for name in OURS:
        reply = handshake.ask("SCRIPT", "LOAD", load(name).source)
        if not isinstance(reply, bytes):
            found = f"{where} does not accept them ({handshake.quoted(reply)})"
            return Check("load scripts", FAILED, found, "use a user with +script|load")
    return Check("load scripts", OK, f"{where} has all {len(OURS)}, until it is restarted")


def _scripts(handshake: Handshake, config: RedisConfig) -> Check:
    remedy = (
        "run 'slotwise doctor --load-scripts' as an administrator, or allow this user"
        " @scripting, or enable EVALSHA and SCRIPT on the server"
    )
    # First of all: the script that is run below calls only some of them.
    missing = ", ".join(_missing_commands(handshake))
    if missing:
        lacks = f"the server has no {missing}, which they call"
        remove = "remove their rename-command from the server's configuration"
        return Check("scripts", FAILED, lacks, remove)
    scripts = [load(name) for name in OURS]
    known = handshake.ask("SCRIPT", "EXISTS", *(script.sha for script in scripts))
    if isinstance(known, list) and not all(known):  # else this user may not ask
        return Check("scripts", FAILED, "they can't be loaded", remedy)
    # It reads the keys of a semaphore that is not there, and so leaves nothing behind.
    keys = KeySet(config.namespace, "semaphore", "slotwise-doctor", cluster=config.endpoint.cluster)
    look, words = load("inspect"), (b"", b"", keys.notification, b"path", b"0:")
    reply = handshake.ask("EVALSHA", look.sha, len(keys.all), *keys.all, *words)
    if isinstance(reply, list) or str(reply).startswith("MOVED"):  # another node of a cluster
        loaded = "they are loaded, and run" if isinstance(known, list) else "they run"
        return Check("scripts", OK, loaded)
    if str(reply).startswith("NOSCRIPT"):
        found = "the server doesn't have them, and this user may not load them"
        return Check("scripts", FAILED, found, remedy)
    if "@user_script" in str(reply):  # a command that it calls was refused
        return problem("scripts", _diagnosis.refused(config.endpoint, reply))
    return Check("scripts", FAILED, f"they don't run ({handshake.quoted(reply)})", remedy)


def _missing_commands(handshake: Handshake) -> list[str]:
    """Return the commands that our scripts call and the server doesn't have, if it says so."""
    sources = b"".join(load(name).source for name in OURS).decode()
    called = commands_in(sources)
    known = handshake.ask("COMMAND", "INFO", *called)
    if not isinstance(known, list):
        return []
    return [name for name, facts in zip(called, known, strict=True) if not facts]


def _leftovers(handshake: Handshake, config: RedisConfig) -> Check:
    keys = _keys(handshake, config.namespace)
    if keys is None:
        return _forbidden("leftovers", "scan", "scan")
    eternal = [key for key in keys if handshake.ask("PTTL", key) == -1]
    if eternal:
        named = [handshake.quoted(key.decode(errors="replace")) for key in eternal]
        return Check(
            *("leftovers", FAILED, f"{len(eternal)} keys never expire: {first_few(named)}"),
            "slotwise leaves no such keys: delete them once their names are not in use",
        )
    looked = f"{len(keys)}{' and more' if len(keys) >= _MOST_KEYS else ''} keys"
    return Check("leftovers", OK, f"none: all of {looked} expire")


def _keys(handshake: Handshake, namespace: str) -> list[bytes] | None:
    literal = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in namespace)
    found: list[bytes] = []
    for kind in ("semaphore_*", "tiers_*", "acquisition_notification:*"):
        cursor: Any = b"0"
        while len(found) < _MOST_KEYS:
            reply = handshake.ask("SCAN", cursor, "MATCH", f"{literal}:{kind}", "COUNT", _SCAN)
            if not isinstance(reply, list):
                return None
            cursor, keys = reply
            found += keys
            if cursor == b"0":
                break
    return found
