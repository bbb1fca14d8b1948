"""Reports of devices: their law and bounds, the test for spam, and what adversaries learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

import odp
from odp.algorithms.draw_and_discard import model
from odp.algorithms.draw_and_discard.algorithm import TaskAlgorithm
from odp.algorithms.draw_and_discard.client import descent
from odp.algorithms.draw_and_discard.server import check, first_instances
from odp.algorithms.draw_and_discard.simulation import honest_statistics, thresholds
from odp.algorithms.draw_and_discard.terms import Terms
from odp.algorithms.seam import LocalRows
from odp.errors import ConfigurationError, ContributionRefused, PrivacyError, Refusal
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms.random_source import RandomSource


def reporter(**changes: object) -> TaskAlgorithm:
    given = {"name": "clicks", "features": {"x": odp.Number(size=3)}, "epsilon": 1.0, "instances": 8} | changes
    return TaskAlgorithm(odp.DrawAndDiscard(**given).definition())  # type: ignore[arg-type]


def rows(features: list[list[float]], labels: list[float]) -> LocalRows:
    return LocalRows(np.arange(len(labels)), np.array(labels), {"x": np.array(features).reshape(-1, 3)})


EMPTY = rows([], [])


def steps(given: TaskAlgorithm, content: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return given.terms().decode(content).astype(np.int64)


def test_a_report_is_the_instance_moved_by_the_gradient_and_laplace_noise() -> None:
    """Mean and variance of 4,000 reports: each of 8 numbers is beyond 5 standard errors with probability 6e-7."""
    given, count = reporter(), 4_000
    source, data = RandomSource(SeededNoise(1)), {"examples": rows([[1, 0, 0.5], [1, 0, 0.5]], [1, 1])}
    drawn = given.first_rows()[0]
    sent = np.array([steps(given, given.report(drawn, data, source=source)) for _ in range(count)])
    moved = sent - steps(given, drawn)
    x = np.array([1, 1, 0, 0.5])
    weights = steps(given, drawn) * given.terms().step
    expected = given.terms().rate / given.terms().step * (1 - 1 / (1 + math.exp(-weights @ x))) * x
    scale = given.terms().noise_scale
    assert np.abs(moved.mean(axis=0) - expected).max() < 5 * scale * math.sqrt(2 / count)
    # The fourth moment is 24 scales: a variance has a standard error of sqrt(20 / n) squared scales.
    assert np.abs(moved.var(axis=0) / scale**2 - 2).max() < 5 * math.sqrt(20 / count)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_the_worst_event_of_a_report_keeps_epsilon_and_shows_nearly_all_of_it(epsilon: float) -> None:
    """Opposite gradients through the whole device; each of 50,000 weights is a sample. A false alarm: 1e-3 each."""
    given = reporter(epsilon=epsilon, features={"x": odp.Number(size=49_999)}, family="linear", false_alarms=0.0)
    terms, counts = given.terms(), []
    drawn = terms.encode(np.zeros(terms.weights, dtype=np.int32))
    row = {"x": np.ones((1, 49_999))}
    for label, seed in ((1.0, 1), (0.0, 2)):
        # A linear model of zeros expects 0: the response 1 moves every weight up by the bound. The opposite is made of
        # an instance that expects far more than 1, and moves down from it by the bound.
        start = drawn if label else terms.encode(np.full(terms.weights, terms.largest, dtype=np.int32) // 2)
        data = {"examples": LocalRows(np.arange(1), np.array([label]), row)}
        moved = steps(given, given.report(start, data, source=RandomSource(SeededNoise(seed)))) - steps(given, start)
        counts.append(int((moved >= terms.movement).sum()))
    high, low = counts
    error = 3.3 * math.sqrt(1 / high + 1 / low)
    assert math.log(high / low) - error <= terms.feature_epsilon
    assert math.log(high / low) + error >= 0.95 * terms.feature_epsilon


@pytest.mark.parametrize(
    "data",
    [
        EMPTY,
        rows([[math.nan, 0, 0]], [1]),
        rows([[2, 0, 0]], [1]),
        rows([[1, 1, 1]], [math.inf]),
        rows([[1, 1, 1]], [2]),
        LocalRows(np.arange(1), np.ones(1), {"x": np.array(["a"])}),
        LocalRows(np.arange(1), np.ones(1), {}),
    ],
)
def test_a_device_without_usable_rows_reports_noise_alone(data: LocalRows) -> None:
    given = reporter()
    drawn = given.first_rows()[0]
    sent = given.report(drawn, {"examples": data}, source=RandomSource(SeededNoise(3)))
    empty = given.report(drawn, {"examples": EMPTY}, source=RandomSource(SeededNoise(3)))
    assert sent == empty
    assert len(sent) == given.report_bytes == 16


@pytest.mark.parametrize("family", ["linear", "logistic", "multinomial", "poisson"])
def test_no_data_and_no_instance_move_a_weight_beyond_the_bound(family: str) -> None:
    classes = 3 if family == "multinomial" else 1
    terms = reporter(family=family, classes=classes, clip=0.5).terms()
    generator = np.random.default_rng(4)
    for size in (0.0, 1.0, terms.bound):
        weights = generator.uniform(-size, size, terms.weights)
        numbers, targets = generator.random((50, 4)), generator.integers(0, max(classes, 2), 50).astype(float)
        gradient = terms.gradient(weights, numbers, targets)
        assert np.abs(gradient).max() <= 0.5
        assert np.abs(descent(terms, gradient, source=RandomSource(SeededNoise(5)))).max() <= terms.movement
    far = np.full(terms.weights, math.inf)
    assert (np.abs(descent(terms, far, source=RandomSource(SeededNoise(5)))) == terms.movement).all()


def test_rounding_to_the_grid_keeps_the_mean() -> None:
    """Of 4 * 10,000 roundings of .3 steps, within 5 standard errors: a false alarm of 6e-7."""
    terms = reporter().terms()
    source = RandomSource(SeededNoise(6))
    gradient = np.full(4, -0.3 * terms.step / terms.rate)
    found = np.array([descent(terms, gradient, source=source) for _ in range(10_000)])
    assert set(np.unique(found)) == {0, 1}
    assert abs(found.mean() - 0.3) < 5 * math.sqrt(0.3 * 0.7 / found.size)


@pytest.mark.parametrize("content", [b"", bytes(15), bytes(20), b"\xff\xff\xff\x7f" * 4])
def test_an_instance_that_is_none_is_refused_whatever_the_device_holds(content: bytes) -> None:
    given = reporter()
    for data in (EMPTY, rows([[1, 1, 1]], [1])):
        with pytest.raises(ConfigurationError):
            given.report(content, {"examples": data}, source=RandomSource(SeededNoise(1)))


def test_reports_of_the_wrong_length_or_beyond_the_bound_are_refused() -> None:
    given = reporter()
    for content, reason in ((bytes(12), Refusal.MALFORMED), (b"\xff\xff\xff\x7f" * 4, Refusal.OUT_OF_BOUNDS)):
        with pytest.raises(ContributionRefused) as refused:
            check(given.terms(), content, given.first_rows())
        assert refused.value.refusal is reason


def test_a_device_reports_nothing_for_a_task_without_noise() -> None:
    task = odp.DrawAndDiscard(name="clicks", features={"x": odp.Number()}, epsilon=1.0)
    terms = task.terms(noise=False)
    from odp.algorithms.draw_and_discard.client import report

    with pytest.raises(PrivacyError, match="without noise"):
        report(terms, bytes(8), EMPTY, source=RandomSource(SeededNoise(1)))


def chain(given: TaskAlgorithm, updates: int, seed: int) -> list[bytes]:
    """Instances after honest reports without data."""
    found, generator, source = given.first_rows(), np.random.default_rng(seed), RandomSource(SeededNoise(seed))
    for _ in range(updates):
        drawn, replaced = generator.integers(0, len(found), 2)
        sent = given.report(found[drawn], {"examples": EMPTY}, source=source)
        found[replaced] = sent
    return found


def test_planted_spam_is_found_and_honest_reports_pass() -> None:
    """Rows of 20 instances; 300 honest reports at a stated rate of 1 %: more than 12 have a probability of 1e-5."""
    given = reporter(instances=20, features={"x": odp.Number(size=32)})
    found = chain(given, 400, 1)
    instances = np.stack([steps(given, row) for row in found])
    mean, deviation = instances.mean(axis=0), instances.std(axis=0, ddof=1)
    for place, size in ((0, 6), (5, 10)):
        spam = np.rint(mean).astype(np.int32)
        spam[place] += round(size * deviation[place])
        with pytest.raises(ContributionRefused, match="OUT_OF_BOUNDS"):
            check(given.terms(), given.terms().encode(spam), found)
    # Three deviations in every weight are within each weight's bound; their sum is not.
    spread = np.rint(mean + 3 * deviation).astype(np.int32)
    with pytest.raises(ContributionRefused, match="OUT_OF_BOUNDS"):
        check(given.terms(), given.terms().encode(spread), found)
    generator, source, refused = np.random.default_rng(2), RandomSource(SeededNoise(7)), 0
    for _ in range(300):
        drawn, replaced = generator.integers(0, 20, 2)
        sent = given.report(found[drawn], {"examples": LocalRows(np.arange(0), np.zeros(0), {})}, source=source)
        try:
            check(given.terms(), sent, found)
        except ContributionRefused:
            refused += 1
            continue
        found[replaced] = sent
    assert refused <= 12


def test_thresholds_refuse_the_stated_share_of_honest_reports() -> None:
    """The share of 400,000 fresh reports whose rows are shared for 50 updates: within a third of 2 %."""
    rule = thresholds(instances=10, weights=33, false_alarms=0.02)
    largest, spread = honest_statistics(instances=10, weights=33, updates=400_000, seed=5)
    alarms = float(((largest > rule.most_deviations) | (spread > rule.most_spread)).mean())
    assert 0.01 < alarms < 0.024
    # The published rule of three deviations, for one weight, would refuse most honest reports.
    assert float((largest > 3.0).mean()) > 0.2


@pytest.mark.parametrize(("instances", "weights", "expected"), [(20, 387, 6.0), (20, 33, 4.5), (30, 33, 4.2)])
def test_thresholds_of_the_largest_deviation_are_the_known_ones(instances: int, weights: int, expected: float) -> None:
    largest, _ = honest_statistics(instances=instances, weights=weights, updates=100_000)
    assert float(np.quantile(largest, 0.99)) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("instances", [2, 5, 30])
def test_the_spread_of_first_instances_is_that_which_reports_keep_up(instances: int) -> None:
    """The variance over instances settles at k/2 times the noise's, which is k scale^2: to 10 % over 3,000 weights."""
    terms = reporter(instances=instances, features={"x": odp.Number(size=2999)}, false_alarms=0.0).terms()
    found = first_instances(terms).astype(float).var(axis=0, ddof=1).mean()
    assert found == pytest.approx(instances * terms.noise_scale**2, rel=0.1)


@pytest.mark.parametrize(("updates", "expected"), [(20, 0.491), (100, 0.817), (400, 0.931), (2000, 0.950)])
def test_the_lineage_of_a_report_dies_as_its_chain_has_it(updates: int, expected: float) -> None:
    assert model.lineage(instances=20, updates=updates) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("level", "updates", "expected"),
    [
        (3, 2, 1.0294), (3, 10, 0.7867), (3, 100, 0.3497), (3, 1000, 0.1126), (16, 2, 2.6138), (16, 10, 2.0290),
        (16, 1000, 0.2962), (16, 10_000, 0.0896), (32, 10, 2.5520), (32, 100, 1.1585), (32, 1000, 0.3741),
    ],
)  # fmt: skip
def test_the_noise_of_later_reports_hides_as_much_as_the_exact_sum_says(
    level: float, updates: int, expected: float
) -> None:
    found = model.convolved_epsilon(math.log(level), updates=updates, delta=1e-8)
    assert found == pytest.approx(expected, abs=1.5e-4)


def test_two_noises_hide_as_a_simulation_of_them_shows() -> None:
    """Of 4e5 sums of two, the share beyond the loss: the exact delta, within five standard errors."""
    generator = np.random.default_rng(8)
    epsilon, loss = 2.0, 1.2
    noise = generator.laplace(scale=1 / epsilon, size=(400_000, 2)).sum(axis=1)

    def density(
        x: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        scaled = np.abs(x) * epsilon
        return np.asarray(epsilon / 4 * (1 + scaled) * np.exp(-scaled))

    excess = np.maximum(1 - math.exp(loss) * density(noise + 1.0) / density(noise), 0.0)
    delta, error = float(excess.mean()), float(excess.std() / math.sqrt(len(excess)))
    assert model.convolved_epsilon(epsilon, updates=2, delta=delta + 5 * error) <= loss
    assert model.convolved_epsilon(epsilon, updates=2, delta=delta - 5 * error) >= loss


def test_the_published_bound_of_later_updates_is_too_small_or_above_epsilon() -> None:
    epsilon = math.log(16)

    def published(updates: int, delta: float = 1e-8) -> float:  # Lemma 3 as printed
        return epsilon / math.sqrt(2.0 * updates) * math.sqrt(math.log(1.0 / (2.0 * delta)))

    assert published(2) > epsilon
    for updates in (1000, 10_000):
        exact = model.convolved_epsilon(epsilon, updates=updates, delta=1e-8)
        assert published(updates) < exact


def test_a_report_on_privacy_names_both_levels_and_all_adversaries() -> None:
    learned = model.disclosure_of(1.0, weights=33, instances=20, updates=100, delta=1e-8)
    assert (learned.feature_epsilon, learned.model_epsilon) == (1.0, 33.0)
    assert learned.mean_loss == pytest.approx(19 / 40)
    assert learned.lineage == pytest.approx(0.817, abs=5e-4)
    assert learned.convolved_epsilon < 1.0


def test_terms_of_another_training_are_refused() -> None:
    from odp.v1 import common_pb2

    with pytest.raises(ConfigurationError, match="draw_and_discard"):
        Terms.of(common_pb2.TaskDefinition(name="other"))
