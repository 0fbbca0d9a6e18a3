"""The scripts as texts: what can be seen without a server."""

from __future__ import annotations

import re

import pytest

from slotwise.redis._scripts import OURS, load

OF_LUA = {"string", "table", "math", "redis", "struct", "cjson", "cmsgpack", "bit"}


@pytest.mark.parametrize("name", OURS)
def test_every_function_of_a_table_that_a_script_calls_is_in_it(name: str) -> None:
    """Some tables get their functions when one is needed: only then one would be missed."""
    code = re.sub(r"--[^\n]*|'[^'\n]*'", "''", load(name).source.decode())
    assigned = [
        left.split(", ")
        for left in re.findall(r"^\s*((?:\w+\.\w+, )*\w+\.\w+) = ", code, re.MULTILINE)
    ]
    made = {field for fields in assigned for field in fields} | set(
        re.findall(r"function (\w+\.\w+)\(", code)
    )
    # The queue is that of rules/line.lua, or that of rules/paths.lua.
    made |= {re.sub("^(line|paths)", "queue", each) for each in made}
    called = {
        call
        for call in re.findall(r"(?<![\w.:])(\w+\.\w+)\(", code)
        if call.partition(".")[0] not in OF_LUA
    }
    assert called <= made
