"""Names with fields, like ``crm:{tenant}``: one name for each different set of values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from string import Formatter
from typing import Any

_ALWAYS_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_SAFE = _ALWAYS_SAFE | frozenset("_.-~")  # what a url leaves as it is
_formatter = Formatter()


class NameTemplate:
    """A name whose fields are filled in for each call.

    The text of each value is percent-encoded, so that no value can contain what separates the
    fields, and different texts never make the same name.

    Args:
        template: as for `str.format`, with named fields.
        known: the fields that there can be.

    Raises:
        ValueError: a field is not ``known``, or nothing separates two fields.
    """

    def __init__(self, template: str, known: Collection[str]) -> None:
        try:
            self._parts = list(_formatter.parse(template))
        except ValueError as error:
            raise ValueError(f"the name {template!r} is not a template: {error}") from None
        self._template = template
        fields = [field for _, field, _, _ in self._parts if field is not None]
        for field in fields:
            name = re.split(r"[.\[]", field)[0]  # of user.id or options[name]
            if name not in known:
                raise ValueError(
                    f"the name {template!r} has a field {name!r}, which is not a parameter of"
                    f" the function; there are: {', '.join(known) or 'none'}"
                )
        self.has_fields = bool(fields)
        self._safe = _SAFE - self._separators()

    def _separators(self) -> set[str]:
        """The characters that separate fields, which must not stand for themselves in a value."""
        found: set[str] = set()
        for literal, field, _, _ in self._parts[1:]:
            if field is None:  # after the last field
                continue
            # A percent sign is what encoded values are made of.
            separators = {each for each in literal if each not in _ALWAYS_SAFE and each != "%"}
            if not separators:
                raise ValueError(
                    f"the name {self._template!r} has two fields with nothing but"
                    f" {literal!r} between them: different values could make the same name;"
                    f" separate them by ':', '/' or '-'"
                )
            found |= separators
        return found

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the name for these values of the fields."""
        text = []
        for literal, field, spec, conversion in self._parts:
            text.append(literal)
            if field is not None:
                value, _ = _formatter.get_field(field, (), values)
                value = _formatter.convert_field(value, conversion)
                text.append(self._encode(format(value, spec or "")))
        return "".join(text)

    def _encode(self, text: str) -> str:
        if self._safe.issuperset(text):
            return text
        return "".join(
            each
            if each in self._safe
            else "".join(f"%{byte:02X}" for byte in each.encode(errors="surrogatepass"))
            for each in text
        )
