"""`odp catalogue`: a file that holds all versions, which the commands make, change and show."""

from __future__ import annotations

import pytest

from odp.errors import ConfigurationError, DataError


def test_a_catalogue_is_made_changed_and_shown(odp, tmp_path):
    items, file = tmp_path / "films.txt", tmp_path / "films.catalogue"
    items.write_text("Alien\nBrazil\nDune\n")
    made = odp("catalogue", "make", file, "--population", "films", "--items", items, "--json").json
    assert (made["version"], made["items"], made["added"]) == (1, 3, 3)
    changed = odp("catalogue", "change", file, "--add", "Gattaca", "--retire", "Brazil", "--json").json
    assert (changed["version"], changed["items"], changed["added"], changed["retired"]) == (2, 3, 1, 1)
    items.write_text("Gattaca\nHeat\nAlien\n")
    odp("catalogue", "change", file, "--items", items, "--withdraw", 2)
    assert odp("catalogue", "show", file, "--keys").out.split() == ["Alien", "Gattaca", "Heat"]
    shown = odp("catalogue", "show", file, "--version", 2, "--json").json
    assert (shown["sha256"], shown["withdrawn"]) == (changed["sha256"], [2])


def test_what_no_catalogue_can_be_is_refused(odp, tmp_path):
    items, file = tmp_path / "films.txt", tmp_path / "films.catalogue"
    items.write_text("Alien\nAlien\n")
    with pytest.raises(ConfigurationError, match="'Alien' stands at 0 and 1"):
        odp("catalogue", "make", file, "--population", "films", "--items", items)
    assert not file.exists()
    items.write_text("Alien\nBrazil\n")
    odp("catalogue", "make", file, "--population", "films", "--items", items)
    with pytest.raises(ConfigurationError, match="exists: `odp catalogue change"):
        odp("catalogue", "make", file, "--population", "films", "--items", items)
    with pytest.raises(ConfigurationError, match=r"retires 'Allien', which is no item.*did you mean 'Alien'"):
        odp("catalogue", "change", file, "--retire", "Allien")
    with pytest.raises(ConfigurationError, match="not both"):
        odp("catalogue", "change", file, "--add", "x", "--items", items)
    with pytest.raises(DataError, match="is no catalogue"):
        odp("catalogue", "show", items)


def test_retraining_takes_a_catalogue_or_a_list_of_items(odp, tmp_path):
    (tmp_path / "films.txt").write_text("Alien\nBrazil\n")
    odp("catalogue", "make", tmp_path / "films.catalogue", "--population", "films", "--items", tmp_path / "films.txt")
    task = tmp_path / "films.toml"
    task.write_text(
        'name = "films"\n[model]\nitems = 2\nrank = 0\n[data]\nlow = 1\nhigh = 5\n'
        "[privacy]\nepsilon = 8\ndelta = 1e-6\n"
    )
    both = ("--catalogue", tmp_path / "films.catalogue", "--items", tmp_path / "films.txt")
    for given in ((), both):
        with pytest.raises(ConfigurationError, match="Expected one of --catalogue and --items"):
            odp("task", "retrain", task, "--folder", tmp_path / "living", *given)
    with pytest.raises(DataError, match=r"films\.txt is no catalogue"):
        odp("task", "retrain", task, "--folder", tmp_path / "living", "--catalogue", tmp_path / "films.txt")
