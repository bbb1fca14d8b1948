"""What a stream costs: exact, once, and in the ledger's own accounting."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError
from odp.evaluation.noise import SeededNoise
from odp.privacy import Adjacency, accounting
from odp.privacy.events import GaussianRelease, from_json
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget
from odp.privacy.matrix import BandedMatrix, Participation, Stream, StreamRelease, TreeMatrix
from odp.privacy.matrix.design import banded_toeplitz, blt, optimal_toeplitz
from odp.privacy.mechanisms import GaussianNoise
from tests.privacy.matrix.error_factors import noise_factors

SIZE, CLIP, STEP = 4, 1.0, 2.0**-10


def stream(matrix, *, most: int, separation: int, noise_std: float = 10.0) -> Stream:
    allowed = Participation(rounds=matrix.rounds, most=most, separation=separation)
    return Stream(matrix=matrix, allowed=allowed, size=SIZE, clip=CLIP, step=STEP, noise_std=noise_std)


def test_a_stream_costs_the_closed_form_of_its_sensitivity():
    found = stream(BandedMatrix.toeplitz(np.array([1.0, 0.5]), rounds=12), most=3, separation=4)
    event = found.event("update")
    assert found.sensitivity == pytest.approx(math.sqrt(3 * 1.25), rel=1e-12)
    assert event.mu == pytest.approx(math.sqrt(3 * 1.25) / 10.0, rel=1e-12)
    assert accounting.mu([event]) == event.mu
    plain = GaussianRelease("update", event.sensitivity, event.noise_std, event.coordinates)
    assert accounting.epsilon([event], delta=1e-6) == accounting.epsilon([plain], delta=1e-6)
    assert accounting.epsilon([event, plain], delta=1e-6) == accounting.epsilon([plain, plain], delta=1e-6)
    assert event.coordinates == 12 * SIZE


def test_an_event_says_mechanism_adjacency_and_what_an_auditor_needs():
    matrix = TreeMatrix(16)
    event = stream(matrix, most=2, separation=8).event("update", adjacency=Adjacency.ADD_REMOVE_USER)
    said = event.to_json()
    assert list(said) == sorted(said)
    assert said["mechanism"] == "matrix_gaussian"
    assert said["adjacency"] == "add_remove_user"
    assert said["matrix_sha256"] == matrix.digest.hex()
    assert (said["rounds"], said["most"], said["separation"]) == (16, 2, 8)
    assert from_json(said) == event
    for wrong in ({**said, "matrix_sha256": "x"}, {**said, "most": 0}, {**said, "extra": 1}):
        with pytest.raises(ConfigurationError):
            from_json(wrong)
    assert event != GaussianRelease("update", event.sensitivity, event.noise_std, event.coordinates)
    with pytest.raises(PrivacyError, match="adjacency"):
        stream(matrix, most=2, separation=8).event("update", adjacency=Adjacency.ANY_TWO_INPUTS)
    with pytest.raises(ConfigurationError, match="32 bytes"):
        StreamRelease(
            name="x", sensitivity=1.0, noise_std=1.0, coordinates=1, rounds=1, most=1, separation=1, matrix_sha256=b""
        )


@pytest.mark.parametrize("kind", ["tree", "banded", "blt"])
def test_a_stream_within_a_budget_spends_all_of_it(kind):
    allowed = Participation(rounds=64, most=4, separation=16)
    matrix = {"tree": lambda: TreeMatrix(64), "banded": lambda: banded_toeplitz(64, 8), "blt": lambda: blt(allowed)}[
        kind
    ]()
    found = Stream.within_budget(
        matrix=matrix, allowed=allowed, size=1000, clip=CLIP, step=STEP, epsilon=2.0, delta=1e-6
    )
    spent = accounting.epsilon([found.event("update")], delta=1e-6)
    assert 1.999 < spent <= 2.0


def test_one_round_with_the_identity_costs_what_one_gaussian_release_costs():
    found = stream(BandedMatrix.toeplitz(np.ones(1), rounds=1), most=1, separation=1, noise_std=3.730632)
    assert accounting.epsilon([found.event("update")], delta=1e-5) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("noise_multiplier", "rounds", "separation", "most"), [(7.0, 2000, 313, 6)])
def test_the_published_tree_costs_no_more_than_its_anchor(noise_multiplier, rounds, separation, most):
    """z=7, T=2000, b=313, k=6, delta=1e-10: published rho .81, which counts nodes that no prefix sum needs."""
    found = stream(TreeMatrix(rounds), most=most, separation=separation, noise_std=noise_multiplier)
    event = found.event("update")
    assert 0.6 < event.mu**2 / 2.0 < 0.81
    assert accounting.epsilon([event], delta=1e-10) < 8.55


@pytest.mark.parametrize("kind", ["tree", "banded", "full", "blt"])
def test_record_and_replay_a_user_moves_a_stream_by_at_most_its_sensitivity(kind):
    """All others frozen, with and without one user of hostile vectors: the encoded integers differ by no more."""
    rounds, size, units = 12, 6, 1024
    allowed = Participation(rounds=rounds, most=4, separation=3)
    matrix = {
        "tree": lambda: TreeMatrix(rounds), "banded": lambda: banded_toeplitz(rounds, 3),
        "full": lambda: optimal_toeplitz(rounds), "blt": lambda: blt(allowed, buffers=2),
    }[kind]()  # fmt: skip
    found = Stream(matrix=matrix, allowed=allowed, size=size, clip=1.0, step=1 / units, noise_std=1.0)
    random = np.random.default_rng(0)
    others = random.integers(-(10**6), 10**6, (rounds, size))
    worst = 0.0
    for first in range(3):
        for mode in ("one place", "same", "random", "alternating"):
            own = np.zeros((rounds, size), dtype=np.int64)
            direction = random.normal(size=size)
            for time, round in enumerate(range(first, rounds, 3)):
                if mode == "one place":
                    own[round, 0] = units
                    continue
                if mode == "random":
                    direction = random.normal(size=size)
                sign = -1 if mode == "alternating" and time % 2 else 1
                own[round] = np.trunc(sign * direction / np.linalg.norm(direction) * units)
            with_user, without = matrix.encoder(size, limit=2**21), matrix.encoder(size, limit=2**21)
            moved = sum(
                np.square((with_user.step(row + mine) - without.step(row)) * found.encoded_step).sum()
                for row, mine in zip(others, own, strict=True)
            )
            worst = max(worst, math.sqrt(moved))
            assert math.sqrt(moved) <= found.sensitivity, (mode, first)
    assert worst > 0.99 * found.sensitivity  # the same direction each time, at the earliest rounds


def test_noise_of_a_stream_is_a_rounded_gaussian_on_the_encoded_grid():
    """A round trip: encode, add noise, decode; the error has the stated size (false alarm 1e-6: 5 standard errors)."""
    rounds, size = 32, 2000
    found = stream(optimal_toeplitz(rounds), most=1, separation=32, noise_std=2.0)
    encoder, decoder = found.matrix.encoder(size, limit=2**20), found.matrix.decoder(size)
    noise, random, truth = GaussianNoise(SeededNoise(3)), np.random.default_rng(5), np.zeros(size)
    for _ in range(rounds):
        total = random.integers(-1000, 1000, size)
        truth += total
        estimate = decoder.step(encoder.step(total) + noise.sample(found.noise_ratio, size))
    error = np.std((estimate - truth) * STEP)
    expected = found.noise_std * noise_factors(found.matrix)[-1]
    assert abs(error / expected - 1.0) < 5.0 / math.sqrt(2 * size)


def test_numbers_that_make_no_stream_are_refused():
    matrix = TreeMatrix(8)
    allowed = Participation(rounds=8, most=1, separation=1)
    good = {"matrix": matrix, "allowed": allowed, "size": 3, "clip": 1.0, "step": 0.01, "noise_std": 1.0}
    Stream(**good)
    other = Participation(rounds=9, most=1, separation=1)
    for wrong in ({"size": 0}, {"clip": 0.0}, {"step": 2.0}, {"noise_std": 0.001}, {"allowed": other}):
        with pytest.raises(ConfigurationError):
            Stream(**{**good, **wrong})


def test_a_ledger_is_charged_once_for_a_whole_stream():
    event = stream(TreeMatrix(64), most=4, separation=16, noise_std=20.0).event("update")
    budget = Budget(5.0, 1e-6)
    charged = Ledger("people").charge(
        task_id="aa" * 16, round=0, events=[event], contributions=100, population_size=1000,
        id_set_sha256=bytes(32), task_budget=budget, population_budget=budget,
    )  # fmt: skip
    assert charged.entries[0].task_epsilon == accounting.epsilon([event], delta=1e-6)
    assert Ledger.decode(charged.encode()) == charged
    with pytest.raises(BudgetExceeded):
        charged.charge(
            task_id="aa" * 16, round=1, events=[dataclasses.replace(event, noise_std=1.0)], contributions=100,
            population_size=1000, id_set_sha256=bytes(32), task_budget=budget, population_budget=budget,
        )  # fmt: skip
