"""The server of gradients of an item table: the baseline's method, states, refusals, and what can be chosen."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import odp
from odp.algorithms.factorization.public_normals import public_normals
from odp.algorithms.item_gradients.server import ItemGradientServer
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import NoisyTensors
from odp.datasets import Ratings, Split, random_split, synthetic_movielens
from odp.datasets.ratings import merge
from odp.errors import ConfigurationError, StateError
from odp.evaluation import dp_sgd, dp_sgd_implicit
from odp.evaluation.ranking import evaluate
from odp.evaluation.trials import rmse
from odp.v1 import common_pb2

Define = Callable[..., common_pb2.TaskDefinition]

SPLIT = random_split(synthetic_movielens(n_users=300, n_items=80, seed=3), seed=1)


def seen(ratings: Ratings) -> Ratings:
    triples = ratings.users(), ratings.items, np.ones(ratings.n_ratings)
    return Ratings.from_triples("seen", *triples, low=0, high=1, implicit=True, n_users=300, n_items=80)


SEEN = Split(*map(seen, (SPLIT.train, SPLIT.validation, SPLIT.test)))


def task_of(split: Split, *, rank: int, epsilon: float = math.inf, **choices: object) -> odp.Task:
    return odp.Task(
        name="gradients",
        model=odp.MatrixFactorization(items=split.train.n_items, rank=rank),
        data=odp.ImplicitData() if split.train.implicit else odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=epsilon, delta=1e-5, max_items_per_user=split.train.n_items),
        training=odp.DPSGD(**({"rounds": 9, "server_rate": 4.0} | choices)),
        cohort=odp.Cohort(minimum=20, goal=300),
    )


@pytest.mark.parametrize("rank", [0, 3])
def test_without_noise_a_task_is_the_baseline_up_to_the_rounding_of_contributions(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Contributions are rounded to 2^-14 of their bounds, and item rows travel as float32."""

    def start_rows(count: int, *, rank: int, seed: int, std: float) -> np.ndarray:
        rows = np.zeros((count, 2 + rank))
        rows[:, 1], rows[:, 2:] = 1.0, std * public_normals(seed, (count, rank))
        return rows

    monkeypatch.setattr(dp_sgd, "start_rows", start_rows)
    settings = dp_sgd.DpSgd(rank=rank, steps=8, rate=4.0)
    baseline = dp_sgd.dp_sgd(SPLIT.train, epsilon=math.inf, delta=1e-5, seed=1, settings=settings)
    run = odp.simulate(task_of(SPLIT, rank=rank), SPLIT, seed=1)
    rows, expected = run.model.keyed.rows, baseline.items[:, [column for column in range(2 + rank) if column != 1]]
    assert np.abs(expected).max() > 0.3
    np.testing.assert_allclose(rows[:, [1, *range(3, 3 + rank)]], expected, atol=2e-3)
    history = merge(SPLIT.train, SPLIT.validation)
    assert run.metrics["test_rmse"] == pytest.approx(rmse(baseline.predict(history, SPLIT.test), SPLIT.test), abs=1e-4)


def test_without_noise_a_task_on_implicit_data_is_the_baseline_up_to_the_rounding_of_contributions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Start:
        def __init__(self, seed: int) -> None:
            self._seed = seed

        def normal(self, mean: float, std: float, shape: tuple[int, int]) -> np.ndarray:
            return std * public_normals(self._seed, shape)

    settings = dp_sgd_implicit.ImplicitDpSgd(rank=4, steps=4, unobserved_weight=0.05)
    with monkeypatch.context() as patched:
        patched.setattr(dp_sgd_implicit.np.random, "default_rng", Start)
        baseline = dp_sgd_implicit.dp_sgd_implicit(SEEN.train, epsilon=math.inf, delta=1e-5, seed=1, settings=settings)
    task = task_of(SEEN, rank=4, rounds=5, server_rate=2.0, clip=1.0, unobserved_weight=0.05)
    run = odp.simulate(task, SEEN, seed=1)
    assert np.abs(baseline.items).max() > 0.5
    np.testing.assert_allclose(run.model.keyed.rows[:, 1:], baseline.items, atol=3e-3)
    history = merge(SEEN.train, SEEN.validation)
    ranking = evaluate(baseline.scores(history), history, SEEN.test, cutoffs=(20,))
    assert run.metrics["test_ranking"].recall[20] == pytest.approx(ranking.recall[20], abs=0.01)


def test_where_noise_drowns_implicit_data_popularity_is_left() -> None:
    learned = []
    for epsilon in (math.inf, 0.01):
        run = odp.simulate(task_of(SEEN, rank=4, epsilon=epsilon, rounds=3, server_rate=2.0, clip=1.0), SEEN, seed=1)
        assert run.epsilon == pytest.approx(epsilon, rel=1e-6)
        rows = run.model.keyed.rows
        learned.append(float(np.abs(rows[:, 2:]).max() / rows[:, 1].max()))
    assert learned[1] < 0.25 < 0.4 < learned[0]


def test_with_noise_it_spends_its_budget_and_is_about_as_good_as_the_baseline() -> None:
    settings = dp_sgd.DpSgd(rank=2, steps=8, rate=4.0)
    history = merge(SPLIT.train, SPLIT.validation)
    ours, theirs = [], []
    for seed in range(1, 5):
        run = odp.simulate(task_of(SPLIT, rank=2, epsilon=8.0), SPLIT, seed=seed)
        assert run.epsilon == pytest.approx(8.0, rel=1e-6)
        ours.append(run.metrics["test_rmse"])
        model = dp_sgd.dp_sgd(SPLIT.train, epsilon=8.0, delta=1e-5, seed=seed, settings=settings)
        theirs.append(rmse(model.predict(history, SPLIT.test), SPLIT.test))
    assert abs(np.mean(ours) - np.mean(theirs)) < 2 * max(np.std(ours), np.std(theirs), 0.005)


def test_a_sampled_task_counts_the_drawn_users_alone() -> None:
    half = {"sampling": "enclave_poisson", "sampling_probability": 0.5, "most_contributions": 600}
    definition = task_of(SPLIT, rank=0, epsilon=8.0).definition()
    sampled = odp.Cohort(minimum=20, goal=300, **half).to_proto(1e-5)
    definition.cohort.CopyFrom(sampled)
    mass = np.full(80, 20.0)
    models = []
    for probability, contributions in ((0.5, 300), (1.0, 150)):
        definition.cohort.enclave_poisson.probability = probability
        if probability == 1.0:
            definition.cohort.ClearField("enclave_poisson")
        server = ItemGradientServer(definition)
        models.append(server.counts(server.step(server.start(), NoisyTensors(0, {"masses": mass}, contributions))))
    np.testing.assert_array_equal(*models)


def test_a_state_holds_what_it_was_made_of_and_others_are_refused(define_gradients: Define) -> None:
    server = ItemGradientServer(define_gradients(items=6, rank=2, rounds=3))
    start = server.start()
    assert server.broadcast(start).version == 0
    np.testing.assert_array_equal(server.counts(start), np.ones(6))
    masses = np.array([9.0, 1.0, 4.0, -1.0, 0.5, 2.0])
    state = server.step(start, NoisyTensors(0, {"masses": masses}, 10))
    counts = server.counts(state)
    assert counts.argmax() == 0
    assert counts.min() >= 1.0
    gradients = np.arange(18.0).reshape(6, 3)
    after = server.step(state, NoisyTensors(1, {"gradients": gradients}, 10))
    assert server.step(after, NoisyTensors(2, {"gradients": gradients}, 10)) != after
    model = server.broadcast(after)
    assert [table.name for table in model.tables] == ["items", "globals"]
    assert (model.keyed.rows[:, 2] == 1.0).all()
    for wrong in (b"", start[:-1], b"x" * len(start), start + b"\0"):
        with pytest.raises(StateError):
            server.broadcast(wrong)
    for release in (
        NoisyTensors(0, {"masses": masses}, 10),
        NoisyTensors(1, {"masses": masses}, 10),
        NoisyTensors(1, {"gradients": gradients[:, :2]}, 10),
        NoisyTensors(3, {"gradients": gradients}, 10),
    ):
        with pytest.raises(ConfigurationError):
            server.step(state, release)
    with pytest.raises(ConfigurationError, match="item_features"):
        algorithm_for(define_gradients()).server(item_features=np.zeros((30, 1), dtype=np.float32))


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"clip_quantile": 0.5}, "clip_quantile"),
        ({"server": "adam"}, "server"),
        ({"server_momentum": 0.5}, "server_momentum"),
        ({"noise_schedule": [(9, 1.0)]}, "noise_schedule"),
        ({"cohort_schedule": [(9, 300)]}, "cohort_schedule"),
        ({"noise_multiplier": 3.0}, "noise_multiplier"),
        ({"diagnostics": True}, "diagnostics"),
        ({"divisor": 100.0}, "divisor"),
        ({"upload_bits": 8}, "upload_bits"),
        ({"most_examples": 10}, "most_examples"),
        ({"rounds": 1}, "rounds"),
        ({"server_rate": 0.5}, "server_rate"),
        ({"clip": 1e12}, "clip"),
    ],
)
@pytest.mark.parametrize("split", [SPLIT, SEEN], ids=["ratings", "implicit"])
def test_what_cannot_be_chosen_is_refused_by_name_when_the_task_is_made(
    split: Split, choices: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named) as refused:
        task_of(split, rank=2, **choices)
    assert "\n" not in str(refused.value)


def test_a_weight_of_unobserved_pairs_is_of_implicit_data_alone() -> None:
    examples = odp.Examples({"x": odp.Tensor((2,), -1, 1)}, label_low=-1.0, label_high=1.0)
    with pytest.raises(ConfigurationError, match="unobserved_weight"):
        task_of(SPLIT, rank=2, unobserved_weight=0.1)
    with pytest.raises(ConfigurationError, match="unobserved_weight"):
        odp.Task(
            name="linear",
            model=odp.Glm("linear", features=2),
            data=examples,
            privacy=odp.UserLevelDP(epsilon=8.0, delta=1e-5),
            training=odp.DPSGD(rounds=2, unobserved_weight=0.1),
        )
    for weight in (0.0, math.nan, 1e9):
        with pytest.raises(ConfigurationError, match="unobserved_weight"):
            task_of(SEEN, rank=2, unobserved_weight=weight)
    with pytest.raises(ConfigurationError, match="rank"):
        task_of(SEEN, rank=0)


def test_features_and_data_of_another_model_are_refused_when_the_task_is_made() -> None:
    plain = task_of(SPLIT, rank=2)
    features = odp.MatrixFactorization(items=80, rank=2, item_features=np.ones((80, 1)))
    examples = odp.Examples({"x": odp.Tensor((2,), -1, 1)}, label_low=-1.0, label_high=1.0)
    for model, data, named in (
        (features, plain.data, "features"),
        (features, odp.ImplicitData(), "features"),
        (plain.model, examples, "odp.RatingsData"),
        (odp.Glm("linear", features=2), plain.data, "odp.RatingsData"),
    ):
        with pytest.raises(ConfigurationError, match=named):
            odp.Task(
                name="wrong",
                model=model,
                data=data,
                privacy=odp.UserLevelDP(epsilon=8.0, delta=1e-5),
                training=plain.training,
            )


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("steps", 0),
        ("rate", 0.5),
        ("clip", 0.0),
        ("row_clip", 0.0),
        ("row_ridge", 0.0),
        ("bias_ridge", 0.0),
        ("mass_noise", 0.0),
        ("gradient_noise", 0.0),
        ("slices_per_device", 3),
        ("unobserved_weight", 0.1),
        ("gramian_noise", 1.0),
        ("centre", math.nan),
    ],
)
def test_a_definition_with_a_number_out_of_range_is_refused(
    define_gradients: Define, field: str, number: float
) -> None:
    definition = define_gradients()
    setattr(definition.item_gradients, field, number)
    with pytest.raises(ConfigurationError):
        algorithm_for(definition).check_for_devices()
