"""`odp reproduce shakespeare` on a small text: speakers, examples, charge, table and figure; and on the plays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import odp
from odp.algorithms.federated.terms import Terms
from odp.cli.main import app
from odp.errors import ConfigurationError, DataError
from odp.models.features import Category
from odp.research.reproductions.shakespeare import (
    CHARACTERS,
    data_of,
    population,
    reproduce,
    speeches,
    split_of,
    task_of,
)
from odp.research.reproductions.shakespeare_results import rows

SPEAKERS = 24


def text_of(folder: Path) -> Path:
    """Plays in which three letters take turns, but for some at random."""
    generator = np.random.default_rng(1)
    blocks = []
    for speech in range(4 * SPEAKERS):
        letters = np.array(["a", "b", "c"])[np.arange(60) % 3]
        letters = np.where(generator.random(60) < 0.1, "d", letters)
        blocks.append(f"SPEAKER {speech % SPEAKERS}:\n{''.join(letters)}\n")
    path = folder / "input.txt"
    path.write_text("\n".join(blocks))
    return path


def test_speeches_are_those_of_each_speaker() -> None:
    found = speeches("ANNE:\nGood day.\nAnd night.\n\nBOB:\nYes\n\nANNE:\nNo\n")
    assert found == {"ANNE": ["Good day.\nAnd night.", "No"], "BOB": ["Yes"]}
    for text in ("", "no speech at all\n\n:\nof nobody"):
        with pytest.raises(DataError, match="a line 'NAME:'"):
            speeches(text)


def test_examples_are_characters_after_those_before_them() -> None:
    number = CHARACTERS.index
    split = split_of({"B": ["ab~\ncd"], "A": ["zz", "", "xyz"]}, context=2)
    first, second = split.train.of(0), split.train.of(1)
    np.testing.assert_array_equal(first[1], [number("z"), number("z"), number("x"), number("y")])
    np.testing.assert_array_equal(first[0][:2], [[number("\n")] * 2, [number("\n"), number("z")]])
    np.testing.assert_array_equal(first[0][2], [number("\n")] * 2)  # a speech begins anew
    np.testing.assert_array_equal(second[0][2], [number("a"), number("b")])  # ~ is none of the characters
    np.testing.assert_array_equal(second[1], [number("a"), number("b"), number("\n"), number("c")])
    np.testing.assert_array_equal(split.test.of(0)[1], [number("z"), number("d")])
    assert split.test.n_users == 1
    with pytest.raises(DataError, match="more than a few characters"):
        split_of({"A": [""]})


def test_a_devices_store_may_hold_the_characters_themselves() -> None:
    data = data_of(2)
    assert list(data.features) == ["before-2", "before-1"]
    columns = {"before-2": np.array(["\n", "a"]), "before-1": np.array(["a", "~"]), "next": np.array([1, 2])}
    users = odp.data.ExampleColumns.of_users(columns, [0, 0]).users_examples(data)
    np.testing.assert_array_equal(users.features[0], [CHARACTERS.index("\n"), CHARACTERS.index("a")])
    assert np.isnan(users.features[1, 1])


def test_the_task_is_one_charge_within_its_budget() -> None:
    task = task_of(309)
    terms = Terms.of(task.definition())
    assert (task.privacy.epsilon, task.privacy.delta) == (8.0, 1e-3)
    assert task.privacy.delta < 1 / 309
    assert terms.model.size == len(CHARACTERS) * (len(CHARACTERS) * len(task.data.features) + 1)
    assert all(feature == Category(CHARACTERS) for feature in terms.examples.features.values())
    assert len(set(CHARACTERS)) == len(CHARACTERS)
    for changes, message in (({"clients": 3}, "clients=3"), ({"context": 0}, "context=0"), ({"rounds": 0}, "rounds=0")):
        with pytest.raises(ConfigurationError, match=message):
            task_of(**{"clients": 309, **changes})


def test_a_run_is_charged_repeats_and_learns(tmp_path: Path) -> None:
    people = population(text_of(tmp_path), context=2)
    task = task_of(SPEAKERS, context=2, rounds=12)
    found = reproduce(task, people, seed=3, baseline=True)
    assert 7.99 < found.epsilon <= 8.0
    assert (found.clients, len(found.accuracies)) == (SPEAKERS, 12)
    assert found.without_noise is not None
    assert found.without_noise > 0.7 > found.most_frequent
    assert found.upload_bytes == 4 * found.parameters
    assert reproduce(task, people, seed=3).accuracies == found.accuracies
    assert reproduce(task, people, seed=4).accuracies != found.accuracies
    shown = {name: (published, here) for name, published, here in rows(found)}
    assert shown["test accuracy"] == ("about 0.57", f"{found.accuracy:.4f}")
    assert shown["privacy of a whole speaker"] == ("none", f"ε = {found.epsilon:.4f}, δ = 0.001")
    json.dumps(found.to_json(), allow_nan=False)


def test_the_command_writes_a_figure_and_all_numbers(tmp_path: Path) -> None:
    text_of(tmp_path)
    output = tmp_path / "out"
    call = ["reproduce", "shakespeare", "--data", str(tmp_path), "--context", "1", "--rounds", "8"]
    result = CliRunner().invoke(app, [*call, "--output", str(output), "--json"])
    assert result.exit_code == 0, result.exception
    found = json.loads(result.stdout.strip().splitlines()[-1])
    assert found["clients"] == SPEAKERS
    assert found["published"]["clients"] == 715
    assert json.loads((output / "shakespeare-1.json").read_text()) == found
    assert (output / "shakespeare-1.png").read_bytes()[:4] == b"\x89PNG"


def test_a_missing_text_is_refused(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["reproduce", "shakespeare", "--data", str(tmp_path)]).exception
    assert isinstance(missing, DataError)
    assert "not a readable text" in str(missing)
    (tmp_path / "input.txt").write_text("prose")
    malformed = CliRunner().invoke(app, ["reproduce", "shakespeare", "--data", str(tmp_path)]).exception
    assert isinstance(malformed, DataError)
    assert "input.txt: Expected speeches" in str(malformed)


def test_the_accuracy_on_the_plays(shared_data: Path) -> None:
    if not (shared_data / "shakespeare").is_dir():
        pytest.skip("needs the folder shakespeare of the real data sets")
    people = population(shared_data / "shakespeare")
    found = reproduce(task_of(people.train.n_users), people, seed=2)
    assert found.clients == 309
    assert found.accuracy >= 0.29
    assert found.epsilon <= 8.0
