"""`odp reproduce geyer` on invented pictures: clients, task, charges, table, figure; on MNIST where it is there."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from spreads import exact_spread
from typer.testing import CliRunner

from odp.algorithms.federated.terms import Terms
from odp.cli.main import app
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.errors import ConfigurationError, DataError
from odp.research.reproductions.geyer import PICTURES, SETTINGS, exact_spread_at, reproduce, shards, task_of
from odp.research.reproductions.geyer_results import rows
from odp.research.reproductions.strokes import strokes


def people(clients: int = 100, features: int = 12) -> ExamplesSplit:
    generator = np.random.default_rng(2)
    labels = np.repeat(np.arange(10), 30)
    centres = generator.normal(size=(10, features))
    numbers = (centres[labels] + generator.normal(size=(300, features))).astype(np.float32)
    owned = np.stack([generator.permutation(300)[:20] for _ in range(clients)]).reshape(-1)
    train = UsersExamples(numbers, labels.astype(np.float32), owned, np.arange(clients + 1) * 20)
    test = UsersExamples(numbers, labels.astype(np.float32), np.arange(300), np.array([0, 300]))
    return ExamplesSplit(train, test)


def mnist_of(folder: Path, *, pictures: int) -> None:
    for prefix, count in (("train", pictures), ("t10k", 200)):
        images = (
            struct.pack(">IIII", 0x0803, count, 28, 28) + np.resize(strokes(100, seed=1), (count, 28, 28)).tobytes()
        )
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, 1))
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x0801, count) + labels)


def test_clients_have_two_shards_of_sorted_pictures() -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 600))
    rows_of, offsets = shards(labels, 10, seed=4)
    np.testing.assert_array_equal(offsets, np.arange(11) * PICTURES)
    np.testing.assert_array_equal(np.sort(rows_of), np.arange(6000))
    for client in range(10):
        own = labels[rows_of[client * PICTURES : (client + 1) * PICTURES]]
        assert len(np.unique(own[:300])) == len(np.unique(own[300:])) == 1
    again, _ = shards(labels, 10, seed=4)
    np.testing.assert_array_equal(rows_of, again)
    assert (rows_of != shards(labels, 10, seed=5)[0]).any()


def test_pictures_are_repeated_over_clients_and_none_twice_in_a_shard() -> None:
    labels = np.repeat(np.arange(10), 600)
    rows_of, _ = shards(labels, 30, seed=4)
    np.testing.assert_array_equal(np.bincount(rows_of), np.full(6000, 3))
    for shard in rows_of.reshape(60, 300):
        assert len(np.unique(shard)) == 300
    for count in (0, 7):
        with pytest.raises(DataError, match="per client"):
            shards(labels[:count], 10, seed=1)


@pytest.mark.parametrize("clients", SETTINGS)
def test_each_task_is_within_the_published_communication_and_its_budget(clients: int) -> None:
    task, setting = task_of(clients), SETTINGS[clients]
    assert clients * setting.rounds <= setting.published.communications
    terms = Terms.of(task.definition())
    assert terms.rounds == setting.rounds
    assert terms.cohort == clients
    assert terms.adaptive is not None
    assert task.privacy.epsilon == 8.0
    assert task.privacy.delta == setting.delta < 1 / clients
    with pytest.raises(ConfigurationError, match="100, 1000, 10000"):
        task_of(clients + 1)


def test_a_run_is_charged_repeats_and_is_shown_beside_what_was_published() -> None:
    task, given = task_of(100, features=12), people()
    found = reproduce(task, given, seed=3, baseline=True)
    assert found.communications == 500
    assert len(found.accuracies) == len(found.clips) == len(found.scales) == 5
    assert 7.99 < found.epsilon <= 8.0
    assert found.noise_multiplier == pytest.approx(1.0733, abs=1e-4)  # closed form: sqrt(5) over mu of (8, 1e-3)
    assert found.upload_bytes == 4 * (10 * 13 + 1)
    assert found.without_noise is not None
    assert found.without_noise > found.accuracy - 0.05 > 0.3
    again = reproduce(task, given, seed=3)
    assert (again.accuracies, again.clips, again.scales) == (found.accuracies, found.clips, found.scales)
    shown = {name: (published, here) for name, published, here in rows(found)}
    assert shown["test accuracy"] == ("0.78", f"{found.accuracy:.4f}")
    assert shown["communications (client updates)"] == ("550", "500")
    assert shown["ε as stated"] == ("8", f"{found.epsilon:.4f}")
    json.dumps(found.to_json(), allow_nan=False)


def test_the_exact_spread_is_that_of_all_updates_together() -> None:
    given, terms = people(150), Terms.of(task_of(100, features=12).definition())
    start = np.random.default_rng(1).normal(size=terms.model.size).astype(np.float32) * np.float32(0.1)
    seeds = np.arange(150, dtype=np.uint64)
    moved = np.empty((150, terms.model.size), dtype=np.float32)
    terms.model.differences(start, given.train, terms.local, seeds=seeds, round=2, users=slice(0, 150), out=moved)
    whole = exact_spread(moved.astype(np.float64))
    found = exact_spread_at(terms, given.train, start, round=2, seeds=seeds)
    assert found.scale == pytest.approx(whole.scale, rel=1e-5)
    assert found.variance == pytest.approx(whole.variance, rel=1e-5)


def test_the_command_writes_a_figure_and_all_numbers(tmp_path: Path) -> None:
    data, output = tmp_path / "mnist", tmp_path / "out"
    data.mkdir()
    mnist_of(data, pictures=6000)
    call = ["reproduce", "geyer", "--data", str(data), "--clients", "100", "--output", str(output), "--json"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.exception
    found = json.loads(result.stdout.strip().splitlines()[-1])
    assert found["clients"] == 100
    assert 7.99 < found["epsilon"] <= 8.0
    assert json.loads((output / "geyer-100-1.json").read_text()) == found
    assert (output / "geyer-100-1.png").read_bytes()[:4] == b"\x89PNG"


def test_missing_data_and_other_numbers_of_clients_are_refused(tmp_path: Path) -> None:
    call = ["reproduce", "geyer", "--data", str(tmp_path)]
    missing = CliRunner().invoke(app, call).exception
    assert isinstance(missing, DataError)
    assert "is missing" in str(missing)
    other = CliRunner().invoke(app, [*call, "--clients", "101"]).exception
    assert isinstance(other, ConfigurationError)
    assert "clients=101" in str(other)


def test_the_published_accuracy_is_reached_on_mnist(shared_data: Path) -> None:
    if not (shared_data / "mnist").is_dir():
        pytest.skip("needs the folder mnist of the real data sets")
    from odp.research.reproductions.geyer import population

    found = reproduce(task_of(100), population(shared_data / "mnist", 100, seed=2), seed=2)
    assert found.accuracy >= 0.9  # 0.958 as this was written; published: 0.78
    assert found.epsilon <= 8.0
