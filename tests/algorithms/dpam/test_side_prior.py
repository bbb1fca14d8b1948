"""Side information of a person: a public map from a panel, at which a local solve begins; nothing of it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import odp
from odp.algorithms.capabilities import PriorClient
from odp.algorithms.dpam.client import DpamClient
from odp.algorithms.dpam.side_prior import side_prior
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.seam import LocalRows
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, DataError
from odp.models.side_prior import SidePrior, items_sha256
from odp.models.warm_start import WarmStart
from odp.numerics.arrays import Float64Array
from odp.protocol.wire.model import ModelVersion, Slices, TableValues
from tests.models import hostile_archives

ITEMS, USERS, CENTRE = 60, 200, 3.5
KEYS = [f"item {number}" for number in range(ITEMS)]


def a_task(rank: int = 3) -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=ITEMS, rank=rank),
        data=odp.RatingsData(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=20),
        training=odp.DPAM(steps=1),
        cohort=odp.Cohort(minimum=2),
    )


def a_model(rank: int = 3) -> ModelVersion:
    rows = np.random.default_rng(3).normal(scale=0.4, size=(ITEMS, 3 + rank)).astype(np.float32)
    rows[:, 2] = 1.0
    ridges = np.array([[0.6, 5.0]], dtype=np.float32)
    return ModelVersion(3, (TableValues("items", rows, True), TableValues("globals", ridges, False)))


def people(seed: int, *, shift: float) -> tuple[Ratings, list[str], Float64Array]:
    """Users of two groups, whose rows differ by ``shift`` in the first factor: (20 ratings each, groups, true rows)."""
    generator = np.random.default_rng(seed)
    table = a_model().keyed.rows.astype(np.float64)
    groups = generator.integers(0, 2, USERS)
    rows = 0.5 * generator.normal(size=(USERS, 3))
    rows[:, 0] += np.where(groups == 0, -shift, shift)
    items = np.stack([generator.permutation(ITEMS)[:20] for _ in range(USERS)])
    values = CENTRE + table[items, 1] + (table[items][:, :, 3:] @ rows[:, :, None])[:, :, 0]
    values = np.clip(values + 0.3 * generator.normal(size=values.shape), 1.0, 5.0)
    users = np.repeat(np.arange(USERS), 20)
    made = Ratings.from_triples(
        "made", users, items.ravel(), values.ravel(), low=1, high=5, n_users=USERS, n_items=ITEMS
    )
    return made, ["young" if group else "old" for group in groups], rows


@pytest.fixture(scope="module")
def prior() -> SidePrior:
    panel, groups, _ = people(1, shift=1.0)
    return side_prior(a_task(), a_model(), KEYS, panel=panel, panel_keys=KEYS, side={"age": groups})


def predictions(
    history: Ratings, targets: Ratings, *, prior: SidePrior | None, said: Sequence[Mapping[str, str]]
) -> Float64Array:
    """Predictions float64 [targets.n_ratings] as each user's device makes them with a side prior; not clamped."""
    client, model = DpamClient(a_task().definition()), a_model()
    rows = model.keyed.rows
    everything = Slices(model.version, np.arange(len(rows)), rows, model.dense)
    out = np.empty(targets.n_ratings)
    for user in range(targets.n_users):
        items, values = history.user(user)
        device = client if prior is None else client.beginning(prior.means(said)[user])
        data = {ROWS: LocalRows(items.astype(np.int64), values.astype(np.float64))}
        here = slice(int(targets.offsets[user]), int(targets.offsets[user + 1]))
        out[here] = device.predict(everything, data, targets.user(user)[0].astype(np.int64))
    return out


def test_a_map_finds_how_groups_differ_and_helps_new_people_most(prior: SidePrior) -> None:
    found = prior.means([{"age": "young"}, {"age": "old"}])
    # Groups of a hundred stay a little nearer to each other than the 2 of the truth.
    assert found[0] - found[1] == pytest.approx([0.0, 1.7, 0.0, 0.0], abs=0.4)
    ratings, groups, _ = people(2, shift=1.0)
    place = np.arange(ratings.n_ratings) - ratings.offsets[ratings.users()]
    targets = ratings.take(place >= 15)
    errors = {}
    for size in (0, 2, 15):
        for name, own in (("without", None), ("with", prior)):
            said = [{"age": group} for group in groups]
            made = predictions(ratings.take(place < size), targets, prior=own, said=said)
            errors[size, name] = float(np.sqrt(np.mean((made - targets.values) ** 2)))
    gains = [1 - errors[size, "with"] / errors[size, "without"] for size in (0, 2, 15)]
    assert gains[0] > 0.1
    assert gains[0] > gains[1] > gains[2] > 0.0


def test_a_client_that_begins_at_a_mean_solves_the_ridge_regression_around_it() -> None:
    """Against the normal equations with that prior mean; without ratings it says what the mean says."""
    model, generator = a_model(2), np.random.default_rng(5)
    client = DpamClient(a_task(2).definition())
    assert isinstance(client, PriorClient)
    slices = Slices(3, np.arange(ITEMS), model.keyed.rows, model.dense)
    mean, table = generator.normal(size=3), model.keyed.rows.astype(np.float64)
    base, design = CENTRE + table[:, 1], np.column_stack((np.ones(ITEMS), table[:, 3:]))
    own, items = np.array([3, 7, 8, 20, 41]), np.arange(ITEMS)
    values = generator.uniform(1, 5, len(own))
    begun = client.beginning(mean)
    none = {ROWS: LocalRows(np.empty(0, np.int64), np.empty(0))}
    np.testing.assert_allclose(begun.predict(slices, none, items), base + design @ mean, atol=1e-9)
    ridge = np.diag([5.0, 0.6, 0.6])
    solved = np.linalg.solve(design[own].T @ design[own] + ridge, design[own].T @ (values - base[own]) + ridge @ mean)
    data = {ROWS: LocalRows(own, values)}
    np.testing.assert_allclose(begun.predict(slices, data, items), base + design @ solved, atol=1e-6)
    found = begun.intervals(slices, data, items, level=0.9)
    np.testing.assert_array_equal(found.mean, begun.predict(slices, data, items))
    for round in range(3):
        assert begun.contribute(slices, data, round=round, seed=1) == client.contribute(
            slices, data, round=round, seed=1
        )
    with pytest.raises(ConfigurationError, match="3 numbers"):
        client.beginning(np.zeros(5))


def test_what_is_unknown_counts_as_not_said(prior: SidePrior) -> None:
    means = prior.means([{}, {"age": "older"}, {"shoe": "42"}, {"age": "old", "shoe": "42"}])
    np.testing.assert_array_equal(means[0], np.asarray(prior.rows)[0])
    np.testing.assert_array_equal(means[1], means[0])
    np.testing.assert_array_equal(means[2], means[0])
    assert not np.array_equal(means[3], means[0])


def test_a_saved_prior_is_the_same_and_a_damaged_file_is_refused(prior: SidePrior, tmp_path: Path) -> None:
    path = tmp_path / "side.npz"
    prior.save(path)
    again = SidePrior.load(path)
    assert again.attributes == prior.attributes
    np.testing.assert_array_equal(np.asarray(again.rows), np.asarray(prior.rows))
    assert again.items_sha256 == prior.items_sha256
    content = path.read_bytes()
    for damaged in (b"", content[:-30], b"text"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="side prior"):
            SidePrior.load(path)
    with pytest.raises(DataError, match="cannot read the side prior"):
        SidePrior.load(tmp_path / "missing.npz")


@pytest.mark.parametrize("kind", hostile_archives.KINDS)
def test_a_hostile_file_is_no_prior_and_no_start(tmp_path: Path, kind: str) -> None:
    path = hostile_archives.write(tmp_path, kind, "format")
    with pytest.raises(DataError, match="no side prior"):
        SidePrior.load(path)
    with pytest.raises(DataError, match="no start of a model"):
        WarmStart.load(path)


def test_a_prior_that_unpacks_to_more_than_one_may_have_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "side.npz"
    np.savez_compressed(path, format=np.array("odp-side-prior-1"), rows=np.zeros((2**20, 4)))
    assert path.stat().st_size < 2**20
    with pytest.raises(DataError, match="no side prior") as caught:
        SidePrior.load(path)
    assert "unpacks to more" in str(caught.value.__cause__)


def test_a_prior_of_another_model_is_refused(prior: SidePrior) -> None:
    other = a_model().keyed.rows.copy()
    prior.require_made_for(other)
    other[0, 0] += 1.0
    with pytest.raises(ConfigurationError, match="of this very model"):
        prior.require_made_for(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attributes": {"Age": ("a", "b")}}, "attribute="),
        ({"attributes": {"age": ("a", "a")}}, "each of them once"),
        ({"attributes": {"age": ("a", "")}}, "age=''"),
        ({"attributes": {"age": ()}}, "to have categories"),
        ({"rows": np.zeros((2, 4))}, r"\[3, 1 \+ rank\]"),
        ({"rows": np.full((3, 4), np.nan)}, "within 10000 of 0"),
        ({"items_sha256": b"short"}, "32 bytes"),
    ],
)
def test_a_prior_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    right = {
        "attributes": {"age": ("a", "b")},
        "rows": np.zeros((3, 4)),
        "items_sha256": items_sha256(a_model().keyed.rows),
    }
    with pytest.raises(ConfigurationError, match=message):
        SidePrior(**{**right, **change})  # type: ignore[arg-type]


def test_a_panel_of_other_sizes_or_without_a_common_item_is_refused() -> None:
    panel, groups, _ = people(1, shift=1.0)
    arguments = {"panel": panel, "panel_keys": KEYS, "side": {"age": groups}}
    for change, message in (
        ({"panel_keys": KEYS[:-1]}, "panel_keys"),
        ({"side": {"age": groups[:-1]}}, "a category per panel user"),
        ({"panel_keys": [f"other {number}" for number in range(ITEMS)]}, "an item of the model"),
    ):
        with pytest.raises(DataError, match=message):
            side_prior(a_task(), a_model(), KEYS, **{**arguments, **change})  # type: ignore[arg-type]
