"""Where the files of semaphores are: the directory, and the names of the files in it.

Nothing here opens a file.
"""

from __future__ import annotations

import os

from slotwise._core.redaction import kind_of, scheme_of_unreadable

try:  # hashlib is the same, and loads OpenSSL: a sixth of the start of `slotwise run`
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

SUFFIX = ".slots"
PRIVATE_SUFFIX = ".private"  # for semaphores without a name, which are not listed
TIERS_SUFFIX = ".tiers"
PRIVATE_TIERS_SUFFIX = ".private-tiers"
PRIVATE_SUFFIXES = (PRIVATE_SUFFIX, PRIVATE_TIERS_SUFFIX)
ALL_SUFFIXES = (SUFFIX, TIERS_SUFFIX, *PRIVATE_SUFFIXES)
# A subdirectory for the FIFOs of processes, so that listing them doesn't list all files.
FIFOS = "wake"

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_READABLE_LENGTH = 150  # so that a file name stays below the 255 characters of most systems


def locate(directory: str | os.PathLike[str] | None) -> str:
    """Return the directory for a semaphore's files; it may not exist yet.

    TMPDIR and the XDG variables are ignored: they differ between a shell, cron and a service,
    and two processes that mean the same semaphore would have two.
    """
    given = directory if directory is not None else os.environ.get("SLOTWISE_DIR") or None
    if given is not None:
        if not isinstance(given, str | os.PathLike):
            raise TypeError(f"directory must be a path or None, not {kind_of(given)}")
        if isinstance(given, str) and "://" in given:  # with a password in it, perhaps
            what = "SLOTWISE_DIR" if directory is None else "directory"
            raise ValueError(f"{what} must be a path, not a url: {scheme_of_unreadable(given)}")
        return os.path.abspath(os.fspath(given))  # noqa: PTH100 - realpath would hide a symlink
    base = next((each for each in ("/tmp", "/var/tmp") if os.path.isdir(each)), "/tmp")  # noqa: S108, PTH112
    return f"{base}/slotwise-{os.getuid()}"


def true_path(directory: str) -> str:
    """Return the path of a directory with all symbolic links but the last one resolved.

    If the directory itself is a link, it is refused when it is opened.
    """
    parent, name = os.path.split(directory)
    try:
        return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118
    except OSError:
        return directory


def key_of(name: str, suffix: str = SUFFIX) -> str:
    """Return a hash of the name, in 16 hexadecimal digits; another one for tiers."""
    kind = b"tiers" if suffix in (TIERS_SUFFIX, PRIVATE_TIERS_SUFFIX) else b""
    return blake2b(name.encode(), digest_size=8, person=kind).hexdigest()


def key_from(filename: str) -> str:
    """Return the key in a file name."""
    return filename.rpartition(".")[0].rpartition(".")[2]


def suffix_from(filename: str) -> str:
    """Return the suffix of a file name, which says what is in the file."""
    return filename[filename.rindex(".") :]


def filename_of(name: str, suffix: str = SUFFIX) -> str:
    """Return a name that every file system accepts: a readable part, then the key."""
    quoted = "".join(
        char if char in _PLAIN else "".join(f"%{byte:02x}" for byte in char.encode())
        for char in name
    )
    return f"{quoted[:_READABLE_LENGTH]}.{key_of(name, suffix)}{suffix}"


def name_from(filename: str) -> str | None:
    """Return the semaphore's name; None if it was too long for the file name."""
    quoted, _, key = filename.rpartition(".")[0].rpartition(".")
    try:
        plain, *coded = quoted.split("%")
        pieces = (bytes.fromhex(each[:2]) + each[2:].encode() for each in coded)
        name = b"".join((plain.encode(), *pieces)).decode()
    except ValueError:  # cut in the middle of a character
        return None
    return name if key_of(name, suffix_from(filename)) == key else None
