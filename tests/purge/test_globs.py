"""Patterns that are absolute, or can match nothing: what they protect must not go."""

from __future__ import annotations

import pytest

from slotwise.purge import purge


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
