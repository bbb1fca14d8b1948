"""A figure is about all examples that were asked for, or says beside it how many were left out and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odp
from device_runtime.store.store import Store
from odp.algorithms.federated.reading import UsableTable, usable_rows
from odp.algorithms.federated.terms import Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.errors import ConfigurationError, DataError
from odp.models.left_out import LeftOut
from odp.tasks.file import parse_task, render_task

USERS, EACH, TESTS, FEATURES = 50, 10, 2000, 2
REASON = "whose 'x' is not a number"
ASKED = "1,176 whose 'x' is not a number"


def table(classes: int = 2) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Features [n, 2] and labels from 0, which a linear rule knows; training rows first."""
    generator = np.random.default_rng(3)
    rows = USERS * EACH + TESTS
    features = generator.uniform(-1, 1, (rows, FEATURES)).astype(np.float32)
    scores = features @ generator.normal(size=(FEATURES, classes))
    labels = scores.argmax(axis=1) if classes > 2 else (scores[:, 0] > 0).astype(int)
    return features, labels


def split_of(features: Any, labels: Any) -> ExamplesSplit:
    own = USERS * EACH
    return ExamplesSplit(
        UsersExamples.of_users(features[:own], labels[:own], np.arange(own) % USERS),
        UsersExamples.of_users(features[own:], labels[own:], np.zeros(len(features) - own, dtype=int)),
    )


def task_of(model: odp.Glm | None = None, *, classes: Any = (), **training: Any) -> odp.Task:
    return odp.Task(
        name="kinds",
        model=model or odp.Glm("logistic", FEATURES),
        data=odp.Examples({"x": odp.Tensor((FEATURES,), -1, 1)}, label="kind", classes=classes),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
        training=odp.DPFedAvg(**{"rounds": 2, "rate": 1.0, "epochs": 5, **training}),
        cohort=odp.Cohort(minimum=5, goal=USERS),
    )


def test_labels_of_minus_one_and_one_are_refused_with_the_labels_and_the_way_to_map_them() -> None:
    features, labels = table()
    other = np.where(labels > 0, 1, -1)
    with pytest.raises(DataError) as refused:
        odp.simulate(task_of(), split_of(features, other), noise=False)
    count = int((other[: USERS * EACH] == -1).sum())
    assert str(refused.value) == (
        f"{count} of 500 examples have a label 'kind' that the model does not take; the labels are "
        f"{told({-1: count, 1: 500 - count})}, the model takes 0 and 1; classes=('-1', '1') of odp.Examples maps them "
        "in this order"
    )


def told(counts: dict[int, int]) -> str:
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{label} ({count:,})" for label, count in ordered)


def test_labels_from_one_of_three_classes_are_refused() -> None:
    features, labels = table(3)
    with pytest.raises(DataError, match=r"takes 0 to 2; classes=\('1', '2', '3'\) of odp.Examples maps them"):
        odp.simulate(task_of(odp.Glm("multinomial", FEATURES, 3)), split_of(features, labels + 1), noise=False)


@pytest.mark.parametrize(
    ("named", "classes"),
    [
        (lambda labels: np.where(labels > 0, 1, -1), (-1, 1)),
        (lambda labels: np.where(labels > 0, 1.0, -1.0), ("-1", "1")),
        (lambda labels: np.where(labels > 0, "yes", "no"), ("no", "yes")),
        (lambda labels: np.where(labels > 0, 0.5, 20_000_001), ("20000001", "0.5")),
        (lambda labels: np.where(labels > 0, 2**60 + 1, 2**60), (str(2**60), str(2**60 + 1))),
        (lambda labels: labels > 0, ("0", "1")),
        (lambda labels: np.where(labels > 0, "re\u0301", "do"), ("do", "r\u00e9")),
        (lambda labels: np.array(["no", "yes"], dtype=object)[labels], ("no", "yes")),
    ],
    ids=["integers", "floats", "text", "fractions", "beyond float64", "bool", "normal form", "objects"],
)  # fmt: skip
def test_labels_that_the_task_names_train_as_their_numbers_do(named: Any, classes: Any) -> None:
    features, labels = table()
    wanted = odp.simulate(task_of(), split_of(features, labels), seed=2)
    run = odp.simulate(task_of(classes=classes), split_of(features, named(labels)), seed=2)
    assert run.metrics == wanted.metrics
    np.testing.assert_array_equal(run.model.dense["parameters"], wanted.model.dense["parameters"])
    assert run.left_out == {"train": LeftOut(500), "test": LeftOut(2000)}


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (["no", "yes"], (), r"'yes' \(\d+\), 'no' \(\d+\), the model takes 0 and 1; classes=\('no', 'yes'\) of"),
        (["no", "perhaps"], ("no", "yes"), r"'perhaps' \(\d+\).* takes 'no', 'yes', as classes= of odp.Examples names"),
        ([7, "1.0"], ("7", "1"), r"'1.0' \(\d+\)"),
        (["no", ""], ("yes", "maybe"), r"the labels are 'no' \(\d+\), missing \(\d+\)"),
    ],
)  # fmt: skip
def test_text_that_names_no_class_is_refused(labels: list[Any], classes: Any, message: str) -> None:
    features, numbers = table()
    with pytest.raises(DataError, match=message):
        odp.simulate(task_of(classes=classes), split_of(features, np.array([str(one) for one in labels])[numbers]))


def test_counts_below_zero_are_refused() -> None:
    features, labels = table()
    task = odp.Task(
        name="kinds", model=odp.Glm("poisson", FEATURES),
        data=odp.Examples({"x": odp.Tensor((FEATURES,), -1, 1)}, label="kind", label_low=-5, label_high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4), training=odp.DPFedAvg(rounds=1),
        cohort=odp.Cohort(minimum=5, goal=USERS),
    )  # fmt: skip
    with pytest.raises(DataError, match="counts are at least 0"):
        odp.simulate(task, split_of(features, labels - 1), noise=False)


@pytest.fixture(name="half_missing")
def _half_missing() -> ExamplesSplit:
    """The easy 824 of 2,000 test examples are whole; so are 300 of 500 training examples."""
    features, labels = table()
    own = USERS * EACH
    sure = np.abs(features @ np.linalg.lstsq(features, labels - 0.5, rcond=None)[0])
    hard = np.argsort(sure[own:])[: TESTS - 824] + own
    features[hard, 1] = np.nan
    features[:200, 0] = np.nan
    return split_of(features, labels)


def test_rows_that_are_left_out_stand_beside_every_figure_in_python(half_missing: ExamplesSplit) -> None:
    run = odp.simulate(task_of(), half_missing, noise=False)
    test, train = run.left_out["test"], run.left_out["train"]
    assert (test.total, test.used, test.reasons) == (2000, 824, {REASON: 1176})
    assert (train.total, train.used, train.reasons) == (500, 300, {REASON: 200})
    assert f"of 824 of 2,000 test examples; left out: {ASKED}; trained on 300 of 500 examples; left out: " in repr(run)
    assert run.to_json()["left_out"] == {
        "train": {"asked": 500, "used": 300, "left_out": 200, "reasons": {REASON: 200}},
        "test": {"asked": 2000, "used": 824, "left_out": 1176, "reasons": {REASON: 1176}},
    }
    row = run.rounds[0].to_json()
    assert (row["test_used"], row["test_left_out"], row["train_used"], row["train_left_out"]) == (824, 1176, 300, 200)
    assert row["left_out"].startswith(f"of 824 of 2,000 test examples; left out: {ASKED}")


def test_each_reason_is_counted_once_and_by_its_feature() -> None:
    features = {"x": odp.Tensor((), -1, 1), "day": odp.Category(("sun", "rain")), "said": odp.Text(("a", "b"), 1)}
    data = odp.Examples(features, label="kind")
    terms = Terms.of(
        odp.Task(
            name="kinds", model=odp.Glm("logistic", 5), data=data, privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
            training=odp.DPFedAvg(most_examples=2), cohort=odp.Cohort(minimum=1, goal=1),
        ).definition()
    )  # fmt: skip
    columns = {
        "x": [np.nan, np.nan, 0, 0, 0, 0], "day": ["sun", "fog", "fog", "sun", "rain", "rain"],
        "said": ["a", "b", "a", "b", "a", "b"], "kind": [0.0, 1, 1, np.nan, 0, 1],
    }  # fmt: skip
    users = odp.data.ExampleColumns.of_users(columns, np.zeros(6, dtype=int)).users_examples(data)
    table = UsableTable.of(terms.model, terms.examples, users)
    found = table.left_out(users, what="examples")
    assert found.reasons == {"without a label 'kind'": 1, REASON: 2, "whose 'day' is none of its 2 categories": 1}
    assert found.used == 2
    newest = table.left_out(users, what="examples", most_rows=3)
    assert newest.reasons == {
        "beyond the newest 3 of a user, which a device reads": 3, "without a label 'kind'": 1
    }  # fmt: skip


def test_a_device_leaves_other_labels_out_and_reads_those_that_are_named() -> None:
    terms = Terms.of(task_of().definition())
    rows = LocalRows(np.arange(3), np.array([0.0, 1.0, -1.0]), {"x": np.zeros((3, FEATURES), dtype=np.float32)})
    assert usable_rows(terms.model, terms.examples, rows)[1].tolist() == [0.0, 1.0]


def test_an_evaluation_says_what_it_was_not_about(half_missing: ExamplesSplit) -> None:
    run = odp.simulate(task_of(), half_missing, noise=False)
    task = odp.Evaluation(
        name="quality", model=odp.Glm("logistic", FEATURES), of=run.model, data=task_of().data,
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-4), cohort=odp.Cohort(minimum=5, goal=USERS),
    )  # fmt: skip
    found = odp.simulate(task, half_missing.train)
    assert found.left_out == {"answers": LeftOut(500, {REASON: 200})}
    assert "answers of 300 of 500 rows; left out: 200 whose 'x' is not a number" in repr(found)
    assert found.to_json()["left_out"]["answers"]["left_out"] == 200  # type: ignore[index]
    titles = [str(getattr(line, "title", "")) for line in found.results.lines(0.95)]
    assert any("tested of 300 of 500 examples; left out: 200" in title for title in titles)
    own = half_missing.train
    wrong = UsersExamples(own.features, own.targets + 5, own.rows, own.offsets)
    with pytest.raises(DataError, match="the model takes 0 and 1"):
        odp.simulate(task, wrong)
    empty = UsersExamples(np.full_like(own.features, np.nan), own.targets, own.rows, own.offsets)
    with pytest.raises(DataError, match="none of the 500 examples to test on can be used"):
        odp.simulate(task, empty)


def test_draw_and_discard_refuses_other_labels_and_counts_rows() -> None:
    task = odp.DrawAndDiscard(name="clicks", features={"x": odp.Number(-1, 1), "y": odp.Number(-1, 1)}, epsilon=2.0)
    features, labels = table()
    columns = {"x": features[:, 0].copy(), "y": features[:, 1], "label": labels}
    owners = np.arange(len(labels)) % USERS
    with pytest.raises(DataError, match=r"takes 0 and 1; classes=\('-1', '1'\) of odp.DrawAndDiscard maps them"):
        task.simulate(odp.data.ExampleColumns.of_users({**columns, "label": labels * 2 - 1}, owners), updates=10)
    columns["x"][:100] = np.nan
    model = task.simulate(odp.data.ExampleColumns.of_users(columns, owners), updates=10)
    assert model.trained_without == LeftOut(2500, {"whose 'x' cannot be used": 100})
    assert model.to_json()["left_out"]["used"] == 2400  # type: ignore[index]
    measured = model.measures(columns)
    assert (measured["used"], measured["left_out"]) == (2400, 100)
    assert model.left_out(columns).reasons == {"whose 'x' cannot be used": 100}
    columns["x"][:] = np.nan
    with pytest.raises(DataError, match="none of the 2,500 examples can be used; left out: 2,500 whose 'x'"):
        task.simulate(odp.data.ExampleColumns.of_users(columns, owners), updates=10)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (odp.Glm("logistic", FEATURES), {"classes": ("a", "b", "c")}, "to name the 2 classes of the model"),
        (odp.Glm("logistic", FEATURES), {"classes": ("a", "a")}, "distinct"),
        (odp.Glm("logistic", FEATURES), {"classes": (1, "1")}, "distinct"),
        (odp.Glm("logistic", FEATURES), {"classes": "no"}, r"classes='no' to be the names"),
        (odp.Glm("logistic", FEATURES), {"classes": ("a", "")}, "1 to 64 characters"),
        (odp.Glm("linear", FEATURES), {"classes": ("a", "b"), "label_low": 0, "label_high": 1}, "classes, or label"),
        (odp.Glm("linear", FEATURES), {"classes": ("a", "b")}, "label"),
    ],
)  # fmt: skip
def test_names_that_are_none_of_the_model_are_refused(model: odp.Glm, data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        odp.Task(
            name="kinds", model=model, data=odp.Examples({"x": odp.Tensor((FEATURES,), -1, 1)}, label="kind", **data),
            privacy=odp.UserLevelDP(epsilon=8, delta=1e-4), training=odp.DPFedAvg(rounds=1),
            cohort=odp.Cohort(minimum=5, goal=USERS),
        )  # fmt: skip


def test_names_of_classes_stand_in_a_task_file() -> None:
    task = task_of(classes=("no", "yes"))
    assert parse_task(render_task(task)).definition() == task.definition()
    assert list(task.definition().examples.classes) == ["no", "yes"]


def test_predictions_have_the_names_of_classes() -> None:
    features, labels = table()
    named = np.where(labels > 0, "yes", "no")
    run = odp.simulate(task_of(classes=("no", "yes")), split_of(features, named), noise=False)
    found = run.classify({"x": features[:8]})
    assert set(found.tolist()) == {"no", "yes"}
    assert (run.classify({"x": features}) == named).mean() > 0.9
    numbered = odp.simulate(task_of(), split_of(features, labels), noise=False)
    assert numbered.classify({"x": features[:8], "kind": labels[:8]}).tolist() == (found == "yes").astype(int).tolist()
    with pytest.raises(DataError, match="can use; left out: 1 whose 'x' is not a number"):
        run.classify({"x": [[0.0, 0.0], [np.nan, 0.0]]})
    with pytest.raises(DataError, match="Expected a column 'x'"):
        run.classify({"y": features})


@pytest.mark.parametrize("labels", [["yes", "no", "maybe", ""], np.array([1.0, -1.0, 7.0, np.nan]), [1, -1, 7, 7]])
def test_a_device_reads_the_labels_that_a_task_names(tmp_path: Path, labels: Any) -> None:
    names = ("no", "yes") if isinstance(labels[0], str) else (-1, 1)
    (declared,) = algorithm_for(task_of(classes=names).definition()).local_data
    with Store.open_or_create(tmp_path / "store.db", durable=False) as store:
        store.examples("examples").add({"x": np.zeros((4, FEATURES)), "kind": labels}, time=0.0)
        store.examples("examples").add({"x": np.zeros((1, FEATURES)), "kind": ["no" * 600]}, time=1.0)
        rows = store.examples("examples").read(declared.features, label=declared.label, classes=declared.classes)
        unnamed = store.examples("examples").read(declared.features, label=declared.label)
    np.testing.assert_array_equal(rows.values, [1, 0, np.nan, np.nan, np.nan])
    assert len(unnamed.values) == (0 if isinstance(labels[0], str) else 4)
    terms = Terms.of(task_of(classes=names).definition())
    assert usable_rows(terms.model, terms.examples, rows)[1].tolist() == [1.0, 0.0]


def test_a_histogram_says_which_ratings_are_in_no_bin() -> None:
    ratings = odp.data.Ratings.from_triples(
        "stars", np.arange(40) % 20, np.arange(40) // 20, np.arange(40) % 5 + 1.0, low=1.0, high=5.0
    )
    task = odp.Statistics(
        name="stars", queries={"stars": odp.Histogram(edges=(1, 2, 3, 4)), "mean": odp.Mean(low=1, high=5)},
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-4), cohort=odp.Cohort(minimum=5, goal=20),
    )  # fmt: skip
    found = odp.simulate(task, ratings)
    assert found.left_out == {"stars": LeftOut(40, {"beyond its bins": 8}), "mean": LeftOut(40)}
    titles = [str(getattr(line, "title", "")) for line in found.results.lines(0.95)]
    assert any("of 32 of 40 ratings; left out: 8 beyond its bins" in title for title in titles)
    assert "stars of 32 of 40 rows; left out: 8 beyond its bins" in repr(found)
    assert found.to_json()["left_out"]["stars"]["reasons"] == {"beyond its bins": 8}  # type: ignore[index]
