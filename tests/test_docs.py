"""What the documentation shows is what the code has."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
import tomllib
from pathlib import Path

import slotwise.effects
from slotwise._ledger.path_queue import LOOKS, PATIENCE
from slotwise.redis._heartbeats import COST_PER_CALL

ROOT = Path(__file__).parent.parent


def architecture():
    return script("_architecture")


def script(name):
    path = ROOT / "docs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_the_architecture_is_the_one_that_its_script_draws() -> None:
    assert (ROOT / "docs" / "architecture.svg").read_text() == architecture().draw()


def test_the_picture_of_fair_order_is_the_one_that_its_script_draws() -> None:
    picture = (ROOT / "docs" / "fair-between-tenants.svg").read_text()
    assert picture == script("_fair_plot").draw()


def test_the_picture_has_the_layers_of_the_import_rules() -> None:
    [rules, *_] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    ruled = [
        {name.strip().removeprefix("slotwise.") for name in layer.split("|")}
        for layer in rules["layers"]
    ]
    drawn = [{name for name, _ in layer} for layer in architecture().LAYERS]
    assert drawn == [layer for layer in ruled if "testing" not in layer]


def test_every_file_that_the_docs_name_exists() -> None:
    files = [
        path.relative_to(ROOT).as_posix()
        for folder in ("src/slotwise", "tests", "docs")
        for path in (ROOT / folder).rglob("*")
    ]
    named = {
        (page.name, found)
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
        for found in re.findall(r"`([\w/.-]*\w\.(?:py|lua))`", page.read_text())
    }
    examples = {"conftest.py", "train.py"}
    assert ("design.md", "_ledger/paths.py") in named
    assert [
        (page, name)
        for page, name in sorted(named)
        if name not in examples and not any(f"/{path}".endswith(f"/{name}") for path in files)
    ] == []


def test_every_public_name_is_in_the_reference() -> None:
    """Some packages are documented whole, by `automodule`; all others name by name."""
    effects = (ROOT / "docs" / "effects.md").read_text()
    assert [
        name for name in slotwise.effects.__all__ if not re.search(rf"\b{name}\b", effects)
    ] == []
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("api-*.md"))]
    documented = set(re.findall(r":: (slotwise[\w.]*)\n", "".join(pages)))
    whole = {"slotwise.errors", "slotwise.pipeline", "slotwise.purge"}
    assert whole <= documented
    documented |= {
        f"{module}.{name}" for module in whole for name in importlib.import_module(module).__all__
    }
    last_parts = {name.rpartition(".")[2] for name in documented}
    names = [
        f"{module}.{name}"
        for module in public_modules()
        if not module.startswith("slotwise.effects")
        for name in importlib.import_module(module).__all__
        if not name.startswith("__")
    ]
    # The same name of the package is the same object; in the integrations, each has its own.
    assert [
        name
        for name in names
        if name not in documented
        and (name.count(".") > 2 or name.rpartition(".")[2] not in last_parts)
    ] == []


def says(page: str, *parts: str) -> bool:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    return all(part in text for part in parts)


def constant(name: str) -> str:
    """Return the number that a constant of the scripts has."""
    rules = sorted((ROOT / "src/slotwise/redis/lua/rules").glob("*.lua"))
    [found] = re.findall(rf"\b{name} = (\d+)", "".join(each.read_text() for each in rules))
    return str(found)


def test_the_docs_of_tiers_state_the_bounds_that_the_ledger_has() -> None:
    assert says(
        "tiers.md", f"at most **{LOOKS}** of them", f"more than **{PATIENCE}** that came later"
    )
    assert constant("LOOKS") == str(LOOKS)
    grants = constant("AT_ONCE")
    on_redis = f"(`LOOKS`) are examined in one call; on Redis, one call grants at most {grants}."
    assert says("tiers.md", on_redis)
    in_one_call = f"One call examines at most {LOOKS}, and on Redis grants at most {grants}"
    assert says("guarantees.md", in_one_call, f"more than {PATIENCE} later ones")
    assert says("glossary.md", f"more than {PATIENCE} later requests")


def test_the_docs_state_how_much_one_call_on_redis_does() -> None:
    assert says(
        "guarantees.md",
        f"calls of at most {COST_PER_CALL:,} holders and waiters",
        f"ends or refuses at most {constant('AT_ONCE')} acquisitions",
        f"Lists of more than {constant('PAGE')} holders or waiters",
    )


def public_modules() -> list[str]:
    """Return the names of all modules without an underscore that have an `__all__`."""
    found = pkgutil.walk_packages(slotwise.__path__, "slotwise.")
    return ["slotwise", *(each.name for each in found if "._" not in each.name)]


def _dotted(node: ast.expr) -> str:
    """Return the dotted name that ``node`` is, or an empty string if it isn't one."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def test_every_public_name_is_checked_by_the_type_checker() -> None:
    """In tests/typing, by whichever of its public modules it is imported from."""
    covered = set()
    for path in (ROOT / "tests" / "typing").glob("*.py"):
        tree = ast.parse(path.read_text())
        modules = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for name in node.names:
                    covered.add((node.module, name.name))
                    modules[name.asname or name.name] = f"{node.module}.{name.name}"
            elif isinstance(node, ast.Import):
                modules |= {name.name: name.name for name in node.names}
            elif isinstance(node, ast.Attribute) and (module := _dotted(node.value)):
                covered.add((modules.get(module, module), node.attr))
    public = {module: importlib.import_module(module) for module in public_modules()}
    objects = [getattr(public[module], name, None) for module, name in covered if module in public]
    missing = [
        f"{name}.{each}"
        for name, module in public.items()
        for each in module.__all__
        if not each.startswith("_")
        and (name, each) not in covered
        and not any(getattr(module, each) is other for other in objects)
    ]
    assert missing == []
