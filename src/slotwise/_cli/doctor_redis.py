"""The check-up of a Redis server: every question ``slotwise doctor`` asks it.

It is asked over connections of its own, one question at a time, as the driver's own
would hide in retries what is to be seen here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import hiredis

from slotwise import _urls
from slotwise._cli.doctor import FAILED, OK, WARNING, Check, some
from slotwise.errors import SlotwiseError
from slotwise.redis import RedisConfig, RedisSemaphore, _diagnosis
from slotwise.redis._endpoint import Address, show_address
from slotwise.redis._keys import Keys
from slotwise.redis._net.cluster import ask_cluster
from slotwise.redis._net.handshake import Handshake, greet
from slotwise.redis._net.preparation import open_connection
from slotwise.redis._net.sentinel import ask_sentinels
from slotwise.redis._scripts import OURS, load

_PINGS = 20
_SLOW = 0.1  # seconds of a round trip; heartbeats have three
_CLOCKS_APART = 1.0  # seconds between clocks from which times in tables look wrong
_PATIENCE = 30.0  # for all answers of one server
_MOST_KEYS = 100_000  # looked at for leftovers
_SCAN = 1000  # keys in one step of it


def examine(url: str, *, load_scripts: bool = False) -> Iterator[Check]:
    config = _urls.redis_config(url, attempts=1)
    endpoint = config.endpoint
    try:
        addresses: list[Address | None] = [None]
        if endpoint.cluster:
            addresses = [*dict.fromkeys(address for _, address in ask_cluster(config))]
        elif endpoint.service:
            addresses = [ask_sentinels(config)]
        talks = [open_connection(config, address, None) for address in addresses]
    except (SlotwiseError, OSError) as error:
        yield Check("server", FAILED, *_split(error))
        return
    try:
        for talk in talks:
            talk.allow(_PATIENCE)
            if load_scripts:
                yield from _load_scripts(talk, config)
            yield from _examine_one(talk, config)
    except OSError as error:
        words = str(_diagnosis.unreachable(endpoint, error))
        yield Check("server", FAILED, words, "see the server's log")
        return
    finally:
        for talk in talks:
            talk.sock.close()
    yield _take_and_give(config)


def _split(error: BaseException) -> tuple[str, str | None]:
    """What is wrong, and behind the semicolon what helps."""
    found, _, remedy = str(error).partition("; ")
    return found, remedy or None


def _examine_one(talk: Handshake, config: RedisConfig) -> Iterator[Check]:
    server = _info(talk, "server")
    mode = talk.quoted(server.get("redis_mode", "standalone"))
    version = talk.quoted(server.get("redis_version", "6.2 or later"))
    peer = f"{config.endpoint}"
    yield Check("server", OK, f"{peer} answers")
    yield Check("version", OK, f"Redis {version}, {mode}")
    yield _role(talk)
    if config.endpoint.service:
        yield _replication(talk)
    yield _eviction(talk)
    yield _round_trip(talk)
    yield _clock(talk)
    yield _scripts(talk, config)
    yield from _leftovers(talk, config)


def _info(talk: Handshake, section: str) -> dict[str, str]:
    reply = talk.ask("INFO", section)
    if not isinstance(reply, bytes):  # this user may not ask
        return {}
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _role(talk: Handshake) -> Check:
    reply = talk.ask("ROLE")
    if not isinstance(reply, list):
        return Check("role", WARNING, "this user may not ask for it", "allow it +role")
    role = talk.quoted(reply[0].decode(errors="replace")) if reply else "nobody"
    if role == "master":
        return Check("role", OK, "primary, takes writes")
    return Check(
        *("role", FAILED, f"this is a {role}, which takes no writes"),
        "name the primary in the url, or use redis+sentinel://",
    )


def _replication(talk: Handshake) -> Check:
    """Whether a primary that was cut off from its replicas stops granting."""
    replication = _info(talk, "replication")
    if not replication:
        return Check("replication", WARNING, "this user may not ask for it", "allow it +info")
    replicas = replication.get("connected_slaves", "0")
    good = replication.get("min_slaves_good_slaves")  # only there when a minimum is set
    if good is None:
        return Check(
            *("replication", WARNING, "a primary that was replaced goes on granting for seconds"),
            "CONFIG SET min-replicas-to-write 1, on replicas and in redis.conf too",
        )
    if good == "0":
        return Check(
            *("replication", FAILED, f"none of {replicas} replicas keeps up: writes are refused"),
            "start a replica, or lower min-replicas-to-write",
        )
    return Check("replication", OK, f"{good} of {replicas} replicas keep up; a minimum is set")


def _eviction(talk: Handshake) -> Check:
    memory = _info(talk, "memory")
    policy = memory.get("maxmemory_policy")
    if policy is None:
        return Check("eviction", WARNING, "this user may not ask for it", "allow it +info")
    policy = talk.quoted(policy)
    limited = memory.get("maxmemory", "0") != "0"
    if policy == "noeviction":
        return Check("eviction", OK, "noeviction: no semaphore can be thrown away")
    remedy = "CONFIG SET maxmemory-policy noeviction, and in redis.conf too"
    if not limited:
        found = f"{policy}, but with no maxmemory nothing is evicted"
        return Check("eviction", WARNING, found, remedy)
    found = f"{policy}: semaphores in use may vanish when memory is full, and holders with them"
    return Check("eviction", FAILED, found, remedy)


def _round_trip(talk: Handshake) -> Check:
    taken = []
    for _ in range(_PINGS):
        started = time.perf_counter()
        talk.ask("PING")
        taken.append(time.perf_counter() - started)
    median, worst = statistics.median(taken), max(taken)
    found = f"{median * 1000:.2f} ms, the slowest of {_PINGS} {worst * 1000:.2f} ms"
    if median > _SLOW:
        return Check("round trip", WARNING, found, "use a server that is closer, or less busy")
    return Check("round trip", OK, found)


def _clock(talk: Handshake) -> Check:
    before = time.time()
    there = _time(talk)
    after = time.time()
    if there is None:
        return Check("clock", FAILED, "the server does not tell its time", "allow this user +time")
    apart = there - (before + after) / 2
    unsure = (after - before) / 2
    ahead = "ahead of" if apart > 0 else "behind"
    found = f"the server's is {abs(apart):.3f} s {ahead} ours (±{unsure:.3f} s)"
    if abs(apart) - unsure > _CLOCKS_APART:
        found += "; limits hold, as the server's alone counts, but ages that we show are wrong"
        return Check("clock", WARNING, found, "let both machines follow NTP")
    return Check("clock", OK, found)


def _time(talk: Handshake) -> float | None:
    """What the server's clock shows, if it tells."""
    reply = talk.ask("TIME")
    return int(reply[0]) + int(reply[1]) / 1e6 if isinstance(reply, list) else None


def _load_scripts(talk: Handshake, config: RedisConfig) -> Iterator[Check]:
    """Load the scripts into a server and its replicas, one of which may take its place."""
    yield _loaded(talk, "the server")
    role = talk.ask("ROLE")
    replicas = role[2] if isinstance(role, list) and role[:1] == [b"master"] else []
    for host, port, *_ in replicas:
        address = (host.decode(), int(port))
        words = f"the replica {show_address(address)}"
        try:
            replica = greet(config, address)
        except (SlotwiseError, OSError, hiredis.ReplyError) as error:
            found = f"{words} can't be used ({talk.quoted(error)})"
            yield Check("load scripts", WARNING, found, "run this again when it can")
            continue
        try:
            replica.allow(_PATIENCE)
            yield _loaded(replica, words)
        finally:
            replica.sock.close()


def _loaded(talk: Handshake, where: str) -> Check:
    for name in OURS:
        reply = talk.ask("SCRIPT", "LOAD", load(name).source)
        if not isinstance(reply, bytes):
            found = f"{where} does not take them ({talk.quoted(reply)})"
            return Check("load scripts", FAILED, found, "use a user who is allowed +script|load")
    return Check("load scripts", OK, f"{where} knows all {len(OURS)}, until it is restarted")


def _scripts(talk: Handshake, config: RedisConfig) -> Check:
    remedy = (
        "run 'slotwise doctor --load-scripts' as an administrator, or allow this user"
        " @scripting, or enable EVALSHA and SCRIPT on the server"
    )
    scripts = [load(name) for name in OURS]
    known = talk.ask("SCRIPT", "EXISTS", *(script.sha for script in scripts))
    if isinstance(known, list) and not all(known):  # else this user may not ask
        return Check("scripts", FAILED, "they can't be loaded", remedy)
    # It reads the keys of a semaphore that is not there, and so leaves nothing behind.
    keys = Keys(config.namespace, "slotwise-doctor", cluster=config.endpoint.cluster)
    look = load("look")
    reply = talk.ask(
        *("EVALSHA", look.sha, len(keys.all), *keys.all),
        *(b"", b"counts", keys.notification, 15),
    )
    if isinstance(reply, list) or str(reply).startswith("MOVED"):  # another node of a cluster
        loaded = (
            f"all {len(scripts)} are loaded, and run" if isinstance(known, list) else "they run"
        )
        return Check("scripts", OK, loaded)
    return Check("scripts", FAILED, f"they don't run ({talk.quoted(reply)})", remedy)


def _leftovers(talk: Handshake, config: RedisConfig) -> Iterator[Check]:
    keys, now = _keys(talk, config.namespace), _time(talk)
    if keys is None or now is None:
        yield Check("leftovers", WARNING, "this user may not look for them", "allow it +scan")
        return
    eternal, silent = [], 0
    for key in keys:
        if talk.ask("PTTL", key) == -1:
            eternal.append(talk.quoted(key.decode(errors="replace")))
        if b":semaphore_main:" in key:
            dead = talk.ask("ZCOUNT", key, "-inf", f"({now:.0f}")
            silent += dead if isinstance(dead, int) else 0
    looked = f"{len(keys)}{' and more' if len(keys) >= _MOST_KEYS else ''} keys"
    if eternal:
        yield Check(
            *("leftovers", FAILED, f"{len(eternal)} keys never expire: {some(eternal)}"),
            "no client of ours leaves such keys: delete them once nobody uses these semaphores",
        )
    if silent:
        yield Check(
            *("leftovers", WARNING, f"{silent} slots are held by clients that died"),
            "none needed: who next looks at or waits for these semaphores frees them",
        )
    if not (eternal or silent):
        yield Check("leftovers", OK, f"none: all of {looked} expire, no holder is dead")


def _keys(talk: Handshake, namespace: str) -> list[bytes] | None:
    literal = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in namespace)
    found: list[bytes] = []
    for kind in ("semaphore_*", "acquisition_notification:*"):
        cursor: Any = b"0"
        while len(found) < _MOST_KEYS:
            reply = talk.ask("SCAN", cursor, "MATCH", f"{literal}:{kind}", "COUNT", _SCAN)
            if not isinstance(reply, list):
                return None
            cursor, keys = reply
            found += keys
            if cursor == b"0":
                break
    return found


def _take_and_give(config: RedisConfig) -> Check:
    """What all of this is for: take a slot of a private semaphore, and give it back."""
    semaphore = RedisSemaphore(value=1, config=config)
    started = time.perf_counter()
    try:
        acquired = semaphore.acquire_sync(timeout=5)
        semaphore.release_sync(acquired)
    except SlotwiseError as error:
        return Check("a slot", FAILED, *_split(error))
    taken = (time.perf_counter() - started) * 1000
    return Check("a slot", OK, f"taken and given back in {taken:.1f} ms, connecting included")
