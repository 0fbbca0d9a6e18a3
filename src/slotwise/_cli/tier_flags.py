"""``--tiers``, ``--tier`` and ``--key``: the flags that choose tiers, and what they name."""

from __future__ import annotations

import argparse

from slotwise._admin.backends import NotFound, open_backend
from slotwise._cli.flags import UsageError
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.paths import TierSpec
from slotwise._core.semaphore import Semaphore


def add_tiers_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tiers", action="store_true", help="the tiers NAME, if a semaphore has the same name"
    )


def add_tier_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tier", metavar="T", help="one of the tiers")
    parser.add_argument("--key", metavar="K", help="one key of a keyed tier")


def find(given: argparse.Namespace, *, suggest: bool = True) -> Semaphore | FoundTiers:
    """Return the semaphore or the tiers that the flags name; ``suggest`` as for `find_either`.

    Raises:
        NotFound: there is no such name.
    """
    flags = vars(given)
    only_tiers = flags.get("tiers") or flags.get("tier") is not None or flags.get("key") is not None
    backend = open_backend(given.url)
    return backend.find_either(given.name, only_tiers=bool(only_tiers), suggest=suggest)


def find_tiers(given: argparse.Namespace) -> FoundTiers:
    """Return the tiers that the flags name.

    Raises:
        NotFound: there is no such name.
    """
    found = open_backend(given.url).find_either(given.name, only_tiers=True)
    assert isinstance(found, FoundTiers)
    return found


def chosen_tier(found: FoundTiers, given: argparse.Namespace) -> TierSpec | None:
    """The tier that ``--tier`` names, or that ``--key`` alone can mean; None without both.

    Raises:
        NotFound: there is no such tier, or it has no keys.
        UsageError: ``--key`` could be that of several tiers.
    """
    names = [spec.name for spec in found.specs]
    keyed = [spec for spec in found.specs if spec.keyed]
    if given.tier is None:
        if given.key is None:
            return None
        if len(keyed) > 1:
            those = " and ".join(spec.name for spec in keyed)
            raise UsageError(f"--key needs --tier: of {found.name!r}, {those} have keys")
        if not keyed:
            raise NotFound(f"no tier of {found.name!r} has keys: {', '.join(names)}")
        return keyed[0]
    for spec in found.specs:
        if spec.name == given.tier:
            if given.key is not None and not spec.keyed:
                raise NotFound(f"tier {given.tier!r} of {found.name!r} has no keys")
            return spec
    listed = f"; there are: {', '.join(names)}" if names else ""
    raise NotFound(f"{found.name!r} has no tier {given.tier!r}{listed}")
