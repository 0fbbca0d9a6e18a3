"""Patterns: what they mean, that it is found in little time, and which are refused."""

from __future__ import annotations

import re
import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests._effort import examples

from slotwise.purge import purge
from slotwise.purge._globs import Globs


@pytest.mark.parametrize("below", ["keep", "keep/", "keep/a", "./keep//a", "*/a", "**"])
def test_an_absolute_pattern_below_the_root_is_about_the_path_below_it(root, old, below) -> None:
    kept, gone = old(root / "keep" / "a"), old(root / "b" / "c" / "d")
    purge(root, exclude=[f"{root}/{below}"])
    assert kept.exists()
    assert gone.exists() is (below == "**")


def test_it_may_spell_the_root_as_the_caller_does_or_as_it_really_is(tmp_path, root, old) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for spelling in (tmp_path / "link" / "root", root):
        kept = old(root / "keep" / "a")
        purge(tmp_path / "link" / "root", exclude=[f"{spelling}/keep"])
        assert kept.exists()


def test_a_root_with_characters_of_patterns_in_its_name_is_taken_literally(tmp_path, old) -> None:
    root = tmp_path / "[x]*"
    kept = old(root / "keep")
    purge(root, exclude=[f"{root}/k*"])
    assert kept.exists()


@pytest.mark.parametrize("which", ["include", "exclude"])
@pytest.mark.parametrize("pattern", ["/keep", "/", ".", "./", "..", "../keep", "a/../keep", "ROOT"])
def test_a_pattern_that_can_match_nothing_is_refused(root, old, which, pattern) -> None:
    kept = old(root / "keep")
    with pytest.raises(ValueError, match=r"matches nothing|the root itself"):
        purge(root, **{which: [pattern.replace("ROOT", f"{root}/")]})
    assert kept.exists()


def naively(pattern: str, path: str) -> bool:
    """What a pattern of a path means, by trying everything."""

    @cache
    def fits(at: int, on: int) -> bool:
        rest = pattern[at:]
        if not rest:
            return on == len(path)
        if rest.startswith("**/"):
            after_slashes = [i + 1 for i in range(on, len(path)) if path[i] == "/"]
            return any(fits(at + 3, i) for i in [on, *after_slashes])
        if rest.startswith("**"):
            return any(fits(at + 2, i) for i in range(on, len(path) + 1))
        if rest[0] == "*":
            end = path.find("/", on)
            return any(fits(at + 1, i) for i in range(on, (len(path) if end < 0 else end) + 1))
        if on == len(path):
            return False
        if rest[0] == "?":
            return path[on] != "/" and fits(at + 1, on + 1)
        if rest.startswith("[ab]"):
            return path[on] in "ab" and fits(at + 4, on + 1)
        return rest[0] == path[on] and fits(at + 1, on + 1)

    return fits(0, 0)


tokens = st.sampled_from(["a", "b", "/", "*", "*", "**", "**/", "/**/", "?", "[ab]"])


@examples(300)
@given(st.lists(tokens, min_size=1, max_size=8).map("".join), st.text("ab/", max_size=10))
def test_a_pattern_means_what_trying_everything_finds(pattern: str, text: str) -> None:
    pattern = re.sub("/+", "/", pattern).strip("/")
    path = re.sub("/+", "/", text).strip("/")
    if not pattern or not path:
        return
    globs = Globs([pattern])
    if "/" in pattern:
        assert globs.match("", path) is naively(pattern, path)
    elif "/" not in path:
        assert globs.match(path, "") is naively(pattern, path)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("pattern", "hostile"),
    [
        ("*a*a*a*a*b", "a" * 255),
        ("*a*a*a*a*a*a*a*a*a*a*b", "a" * 255),
        ("**a**a**a**a**b", "a" * 255),
        ("?*?*?*?*?*?*b", "a" * 255),
        ("[a]*[a]*[a]*[a]*[a]*b", "a" * 255),
        ("x/*a*a*a*a*a*b", "x/" + "a" * 255),
        ("**/*a*a*a*a*b/c", "/".join(["a" * 255] * 15)),
        ("**/a*/**/a*/**/a*/**/a*/**/b", "a/" * 2000 + "a"),
        ("./**a**a**a**a**a**b", "a" * 4000),
        ("a*/a*/**/*a*a*/**/*b*b*/c", "/".join(["ab" * 120] * 16)),
    ],
)
def test_no_name_makes_a_pattern_slow(pattern: str, hostile: str) -> None:
    globs = Globs([pattern])
    started = time.process_time()
    assert not globs.match(hostile, hostile)
    # It took from 19 s to years; now milliseconds, but the machine may be busy.
    assert time.process_time() - started < 2
