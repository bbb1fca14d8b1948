"""Encoder matrices: inverses, sensitivities against brute force, and streaming against the matrix form."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.errors import ConfigurationError, DataError, PrivacyError, StateError
from odp.privacy.matrix import BandedMatrix, BufferedMatrix, EncoderMatrix, Participation, TreeMatrix, sensitivity
from odp.privacy.matrix.blt import inverse_coefficients
from odp.privacy.matrix.design import (
    Error,
    banded_toeplitz,
    blt,
    optimal_coefficients,
    optimal_toeplitz,
    rational_approximation,
    recommended,
)
from tests.privacy.matrix.error_factors import noise_factors
from tests.privacy.matrix.patterns import patterns

LIMIT = 2**24


def unequal_diagonals(rounds: int, bands: int) -> BandedMatrix:
    """No Toeplitz matrix: its columns have norm 1, and the last ones are shorter."""
    columns = np.arange(rounds)[:, None] - np.arange(bands)[None, :]  # [rounds, bands], of each number
    numbers = np.where(columns >= 0, optimal_coefficients(bands)[None, :], 0.0)
    squares = np.bincount(columns[columns >= 0], weights=np.square(numbers[columns >= 0]), minlength=rounds)
    return BandedMatrix.of(np.where(columns >= 0, numbers / np.sqrt(squares[columns]), 0.0))


def matrices(rounds: int, bands: int) -> list[EncoderMatrix]:
    return [
        TreeMatrix(rounds),
        optimal_toeplitz(rounds),
        banded_toeplitz(rounds, bands),
        unequal_diagonals(rounds, bands),
        blt(Participation(rounds=rounds, most=1, separation=rounds), buffers=2),
    ]


def brute_force(matrix: np.ndarray, allowed: Participation) -> float:
    return max(np.square(matrix[:, list(rounds)].sum(axis=1)).sum() for rounds in patterns(allowed))


def sums(rounds: int, size: int, seed: int, limit: int = LIMIT) -> np.ndarray:
    return np.random.default_rng(seed).integers(-limit, limit + 1, (rounds, size))


@pytest.mark.parametrize(
    ("rounds", "squared"), [(100, 2.531352), (412, 2.982634), (1000, 3.265003)]
)  # fmt: skip
def test_the_optimal_toeplitz_matrix_has_its_published_sensitivity_and_error(rounds, squared):
    once = Participation(rounds=rounds, most=1, separation=1)
    assert np.square(optimal_coefficients(rounds)).sum() == pytest.approx(squared, abs=5e-7)
    exact = optimal_toeplitz(rounds, bits=40)
    assert exact.sensitivity(once) ** 2 == pytest.approx(squared, abs=1e-6)
    assert noise_factors(exact)[-1] ** 2 == pytest.approx(squared, abs=1e-6)
    rounded = optimal_toeplitz(rounds)
    product = rounded.sensitivity(once) * noise_factors(rounded).max()
    assert squared <= product <= 1.002 * squared  # ten bits cost less than that


def test_the_optimal_toeplitz_matrix_with_separation_has_its_golden_value():
    allowed = Participation(rounds=12, most=4, separation=3)
    assert optimal_toeplitz(12, bits=40).sensitivity(allowed) ** 2 == pytest.approx(13.383036, abs=1e-6)


@pytest.mark.parametrize(("rounds", "squared"), [(100, 7), (1000, 10), (1024, 11)])
def test_one_participation_in_a_tree_is_seen_by_one_node_of_each_size(rounds, squared):
    assert TreeMatrix(rounds).squared_sensitivity(Participation(rounds=rounds, most=1, separation=1)) == squared
    assert squared <= np.ceil(np.log2(rounds)) + 1


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 12])
def test_the_tree_equals_brute_force_over_all_patterns(rounds):
    tree = TreeMatrix(rounds)
    for separation in range(1, rounds + 1):
        for most in range(1, min(8, -(-rounds // separation)) + 1):
            allowed = Participation(rounds=rounds, most=most, separation=separation)
            assert tree.squared_sensitivity(allowed) == brute_force(tree.matrix(), allowed)


def test_the_bound_for_many_rounds_per_user_is_close_to_the_exact_value_of_a_tree(monkeypatch):
    allowed = Participation(rounds=256, most=8, separation=16)
    exact = sensitivity.of_tree(allowed)
    monkeypatch.setattr(sensitivity, "_MOST_EXACT", 0)
    assert exact <= sensitivity.of_tree(allowed) <= 1.06 * exact


@pytest.mark.parametrize(("rounds", "bands"), [(1, 1), (5, 2), (9, 4), (12, 3), (12, 12)])
def test_sensitivities_equal_brute_force_over_all_patterns(rounds, bands):
    for matrix in matrices(rounds, bands):
        for most, separation in {(1, 1), (rounds, bands), (min(3, rounds), min(2, rounds)), (rounds, 1)}:
            allowed = Participation(rounds=rounds, most=most, separation=separation)
            truth = brute_force(matrix.matrix(), allowed)
            stated = matrix.sensitivity(allowed) ** 2
            assert stated >= truth * (1 - 1e-12), (matrix, allowed)
            exact = not isinstance(matrix, BandedMatrix) or matrix.bands <= separation or "Toeplitz" in repr(matrix)
            if exact and not (isinstance(matrix, TreeMatrix) and allowed.largest > 8):
                assert stated <= truth * (1 + 3e-9), (matrix, allowed)


@given(st.data())
@settings(max_examples=60)
def test_the_general_bound_is_never_below_brute_force_and_exact_without_common_rows(data):
    rounds = data.draw(st.integers(1, 8))
    separation = data.draw(st.integers(1, rounds))
    allowed = Participation(rounds=rounds, most=data.draw(st.integers(1, rounds)), separation=separation)
    entries = data.draw(st.lists(st.integers(0, 1000), min_size=rounds * rounds, max_size=rounds * rounds))
    matrix = np.tril(np.array(entries, dtype=np.int64).reshape(rounds, rounds))
    assert sensitivity.upper_bound(matrix, allowed) >= brute_force(matrix, allowed)
    banded = matrix * (np.subtract.outer(np.arange(rounds), np.arange(rounds)) < separation)
    assert sensitivity.upper_bound(banded, allowed) == brute_force(banded, allowed)
    squares = np.square(banded).sum(axis=0).tolist()
    assert sensitivity.of_disjoint_columns(squares, allowed) == brute_force(banded, allowed)


@given(st.data())
@settings(max_examples=60)
def test_the_earliest_rounds_are_the_worst_for_falling_toeplitz_matrices(data):
    rounds = data.draw(st.integers(1, 9))
    allowed = Participation(
        rounds=rounds, most=data.draw(st.integers(1, rounds)), separation=data.draw(st.integers(1, rounds))
    )
    falling = sorted(data.draw(st.lists(st.integers(1, 2**20), min_size=1, max_size=rounds)), reverse=True)
    matrix = BandedMatrix(np.broadcast_to(np.array(falling), (rounds, len(falling))), 0)
    assert matrix.squared_sensitivity(allowed) == brute_force(matrix.integers(), allowed)


def test_a_root_is_rounded_upwards():
    for number in (2, 3, 10**30 + 1, Fraction(1, 3)):
        root = sensitivity.root_upwards(Fraction(number))
        assert Fraction(root) ** 2 >= number
        assert Fraction(np.nextafter(root, 0.0)) ** 2 < number * (1 + Fraction(1, 10**15))


@pytest.mark.parametrize(("rounds", "bands"), [(1, 1), (7, 3), (12, 5)])
def test_an_encoder_matrix_times_its_inverse_is_one(rounds, bands):
    for matrix in matrices(rounds, bands):
        dense = matrix.matrix()
        assert np.array_equal(dense, np.tril(dense))
        inverse = np.linalg.inv(dense)
        assert np.allclose(dense @ inverse, np.eye(rounds), atol=1e-12)


@pytest.mark.parametrize(("rounds", "bands"), [(1, 1), (6, 2), (12, 4), (40, 7)])
def test_streaming_equals_the_matrix_form_and_the_decoder_undoes_it(rounds, bands):
    total = sums(rounds, 5, seed=rounds)
    for matrix in matrices(rounds, bands):
        encoder, decoder = matrix.encoder(5, limit=LIMIT), matrix.decoder(5)
        encoded = np.stack([encoder.step(row) for row in total])
        integers = matrix.matrix() * 2.0**matrix.bits
        if matrix.rounding:
            off = np.abs(encoded - integers @ total) / 2.0**matrix.bits
            assert off.max() <= matrix.rounding + 1e-6
        else:  # to the bit: whole numbers of any size
            exact = integers.astype(np.int64).astype(object) @ total.astype(object)
            assert np.array_equal(encoded.astype(object), exact)
        decoded = np.stack([decoder.step(row) for row in encoded])
        assert np.allclose(decoded, np.cumsum(total, axis=0), rtol=1e-9, atol=1e-9 * LIMIT)
        assert encoder.round == decoder.round == rounds


@pytest.mark.parametrize("place", range(5))
def test_a_stream_goes_on_from_its_state_after_any_round(place):
    rounds, size = 9, 3
    matrix = matrices(rounds, 4)[place]
    total = sums(rounds, size, seed=1)
    straight, decoder = matrix.encoder(size, limit=LIMIT), matrix.decoder(size)
    encoded = [straight.step(row) for row in total]
    decoded = [decoder.step(row) for row in encoded]
    lengths = set()
    state, decoder_state = None, None
    for round, row in enumerate(total):
        encoder = matrix.encoder(size, limit=LIMIT, state=state)
        assert np.array_equal(encoder.step(row), encoded[round])
        state = encoder.to_bytes()
        lengths.add(len(state))
        resumed = matrix.decoder(size, state=decoder_state)
        assert np.array_equal(resumed.step(encoded[round]), decoded[round])
        decoder_state = resumed.to_bytes()
    assert len(lengths) == 1
    assert matrix.encoder(size, limit=LIMIT, state=state).round == rounds


def test_the_state_of_a_stream_is_bounded_by_bands_levels_or_buffers():
    size, rounds = 1000, 64
    banded, tree = BandedMatrix.toeplitz(np.array([1.0, 0.5, 0.25]), rounds=rounds), TreeMatrix(rounds)
    assert len(banded.encoder(size, limit=2**31 - 1).to_bytes()) < 2 * size * 4 + 100
    assert len(banded.encoder(size, limit=2**31).to_bytes()) < 2 * size * 8 + 100
    assert len(tree.encoder(size, limit=LIMIT).to_bytes()) < 7 * size * 8 + 100
    buffered = BufferedMatrix([0.3, 0.2], [0.9, 0.5], rounds)
    assert len(buffered.encoder(size, limit=LIMIT).to_bytes()) < 2 * size * 8 + 100


def test_a_raw_sum_leaves_the_state_when_no_later_round_needs_it():
    matrix = BandedMatrix.toeplitz(np.array([1.0, 0.5, 0.25]), rounds=20)
    encoder, mark = matrix.encoder(1, limit=LIMIT), 0x123456
    encoder.step(np.array([mark]))
    kept = [mark.to_bytes(4, "little") in encoder.to_bytes()]
    for _ in range(3):
        encoder.step(np.array([0]))
        kept.append(mark.to_bytes(4, "little") in encoder.to_bytes())
    assert kept == [True, True, False, False]


def test_a_state_of_another_stream_is_refused():
    first, second = (BandedMatrix.toeplitz(np.array([1.0, tail]), rounds=5) for tail in (0.5, 0.25))
    state = first.encoder(4, limit=LIMIT).to_bytes()
    for refused in (
        lambda: second.encoder(4, limit=LIMIT, state=state),
        lambda: first.encoder(5, limit=LIMIT, state=state),
        lambda: first.encoder(4, limit=LIMIT, state=state[:-1]),
        lambda: first.decoder(4, state=state),
        lambda: TreeMatrix(5).encoder(4, limit=LIMIT, state=state),
    ):
        with pytest.raises(StateError):
            refused()


@pytest.mark.parametrize("place", range(5))
def test_a_round_that_cannot_be_encoded_changes_nothing(place):
    matrix = matrices(4, 2)[place]
    encoder = matrix.encoder(2, limit=100)
    encoder.step(np.array([100, -100]))
    state = encoder.to_bytes()
    for wrong in (np.array([101, 0]), np.array([-101, 0]), np.array([1]), np.array([np.iinfo(np.int64).min, 0])):
        with pytest.raises(DataError):
            encoder.step(wrong)
    assert encoder.to_bytes() == state
    for _ in range(3):
        encoder.step(np.array([0, 0]))
    with pytest.raises(DataError, match="new one"):
        encoder.step(np.array([0, 0]))


@pytest.mark.parametrize("place", range(5))
def test_sums_at_their_limit_do_not_overflow(place):
    rounds = 6
    matrix = matrices(rounds, 3)[place]
    limit = 2**31 if matrix.bits > 10 else 2**45
    encoder = matrix.encoder(1, limit=limit)
    exact = np.zeros(rounds, dtype=object)
    column = [int(value) for value in np.rint(matrix.matrix()[-1][::-1] * 2.0**matrix.bits)]
    for round in range(rounds):
        exact[round] = int(encoder.step(np.array([limit]))[0])
        assert 0 < exact[round] < 2**62
    assert column[0] > 0


def test_numbers_that_would_leave_62_bits_are_refused_before_the_stream():
    with pytest.raises(ConfigurationError, match="limit"):
        optimal_toeplitz(100).encoder(1, limit=2**52)
    with pytest.raises(ConfigurationError, match="limit"):
        BufferedMatrix([0.5], [0.999], 100).encoder(1, limit=2**40)


def test_a_buffered_matrix_has_the_inverse_that_its_eigenvalues_give():
    scales, decays = np.array([0.3, 0.15, 0.05]), np.array([0.2, 0.8, 0.99])
    matrix = BufferedMatrix(scales.tolist(), decays.tolist(), 30)
    inverse = np.linalg.inv(matrix.matrix())[:, 0]
    rounded = (np.array(values) / 2**20 for values in (matrix.scales, matrix.decays))
    assert np.allclose(inverse_coefficients(*rounded, 30), inverse, atol=1e-12)


def test_a_rational_approximation_is_near_the_optimal_coefficients():
    for buffers, tolerance in ((2, 0.2), (4, 0.08), (6, 0.04)):
        scales, decays = rational_approximation(1000, buffers)
        found = BufferedMatrix(scales.tolist(), decays.tolist(), 1000).coefficients()
        assert np.abs(found - optimal_coefficients(1000)).max() < tolerance
        assert found[1] == pytest.approx(0.5, abs=1e-5)


def test_optimised_matrices_are_better_than_what_they_start_from():
    rounds, bands = 128, 16
    allowed = Participation(rounds=rounds, most=4, separation=32)

    def errors(matrix: EncoderMatrix) -> tuple[float, float]:
        factors, moved = noise_factors(matrix), matrix.sensitivity(allowed)
        return moved * factors.max(), moved * np.sqrt(np.square(factors).mean())

    cut = BandedMatrix.toeplitz(optimal_coefficients(bands), rounds=rounds)
    worst, mean = banded_toeplitz(rounds, bands), banded_toeplitz(rounds, bands, error=Error.MEAN)
    assert errors(worst)[0] < errors(cut)[0]
    assert errors(mean)[1] < errors(worst)[1] < errors(cut)[1]
    assert 0.99 * 4 <= unequal_diagonals(rounds, bands).squared_sensitivity(allowed) <= 4
    scales, decays = rational_approximation(rounds, 3)
    start = BufferedMatrix(scales.tolist(), decays.tolist(), rounds)
    assert errors(blt(allowed, buffers=3))[0] < errors(start)[0]
    assert errors(blt(allowed, buffers=3))[0] < errors(optimal_toeplitz(rounds))[0] < errors(TreeMatrix(rounds))[0]


def test_matrices_that_no_rule_covers_are_refused():
    with pytest.raises(ConfigurationError, match="positive main diagonal"):
        BandedMatrix(np.array([[0], [1]]), 0)
    with pytest.raises(ConfigurationError, match="bands <= rounds"):
        BandedMatrix(np.ones((2, 3), dtype=np.int64), 0)
    with pytest.raises(ConfigurationError, match="at most 1 together"):
        BufferedMatrix([0.7, 0.7], [0.5, 0.5], 10)
    with pytest.raises(ConfigurationError, match="decays"):
        BufferedMatrix([0.7], [1.0], 10)
    negative = BandedMatrix(np.array([[2, 0, 0], [2, -1, 0], [2, 1, 1]]), 0)
    with pytest.raises(PrivacyError, match="non-negative"):
        negative.squared_sensitivity(Participation(rounds=3, most=2, separation=1))
    assert negative.squared_sensitivity(Participation(rounds=3, most=1, separation=3)) == 6
    with pytest.raises(ConfigurationError, match="rounds"):
        TreeMatrix(5).sensitivity(Participation(rounds=6, most=1, separation=1))


@pytest.mark.parametrize(("separation", "kind"), [(1, BandedMatrix), (16, BandedMatrix), (17, BufferedMatrix)])
def test_the_recommended_matrix_keeps_few_vectors_and_is_better_than_a_tree(separation, kind):
    allowed = Participation(rounds=96, most=4, separation=separation)
    found, tree = recommended(allowed), TreeMatrix(96)
    assert isinstance(found, kind)
    assert isinstance(found, BufferedMatrix) or found.bands == separation
    if separation > 1:
        cost = found.sensitivity(allowed) * noise_factors(found).max()
        assert cost < tree.sensitivity(allowed) * noise_factors(tree).max()


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_bytes_that_are_no_state_are_refused(data):
    for matrix in (TreeMatrix(4), optimal_toeplitz(4), BufferedMatrix([0.5], [0.5], 4)):
        for make in (lambda state, m=matrix: m.encoder(1, limit=9, state=state), matrix_decoder(matrix)):
            with pytest.raises(StateError):
                make(data)


def matrix_decoder(matrix: EncoderMatrix):
    return lambda state: matrix.decoder(1, state=state)


def test_a_tree_that_takes_too_long_to_measure_has_an_upper_bound(monkeypatch):
    """A task of a stranger chooses rounds and participations: no party computes for longer than some seconds."""
    allowed = Participation(rounds=40, most=4, separation=3)
    exact = TreeMatrix(40).squared_sensitivity(allowed)
    monkeypatch.setattr(sensitivity, "_MOST_WORK", 2**16)
    found = TreeMatrix(40).squared_sensitivity(allowed)
    assert found == sensitivity.upper_bound(sensitivity.tree_matrix(40), allowed)
    assert exact <= found <= exact * Fraction(11, 10)


def test_a_tree_that_no_way_measures_in_time_is_refused():
    with pytest.raises(ConfigurationError, match="rounds=2048 and 2048 participations"):
        TreeMatrix(2048).sensitivity(Participation(rounds=2048, most=2048, separation=1))
