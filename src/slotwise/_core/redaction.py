"""Remove credentials from what messages, logs and reprs quote.

Whatever is quoted and may contain a credential passes through `redact`: a server's reply,
an argument of the wrong type, a command line. Our own text doesn't have to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
WITHHELD = "(withheld: it repeats a credential)"

# This many characters of a secret in a row are not a coincidence. Servers truncate what they echo.
_FRAGMENT = 4

# Longer quotations are truncated to this many characters.
_LONGEST = 500
# So are longer texts with anything that may belong to a credential: the patterns take time that
# grows with the square of the length, and names and servers' replies may be of any length.
_LONGEST_TEXT = 2000
# One of these is in whatever a pattern below matches.
_SUSPICIOUS = r"@|://|[?&]|(?i:password|passwd|secret)"

# The placeholders for credentials in the docs and in our own messages.
_PLACEHOLDERS = ("user:password", ":password", "user:secret", ":secret")

# Patterns, which are compiled when the first message is redacted: that takes milliseconds.

# scheme://user:password@, up to the last @ of the word; a password may contain spaces. It isn't
# looked for in the midst of letters: if it were there, it would have been found at the first one.
_IN_A_URL = r"((?<![A-Za-z])[A-Za-z][\w+.\-]*:/{1,2})((?:(?!\w://)[^@\n])*(?:@\S*)?)@"
# :password@host and user:password@host, where the scheme was forgotten; in a path too.
_WITHOUT_SCHEME = r"(?<![^\s'\"(\[=/])([^\s:@'\"(\[=/]*:(?!/)[^\s@]+)@(?=[\w.\[])"
# scheme://:password, where the host was forgotten; digits are a port.
_WITHOUT_HOST = r"(?<=://):(?!\d+(?:\W|$))(?!\S*@)[^\s'\")\]]+"
# The values in the query of a url: a parameter may be misspelt, and its value a credential.
_IN_A_QUERY = r"(?<=[?&])(?!namespace=|db=)([\w.\-]+=)[^&#\s'\")\]]+"
# password=..., password:..., 'password': ... and password: '...', but neither the path
# /etc/passwd nor prose: in "password: rotate it" an ordinary word follows.
_ASSIGNED = (
    r"((?<![/\w\-])[\w\-]*(?i:password|passwd|secret)"
    r"(?:['\"]?\s?=\s?|:(?!//)(?=\S)|['\"]\s?:\s?|:\s(?=['\"])))"
    r"(?:b?'(?:[^'\\]|\\.)*'?|b?\"(?:[^\"\\]|\\.)*\"?|[^&\s,;]+)"
)
# How Redis quotes a command that it doesn't know: the words of AUTH may be among them.
_ECHO = r"(?s),? with args beginning with.*"


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` without credentials: those of urls, and ``secrets``.

    If the text contains a secret or a part of it, however it is written, all of the text is
    withheld: what surrounds it could complete it.
    """
    text = re.sub(_ECHO, "", text)
    for secret in secrets:
        if any(_has_part_of(form, text) for form in _forms(secret)):
            return WITHHELD
    if not re.search(_SUSPICIOUS, text):
        return text
    if len(text) > _LONGEST_TEXT:
        text = _truncated(text)
    text = re.sub(_IN_A_URL, _hide_user, text)
    text = re.sub(_WITHOUT_SCHEME, _hide_all, text)
    text = re.sub(_WITHOUT_HOST, f":{HIDDEN}", text)
    text = re.sub(_IN_A_QUERY, rf"\1{HIDDEN}", text)
    return re.sub(_ASSIGNED, rf"\1{HIDDEN}", text)


def _truncated(text: str) -> str:
    """Return the beginning of a long text, up to where a credential may be cut in two."""
    kept = text[:_LONGEST_TEXT]
    url = kept.rfind(":/")
    end = max(kept.rfind(" "), kept.rfind("="), 0)
    if url >= 0 and "@" not in kept[url:]:  # its password may have spaces
        end = url
    return f"{kept[:end]}..."


def quoted(words: object, secrets: Iterable[str] = ()) -> str:
    """Return a quotation for a message: redacted, and truncated if it is long."""
    text = redact(str(words), secrets)  # first: a cut could leave the beginning of a credential
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def redacted_repr(given: object) -> str:
    """Return the repr of an argument, for a message or another repr."""
    return quoted(repr(given))


def kind_of(given: object) -> str:
    """Return the type's name, for an argument that may be a credential as a whole."""
    return "None" if given is None else type(given).__name__


def scheme_of_unreadable(url: str) -> str:
    """Describe a url that can't be parsed by its scheme, if it has one."""
    scheme, separator, _ = url.partition("://")
    if separator and re.fullmatch(r"[a-z]+(\+[a-z]+)?", scheme):
        return f"{scheme}://..."
    return "one without '://'" if not separator else "one that begins otherwise"


def _hide_user(found: re.Match[str]) -> str:
    if found[2] in _PLACEHOLDERS:
        return found[0]
    return f"{found[1]}{HIDDEN}@"


def _hide_all(found: re.Match[str]) -> str:
    return found[0] if found[1] in _PLACEHOLDERS else f"{HIDDEN}@"


def _forms(secret: str) -> set[str]:
    """Return the ways to write a secret: as it is, in a url, in quotes."""
    from urllib.parse import quote  # most commands start without it

    return {secret, quote(secret, safe=""), repr(secret)[1:-1]} if secret else set()


def _has_part_of(secret: str, text: str) -> bool:
    size = min(_FRAGMENT, len(secret))
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))
