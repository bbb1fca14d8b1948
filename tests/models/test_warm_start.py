"""The start of a model: what is refused, how keys match, and that a second training gains from a first."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

import odp
from odp.cli.main import app
from odp.datasets import catalogue_keys, random_split
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, DataError
from odp.models.warm_start import WarmStart
from odp.research.simulation.presets import preset_task
from odp.tasks.file import render_task


def start_of(*keys: str, rank: int = 3, seed: int = 1) -> WarmStart:
    drawn = np.random.default_rng(seed)
    m = len(keys)
    return WarmStart(
        keys=keys,
        popularity=drawn.uniform(1.0, 90.0, m),
        biases=drawn.normal(size=m),
        factors=drawn.normal(size=(m, rank)),
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"keys": ("a", "b", "a")}, "'a' is that of items 0 and 2"),
        ({"keys": ("a", "", "c")}, r"texts that are not empty .got '' of item 1."),
        ({"keys": ("a", 7, "c")}, r"got 7 of item 1"),
        ({"keys": ()}, "an item's key"),
        ({"keys": ("a", "b")}, r"one row per key, 2 .got \[3\]."),
        ({"biases": [0.0, np.nan, 1.0]}, "biases of a start to be finite"),
        ({"factors": np.zeros(3)}, r"factors of a start to have one row per key, 3 .got \[3\]."),
    ],
)
def test_a_bad_start_is_refused_in_one_line(changed: dict[str, object], message: str) -> None:
    good = start_of("a", "b", "c")
    with pytest.raises(ConfigurationError, match=message) as caught:
        dataclasses.replace(good, **changed)
    assert "\n" not in str(caught.value)


def test_a_model_needs_keys_for_its_start_and_one_that_both_have() -> None:
    start = start_of("a", "b", "c")
    with pytest.raises(ConfigurationError, match="start and item_keys together"):
        odp.MatrixFactorization(items=2, start=start)
    with pytest.raises(ConfigurationError, match="start and item_keys together"):
        odp.MatrixFactorization(items=2, item_keys=("a", "b"))
    with pytest.raises(ConfigurationError, match=r"item_keys for 2 items .got 3."):
        odp.MatrixFactorization(items=2, start=start, item_keys=("a", "b", "c"))
    with pytest.raises(ConfigurationError, match="'b' is that of items 0 and 1"):
        odp.MatrixFactorization(items=2, start=start, item_keys=("b", "b"))
    with pytest.raises(ConfigurationError, match="share a key with the start: it has 'a', the catalogue 'x'"):
        odp.MatrixFactorization(items=2, start=start, item_keys=("x", "y"))
    with pytest.raises(ConfigurationError, match="all alike"):
        odp.MatrixFactorization(items=2, start=start, item_keys=("a", "y"))
    with pytest.raises(ConfigurationError, match="did you mean 'start'"):
        odp.MatrixFactorization(items=2, strat=start)  # type: ignore[call-arg]


def test_a_start_becomes_public_columns_that_the_definition_names() -> None:
    start = start_of("a", "b", "c", "d")
    model = odp.MatrixFactorization(items=3, rank=4, start=start, item_keys=("d", "new", "a"))
    assert model.features is not None
    assert model.features.shape == (3, 5)
    assert not model.features[1].any()
    assert model.to_proto().item_features_width == 5
    assert dataclasses.replace(model, rank=5).features_sha256 == model.features_sha256
    assert model == odp.MatrixFactorization(items=3, rank=4, item_features=model.features)


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(8)), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_columns_follow_the_keys_and_not_the_order_of_either_catalogue(order: list[int], rank: int, seed: int) -> None:
    keys = tuple("abcdefgh")
    start = start_of(*keys, rank=rank, seed=seed)
    shuffled = WarmStart(
        keys=[keys[place] for place in order],
        popularity=np.asarray(start.popularity)[order],
        biases=np.asarray(start.biases)[order],
        factors=np.asarray(start.factors)[order],
    )
    wanted = ("h", "x", "a", "c", "e")
    np.testing.assert_allclose(shuffled.columns(wanted), start.columns(wanted), atol=1e-6)
    found = start.columns(wanted)
    known = [0, 2, 3, 4]
    np.testing.assert_allclose(found[known].mean(axis=0), 0.0, atol=1e-6)
    assert (found[known].astype(np.float64) ** 2).mean(axis=0).sum() == pytest.approx(0.49 + (rank > 0), rel=1e-5)


def test_new_items_get_what_their_features_predict() -> None:
    drawn = np.random.default_rng(3)
    kind = np.repeat([0.0, 1.0], 40)
    keys = tuple(f"item {place}" for place in range(80))
    factors = np.stack((kind, 1.0 - kind), axis=1) + 0.05 * drawn.normal(size=(80, 2))
    start = WarmStart(keys=keys, popularity=np.full(80, 9.0), biases=kind, factors=factors)
    features = np.stack((kind, 1.0 - kind), axis=1)
    features = np.concatenate((features, [[1.0, 0.0], [0.0, 1.0]]))
    model = odp.MatrixFactorization(items=82, item_features=features, start=start, item_keys=(*keys, "new", "other"))
    assert model.features is not None
    columns = model.features[:, 2:]
    np.testing.assert_allclose(columns[80], columns[kind.nonzero()[0]].mean(axis=0), atol=0.2)
    assert np.linalg.norm(columns[80] - columns[81]) > 0.5


def test_a_saved_start_is_the_same_and_other_files_are_refused(tmp_path: Path) -> None:
    start = start_of("Amélie (2001)", "b", "c")
    start.save(tmp_path / "start.npz")
    again = WarmStart.load(tmp_path / "start.npz")
    assert again.keys == start.keys
    np.testing.assert_array_equal(again.columns(("b", "c")), start.columns(("b", "c")))
    np.savez(tmp_path / "other.npz", keys=np.array(["a"]))
    (tmp_path / "torn.npz").write_bytes((tmp_path / "start.npz").read_bytes()[:200])
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "one.npz", np.ones(3))
    for name in ("other.npz", "torn.npz", "text.npz", "one.npz.npy", "missing.npz"):
        with pytest.raises(DataError, match=name.partition(".")[0]) as caught:
            WarmStart.load(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_keys_are_titles_that_stand_once() -> None:
    ratings = odp.data.synthetic_movielens(n_users=4, n_items=5, ratings_per_user=5, seed=1)
    titled = dataclasses.replace(ratings, titles=("Kim", "Kim #2", "Kim", "", "Ran"))
    assert catalogue_keys(titled) == ("Kim", "Kim #2", "Kim #3", "untitled", "Ran")
    with pytest.raises(DataError, match="no titles and no ids"):
        catalogue_keys(dataclasses.replace(ratings, titles=None, item_ids=None))


@pytest.mark.slow
def test_a_second_training_from_a_release_predicts_better_than_a_first() -> None:
    """Noise is seeded: no false alarms."""
    ratings = odp.data.synthetic_movielens(n_users=1500, n_items=120, seed=5)
    split = random_split(ratings, seed=1)
    keys = tuple(f"film {place}" for place in range(ratings.n_items))

    def error(task: odp.Task, seed: int) -> tuple[float, WarmStart]:
        found = odp.simulate(task, split, seed=seed)
        return found.to_json()["test_rmse"], odp.items.warm_start(found.model, keys)

    cold = preset_task("auto", ratings, epsilon=4.0, delta=1e-6)
    first, start = error(cold, 1)
    warm = dataclasses.replace(cold, model=dataclasses.replace(cold.factorization, start=start, item_keys=keys))
    second, _ = error(warm, 2)
    again, _ = error(cold, 2)
    assert second < min(first, again)
    assert "item_features" in render_task(warm)


def test_a_key_is_the_same_however_it_is_spelt() -> None:
    start = start_of("Ame\u0301lie", "b", "c")
    assert start.keys[0] == "Am\u00e9lie"
    assert start.columns(("Am\u00e9lie", "c")).any(axis=1).all()
    with pytest.raises(ConfigurationError, match="is that of items 0 and 1"):
        start.columns(("Am\u00e9lie", "Ame\u0301lie"))


def test_models_of_other_kinds_are_no_start() -> None:
    from odp.protocol.wire.model import ModelVersion, TableValues

    rows = np.ones((3, 4), dtype=np.float32)
    other = ModelVersion(0, (TableValues("items", rows, keyed=True),))
    with pytest.raises(ConfigurationError, match="a model of ratings, or task="):
        odp.items.warm_start(other, ("a", "b", "c"))
    ours = ModelVersion(0, (TableValues("items", rows, keyed=True), TableValues("globals", rows[:1, :2], keyed=False)))
    with pytest.raises(ConfigurationError, match=r"item_keys for 3 items of the model .got 2."):
        odp.items.warm_start(ours, ("a", "b"))


@pytest.mark.slow
def test_the_command_writes_a_start_and_begins_with_it(tmp_path: Path) -> None:
    ratings = odp.data.synthetic_movielens(n_users=300, n_items=60, seed=5)
    named = dataclasses.replace(ratings, titles=tuple(f"Film {place} (1999)" for place in range(60)))
    named.save(tmp_path / "films.npz")
    common = ["simulate", "--data", str(tmp_path / "films.npz"), "--no-baselines", "--json"]
    runner = CliRunner()
    first = runner.invoke(app, [*common, "--save-start", str(tmp_path / "start.npz")])
    assert first.exit_code == 0, first.output
    assert WarmStart.load(tmp_path / "start.npz").keys[0] == "Film 0 (1999)"
    second = runner.invoke(app, [*common, "--start", str(tmp_path / "start.npz")])
    assert second.exit_code == 0, second.output
    errors = [json.loads(run.stdout.strip().splitlines()[-1])["test_rmse"] for run in (first, second)]
    assert errors[0] != errors[1]
    (tmp_path / "bad.npz").write_text("no start")
    refused = runner.invoke(app, [*common, "--start", str(tmp_path / "bad.npz")])
    assert isinstance(refused.exception, DataError)
    assert "bad.npz is no start" in str(refused.exception)


def seen_by(n_users: int, *, seed: int) -> Ratings:
    """Who has seen which of 120 items: most are those of one's own sixth of them."""
    generator = np.random.default_rng(seed)
    popular = np.geomspace(1.0, 0.1, 120)
    mask = np.zeros((n_users, 120), dtype=bool)
    for user in range(n_users):
        weight = popular * np.where(np.arange(120) % 6 == user % 6, 1.0, 0.02)
        mask[user, generator.choice(120, 12, replace=False, p=weight / weight.sum())] = True
    user, item = np.nonzero(mask)
    return Ratings.from_triples(
        "seen", user, item, np.ones(len(user)), low=0, high=1, n_users=n_users, n_items=120, implicit=True,
        item_ids=np.arange(120),
    )  # fmt: skip


@pytest.mark.parametrize("epsilon", [2.0, math.inf])
@pytest.mark.slow
def test_items_that_people_have_seen_begin_a_training_that_finds_more_with_less_budget(epsilon: float) -> None:
    """Noise is seeded: no false alarms."""
    keys = tuple(f"film {place}" for place in range(120))
    before = preset_task("auto", seen_by(900, seed=1), epsilon=epsilon, delta=1e-6)
    before = dataclasses.replace(before, model=dataclasses.replace(before.factorization, rank=8))
    released = odp.simulate(before, random_split(seen_by(900, seed=1), seed=1), seed=1)
    start = odp.items.warm_start(released.model, keys, task=before)
    counts = np.bincount(seen_by(900, seed=1).items, minlength=120)
    assert np.corrcoef(np.asarray(start.popularity), counts)[0, 1] > 0.7

    split = random_split(seen_by(600, seed=2), seed=2)

    def recall(**changed: object) -> float:
        task = preset_task("auto", split.train, epsilon=0.7, delta=1e-6)
        model = dataclasses.replace(task.factorization, rank=8, **changed)
        training = dataclasses.replace(task.training, steps=2, count_share=0.3)
        found = odp.simulate(dataclasses.replace(task, model=model, training=training), split, seed=3)
        return float(found.metrics["test_ranking"].recall[20])

    assert recall(start=start, item_keys=keys) > 1.05 * recall()


@pytest.mark.parametrize("rank", [1, 2])
def test_a_start_of_popularity_alone_puts_the_items_in_their_order(rank: int) -> None:
    """A model of rank 1 has no factors but popularity. Noise is seeded: no false alarms."""
    ratings = seen_by(900, seed=1)
    task = preset_task("auto", ratings, epsilon=8.0, delta=1e-6)
    task = dataclasses.replace(task, model=dataclasses.replace(task.factorization, rank=rank))
    found = odp.simulate(task, random_split(ratings, seed=1), seed=1)
    keys = tuple(map(str, range(120)))
    start = odp.items.warm_start(found.model, keys, task=task)
    np.testing.assert_allclose(start.popularity, np.maximum(found.item_counts, 1.0), rtol=1e-3)
    assert start.tells(keys)
    assert not start.tells(("other", "items"))
    assert not start.tells(("0", "new"))


@pytest.mark.slow
def test_a_start_helps_where_a_catalogue_is_small() -> None:
    """A quarter of 120 items would be too few to tell tastes by. Noise is seeded: no false alarms."""
    keys, split = tuple(map(str, range(120))), random_split(seen_by(900, seed=2), seed=2)
    before = preset_task("auto", seen_by(900, seed=1), epsilon=8.0, delta=1e-6)
    start = odp.items.warm_start(
        odp.simulate(before, random_split(seen_by(900, seed=1), seed=1), seed=1).model, keys, task=before
    )

    def recall(start: WarmStart | None) -> float:
        task = preset_task("auto", split.train, epsilon=2.0, delta=1e-6, start=start)
        return float(odp.simulate(task, split, seed=3).metrics["test_ranking"].recall[20])

    assert recall(start) > recall(None)


def test_a_start_from_another_model_or_task_of_implicit_feedback_is_refused() -> None:
    ratings = seen_by(60, seed=1)
    task = preset_task("auto", ratings, epsilon=8.0, delta=1e-6)
    model = odp.simulate(task, random_split(ratings, seed=1), seed=1).model
    keys = tuple(map(str, range(120)))
    assert len(odp.items.warm_start(model, keys, task=task).keys) == 120
    assert odp.items.warm_start(model, keys, task=task).told(keys) == 0, "60 people are too few for factors"
    assert start_of("a", "b").told(("b", "c")) == 1
    with pytest.raises(ConfigurationError, match=r"item_keys for 120 items of the model .got 2."):
        odp.items.warm_start(model, keys[:2], task=task)
    other = dataclasses.replace(task, model=dataclasses.replace(task.factorization, rank=7))
    with pytest.raises(ConfigurationError, match="as many items and factors"):
        odp.items.warm_start(model, keys, task=other)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"factors": np.full((3, 2), 1e155)}, "factors of a start to be finite numbers of at most 1e"),
        ({"biases": np.full(3, 1j)}, "biases of a start to be an array of real numbers"),
        ({"factors": [["a", "b"]] * 3}, "factors of a start to be an array of real numbers"),
        ({"factors": [[1.0], [1.0, 2.0], [3.0]]}, "factors of a start to be an array of real numbers"),
        ({"popularity": np.ma.masked_array(np.ones(3), [0, 1, 0])}, "popularity of a start to be an array of real"),
        ({"factors": np.zeros((3, 1025))}, "at most 1,024 factors"),
        ({"keys": "abc"}, "keys to be a list of texts .got str."),
        ({"keys": None}, "keys to be a list of texts .got NoneType."),
        ({"keys": ("a", "b\0", "c")}, "without zeros .got 'b"),
        ({"keys": ("a", "b", "\ud800")}, "Unicode texts .* of item 2"),
        ({"keys": ("a", "b", "c" * 1025)}, "at most 1,024 bytes"),
        ({"origin": "a\nb"}, "origin to be a line"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_start_is_refused_by_name(changed: dict[str, object], message: str) -> None:
    whole = {"keys": ("a", "b", "c"), "popularity": np.ones(3), "biases": np.ones(3), "factors": np.ones((3, 2))}
    with pytest.raises(ConfigurationError, match=message):
        WarmStart(**(whole | changed))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-300, 1.0, 1e30])
def test_the_size_of_factors_is_no_matter(size: float) -> None:
    start = start_of("a", "b", "c")
    sized = dataclasses.replace(start, factors=np.asarray(start.factors) * size)
    np.testing.assert_allclose(sized.columns(("a", "b", "c")), start.columns(("a", "b", "c")), rtol=1e-5)


def test_a_start_of_the_wrong_kind_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"start to be an odp.items.WarmStart .got str.*odp.items.WarmStart.load"
    ):
        odp.MatrixFactorization(items=2, start="x.npz", item_keys=["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"the model of a task, such as .* .got str."):
        odp.items.warm_start("x.npz", ["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"what odp.simulate returned, or the handle of a task .got str."):
        odp.items.export_items("x.npz", tmp_path / "items.npz")  # type: ignore[arg-type]


def test_a_start_that_unpacks_to_more_than_it_is_long_is_refused(tmp_path: Path) -> None:
    """2 MB of zeros, which deflate to some kB."""
    start = start_of("a", "b", rank=2)
    path = tmp_path / "bomb.npz"
    np.savez_compressed(
        path, format=np.array("odp-warm-start-1"), keys=np.array(start.keys), popularity=start.popularity,
        biases=start.biases, factors=np.zeros((2, 2**17)),
    )  # fmt: skip
    with pytest.raises(DataError, match="is no start of a model"):
        WarmStart.load(path)


def test_what_a_start_says_of_its_privacy_is_kept_and_told(tmp_path: Path) -> None:
    seen_by(60, seed=4).save(tmp_path / "seen.npz")
    common = ["simulate", "--data", str(tmp_path / "seen.npz"), "--no-baselines", "--json"]
    runner, file = CliRunner(), str(tmp_path / "start.npz")
    assert runner.invoke(app, [*common, "--no-noise", "--save-start", file]).exit_code == 0
    assert WarmStart.load(file).origin == "trained without noise, not private"
    found = runner.invoke(app, [*common, "--start", file])
    notes = json.loads(found.stdout.strip().splitlines()[-1])["notes"]
    assert any("(trained without noise, not private) is not part of ε" in note for note in notes)
    assert runner.invoke(app, [*common, "--save-start", file]).exit_code == 0
    assert WarmStart.load(file).origin == "simulated, ε = 8 and δ = 1e-06 per user"


@pytest.mark.parametrize(
    ("one", "two"),
    [("--start", "--export"), ("--save-start", "--export"), ("--data", "--report"), ("--start", "--report")],
)
def test_no_file_of_a_run_takes_the_place_of_another(tmp_path: Path, one: str, two: str) -> None:
    file = tmp_path / "file.npz"
    seen_by(60, seed=4).save(file)
    content = file.read_bytes()
    given = [] if one == "--data" else ["--data", "synthetic"]
    found = CliRunner().invoke(app, ["simulate", *given, one, str(file), two, str(tmp_path / "." / "file.npz")])
    assert isinstance(found.exception, ConfigurationError)
    assert f"{one} and {two} are the same file" in str(found.exception)
    assert file.read_bytes() == content


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("column", "bad"), [(0, -1.0), (0, math.nan), (0, math.inf), (-1, math.nan), (-1, -math.inf)])
def test_a_model_that_no_server_makes_is_no_start(column: int, bad: float) -> None:
    ratings = seen_by(60, seed=1)
    task = preset_task("auto", ratings, epsilon=8.0, delta=1e-6)
    model = odp.simulate(task, random_split(ratings, seed=1), seed=1).model
    (table,) = model.tables
    rows = table.rows.copy()
    rows[3, column] = bad
    changed = dataclasses.replace(model, tables=(dataclasses.replace(table, rows=rows),))
    with pytest.raises(ConfigurationError, match=r"which item 3 has not .*no server of this task"):
        odp.items.warm_start(changed, tuple(map(str, range(120))), task=task)


def test_the_commands_start_of_implicit_feedback(tmp_path: Path) -> None:
    seen_by(200, seed=4).save(tmp_path / "seen.npz")
    common = ["simulate", "--data", str(tmp_path / "seen.npz"), "--no-baselines", "--json"]
    runner = CliRunner()
    first = runner.invoke(app, [*common, "--save-start", str(tmp_path / "start.npz")])
    assert first.exit_code == 0, first.output
    second = runner.invoke(app, [*common, "--start", str(tmp_path / "start.npz")])
    assert second.exit_code == 0, second.output
    summary = json.loads(second.stdout.strip().splitlines()[-1])
    assert summary["test_ranking"]["users"] > 100
