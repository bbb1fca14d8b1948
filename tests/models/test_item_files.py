"""Items of trained models as files: they come back equal, say what is private, and other places are refused."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import odp
from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalRows
from odp.cli.main import app
from odp.errors import ConfigurationError, DataError
from odp.models.item_files import ItemColumns, ItemTable, save
from odp.protocol.wire.model import Slices
from odp.research.simulation.presets import preset_task

ITEMS = 40


def run_of(*, implicit: bool = False, epsilon: float = 8.0) -> odp.RunResult:
    ratings = odp.data.synthetic_movielens(n_users=200, n_items=ITEMS, ratings_per_user=12, seed=5)
    if implicit:
        ones = np.ones(ratings.n_ratings, dtype=np.float32)
        ratings = dataclasses.replace(ratings, implicit=True, values=ones, low=1.0, high=1.0)
    task = preset_task("auto", ratings, epsilon=epsilon, delta=1e-6, features=False)
    return odp.simulate(task, ratings, seed=3)


@pytest.fixture(scope="module")
def run() -> odp.RunResult:
    return run_of()


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_a_table_comes_back_equal(tmp_path: Path, ending: str, implicit: bool) -> None:
    run = run_of(implicit=implicit)
    keys = [f"Amélie {number}" for number in range(ITEMS)]
    made = odp.items.export_items(run, tmp_path / "new" / f"items.{ending}", item_keys=keys)
    found = odp.items.load_items(tmp_path / "new" / f"items.{ending}")
    assert [file.name for file in (tmp_path / "new").iterdir()] == [f"items.{ending}"]
    assert found.keys == tuple(keys)
    assert found.facts == made.facts
    for one, other in zip(found.columns, made.columns, strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("factors", "biases", "popularity", *(["shares"] if implicit else [])):
        assert getattr(found.columns, name).dtype == np.float32
    assert (found.columns.shares is not None) == implicit
    rank = found.columns.factors.shape[1]
    np.testing.assert_array_equal(found.columns.factors, run.model.keyed.rows[:, -rank:] if rank else np.zeros((40, 0)))


def test_the_facts_say_what_is_private_and_that_nobody_signed(run: odp.RunResult, tmp_path: Path) -> None:
    facts = odp.items.export_items(run, tmp_path / "items.npz").facts
    assert facts["signature"] == "simulated, no signature"
    assert float(facts["epsilon"]) == run.epsilon <= 8.0
    assert facts["delta"] == "1e-06"
    assert facts["privacy"] == "differentially private per user"
    assert facts["adjacency"] == run.charges[0][0].adjacency.value
    assert facts["task"] == run.task.name
    assert len(facts["definition_sha256"]) == 64
    bare = odp.items.export_items(run_of(epsilon=math.inf), tmp_path / "bare.parquet").facts
    assert bare["privacy"].startswith("not private")
    assert (bare["epsilon"], bare["adjacency"]) == ("inf", "none")


def test_parquet_tells_its_facts_to_any_reader(run: odp.RunResult, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = odp.items.export_items(run, tmp_path / "items.parquet")
    found = parquet.read_schema(tmp_path / "items.parquet")
    assert found.names == ["key", "factors", "bias", "popularity"]
    assert found.metadata[b"odp.epsilon"].decode() == table.facts["epsilon"]


@pytest.mark.parametrize("implicit", [False, True])
def test_the_graph_scores_as_numpy_does(tmp_path: Path, implicit: bool) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    table = odp.items.export_items(run_of(implicit=implicit), tmp_path / "items.onnx")
    model = onnx.load(tmp_path / "items.onnx")
    users = np.random.default_rng(1).normal(size=(5, len(table.weights))).astype(np.float32)
    (scores,) = ReferenceEvaluator(model).run(None, {"users": users})
    np.testing.assert_array_equal(scores, users @ table.weights + table.offsets)
    told = {one.key: one.value for one in model.metadata_props}
    assert told.pop("keys") == json.dumps(list(table.keys))
    if implicit:
        np.testing.assert_allclose(json.loads(told.pop("shares")), table.columns.shares)
    assert told == table.facts


def test_shares_make_the_row_of_a_user_of_implicit_feedback(tmp_path: Path) -> None:
    run = run_of(implicit=True)
    columns = odp.items.export_items(run, tmp_path / "items.npz").columns
    client = recommender_for(run.task.definition()).client()
    slices = Slices(run.model.version, np.arange(ITEMS), run.model.keyed.rows, run.model.dense)
    seen = np.array([0, 3, 7, 11])
    own = {"rows": LocalRows(seen, np.ones(4))}
    wanted = client.predict(slices, own, np.arange(ITEMS))
    assert columns.shares is not None
    row = (columns.shares[seen, None] * columns.factors[seen]).sum(axis=0)
    scores = columns.factors @ row
    np.testing.assert_allclose(scores / np.linalg.norm(scores), wanted / np.linalg.norm(wanted), atol=1e-5)


def test_scores_are_what_a_device_predicts_without_the_smooth_part(run: odp.RunResult, tmp_path: Path) -> None:
    definition = run.task.definition()
    definition.dpam.kernel_variance = 0.0
    client, rows = recommender_for(definition).client(), run.model.keyed.rows
    slices = Slices(run.model.version, np.arange(ITEMS), rows, run.model.dense)
    own = {"rows": LocalRows(np.arange(6), np.array([1.0, 5.0, 4.0, 2.0, 3.0, 5.0]))}
    own = dict(recommender_for(definition).data_of(own["rows"]))
    _, local = client.contribute(slices, own, round=run.model.version - 1, seed=1)
    table = odp.items.export_items(run, tmp_path / "items.npz")
    wanted = client.predict(slices, own, np.arange(ITEMS))
    vector = np.frombuffer(local, dtype="<f8")
    np.testing.assert_allclose(vector @ table.weights + table.offsets, wanted, atol=1e-4)


def test_bad_places_and_sizes_are_refused_in_one_line(run: odp.RunResult, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, message in (
        ("items.csv", "ends in .npz, .parquet, .onnx or .index"),
        ("file/items.npz", "give another place"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            odp.items.export_items(run, tmp_path / path)
    with pytest.raises(ConfigurationError, match=r"item_keys for 40 items of the model .got 1."):
        odp.items.export_items(run, tmp_path / "items.npz", item_keys=["a"])
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    (tmp_path / "text.npz").write_text("none")
    (tmp_path / "text.parquet").write_text("none")
    np.savez(tmp_path / "other.npz", keys=np.array(["a"]))
    for name in ("text.npz", "text.parquet", "other.npz", "missing.npz", "missing.parquet"):
        with pytest.raises(DataError, match=name) as caught:
            odp.items.load_items(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"\.npz or \.parquet"):
        odp.items.load_items(tmp_path / "items.onnx")


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    ones = np.ones(2, dtype=np.float32)
    with pytest.raises(DataError, match="factors of the model's items to be finite"):
        ItemTable(["a", "b"], ItemColumns(np.full((2, 1), np.nan, np.float32), ones, ones, 0.0, True), {})
    table = ItemTable(["a", "b"], ItemColumns(np.zeros((2, 0), np.float32), ones, None, 3.5, True), {})
    for ending in ("npz", "parquet"):
        save(table, tmp_path / f"none.{ending}")
        found = odp.items.load_items(tmp_path / f"none.{ending}").columns
        assert (found.factors.shape, found.popularity, found.offset) == ((2, 0), None, 3.5)


@pytest.mark.parametrize(("module", "ending", "extra"), [("onnx", "onnx", "onnx"), ("pyarrow", "parquet", "data")])
def test_a_missing_extra_is_named(
    run: odp.RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, ending: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"^cannot write .{ending} files: .*'odp-platform\[{extra}\]'$"):
        odp.items.export_items(run, tmp_path / f"items.{ending}")


def test_the_command_exports_and_refuses_before_it_trains(tmp_path: Path) -> None:
    ratings = odp.data.synthetic_movielens(n_users=200, n_items=ITEMS, seed=5)
    dataclasses.replace(ratings, titles=tuple(f"Film {place}" for place in range(ITEMS))).save(tmp_path / "films.npz")
    command = ["simulate", "--data", str(tmp_path / "films.npz"), "--no-baselines", "--no-features", "--json"]
    done = CliRunner().invoke(app, [*command, "--no-noise", "--export", str(tmp_path / "items.npz")])
    assert done.exit_code == 0, done.output
    found = odp.items.load_items(tmp_path / "items.npz")
    assert found.keys[1] == "Film 1"
    assert found.facts["privacy"].startswith("not private")
    refused = CliRunner().invoke(app, [*command, "--export", str(tmp_path / "items.csv")])
    assert isinstance(refused.exception, ConfigurationError)
    assert "ends in .npz" in str(refused.exception)
