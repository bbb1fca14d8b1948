"""Names that left ``odp`` for a module of it still work, and warn of where they are."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

import odp


@pytest.mark.parametrize("name", sorted(odp._MOVED))
def test_a_moved_name_warns_of_its_new_place_and_is_the_same_thing(name: str) -> None:
    place = f"odp.{odp._MOVED[name]}"
    with pytest.warns(DeprecationWarning, match=f"odp.{name} is {place}.{name}; version 0.2 removes"):
        thing = getattr(odp, name)
    assert thing is getattr(importlib.import_module(place), name)
    assert name not in odp.__all__
    assert name in importlib.import_module(place).__all__


def test_each_module_has_the_names_that_left_odp_and_no_others() -> None:
    modules = {place: importlib.import_module(f"odp.{place}") for place in set(odp._MOVED.values())}
    assert {name for module in modules.values() for name in module.__all__} - {"OdpError"} == set(odp._MOVED)


def test_public_modules_are_there_after_an_import_of_odp_and_warn_of_nothing() -> None:
    code = "import odp; odp.data.Ratings, odp.items.Catalogue, odp.living.Schedule, odp.errors.DataError, odp.isolated"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_front_door_itself_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for name in odp.__all__:
            getattr(odp, name)
    assert len(odp.__all__) <= 50


def test_a_name_that_never_was_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cohrt'; did you mean 'Cohort'"):
        odp.Cohrt  # type: ignore[attr-defined]  # noqa: B018
