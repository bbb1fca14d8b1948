"""Categories and text as features: the same numbers on devices and in simulations, and hostile definitions refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import odp
from device_runtime.store.store import Store
from odp.algorithms.federated.client import FederatedClient
from odp.algorithms.federated.population import FederatedPopulation
from odp.algorithms.federated.reading import ROWS, UsableTable, usable_rows
from odp.algorithms.federated.terms import PARAMETERS, RELEASE, Terms
from odp.algorithms.registry import algorithm_for
from odp.crypto import SigningKey
from odp.errors import ConfigurationError, DataError
from odp.evaluation.users import user_seeds
from odp.models.features import CHARACTER, MOST_LENGTH, MOST_TOKENS, Encoding, feature_of
from odp.protocol.wire.model import ModelVersion, Slices, TableValues
from odp.signed.task import parse_known, sign_task
from odp.v1 import common_pb2, federated_pb2

COLOURS = ("red", "green", "dark blue")
WORDS = odp.Text(("the", "cat", "sat"), 4)
DATA = odp.Examples(
    {"colour": odp.Category(COLOURS), "size": odp.Category(5), "said": WORDS, "x": odp.Tensor((2,), -1, 1, scale=0.5)},
    label="kind",
)
WIDTH, ENCODED = 1 + 1 + 4 + 2, 3 + 5 + 3 + 2


def task_of(data: odp.Examples = DATA, *, features: int = ENCODED, **changes: Any) -> odp.Task:
    parts: dict[str, Any] = {
        "name": "words",
        "model": odp.Glm("multinomial", features=features, classes=3),
        "data": data,
        "privacy": odp.UserLevelDP(epsilon=8, delta=1e-4),
        "training": odp.DPFedAvg(rounds=3, rate=0.5, clip=1.0, epochs=2, batch=4),
        "cohort": odp.Cohort(minimum=4, goal=10),
    }
    return odp.Task(**{**parts, **changes})


def columns_of(count: int, *, seed: int = 1) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    said = np.array(["the cat", "Sat, the CAT!", "", "dogs and the cat sat down", "it's ünknown"])
    return {
        "colour": np.array([*COLOURS, "pink"])[generator.integers(0, 4, count)],
        "size": generator.integers(-1, 6, count),
        "said": said[generator.integers(0, 5, count)],
        "x": generator.normal(size=(count, 2)).astype(np.float32),
        "kind": generator.integers(0, 3, count),
    }


def test_words_are_lower_cased_cut_at_the_length_and_padded() -> None:
    numbers = WORDS.numbers(np.array(["The CAT sat.", "a the, b-cat's the cat", "", "the_cat"]))
    np.testing.assert_array_equal(numbers, [[2, 3, 4, 0], [1, 2, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]])


def test_characters_are_read_as_they_are() -> None:
    text = odp.Text(("a", "\n", "é"), 3, unit="character")
    np.testing.assert_array_equal(text.numbers(np.array(["a\né", "Aa", "aaaa"])), [[2, 3, 4], [1, 2, 0], [2, 2, 2]])


def test_a_glm_reads_one_hot_categories_and_counts_of_words() -> None:
    encoding = Encoding.of(DATA.features.values())
    assert encoding is not None
    found = encoding(np.array([[2, 4, 3, 1, 3, 2, 0.5, -0.25]], dtype=np.float32))
    np.testing.assert_array_equal(found, [[0, 0, 1, 0, 0, 0, 0, 1, 1, 2, 0, 0.5, -0.25]])
    assert Encoding.of([odp.Tensor((2,), 0, 1)]) is None


def test_what_is_no_category_is_left_out() -> None:
    terms = Terms.of(task_of().definition())
    columns = columns_of(4)
    columns["colour"] = np.array(["red", "pink", "green", "red"])
    columns["size"] = np.array([0, 1, 5, 2])
    found = terms.examples.matrix(columns, examples=4)
    assert np.isfinite(found).all(axis=1).tolist() == [True, False, False, True]
    columns["size"] = np.array([0.5, np.nan, 4, np.inf])
    columns["colour"] = np.array([0, 1, 2, 2])
    found = terms.examples.matrix(columns, examples=4)
    assert np.isfinite(found).all(axis=1).tolist() == [False, False, True, False]


def test_whole_numbers_are_names_where_a_name_is_a_number(tmp_path: Path) -> None:
    """Stars 1 to 5 were read as the places 0 to 4, and 5 stars were left out."""
    stars = odp.Category(("5", "1", "2", "more", "-3"))
    columns = (
        np.array([1, 5, 2, -3, 7, 0]),
        np.array([1.0, 5, 2, -3, 1.5, np.nan]),
        np.array(["1", "5", "2", "-3", "01", ""]),
    )
    for column in columns:
        found = stars.numbers(column)
        assert found is not None
        np.testing.assert_array_equal(found, [1, 0, 2, 4, np.nan, np.nan])
    data = odp.Examples({"stars": stars}, label="kind")
    users = odp.data.ExampleColumns.of_users({"stars": columns[0][:4], "kind": [0, 1, 2, 0]}, [0, 0, 1, 1])
    again = odp.data.ExampleColumns.of(users.users_examples(data), data)
    assert again.columns["stars"].tolist() == ["1", "5", "2", "-3"], "a device would read numbers as names"
    np.testing.assert_array_equal(again.users_examples(data).features, users.users_examples(data).features)


def test_names_have_one_spelling_and_words_keep_their_vowel_signs() -> None:
    text = odp.Text(("हिन्दी", "caf\u00e9"), 4)
    numbers = text.numbers(np.array(["हिन्दी भाषा", "Cafe\u0301, हिन्दी", "cafe"]))
    np.testing.assert_array_equal(numbers, [[2, 1, 0, 0], [3, 2, 0, 0], [1, 0, 0, 0]])
    assert odp.Text(("cafe\u0301",), 1).numbers(np.array(["caf\u00e9"])) == [[2]]
    places = odp.Category(("caf\u00e9", "bar"))
    np.testing.assert_array_equal(places.numbers(np.array(["cafe\u0301", "bar", "Bar"])), [0, 1, np.nan])
    with pytest.raises(ConfigurationError, match="more than once"):
        odp.Category(("caf\u00e9", "cafe\u0301"))


def test_a_column_of_another_kind_makes_no_row_usable() -> None:
    terms = Terms.of(task_of().definition())
    for name, column in {"x": np.array(["a", "b"]), "size": np.array(["1", "2"]), "said": np.zeros((2, 3))}.items():
        columns = {**columns_of(2), name: column}
        assert np.isnan(terms.examples.matrix(columns, examples=2)).all()


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=6),
    names=st.lists(st.sampled_from([*COLOURS, "pink", ""]), min_size=6, max_size=6),
    sizes=st.lists(st.one_of(st.integers(-3, 9), st.floats(width=32)), min_size=6, max_size=6),
    unit=st.sampled_from(["word", CHARACTER]),
)
def test_a_device_reads_what_a_simulation_reads(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], names: list[str], sizes: list[float], unit: str
) -> None:
    count = len(texts)
    vocabulary = ("a", "b", "0") if unit == "word" else ("a", " ", "É")
    data = odp.Examples(
        {"colour": odp.Category(COLOURS), "said": odp.Text(vocabulary, 5, unit=unit), "size": odp.Category(4)},
        label="kind",
    )
    terms = Terms.of(task_of(data, features=10).definition())
    columns = {
        "colour": np.array(names[:count]), "said": np.array(texts), "size": np.array(sizes[:count], dtype=np.float64),
        "kind": np.array([0.0, 1.0, 2.0, np.nan, 0.0, 1.0])[:count],
    }  # fmt: skip
    people = odp.data.ExampleColumns.of_users(columns, np.zeros(count, dtype=int)).users_examples(data)
    simulated = UsableTable.of(terms.model, terms.examples, people).usable(people).of(0)
    path = tmp_path_factory.mktemp("device") / "store.db"
    with Store.open_or_create(path, durable=False) as store:
        store.examples("examples").add(columns, time=0.0)
        rows = store.examples("examples").read(terms.examples.features, label="kind")
    for one, other in zip(usable_rows(terms.model, terms.examples, rows), simulated, strict=True):
        np.testing.assert_array_equal(one, other)
    numbers = simulated[0][:, 1:6]
    assert ((numbers >= 0) & (numbers < 5) & (numbers == np.floor(numbers))).all()


def test_devices_and_simulation_train_the_same(tmp_path: Path) -> None:
    task = task_of()
    terms = Terms.of(task.definition())
    columns = columns_of(60)
    owners = np.arange(60) % 4
    people = odp.data.ExampleColumns.of_users(columns, owners)
    users = people.users_examples(DATA)
    seeds = user_seeds(users, 3)
    parameters = np.random.default_rng(2).normal(size=(terms.model.size, 1)).astype(np.float32)
    total = FederatedPopulation(terms).contribute(version_of(parameters), users, round=1, seeds=seeds)[RELEASE]
    client = FederatedClient(terms)
    upload = terms.upload(1)
    summed = np.zeros(upload.size, dtype=np.int64)
    for user in range(4):
        with Store.open_or_create(tmp_path / f"{user}.db", durable=False) as store:
            store.examples("examples").add(people.user(user), time=0.0)
            (declared,) = algorithm_for(task.definition()).local_data
            rows = store.examples("examples").read(declared.features, label=declared.label)
        payload, _ = client.contribute(slices_of(parameters), {ROWS: rows}, round=1, seed=int(seeds[user]))
        summed += np.frombuffer(payload, dtype="<i4")
    assert np.abs(summed).sum() > 0
    np.testing.assert_allclose(summed, total, atol=64)  # float32 rounding of four users, on a grid of 2^-20 or finer


def test_columns_of_a_simulations_numbers_are_read_alike(tmp_path: Path) -> None:
    users = odp.data.ExampleColumns.of_users(columns_of(20), np.arange(20) % 2).users_examples(DATA)
    again = odp.data.ExampleColumns.of(users, DATA)
    assert again.columns["said"].shape == (20, 4)
    np.testing.assert_array_equal(again.users_examples(DATA).features, users.features)
    again.save(tmp_path / "people.npz")
    loaded = odp.data.ExampleColumns.load(tmp_path / "people.npz").users_examples(DATA)
    np.testing.assert_array_equal(loaded.of(1)[0], users.of(1)[0])


def test_text_and_numbers_of_tokens_share_a_table(tmp_path: Path) -> None:
    terms = Terms.of(task_of().definition())
    with Store.open_or_create(tmp_path / "store.db", durable=False) as store:
        table = store.examples("examples")
        table.add(columns_of(3), time=0.0)
        table.add({**columns_of(2), "said": np.array([[2, 3, 0, 0], [1, 4, 4, 4]])}, time=1.0)
        table.add({**columns_of(2), "kind": np.array(["a", "b"])}, time=2.0)  # its label is no number
        rows = table.read(terms.examples.features, label="kind")
        exported = list(table.everything())
    assert rows.features["said"].shape == (5, 4)
    np.testing.assert_array_equal(rows.features["said"][3:], [[2, 3, 0, 0], [1, 4, 4, 4]])
    assert exported[0]["columns"]["said"] == str(columns_of(3)["said"][0])


def test_a_simulation_learns_from_words_and_categories() -> None:
    generator = np.random.default_rng(3)
    kinds = generator.integers(0, 3, 1200)
    said = np.array(["the storm", "a CAT", "sat down"])[kinds]
    columns = {"said": said, "colour": np.array(COLOURS)[generator.integers(0, 3, 1200)], "kind": kinds}
    data = odp.Examples({"said": WORDS, "colour": odp.Category(COLOURS)}, label="kind")
    users = odp.data.ExampleColumns.of_users(columns, np.arange(1200) % 120).users_examples(data)
    task = task_of(
        data, features=6, cohort=odp.Cohort(minimum=4, goal=120), privacy=odp.UserLevelDP(epsilon=8, delta=1e-3)
    )
    run = odp.simulate(task, odp.data.ExamplesSplit(users, users), seed=1)
    assert run.metrics["test_accuracy"] > 0.95


def encoded_by_hand(users: odp.data.UsersExamples) -> odp.data.UsersExamples:
    """The examples of two categories, one of three and one of five, as the numbers that they stand for."""
    codes = users.features.astype(int)
    return dataclasses.replace(
        users, features=np.concatenate((np.eye(3)[codes[:, 0]], np.eye(5)[codes[:, 1]]), axis=1).astype(np.float32)
    )


CATEGORIES = odp.Examples({"a": odp.Category(3), "b": odp.Category(5)}, label="kind")
BY_HAND = odp.Examples({"x": odp.Tensor((8,), 0, 1)}, label="kind")


def two_categories() -> odp.data.UsersExamples:
    generator = np.random.default_rng(7)
    codes = np.stack((generator.integers(0, 3, 300), generator.integers(0, 5, 300)), axis=1).astype(np.float32)
    return odp.data.UsersExamples.of_users(codes, (codes.sum(axis=1) % 3), np.arange(300) % 40)


def test_training_on_categories_is_training_on_numbers_that_were_encoded_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = two_categories()
    cohort = odp.Cohort(minimum=4, goal=40)
    monkeypatch.setattr("odp.models.glm.trained.MOST_ENCODED", 100)  # blocks of a few users, parts of a few rows
    training = odp.DPFedAvg(rounds=3, rate=0.5, clip=1.0, epochs=2, batch=4)
    found, expected = (
        odp.simulate(
            task_of(data, features=8, cohort=cohort, training=training), odp.data.ExamplesSplit(given, given), seed=1
        )
        for data, given in ((CATEGORIES, users), (BY_HAND, encoded_by_hand(users)))
    )
    np.testing.assert_allclose(found.model.dense[PARAMETERS], expected.model.dense[PARAMETERS], atol=2e-5)
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], rel=1e-5)
    assert found.metrics["test_accuracy"] == expected.metrics["test_accuracy"]


@pytest.mark.parametrize("personal", [None, odp.PersonalTraining(rate=0.3)])
def test_evaluation_on_categories_is_that_of_numbers_that_were_encoded_by_hand(
    personal: odp.PersonalTraining | None,
) -> None:
    users, model = two_categories(), odp.Glm("multinomial", features=8, classes=3)
    of = np.random.default_rng(8).normal(size=model.size).astype(np.float32)
    results = []
    for data, people in ((CATEGORIES, users), (BY_HAND, encoded_by_hand(users))):
        asked = odp.Evaluation(
            name="quality", model=model, data=data, of=of, bins=10, privacy=odp.UserLevelDP(epsilon=4, delta=1e-4),
            cohort=odp.Cohort(minimum=4, goal=40), **({} if personal is None else {"personal": personal}),
        )  # fmt: skip
        results.append(odp.simulate(asked, people, noise=False).results)
    for name in ("loss", "accuracy"):
        assert results[0][name].value == pytest.approx(results[1][name].value, abs=1e-4)


@pytest.mark.parametrize("feature", list(DATA.features.values()))
def test_a_definition_carries_each_feature(feature: Any) -> None:
    message = federated_pb2.TensorFeature(name="f")
    feature.write(message)
    assert feature_of(message) == feature


def malformed(**changes: Any) -> common_pb2.TaskDefinition:
    definition = task_of().definition()
    said, colour = definition.examples.features[2], definition.examples.features[0]
    for name, value in changes.items():
        match name:
            case "vocabulary":
                del said.text.vocabulary[:]
                said.text.vocabulary.extend(value)
            case "names":
                del colour.category.names[:]
                colour.category.names.extend(value)
            case "classes":
                colour.category.classes = value
            case "shape":
                said.shape.append(value)
            case "kind":
                said.ClearField("kind")
            case _:
                setattr(said.text, name, value)
    return definition


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": [f"w{n}" for n in range(MOST_TOKENS + 1)]}, f"vocabulary={MOST_TOKENS + 1}"),
        ({"vocabulary": []}, "vocabulary=0"), ({"vocabulary": ["a", "a"]}, "'a' more than once"),
        ({"vocabulary": ["A"]}, "lower case"), ({"vocabulary": ["two words"]}, "one word"),
        ({"vocabulary": ["x" * 65]}, "1 to 64 characters"), ({"vocabulary": [""]}, "1 to 64 characters"),
        ({"length": 0}, "length=0"), ({"length": MOST_LENGTH + 1}, f"length={MOST_LENGTH + 1}"),
        ({"unit": 0}, "unit=0"), ({"unit": 9}, "unit=9 of text feature 'said'.*UNIT_WORD, UNIT_CHARACTER.*newer"),
        ({"unit": 2}, "one character"), ({"shape": 3}, "a tensor or a text, not both"), ({"kind": None}, "low=0.0"),
        ({"classes": 2}, "2 names"), ({"names": [], "classes": 2**20 + 1}, "classes=1048577"),
        ({"names": [], "classes": 1}, "classes=1 "), ({"names": [], "classes": 2**20}, "features=13 of the model"),
    ],
)  # fmt: skip
def test_every_party_refuses_a_malformed_definition(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sign_task(malformed(**changes), SigningKey.generate())


def test_a_large_batch_of_a_large_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"batch=4096 .* smaller batch or vocabulary"):
        task_of(
            odp.Examples({"item": odp.Category(2**13)}, label="kind"),
            features=2**13,
            training=odp.DPFedAvg(rounds=1, rate=0.5, clip=1.0, batch=4096),
        ).definition()


def test_a_device_of_another_version_refuses_a_kind_that_it_does_not_know() -> None:
    definition = task_of().definition()
    parse_known(common_pb2.TaskDefinition(), definition.SerializeToString(), "task")
    # Field 15 of a feature: to this version, what `category` and `text` are to versions before them.
    definition.examples.features[0].MergeFromString(b"\x7a\x02\x08\x01")
    with pytest.raises(ConfigurationError, match="does not know; update this program"):
        parse_known(common_pb2.TaskDefinition(), definition.SerializeToString(), "task")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: odp.Category("red"), "tuple of texts"), (lambda: odp.Category(("red", "red")), "more than once"),
        (lambda: odp.Category(("red",)), "classes=1"), (lambda: odp.Category(1), "classes=1"),
        (lambda: odp.Category(True), "classes=True"), (lambda: odp.Category(("a\0", "b")), "null character"),
        (lambda: odp.Text(("a",), 3, unit="letter"), "unit='letter'"), (lambda: odp.Text("abc", 3), "tuple of texts"),
        (lambda: odp.Text(("\ud800",), 3, unit="character"), "1 to 64"),
        (lambda: odp.Examples({"x": "text"}), "odp.Tensor, odp.Category or odp.Text"),
        (lambda: task_of(features=8).definition(), "13 numbers of an example, one for each category"),
    ],
)  # fmt: skip
def test_bad_features_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_columns_that_do_not_fit_are_named() -> None:
    people = odp.data.ExampleColumns.of_users(columns_of(3), [0, 0, 1])
    for changed, message in (
        (odp.Examples({"size": WORDS}, label="kind"), "'size' to hold one text per example"),
        (odp.Examples({"said": odp.Category(3)}, label="kind"), "'said' to hold one whole number"),
        (odp.Examples({"said": odp.Tensor((), 0, 1)}, label="kind"), r"'said' to hold numbers of shape \[\]"),
        (odp.Examples({"missing": WORDS}, label="kind"), "a column 'missing'"),
        (odp.Examples({"size": odp.Category(3)}, label="x"), "column 'x' of labels"),
    ):
        with pytest.raises(DataError, match=message):
            people.users_examples(changed)


def test_text_that_has_no_utf_8_is_refused_by_a_store(tmp_path: Path) -> None:
    with (
        Store.open_or_create(tmp_path / "store.db", durable=False) as store,
        pytest.raises(DataError, match=r"'said' .* lone surrogates"),
    ):
        store.examples("examples").add({"said": ["\ud800"], "kind": [1]}, time=0.0)


def version_of(parameters: Any) -> ModelVersion:
    return ModelVersion(1, (TableValues(PARAMETERS, parameters, False),))


def slices_of(parameters: Any) -> Slices:
    return Slices(1, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {PARAMETERS: parameters})
