"""Recommendations out of an index are those of the whole model, for ratings and for plays and clicks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import odp
from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalData, LocalRows
from odp.errors import ConfigurationError, DataError
from odp.protocol.wire.model import Slices
from odp.research.simulation.presets import preset_task
from odp.serving import IndexedModel, ItemIndex, ranking
from odp.serving.index_file import made
from odp.v1 import common_pb2

ITEMS = 300


@dataclasses.dataclass
class Trained:
    ratings: odp.data.Ratings
    run: odp.RunResult
    index: ItemIndex

    def data(self, user: int) -> LocalData:
        items, values = self.ratings.user(user)
        rows = LocalRows(np.asarray(items, dtype=np.int64), np.asarray(values, dtype=np.float64))
        return recommender_for(self.run.task.definition()).data_of(rows)

    def whole(self, user: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(items, predictions) of the float model, as devices have without an index."""
        client, model = recommender_for(self.run.task.definition()).client(), self.run.model
        slices = Slices(model.version, np.arange(ITEMS), model.keyed.rows, model.dense)
        new = np.setdiff1d(np.arange(ITEMS), client.items(self.data(user)))
        scores = client.predict(slices, self.data(user), new)
        order = np.argsort(-scores, kind="stable")[:k]
        return new[order], scores[order]


@pytest.fixture(scope="module", params=["ratings", "implicit", "ratings by gradients", "implicit by gradients"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    ratings = odp.data.synthetic_movielens(n_users=250, n_items=ITEMS, ratings_per_user=20, seed=5)
    if request.param.startswith("implicit"):
        ones = np.ones(ratings.n_ratings, dtype=np.float32)
        ratings = dataclasses.replace(ratings, implicit=True, values=ones, low=1.0, high=1.0)
    # Without noise rows differ most.
    task = preset_task("auto", ratings, epsilon=float("inf"), delta=1e-6, features=False)
    if request.param.endswith("gradients"):
        training = odp.DPSGD(rounds=6, server_rate=2.0, clip=1.0)
        model = odp.MatrixFactorization(items=ITEMS, rank=4)
        task = dataclasses.replace(task, training=training, model=model)
    # The smooth part of a person's taste is predicted, too.
    assert request.param != "ratings" or task.definition().dpam.kernel_variance > 0
    run = odp.simulate(task, ratings, seed=3)
    path = tmp_path_factory.mktemp("index") / "items.index"
    table = odp.items.export_items(run, path)
    index = odp.items.open_index(path)
    assert index.facts == table.facts
    assert list(index.keys) == list(table.keys)
    return Trained(ratings, run, index)


def test_a_new_person_gets_what_the_release_says_is_best_for_everybody(trained: Trained) -> None:
    """Of plays the popular items, of ratings those of the largest bias; never the order of numbers."""
    algorithm, model = recommender_for(trained.run.task.definition()), trained.run.model
    nothing = algorithm.data_of(LocalRows(np.zeros(0, dtype=np.int64), np.zeros(0)))
    client = algorithm.client()
    slices = Slices(model.version, np.arange(ITEMS), model.keyed.rows, model.dense)
    scores = client.predict(slices, nothing, np.arange(ITEMS))
    best = np.argsort(-scores, kind="stable")[:10]
    assert len(set(scores[best])) == 10
    if trained.ratings.implicit:
        np.testing.assert_array_equal(best, np.argsort(-np.asarray(trained.run.item_counts), kind="stable")[:10])
    index = IndexedModel.of(trained.index)
    found = index.recommend(nothing, k=10)
    assert len(set(best.tolist()) & set(found.items.tolist())) >= 9
    # Nor does the model know anything of a person all of whose items it lacks.
    stranger = algorithm.data_of(LocalRows(np.array([-1, ITEMS, ITEMS + 7]), np.ones(3)))
    np.testing.assert_array_equal(client.predict(slices, stranger, np.arange(ITEMS)), scores)
    np.testing.assert_array_equal(index.recommend(stranger, k=10).items, found.items)
    # A simulation shows a person without history the same.
    empty = dataclasses.replace(trained.ratings, offsets=np.append(trained.ratings.offsets, trained.ratings.n_ratings))
    population = algorithm.population()
    everything = odp.data.Ratings.from_triples(
        "all", np.full(ITEMS, empty.n_users - 1), np.arange(ITEMS), np.ones(ITEMS), low=empty.low, high=empty.high,
        n_users=empty.n_users, n_items=ITEMS, implicit=empty.implicit,
    )  # fmt: skip
    np.testing.assert_allclose(population.predict(model, empty, everything), scores, rtol=1e-6)


def test_the_best_items_and_their_predictions_are_those_of_the_float_model(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "RERANKED", 60)  # so that the scan decides
    model, hits = IndexedModel.of(trained.index), 0
    for user in range(40):
        found = model.recommend(trained.data(user), k=20)
        items, scores = trained.whole(user, ITEMS)
        place = [items.tolist().index(item) for item in found.items.tolist()]
        spread = float(np.ptp(scores))
        shown = model.client.on_scale(scores[place])
        np.testing.assert_allclose(found.scores, shown, atol=0.02 * spread)
        assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
        assert not set(found.items.tolist()) & set(trained.ratings.user(user)[0].tolist())
        hits += len(set(items[:20].tolist()) & set(found.items.tolist()))
    assert hits / (40 * 20) >= 0.93


def test_candidates_limit_what_is_recommended_and_unknown_ones_are_left_out(trained: Trained) -> None:
    model, user = IndexedModel.of(trained.index), 3
    own = trained.ratings.user(user)[0].tolist()
    items, _ = trained.whole(user, ITEMS)
    chosen = items[::7].tolist()
    found = model.recommend(trained.data(user), k=100, candidates=[*chosen, *own, -1, ITEMS, ITEMS + 5])
    assert sorted(found.items.tolist()) == sorted(chosen)
    assert len(model.recommend(trained.data(user), candidates=[]).items) == 0
    with pytest.raises(ConfigurationError, match="k=0"):
        model.recommend(trained.data(user), k=0)


def test_a_person_without_data_and_one_whose_data_no_model_knows_get_the_same(trained: Trained) -> None:
    algorithm = recommender_for(trained.run.task.definition())
    model = IndexedModel.of(trained.index)
    none, strange = (
        algorithm.data_of(LocalRows(np.array(items, dtype=np.int64), np.full(len(items), 3.0)))
        for items in ([], [-5, ITEMS, 2**40])
    )
    np.testing.assert_array_equal(model.recommend(none).items, model.recommend(strange).items)


def changed_task(index: ItemIndex, change: Callable[[common_pb2.TaskDefinition], None]) -> ItemIndex:
    signed = common_pb2.SignedTask.FromString(index.task)
    definition = common_pb2.TaskDefinition.FromString(signed.definition)
    change(definition)
    signed.definition = definition.SerializeToString(deterministic=True)
    return dataclasses.replace(index, task=signed.SerializeToString(deterministic=True))


def test_an_index_of_another_model_is_refused_in_one_line(trained: Trained) -> None:
    index = trained.index

    def refused(other: ItemIndex, message: str) -> None:
        with pytest.raises(DataError, match=message) as caught:
            IndexedModel.of(made(other))
        assert "\n" not in str(caught.value)

    def one_more_item(definition: common_pb2.TaskDefinition) -> None:
        definition.model.items = ITEMS + 1

    refused(changed_task(index, one_more_item), f"has {ITEMS} items of rank .* has {ITEMS + 1} of rank")
    wider = np.zeros((ITEMS, index.rank + 1), np.int8)
    refused(
        dataclasses.replace(index, steps=wider), f"items of rank {index.rank + 1}, and task .* of rank {index.rank}"
    )
    more = dict(index.tables) | {"more": np.zeros((1, 1), np.float32)}
    refused(dataclasses.replace(index, tables=more), "dense tables are not those of its task")
    if index.tables:
        refused(dataclasses.replace(index, tables={}), "dense tables are not those of its task")
        huge = {name: np.full_like(rows, -1e30) for name, rows in index.tables.items()}
        refused(dataclasses.replace(index, tables=huge), "the model cannot be")
    refused(dataclasses.replace(index, task=b"\xff"), "Error parsing|Expected training")
    refused(dataclasses.replace(index, task=b""), "Expected training")
    forged = common_pb2.SignedTask.FromString(index.task)
    forged.signature = bytes(64)
    refused(
        dataclasses.replace(index, task=forged.SerializeToString()), r"developer_key|signature|privacy\.epsilon=inf"
    )


def test_an_export_as_index_needs_a_place(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="give another place"):
        odp.items.export_items(trained.run, tmp_path / "file" / "items.index")
