"""From sums to a release: noise of the declared size per column, charges as declared, values on the grid."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from odp.algorithms.declared import GaussianSum, SharedNoiseSum, StreamSum
from odp.algorithms.release import charge_of, charges_of, draw_noise, event_of, round_charges, round_entry, to_values
from odp.errors import ConfigurationError, PrivacyError
from odp.evaluation.noise import NoNoise, SeededNoise
from odp.privacy.events import DistributedRelease, GaussianRelease, Sampling, StreamRelease
from odp.privacy.ledger_events import CoveredRelease
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise
from odp.v1 import common_pb2

ROOT = 2**0.5
_SHARED = SharedNoiseSum("sums", (5,), 0.25, 4.0, 8.0, sharers=6)


def _release(shape: tuple[int, ...] = (5, 3), *, packed: bool = True) -> GaussianSum:
    """Of noise 2, and of 2 / sqrt(2) in the second column where it is packed."""
    return GaussianSum("sums", shape, 0.25, 4.0, 2.0, packed=packed)


class _Recorder:
    """Answers with the ratio itself, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []

    def sample(self, ratio: float, count: int) -> np.ndarray:
        self.asked.append((ratio, count))
        return np.full(count, round(ratio), dtype=np.int64)


def test_each_column_gets_noise_of_its_own_std_in_grid_units() -> None:
    recorder = _Recorder()
    drawn = draw_noise(_release(), recorder)
    assert drawn.tolist() == [[8, 6, 8]] * 5
    assert sorted(recorder.asked) == [(pytest.approx(8.0 / ROOT), 5), (8.0, 10)]
    assert sum(count for _, count in recorder.asked) == _release().coordinates


def test_a_vector_is_one_row() -> None:
    assert draw_noise(_release((3,)), _Recorder()).tolist() == [8, 6, 8]
    assert draw_noise(_release((3,), packed=False), _Recorder()).tolist() == [8, 8, 8]


def test_the_noise_has_the_declared_std() -> None:
    """Each sample std is within 5 % of the declared one: 10 standard errors, false alarm below 1e-20, seed fixed."""
    drawn = draw_noise(_release((20_000, 3)), GaussianNoise(SeededNoise(3)))
    np.testing.assert_allclose(drawn.std(axis=0) * 0.25, [2.0, 2.0 / ROOT, 2.0], rtol=0.05)
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 2])[0, 1]) < 0.05, "no column repeats another"


def test_real_noise_of_no_size_is_refused_rather_than_left_out() -> None:
    silent = GaussianSum("sums", (5, 3), 0.25, 4.0, 0.0)
    with pytest.raises(ConfigurationError):
        draw_noise(silent, GaussianNoise(SeededNoise(3)))
    assert not draw_noise(silent, NoNoise()).any()


@pytest.mark.parametrize("packed", [False, True])
def test_no_release_can_have_other_noise_than_it_is_charged_for(packed: bool) -> None:
    """What is drawn follows from the charged numbers: there is no second number that could be smaller."""
    release = _release(packed=packed)
    (charge,) = charges_of(SimpleNamespace(releases=(release,)))
    weights = np.array([1.0, 2.0 if packed else 1.0, 1.0])
    np.testing.assert_allclose(release.column_std * np.sqrt(weights), charge.noise_std, rtol=1e-15)
    with pytest.raises(TypeError):
        dataclasses.replace(release, column_std=release.column_std / 2)  # type: ignore[call-arg]
    for declared in (_SHARED, _of_stream(0).releases[0]):
        assert (declared.column_std == declared.charge.noise_std).all()
        with pytest.raises(TypeError):
            dataclasses.replace(declared, column_std=declared.column_std / 2)


def test_entries_that_the_norm_counts_twice_are_those_off_the_diagonal_of_a_packed_triangle() -> None:
    np.testing.assert_array_equal(_release().column_std, [2.0, 2.0 / ROOT, 2.0])
    np.testing.assert_array_equal(_release(packed=False).column_std, [2.0, 2.0, 2.0])
    with pytest.raises(ConfigurationError, match="upper triangle"):
        _release((5, 4))


def test_what_is_charged_is_what_is_declared() -> None:
    class _Query:
        payload_bytes = 0
        releases = (_release(), _release((7, 3)))

    first, second = charges_of(_Query())  # type: ignore[arg-type]
    assert (first.name, first.sensitivity, first.noise_std, first.coordinates) == ("sums", 4.0, 2.0, 15)
    assert second.coordinates == 21


def test_values_are_integers_times_the_step_in_the_declared_shape() -> None:
    values = to_values(_release(), np.arange(15, dtype=np.int64) - 7)
    assert values.shape == (5, 3)
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values.ravel(), (np.arange(15) - 7) * 0.25)


@pytest.mark.parametrize("sharers", [0, 6])
def test_a_signed_releases_charge_gives_back_the_event_that_the_task_declares(sharers: int) -> None:
    """What `odp audit verify` compares: mechanism, sharers and grid included."""
    release = _SHARED if sharers else GaussianSum("sums", (5,), 0.25, 4.0, 8.0)
    (event,) = charges_of(SimpleNamespace(releases=(release,)))
    assert isinstance(event, DistributedRelease if sharers else GaussianRelease)
    written = common_pb2.Release(charges=[charge_of(event)])
    read = common_pb2.Release.FromString(written.SerializeToString()).charges[0]
    assert event_of(read) == event
    read.sharers = sharers + 1
    read.step = 0.25
    assert event_of(read) != event


def test_noise_in_shares_is_never_charged_as_sampled() -> None:
    with pytest.raises(PrivacyError, match="nobody could draw in secret"):
        round_charges(SimpleNamespace(releases=(_SHARED,)), Sampling(0.5, 100, 90))


STREAM = StreamRelease(
    name="sums", sensitivity=4.0, noise_std=8.0, coordinates=15, rounds=3, most=2, separation=1,
    matrix_sha256=b"m" * 32,
)  # fmt: skip


def _of_stream(place: int, **changes: object) -> SimpleNamespace:
    release = StreamSum("sums", (5,), 0.25, STREAM, place)
    return SimpleNamespace(releases=(dataclasses.replace(release, **changes),))


@pytest.mark.parametrize("place", [0, 2])
def test_the_first_release_of_a_stream_charges_it_and_later_ones_are_covered(place: int) -> None:
    (event,) = round_entry(_of_stream(place), None)
    assert event == (CoveredRelease(STREAM, place) if place else STREAM)
    assert round_charges(_of_stream(place), None) == (() if place else (STREAM,))
    read = common_pb2.Charge.FromString(charge_of(event).SerializeToString())
    assert event_of(read) == event
    read.stream.separation = 2
    assert event_of(read) != event
    read.sharers = 3
    with pytest.raises(ConfigurationError, match="no noise in shares"):
        event_of(read)
    with pytest.raises(PrivacyError, match="together with sampling"):
        round_entry(_of_stream(place), Sampling(0.5, 100, 90))


@pytest.mark.parametrize("changes", [{"name": "other"}, {"shape": (6,)}])
def test_a_release_with_other_numbers_than_its_stream_is_not_charged(changes: dict[str, object]) -> None:
    for place in (0, 1):
        with pytest.raises(PrivacyError, match="other numbers"):
            round_entry(_of_stream(place, **changes), None)


def test_a_place_outside_of_its_stream_is_refused() -> None:
    for place in (-1, 3):
        with pytest.raises(ConfigurationError, match="place"):
            round_entry(_of_stream(place), None)
