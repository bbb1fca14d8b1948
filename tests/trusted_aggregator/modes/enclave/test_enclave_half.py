from __future__ import annotations

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from odp.algorithms.dpam.query import DpamQuery
from odp.algorithms.dpam.terms import Terms
from odp.errors import ConfigurationError, Refusal, StateError
from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms import GaussianNoise
from odp.signed.task import open_task
from trusted_aggregator.modes.enclave.enclave_half import contribution_bytes, draw_round_noise


def test_the_noise_has_the_declared_standard_deviation_in_every_column(make_world):
    """Chi-square of each column's mean square, two-sided: false alarms 1e-6 over all columns; the seed is fixed."""
    definition = open_task(make_world(minimum=3).task)
    definition.model.items = 4000
    query = DpamQuery(Terms.of(definition), 2)
    noise = draw_round_noise(query, GaussianNoise(SeededNoise(7)))
    columns = sum(release.shape[1] for release in query.releases)
    for release in query.releases:
        values = noise.arrays[release.name] * release.step
        assert values.shape == release.shape
        for column, declared in enumerate(release.column_std):
            statistic = float((values[:, column] ** 2).sum() / declared**2)
            low, high = stats.chi2.ppf([0.5e-6 / columns, 1 - 0.5e-6 / columns], df=len(values))
            assert low < statistic < high, (release.name, column)
    gram, targets = query.releases
    first, second = np.triu_indices(targets.shape[1])
    np.testing.assert_allclose(gram.column_std, gram.noise_std / np.where(first == second, 1.0, math.sqrt(2)))


def test_half_of_the_declared_noise_would_be_noticed(make_world):
    """The test above can fail: the same statistic for half of the noise is far outside of its limits."""
    definition = open_task(make_world(minimum=3).task)
    definition.model.items = 4000
    release = DpamQuery(Terms.of(definition), 1).releases[0]
    values = GaussianNoise(SeededNoise(7)).sample(release.noise_std / release.step / 2, 4000) * release.step
    assert (values**2).sum() / release.noise_std**2 < stats.chi2.ppf(1e-6 / 12, df=4000)


def test_two_rounds_get_different_noise_and_names(make_world):
    query = make_world(minimum=3).algorithm.query(0)
    source = GaussianNoise(SeededNoise(1))
    first, second = (draw_round_noise(query, source) for _ in range(2))
    assert first.noise_id != second.noise_id
    assert (first.arrays["counts"] != second.arrays["counts"]).any()


@pytest.mark.parametrize(("round", "name"), [(0, "counts"), (1, "mass"), (1, "sums"), (2, "targets")])
def test_noise_over_the_root_of_two_is_for_off_diagonals_of_a_packed_triangle_alone(make_world, round, name):
    """A plain release with it would cost sqrt(2) times the charged mu; no release has noise of its own choice."""
    query = make_world(minimum=3).algorithm.query(round)
    release = next(release for release in query.releases if release.name == name)
    assert not release.packed
    assert (release.column_std == release.charge.noise_std).all()
    with pytest.raises(TypeError):
        replace(release, column_std=release.column_std / math.sqrt(2.0))


def test_the_diagonal_of_a_packed_triangle_has_all_of_the_noise(make_world):
    query = make_world(minimum=3).algorithm.query(2)
    gram, targets = query.releases
    first, second = np.triu_indices(targets.shape[1])
    assert gram.packed
    assert (gram.column_std[first == second] == gram.charge.noise_std).all()
    assert (gram.column_std[first != second] == gram.charge.noise_std / math.sqrt(2.0)).all()
    with pytest.raises(ConfigurationError, match="upper triangle"):
        replace(targets, packed=True, shape=(4, 4))


def test_all_contributions_of_a_round_have_the_announced_length(make_world):
    world = make_world(minimum=3)
    for device in range(20):
        assert len(world.contribution(device).SerializeToString()) == contribution_bytes(0, 16)


def test_a_contribution_that_arrives_while_the_set_closes_is_refused_or_in_the_set(make_world):
    world = make_world(minimum=3)
    world.open()
    held = world.held(0)
    sealed = [world.sealed(device) for device in range(60)]
    refusals: list[object] = [None] * len(sealed)

    def submit(start):
        for number in range(start, len(sealed), 4):
            refusals[number] = world.core.submit(world.task_sha256, 0, sealed[number])

    threads = [threading.Thread(target=submit, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    count, _ = held.freeze()
    for thread in threads:
        thread.join()
    assert count == refusals.count(None) == held.freeze()[0]
    assert set(refusals) <= {None, Refusal.ROUND_CLOSED}


def test_many_threads_that_submit_one_contribution_count_it_once(small):
    sealed = [small.sealed(device) for device in range(5)]
    refusals = []

    def submit():
        refusals.extend(small.core.submit(small.task_sha256, 0, one) for one in sealed)

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals.count(None) == 5
    assert refusals.count(Refusal.ALREADY_CONTRIBUTED) == 25
    assert small.core.round_state(small.task_sha256, 0).contributions == 5


def test_sums_are_only_given_of_a_closed_set_that_is_complete(small):
    small.fill(range(3))
    held = small.held(0)
    with pytest.raises(StateError, match="still open"):
        held.noisy_sums(small.noise())
    held.freeze()
    held._waiting.pop()
    with pytest.raises(StateError, match="lost contributions"):
        held.noisy_sums(small.noise())
