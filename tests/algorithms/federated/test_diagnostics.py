"""Update scale and variance between users, from releases: what is sent, what it costs, and what it estimates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spreads import exact_spread

import odp
from odp.algorithms.capabilities import Diagnosed
from odp.algorithms.federated.terms import RELEASE, Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows, NoisyTensors
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array
from odp.protocol.wire.model import Slices
from odp.research.simulation.record import plain, run_record
from odp.research.simulation.report import render_html
from odp.signed.task import check_definition

FEATURES, CLASSES, USERS = 6, 3, 300
CHOICES = {"rounds": 3, "rate": 0.3, "clip": 0.3, "diagnostics": True}


def people(seed: int = 5) -> odp.data.UsersExamples:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(3000, FEATURES)).astype(np.float32)
    targets = (features @ generator.normal(size=(FEATURES, CLASSES))).argmax(axis=1).astype(np.float32)
    counts = generator.integers(0, 12, USERS)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return odp.data.UsersExamples(features, targets, generator.integers(0, 3000, offsets[-1]), offsets)


def task_of(**choices: Any) -> odp.Task:
    return odp.Task(
        name="kinds",
        model=odp.Glm("multinomial", features=FEATURES, classes=CLASSES),
        data=odp.Examples({"x": odp.Tensor((FEATURES,), -3, 3)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-4),
        training=odp.DPFedAvg(**(CHOICES | choices)),
        cohort=odp.Cohort(minimum=10, goal=USERS),
    )


def clipped_updates(algorithm: Diagnosed, users: odp.data.UsersExamples, seeds: Any, clip: float) -> Float64Array:
    """Of every user, by the device's own code."""
    terms = Terms.of(algorithm.definition)
    start = terms.model.start()
    updates = []
    for user in range(USERS):
        rows = users.rows[users.offsets[user] : users.offsets[user + 1]]
        features = np.clip(users.features[rows], -3, 3)
        moved = terms.model.difference(
            start, features, users.targets[rows], terms.local, seed=int(seeds[user]), round=0
        )
        updates.append(moved.astype(np.float64) / max(np.linalg.norm(moved) / clip, 1.0))
    return np.array(updates)


@pytest.mark.parametrize("changes", [{}, {"clip_quantile": 0.5}, {"upload_bits": 12}, {"upload_bits": 8}], ids=str)
def test_a_release_without_noise_tells_the_spread_of_the_clipped_updates(changes: dict[str, Any]) -> None:
    task = task_of(**changes)
    definition = task.definition()
    algorithm = algorithm_for(definition)
    assert isinstance(algorithm, Diagnosed)
    users, seeds = people(), np.random.default_rng(3).integers(0, 2**63, USERS).astype(np.uint64)
    broadcast = algorithm.server().broadcast(algorithm.server().start())
    sums = algorithm.population().contribute(broadcast, users, round=0, seeds=seeds)[RELEASE]
    released = NoisyTensors(0, {RELEASE: sums * algorithm.query(0).releases[0].step}, USERS)
    found = algorithm.figures(broadcast, released, noisy=False)
    truth = exact_spread(clipped_updates(algorithm, users, seeds, 0.3))
    assert truth.variance is not None
    assert tuple(found) == algorithm.figure_names
    assert found["clip_norm"] == pytest.approx(0.3)
    assert found["update_scale"] == pytest.approx(truth.scale, rel=0.02)
    assert found["client_variance"] == pytest.approx(truth.variance, rel=0.02)
    assert found["update_scale_std"] == found["client_variance_std"] == 0.0


def test_estimates_from_noisy_releases_are_unbiased_and_as_far_off_as_they_say() -> None:
    task = task_of(clip_quantile=0.5)
    algorithm = algorithm_for(task.definition())
    assert isinstance(algorithm, Diagnosed)
    (declared,) = algorithm.query(0).releases
    users, seeds = people(), np.random.default_rng(3).integers(0, 2**63, USERS).astype(np.uint64)
    broadcast = algorithm.server().broadcast(algorithm.server().start())
    sums = algorithm.population().contribute(broadcast, users, round=0, seeds=seeds)[RELEASE] * declared.step
    exact = algorithm.figures(broadcast, NoisyTensors(0, {RELEASE: sums}, USERS), noisy=False)
    generator = np.random.default_rng(7)
    drawn = [
        algorithm.figures(
            broadcast,
            NoisyTensors(0, {RELEASE: sums + generator.normal(size=len(sums)) * declared.noise_std}, USERS),
            noisy=True,
        )
        for _ in range(2000)
    ]
    for name in ("update_scale", "client_variance"):
        values = np.array([one[name] for one in drawn])
        stated = np.median([one[f"{name}_std"] for one in drawn])
        assert values.std() == pytest.approx(stated, rel=0.1)
        assert values.mean() == pytest.approx(exact[name], abs=4.0 * stated / np.sqrt(len(drawn)))


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("upload_bits", [None, 8])
def test_the_number_for_the_spread_is_part_of_the_bound_that_the_enclave_checks(
    adaptive: bool, upload_bits: int | None
) -> None:
    task = task_of(clip_quantile=0.5 if adaptive else None, upload_bits=upload_bits)
    definition = task.definition()
    definition.developer_key = odp_key()
    check_definition(definition)
    terms = Terms.of(definition)
    bit = definition.fedavg.adaptive_clip.weight
    bound = np.sqrt(1.0 + bit**2 / 4.0 + 0.01)
    assert terms.blocks[0].grid.clip == pytest.approx(bound, rel=1e-12)
    longest = terms.contributions(np.full((1, terms.model.size), 9.0, dtype=np.float32), 0.3, trained=np.array([True]))
    assert np.linalg.norm(longest) == pytest.approx(bound)
    upload = terms.upload(0)
    query = upload.query(RELEASE)
    payload = upload.payload(upload.numbers(longest, seeds=np.array([1], dtype=np.uint64))[0])
    assert query.refusals([payload]) == [None]
    assert query.releases[0].sensitivity >= bound


def odp_key() -> bytes:
    from odp.crypto import SigningKey

    return SigningKey.generate().public


def test_diagnostics_cost_half_a_percent_of_noise() -> None:
    with_, without = (
        algorithm_for(task_of(diagnostics=flag).definition()).query(0).releases[0] for flag in (True, False)
    )
    assert with_.noise_std / without.noise_std == pytest.approx(np.sqrt(1.01), rel=1e-3)
    assert with_.shape[0] == without.shape[0] + 1


def test_devices_and_simulator_send_the_same_whatever_a_user_has() -> None:
    """Users without examples, with examples that cannot be used alone, with one, and one who moves by nothing."""
    task = task_of(clip_quantile=0.5, clip=0.05)
    algorithm = algorithm_for(task.definition())
    terms = Terms.of(task.definition())
    generator = np.random.default_rng(2)
    features = generator.normal(size=(40, FEATURES)).astype(np.float32)
    targets = generator.integers(0, CLASSES, 40).astype(np.float32)
    features[0, 1], targets[1:3] = np.nan, np.nan  # no number, and no labels
    # 3 and 5, 6 and 8, ..: of a user with the same features once per class, the gradient at zero is rounding alone.
    features[4], features[5], targets[3:6] = features[3], features[3], [0, 1, 2]
    rows = np.concatenate(([0, 1, 2], [3, 4, 5], [6], np.arange(7, 40)))
    offsets = np.array([0, 0, 3, 6, 7, 20, 40])
    users = odp.data.UsersExamples(features, targets, rows, offsets)
    server = algorithm.server()
    broadcast = server.broadcast(server.start())
    slices = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), broadcast.dense)
    seeds, client = np.arange(1, 7, dtype=np.uint64), algorithm.client()
    total, bits = algorithm.query(0).new_sum(), []
    for user in range(6):
        own = rows[offsets[user] : offsets[user + 1]]
        data = algorithm.data_of(LocalRows(np.arange(len(own)), targets[own].astype(np.float64), {"x": features[own]}))
        payload, _ = client.contribute(slices, data, round=0, seed=int(seeds[user]))
        bits.append(np.frombuffer(payload, dtype="<i4")[terms.model.size])
        assert (payload == client.empty(0)) is (user < 2)
        total.add([payload])
    sums = algorithm.population().contribute(broadcast, users, round=0, seeds=seeds)[RELEASE]
    apart = np.abs(total.totals()[RELEASE] - sums)
    # A number at the edge of a step may fall on its other side; the bit is half the weight, thousands of steps.
    assert apart.max() <= 1
    half = terms.adaptive.weight / 2.0 / terms.blocks[0].grid.step if terms.adaptive is not None else 0.0
    assert bits[:2] == [0, 0]
    assert np.abs(bits[2:]) == pytest.approx(half, abs=2)
    assert bits[2] > 0  # it trained, and moved by next to nothing: within the clip norm


def test_the_bit_of_a_user_whose_update_is_nothing_does_not_follow_from_rounding() -> None:
    terms = Terms.of(task_of(clip_quantile=0.5, diagnostics=False).definition())
    moved = np.zeros((3, terms.model.size), dtype=np.float32)
    moved[1] = 1e-9
    sent = terms.contributions(moved, 0.3, trained=np.array([True, True, False]))
    assert sent[0, -1] == sent[1, -1] > 0.0
    assert not sent[2].any()


def test_a_simulation_shows_them_in_its_rounds_and_resumes_with_them(tmp_path: Path) -> None:
    users = people()
    split = odp.data.ExamplesSplit(train=users, test=users)
    task = task_of(clip_quantile=0.5)
    run = odp.simulate(task, split, seed=4)
    names = {"clip_norm", "update_scale", "update_scale_std", "client_variance", "client_variance_std"}
    for one in run.rounds:
        assert names | {"share_within_clip"} <= set(one.to_json())
    assert run.rounds[0].metrics["clip_norm"] == pytest.approx(0.3)
    assert run.rounds[1].metrics["clip_norm"] != run.rounds[0].metrics["clip_norm"]
    first = odp.simulate(task, split, seed=4, checkpoint=tmp_path / "run")
    again = odp.simulate(task, split, seed=4, checkpoint=tmp_path / "run")
    assert [one.metrics for one in again.rounds] == [one.metrics for one in first.rounds]
    assert [one.metrics for one in first.rounds] == [one.metrics for one in run.rounds]


def test_a_developer_reads_them_from_the_releases_of_all_rounds() -> None:
    users = people()
    split = odp.data.ExamplesSplit(train=users, test=users)
    task, releases = task_of(clip_quantile=0.5), []
    run = odp.simulate(task, split, seed=4, on_release=lambda release, declared: releases.append(release))
    algorithm = algorithm_for(task.definition())
    assert isinstance(algorithm, Diagnosed)
    found = algorithm.diagnosed(releases, epsilon=run.epsilon)
    plain = found.to_json()
    assert isinstance(plain["rounds"], list)
    for shown, simulated in zip(plain["rounds"], run.rounds, strict=True):
        for name in algorithm.figure_names:
            assert shown[name] == pytest.approx(simulated.metrics[name], rel=1e-12)
        assert shown["client_variance_half_width"] == pytest.approx(1.959964 * shown["client_variance_std"], rel=1e-5)
    assert (found.contributions, found.epsilon, found.delta) == (USERS, run.epsilon, 1e-4)
    assert len(list(found.lines(0.95))) == 1
    with pytest.raises(ConfigurationError, match="from round 0 on"):
        algorithm.diagnosed(releases[1:], epsilon=run.epsilon)
    plain_algorithm = algorithm_for(task_of(diagnostics=False).definition())
    assert isinstance(plain_algorithm, Diagnosed)
    assert plain_algorithm.figure_names == ()
    with pytest.raises(ConfigurationError, match="diagnostics=True alone"):
        plain_algorithm.diagnosed(releases, epsilon=1.0)


def test_a_report_has_a_table_of_them() -> None:
    users = people()
    split = odp.data.ExamplesSplit(train=users, test=users)
    for diagnostics in (True, False):
        task = task_of(diagnostics=diagnostics)
        run = odp.simulate(task, split, seed=4)
        final = {"test_examples": {"accuracy": 0.5}}
        record = run_record(
            kind="simulation", task=task, split=split, rounds=[one.to_json() for one in run.rounds],
            charges=run.charges, metrics=final, seed=4,
        )  # fmt: skip
        page = render_html(plain(record))
        assert ("Size and variance of updates" in page) is diagnostics
        if diagnostics:
            assert f"{run.rounds[2].metrics['client_variance']:.3g} ±" in page
