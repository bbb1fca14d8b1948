"""Public item features from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner, Result

from odp.cli.main import app
from odp.datasets import Ratings, load
from odp.errors import ConfigurationError, DataError
from odp.tasks.file import load_task

DATA = "synthetic:n_users=400,n_items=200,ratings_per_user=20"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def rmse(*arguments: str) -> float:
    result = call("simulate", "--data", DATA, "--no-baselines", *arguments, "--json")
    assert result.exit_code == 0, result.exception
    return float(json.loads(result.stdout.strip().splitlines()[-1])["test_rmse"])


def test_a_preset_uses_the_features_of_the_data_unless_told_otherwise() -> None:
    preset = ("--preset", "auto", "--epsilon", "2", "--delta", "1e-4")
    by_default = rmse(*preset)
    assert rmse(*preset, "--features", "data") == by_default
    assert rmse(*preset, "--no-features") > by_default


def test_features_written_to_a_file_serve_a_task_file(tmp_path: Path) -> None:
    result = call("data", "features", DATA, str(tmp_path / "features.npy"))
    assert result.exit_code == 0, result.exception
    assert "200 items x 12 features" in result.stdout
    text = """name = "films"
[model]
items = 200
rank = 2
FEATURES
[data]
[privacy]
epsilon = 2.0
delta = 1e-4
[training]
steps = 0
[cohort]
minimum = 10
"""
    with_file, without = tmp_path / "with.toml", tmp_path / "without.toml"
    with_file.write_text(text.replace("FEATURES", 'item_features = "features.npy"'))
    without.write_text(text.replace("FEATURES", ""))
    assert rmse(str(with_file)) == rmse(str(without), "--features", "data")
    assert rmse(str(with_file), "--no-features") == rmse(str(without))
    assert rmse(str(with_file)) != rmse(str(without))


def test_data_without_features_and_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain.npz"
    known = load(DATA)
    Ratings.from_triples(
        "plain", known.users(), known.items, known.values, low=1.0, high=5.0, n_items=known.n_items
    ).save(plain)
    error = call(
        "simulate", "--data", str(plain), "--preset", "auto", "--delta", "1e-4", "--features", "data"
    ).exception
    assert isinstance(error, DataError)
    assert "no public item features" in str(error)
    error = call("data", "features", DATA, str(plain / "below.npy")).exception
    assert isinstance(error, ConfigurationError)
    assert "cannot write" in str(error)


def test_texts_of_items_become_groups_of_a_task_file_and_of_a_preset(tmp_path: Path) -> None:
    texts, groups = tmp_path / "films.csv", tmp_path / "groups.npz"
    lines = (f"{item},{'robots in space' if item % 3 else 'love story'}\n" for item in range(200))
    texts.write_text("item,tags\n" + "".join(lines), encoding="utf-8")
    preset = ("--preset", "auto", "--epsilon", "2", "--delta", "1e-4")
    by_texts = rmse(*preset, "--item-texts", str(texts))
    assert by_texts == rmse(*preset, "--features", "auto", "--item-texts", str(texts))
    assert by_texts != rmse(*preset)
    made = call("data", "features", DATA, str(groups), "--item-texts", str(texts))
    assert made.exit_code == 0, made.exception
    assert "features 12" in made.stdout
    with np.load(groups) as held:
        assert "tags" in held.files
        width = sum(held[name].shape[1] for name in held.files)
    task = tmp_path / "task.toml"
    task.write_text(f"""name = "films"
[model]
items = 200
rank = {2 + width}
item_features = "groups.npz"
[data]
[privacy]
epsilon = 2.0
delta = 1e-4
[training]
steps = 0
[cohort]
minimum = 10
""")
    model = load_task(task).factorization  # type: ignore[union-attr]
    assert sum(model.to_proto().item_feature_groups) == width
    assert rmse(str(task)) < 2.0


def test_texts_that_contradict_other_options_or_name_unknown_items_are_refused(tmp_path: Path) -> None:
    texts = tmp_path / "films.csv"
    texts.write_text("item,tags\n200,robots\n", encoding="utf-8")
    simulated = ("simulate", "--data", DATA)
    for options, message in (
        (("--features", "data", "--item-texts", str(texts)), "--item-texts goes with --features auto"),
        (("--no-features", "--item-texts", str(texts)), "--item-texts goes with --features auto"),
        (("--no-features", "--features", "auto"), "not both"),
        (("--item-texts", str(texts), "--delta", "1e-4"), "item '200' is not in the catalogue"),
    ):
        error = call(*simulated, *options).exception
        assert isinstance(error, (ConfigurationError, DataError))
        assert message in str(error)
    error = call("data", "features", DATA, str(tmp_path / "x.npy"), "--item-texts", str(texts)).exception
    assert isinstance(error, ConfigurationError)
    assert ".npz" in str(error)
