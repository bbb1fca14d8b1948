"""Counts of usable rows: votes by the reader of training, one whole vote each, and a charge within the share of ε."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import odp
from device_runtime.round.examples import examples
from device_runtime.store.keyed_ratings import rate
from device_runtime.store.store import Store
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.registry import algorithm_for, counting_for
from odp.algorithms.release import planned_charges
from odp.algorithms.seam import Algorithm, LocalRows
from odp.algorithms.usable_count.results import UsableDevices
from odp.algorithms.usable_count.terms import ALL, NO_ROWS, NONE, SOME, places_of
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.evaluation.users import user_seeds
from odp.privacy.accounting import epsilon
from odp.protocol.wire.model import Slices
from odp.signed.task import open_task, sign_task
from odp.tasks.file import parse_task, render_task
from odp.v1 import common_pb2

NOTHING = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {})
MODES = ("enclave", "masked", "secagg+")
KEY = SigningKey.from_bytes(bytes(range(32)))
PRIVACY = odp.UserLevelDP(epsilon=4, delta=1e-6)
RATINGS = odp.RatingsData(low=1, high=5)
EXAMPLES = odp.Examples({"x": odp.Tensor((3,), low=-1, high=1)}, label="clicked")
TRAININGS: dict[str, Any] = {
    "fedavg": odp.DPFedAvg(rounds=3, clip=1.0),
    "dpsgd": odp.DPSGD(rounds=3, clip=1.0),
    "dpftrl": odp.DPFTRL(rounds=4, clip=1.0),
}


def examples_task(kind: str = "fedavg", *, mode: str = "enclave", share: float = 0.25, **changes: Any) -> odp.Task:
    given: dict[str, Any] = {
        "name": "clicks", "population": "readers", "model": odp.Glm("logistic", features=3), "data": EXAMPLES,
        "privacy": PRIVACY, "training": TRAININGS[kind], "count_usable": odp.CountUsable(share=share),
        "cohort": odp.Cohort(minimum=20, goal=120, aggregation=mode),
    }  # fmt: skip
    return odp.Task(**{**given, **changes})


def items_task(data: Any, **changes: Any) -> odp.Task:
    training = odp.ImplicitDPAM() if isinstance(data, odp.ImplicitData) else odp.DPAM()
    given: dict[str, Any] = {
        "name": "films", "population": "readers", "model": odp.MatrixFactorization(items=10, rank=2), "data": data,
        "training": training, "privacy": odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=5),
        "cohort": odp.Cohort(minimum=20, goal=120), "count_usable": odp.CountUsable(),
    }  # fmt: skip
    return odp.Task(**{**given, **changes})


def counted(task: odp.Task) -> Algorithm:
    question = task.usable_question()
    assert question is not None
    return counting_for(open_task(sign_task(question.definition(), KEY)))


def vote_of(algorithm: Algorithm, rows: LocalRows) -> int:
    payload, local = algorithm.client().contribute(NOTHING, algorithm.data_of(rows), round=0, seed=7)
    algorithm.query(0).check(payload)
    assert local == b""
    (place,) = np.flatnonzero(np.frombuffer(payload, dtype="<i4"))
    return int(place)


def labelled(labels: list[float], features: np.ndarray | None = None) -> LocalRows:
    x = np.zeros((len(labels), 3)) if features is None else features
    return LocalRows(np.arange(len(labels)), np.array(labels, dtype=np.float64), {"x": x})


def test_a_vote_is_for_one_of_four_places() -> None:
    algorithm = counted(examples_task())
    assert vote_of(algorithm, labelled([])) == NO_ROWS
    assert vote_of(algorithm, labelled([-1.0, 2.0, math.nan])) == NONE
    assert vote_of(algorithm, labelled([1.0, -1.0])) == SOME
    assert vote_of(algorithm, labelled([1.0, 0.0])) == ALL
    assert vote_of(algorithm, labelled([1.0], np.full((1, 3), np.nan))) == NONE
    lacking = LocalRows(np.arange(2), np.ones(2), {})
    assert vote_of(algorithm, lacking) == NONE, "without the feature"
    assert vote_of(algorithm, dataclasses.replace(labelled([]), unread=3)) == NONE, "of another layout"
    assert vote_of(algorithm, dataclasses.replace(labelled([1.0]), unread=1)) == SOME


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.sampled_from([0.0, 1.0, -1.0, 3.0, math.nan, math.inf, 0.5]), max_size=8),
    holes=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_r430_a_device_votes_none_exactly_where_its_training_uses_nothing(
    labels: list[float], holes: list[bool]
) -> None:
    """The training's own client says what it used: a training on nothing sends zeros, and on other rows something."""
    task = examples_task()
    # Of different sizes, so that no two rows move the model by opposite amounts.
    features = np.linspace(0.1, 1.0, 3 * len(labels)).reshape(-1, 3) ** 2
    features[np.flatnonzero(holes[: len(labels)]), 1] = np.nan
    rows = labelled(labels, features)
    training = algorithm_for(task.definition())
    broadcast = training.server().broadcast(training.server().start())
    slices = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), broadcast.dense)
    payload, _ = training.client().contribute(slices, {"examples": rows}, round=0, seed=7)
    trained = any(payload)
    assert (vote_of(counted(task), rows) in (SOME, ALL)) is trained


@pytest.mark.parametrize("training", sorted(TRAININGS))
def test_r430_the_count_reads_what_each_training_reads(training: str) -> None:
    task = examples_task(training)
    algorithm, trained = counted(task), algorithm_for(task.definition())
    assert algorithm.local_data == trained.local_data
    assert algorithm.computing_cost.seconds <= trained.computing_cost.seconds
    assert counting_for(algorithm.definition).counts_for(task.definition())


@pytest.mark.parametrize(
    "data",
    [
        RATINGS,
        odp.RatingsData(low=1, high=5, events=odp.Events(service="films", type="seen", item="film", value="stars")),
        odp.ImplicitData(),
        odp.ImplicitData(events=odp.Events(service="films", type="seen", item="film")),
    ],
    ids=["ratings", "events", "implicit", "plays"],
)
def test_r430_the_count_reads_what_a_factorization_reads(data: Any) -> None:
    task = items_task(data)
    algorithm = counted(task)
    assert algorithm.local_data == algorithm_for(task.definition()).local_data
    assert counting_for(algorithm.definition).counts_for(task.definition())
    assert vote_of(algorithm, LocalRows(np.array([3, 11, -4]), np.array([4.0, 4.0, 4.0]))) == SOME
    assert vote_of(algorithm, LocalRows(np.array([11]), np.array([4.0]))) == NONE
    usable_value = isinstance(data, odp.ImplicitData)
    assert vote_of(algorithm, LocalRows(np.array([3]), np.array([math.nan]))) == (ALL if usable_value else NONE)


def test_r430_a_device_counts_the_rows_that_its_reader_leaves_out(tmp_path: Path) -> None:
    """Examples of another layout, and ratings by key where a task knows numbers, never reach a client."""
    classified, films = counted(examples_task()), counted(items_task(RATINGS))

    def votes(fill: Any) -> list[int]:
        with Store.open_or_create(tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite", durable=False) as store:
            fill(store)
            return [
                vote_of(one, examples(store, one.definition, now=1e9)[one.local_data[0].name])
                for one in (classified, films)
            ]

    def other_layout(store: Store) -> None:
        store.examples("examples").add({"y": np.zeros((4, 3)), "clicked": np.ones(4)}, time=1e9)

    def both_layouts(store: Store) -> None:
        other_layout(store)
        store.examples("examples").add({"x": np.zeros((1, 3)), "clicked": np.ones(1)}, time=1e9)

    def by_key(store: Store) -> None:
        rate(store, "SKU07", 4.0)

    def by_number_and_key(store: Store) -> None:
        by_key(store)
        rate(store, 3, 4.0)

    assert votes(lambda store: None) == [NO_ROWS, NO_ROWS]
    assert votes(other_layout)[0] == NONE
    assert votes(both_layouts)[0] == SOME
    assert votes(by_key)[1] == NONE
    assert votes(by_number_and_key)[1] == SOME
    assert votes(lambda store: rate(store, 3, 4.0))[1] == ALL
    assert votes(lambda store: rate(store, 30, 4.0))[1] == NONE


@pytest.mark.parametrize("data", [RATINGS, odp.ImplicitData()], ids=["ratings", "implicit"])
def test_r430_ratings_beyond_the_items_of_a_model_are_unusable_where_many_are_within(tmp_path: Path, data: Any) -> None:
    """A device reads as many rows as the model has items, by number: those after them were not counted as rows."""
    algorithm = counted(items_task(data))
    votes = []
    for number, items in enumerate([range(10), range(20), range(5, 15), range(10, 30), [0, 10]]):
        with Store.open_or_create(tmp_path / f"{number}.sqlite", durable=False) as store:
            for item in items:
                rate(store, item, 4.0)
            (rows,) = examples(store, algorithm.definition, now=1e9).values()
            votes.append(vote_of(algorithm, rows))
    assert votes == [ALL, SOME, SOME, NONE, SOME]


def test_r430_ratings_vote_by_the_keys_of_the_catalogue_that_the_training_names(tmp_path: Path) -> None:
    keys = [f"SKU{place}" for place in range(10)]
    catalogue = odp.items.Catalogue.make("readers", keys)
    model = odp.MatrixFactorization(items=10, rank=2, catalogue=catalogue)
    algorithm = counted(items_task(RATINGS, model=model))
    held: list[list[int | str]] = [["SKU3"], ["SKU3", "SKU77"], ["SKU77"], [3], [3, "SKU3"], []]
    votes = []
    for number, items in enumerate(held):
        with Store.open_or_create(tmp_path / f"{number}.sqlite", durable=False) as store:
            for item in items:
                rate(store, item, 4.0)
            rows = examples(store, algorithm.definition, now=1e9, catalogue=catalogue)
            votes.append(vote_of(algorithm, rows[algorithm.local_data[0].name]))
    assert votes == [ALL, SOME, NONE, NONE, SOME, NO_ROWS]


def test_clients_and_population_make_the_same_sum() -> None:
    generator = np.random.default_rng(2)
    counts = generator.integers(0, 6, 60)
    labels = generator.choice([0.0, 1.0, np.nan], counts.sum(), p=[0.2, 0.2, 0.6]).astype(np.float32)
    features = generator.uniform(-1, 1, (counts.sum(), 3)).astype(np.float32)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    people = odp.data.UsersExamples(features, labels, np.arange(counts.sum()), offsets)
    algorithm, seeds = counted(examples_task()), user_seeds(people, 1)
    client, total = algorithm.client(), algorithm.query(0).new_sum()
    for user, (first, last) in enumerate(itertools.pairwise(offsets)):
        rows = labelled(labels[first:last].tolist(), features[first:last])
        total.add([client.contribute(NOTHING, algorithm.data_of(rows), round=0, seed=int(seeds[user]))[0]])
    broadcast = algorithm.server().broadcast(b"")
    simulated = algorithm.population().contribute(broadcast, people, round=0, seeds=seeds)
    np.testing.assert_array_equal(total.totals()["devices"], simulated["devices"])
    assert (simulated["devices"] > 0).all(), "each place has a vote"


def test_ratings_of_a_population_vote_as_on_devices() -> None:
    ratings, task = odp.data.synthetic_movielens(n_users=40, n_items=25, ratings_per_user=5), items_task(RATINGS)
    algorithm, seeds = counted(task), user_seeds(ratings, 1)
    client, total = algorithm.client(), algorithm.query(0).new_sum()
    for user in range(ratings.n_users):
        items, values = ratings.user(user)
        rows = LocalRows(items.astype(np.int64), values.astype(np.float64))
        total.add([client.contribute(NOTHING, algorithm.data_of(rows), round=0, seed=int(seeds[user]))[0]])
    simulated = algorithm.population().contribute(algorithm.server().broadcast(b""), ratings, round=0, seeds=seeds)
    np.testing.assert_array_equal(total.totals()["devices"], simulated["devices"])


@pytest.mark.parametrize("mode", MODES)
def test_r431_the_charges_are_the_share_and_the_rest(mode: str) -> None:
    task = examples_task(mode=mode)
    question = task.usable_question()
    assert question is not None
    spent = []
    for definition in (question.definition(), task.definition()):
        algorithm = algorithm_for(open_task(sign_task(definition, KEY)))
        charges = [event for events in planned_charges(algorithm) for event in events]
        spent.append(epsilon(charges, delta=definition.privacy.delta))
    assert question.privacy == odp.UserLevelDP(epsilon=1.0, delta=2.5e-7)
    assert spent[0] == pytest.approx(1.0, abs=0.02)
    assert spent[0] <= 1.0 + 1e-9
    assert spent[1] <= 3.0 + 1e-9
    deltas = (question.privacy.delta, task.definition().privacy.delta)
    assert math.fsum(deltas) <= PRIVACY.delta * (1 + 1e-12)


@settings(max_examples=50, deadline=None)
@given(votes=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4))
def test_r431_the_enclave_refuses_more_than_one_vote(votes: list[int]) -> None:
    query = counted(examples_task()).query(0)
    assert isinstance(query, DenseQuery)
    payload, allowed = np.array(votes, dtype="<i4").tobytes(), sum(vote**2 for vote in votes) <= query.grid.limit
    if allowed:
        query.check(payload)
        return
    with pytest.raises(ContributionRefused) as refused:
        query.check(payload)
    assert refused.value.refusal is Refusal.OUT_OF_BOUNDS


@pytest.mark.parametrize("places", [0, 3, 5])
def test_r431_the_enclave_refuses_a_vote_for_another_place(places: int) -> None:
    query = counted(examples_task()).query(0)
    with pytest.raises(ContributionRefused) as refused:
        query.check(bytes(4 * places))
    assert refused.value.refusal is Refusal.MALFORMED


def test_results_say_which_devices_can_train_and_how_sure_that_is() -> None:
    found = UsableDevices(np.array([6.0, 110.0, 2.0, 2.0]), 5.0, 120, 1.0, 1e-6)
    assert found.none_usable.value == pytest.approx(110 / 120)
    assert (found.usable.low, found.usable.high) == pytest.approx((0.0, (4 + 1.96 * 5 * math.sqrt(2)) / 120), abs=1e-3)
    assert found.summary().startswith("of 120 devices, 0.0 % to 15 % have usable rows: 5.0 % have no rows")
    shares = found.to_json()["shares"]
    assert isinstance(shares, dict)
    assert shares["none_usable"]["value"] == pytest.approx(110 / 120)
    assert len(list(found.lines(0.95))) == 5
    with pytest.raises(ConfigurationError, match="released numbers"):
        UsableDevices(np.zeros(3), 5.0, 120, 1.0, 1e-6)


def test_a_picture_has_each_place(tmp_path: Path) -> None:
    found = UsableDevices(np.array([6.0, 110.0, 2.0, 2.0]), 5.0, 120, 1.0, 1e-6)
    found.draw(tmp_path / "usable.svg", exact=found)
    assert "of which none is usable" in (tmp_path / "usable.svg").read_text(encoding="utf-8")


def test_a_simulated_question_is_right_on_average_and_exact_without_noise() -> None:
    labels = np.repeat(np.array([np.nan, 1.0], dtype=np.float32), [270, 30])
    people = odp.data.UsersExamples(np.zeros((300, 3), np.float32), labels, np.arange(300), np.arange(301))
    question = examples_task(cohort=odp.Cohort(minimum=20, goal=300)).usable_question()
    assert question is not None
    run = odp.simulate(question, people)
    assert isinstance(run.results, UsableDevices)
    assert isinstance(run.exact, UsableDevices)
    assert run.exact.usable.value == pytest.approx(0.1)
    # One draw of a normal number within five standard deviations: false alarm below 1e-6.
    assert abs(run.results.usable.value - 0.1) < 5 * math.sqrt(2) * run.results.std / 300


def test_a_task_without_a_count_is_as_before() -> None:
    task = examples_task(count_usable=None)
    assert task.usable_question() is None
    assert task.definition().privacy.epsilon == 4.0
    assert not task.definition().HasField("count_first")


def test_a_task_file_has_the_count_as_a_section() -> None:
    task = examples_task()
    assert parse_task(render_task(task)) == task
    assert "[count_usable]\nshare = 0.25\nleast = 0.1" in render_task(task)
    assert "count_usable" not in render_task(examples_task(count_usable=None))
    with pytest.raises(ConfigurationError, match=r"task.toml:\d+: .*share=0.9"):
        parse_task(render_task(task).replace("share = 0.25", "share = 0.9"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count_usable": 0.05}, "count_usable to be an odp.CountUsable"),
        ({"name": "a" * 60}, "usable"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        examples_task(**changes)


def test_a_share_of_no_budget_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no count_usable with epsilon=inf"):
        items_task(RATINGS, privacy=odp.UserLevelDP(epsilon=math.inf, delta=1e-6))


def test_a_count_is_of_everybody_also_where_a_training_samples() -> None:
    cohort = odp.Cohort(
        minimum=20, goal=120, sampling="enclave_poisson", sampling_probability=0.1, most_contributions=150
    )
    question = examples_task("dpsgd", cohort=cohort).usable_question()
    assert question is not None
    assert question.cohort == odp.Cohort(minimum=20, goal=120)


def changed(definition: common_pb2.TaskDefinition, change: Any) -> common_pb2.TaskDefinition:
    copy = common_pb2.TaskDefinition()
    copy.CopyFrom(definition)
    change(copy)
    return copy


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.usable_count.dense.__setattr__("clip", 2.0),
        lambda one: one.usable_count.__setattr__("most_examples", 0),
        lambda one: one.usable_count.__setattr__("most_examples", 2**31),
        lambda one: one.ClearField("examples"),
        lambda one: one.ClearField("glm"),
        lambda one: one.rated_items.__setattr__("items", 10),
        lambda one: one.model.__setattr__("items", 10),
        lambda one: one.privacy.__setattr__("max_items_per_user", 3),
        lambda one: one.examples.__setattr__("label_high", 7.0),
        lambda one: one.count_first.__setattr__("task_sha256", bytes(32)),
        lambda one: one.usable_count.dense.__setattr__("noise_std", math.nan),
    ],
)
def test_a_hostile_count_is_refused_when_it_is_opened(change: Any) -> None:
    question = examples_task().usable_question()
    assert question is not None
    with pytest.raises(ConfigurationError):
        open_task(sign_task(changed(question.definition(), change), KEY))


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.data.__setattr__("low", math.nan),
        lambda one: one.data.__setattr__("high", -7.0),
        lambda one: one.rated_items.__setattr__("items", 0),
        lambda one: one.rated_items.__setattr__("items", 2**30),
        lambda one: one.data.__setattr__("table", "Ratings;"),
        lambda one: one.usable_count.__setattr__("most_examples", 5),
    ],
)
def test_a_hostile_count_of_ratings_is_refused_when_it_is_opened(change: Any) -> None:
    question = items_task(RATINGS).usable_question()
    assert question is not None
    with pytest.raises(ConfigurationError):
        open_task(sign_task(changed(question.definition(), change), KEY))


@pytest.mark.parametrize(
    ("sha256", "least"), [(b"", 0.1), (bytes(31), 0.1), (bytes(32), -0.1), (bytes(32), 1.5), (bytes(32), math.nan)]
)
def test_a_training_names_its_count_by_a_hash_and_a_share(sha256: bytes, least: float) -> None:
    definition = examples_task().definition()
    definition.count_first.task_sha256, definition.count_first.least_share = sha256, least
    with pytest.raises(ConfigurationError):
        open_task(sign_task(definition, KEY))
    definition.count_first.task_sha256, definition.count_first.least_share = bytes(32), 0.1
    open_task(sign_task(definition, KEY))


@pytest.mark.parametrize(
    "changes",
    [
        {"population": "others"},
        {"model": odp.Glm("linear", features=3), "data": dataclasses.replace(EXAMPLES, label_low=0, label_high=1)},
        {"data": dataclasses.replace(EXAMPLES, label="bought")},
        {"training": odp.DPFedAvg(rounds=3, clip=1.0, most_examples=7)},
    ],
    ids=["population", "model", "label", "most_examples"],
)
def test_r432_a_count_of_other_rows_is_none_of_a_training(changes: dict[str, Any]) -> None:
    algorithm = counting_for(counted(examples_task()).definition)
    assert algorithm.counts_for(examples_task().definition())
    assert not algorithm.counts_for(examples_task(**changes).definition())


def test_places_are_a_partition() -> None:
    stored, usable = np.meshgrid(np.arange(4), np.arange(4))
    found = places_of(stored, np.minimum(usable, stored))
    assert set(found.ravel().tolist()) == {NO_ROWS, NONE, SOME, ALL}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a" * 58}, r"Expected name='a+' to be at most 57 characters with count_usable"),
        ({"share": 1e-9}, r"Expected count_usable with share=1e-09 to be a valid task: Expected epsilon=4e-09"),
    ],
)
def test_what_leaves_no_count_is_refused_by_what_the_developer_wrote(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        examples_task(**changes)


@pytest.mark.parametrize("share", [0, -1.0, 0.6])
def test_a_share_out_of_range_names_the_whole_range(share: float) -> None:
    with pytest.raises(ConfigurationError, match=r"to be above 0, and at most 0\.5"):
        odp.CountUsable(share=share)
