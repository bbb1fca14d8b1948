"""`odp index`, and `odp device recommend --index`: from a simulation's export to a device's recommendations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Printed

import odp as platform
from device_runtime import provision
from odp.errors import ConfigurationError, DataError
from odp.serving import IndexedModel

Odp = Callable[..., Printed]


def test_an_index_is_exported_shown_updated_and_recommended_from(odp: Odp, tmp_path: Path) -> None:
    ratings = platform.synthetic_movielens(n_users=120, n_items=40, ratings_per_user=8, seed=5)
    ratings.save(tmp_path / "films.npz")
    old, new, update = tmp_path / "old.index", tmp_path / "new.index", tmp_path / "update"
    command = ["simulate", "--data", tmp_path / "films.npz", "--no-baselines", "--no-features", "--json"]
    for seed, file in ((1, old), (2, new)):
        odp(*command, "--no-noise", "--seed", seed, "--export", file)
    shown = odp("index", "show", old, "--json").json
    index = platform.open_index(old)
    assert (shown["items"], shown["rank"], shown["sha256"]) == (40, index.rank, index.sha256)
    assert shown["privacy"].startswith("not private")
    assert f"sha256: {index.sha256}" in odp("index", "show", old).out

    made = odp("index", "difference", old, new, update, "--json").json
    assert (made["base"], made["new"], made["bytes"]) == (index.sha256, 0, update.stat().st_size)
    assert f"difference from {index.sha256[:12]} to" in odp("index", "difference", old, new, update).out
    assert odp("index", "apply", old, update, "--json").json == {"sha256": made["result"]}
    assert old.read_bytes() == new.read_bytes()
    with pytest.raises(DataError, match="the difference is for index"):
        odp("index", "apply", old, update)
    with pytest.raises(DataError, match="cannot read the difference"):
        odp("index", "apply", old, tmp_path / "none")

    provision(tmp_path / "devices", ratings.select_users(range(2)))
    population = IndexedModel.of(platform.open_index(old)).definition.population
    at = ["--population", population, "--state", tmp_path / "devices", "--index", old]
    found = odp("device", "recommend", *at, "--count", 3, "--json").json["recommendations"]
    own = set(ratings.user(0)[0].tolist())
    assert len(found) == 3
    assert [one["name"] for one in found] == [platform.open_index(old).keys[one["item"]] for one in found]
    assert not own & {one["item"] for one in found}
    with pytest.raises(ConfigurationError, match="--candidates or --index, not both"):
        odp("device", "recommend", *at, "--candidates")
    with pytest.raises(ConfigurationError, match="--side and --why go with a downloaded model"):
        odp("device", "recommend", *at, "--why")
    with pytest.raises(DataError, match="not of 'others'"):
        odp("device", "recommend", *at, "--population", "others")


def test_neighbours_are_shown_by_key_and_by_title_as_text_page_and_json(odp: Odp, tmp_path: Path) -> None:
    ratings = platform.synthetic_movielens(n_users=120, n_items=40, ratings_per_user=8, seed=5)
    ratings.save(tmp_path / "films.npz")
    file, page = tmp_path / "items.index", tmp_path / "alike.html"
    odp("simulate", "--data", tmp_path / "films.npz", "--no-baselines", "--no-features", "--export", file)
    keys = list(platform.open_index(file).keys)
    lines = [f'"{key}",{"Twins" if place < 2 else f"[Title] {place}"}' for place, key in enumerate(keys[:-1])]
    (tmp_path / "titles.csv").write_text("\n".join(("item,title", *lines)))
    by_key = odp("index", "neighbours", file, "--item", keys[5], "--count", 3, "--json").json
    (shown,) = by_key["items"]
    assert (shown["item"], len(shown["neighbours"]), by_key["items_without_title"]) == (keys[5], 3, 0)
    titled = ["--titles", tmp_path / "titles.csv"]
    command = ["index", "neighbours", file, "--item", "[Title] 5", "--item", keys[-1], "--count", 39, *titled]
    printed = odp(*command, "--page", page)
    assert "note: 1 items have no title" in printed.out
    assert "[Title] 6" in printed.out
    assert keys[-1] in page.read_text()
    assert "[Title] 6" in page.read_text()
    assert [each["item"] for each in odp(*command, "--json").json["items"]] == [keys[5], keys[-1]]
    with pytest.raises(ConfigurationError, match=r"got 'Twins'; 2 items have this title, such as"):
        odp("index", "neighbours", file, "--item", "Twins", *titled)
    with pytest.raises(ConfigurationError, match="to be a key of the index, such as"):
        odp("index", "neighbours", file, "--item", "nothing")


def test_titles_name_the_items_of_a_device_by_key_and_never_by_row(odp: Odp, tmp_path: Path) -> None:
    lines = ["user,item,rating"]
    ratings = platform.synthetic_movielens(n_users=120, n_items=30, ratings_per_user=8, seed=5)
    for user in range(ratings.n_users):
        lines += [f"u{user},F{item},{value:g}" for item, value in zip(*ratings.user(user), strict=True)]
    (tmp_path / "films.csv").write_text("\n".join(lines) + "\n")
    index, scale = tmp_path / "films.index", ("--low", 1, "--high", 5)
    odp("simulate", "--data", tmp_path / "films.csv", *scale, "--no-baselines", "--export", index)
    population = IndexedModel.of(platform.open_index(index)).definition.population
    at = ["device", "recommend", "--population", population, "--state", tmp_path / "devices", "--index", index]
    provision(tmp_path / "devices", ratings.select_users(range(1)))
    keys = [one["key"] for one in odp(*at, "--json").json["recommendations"]]
    titles = tmp_path / "titles.csv"
    # One film more, in front, and the others in the order of their text.
    titles.write_text("item,title\nA0,Zero\n" + "".join(f"F{item},Film {item}\n" for item in range(40)))
    named = odp(*at, "--titles", titles, "--json").json
    assert [one["name"] for one in named["recommendations"]] == [key.replace("F", "Film ") for key in keys]
    assert named["items_without_title"] == 0
    titles.write_text("item,title\nA0,Zero\n")
    with pytest.raises(DataError, match="no item has a title there"):
        odp(*at, "--titles", titles)
