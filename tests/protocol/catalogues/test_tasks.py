"""What a task makes of a catalogue: its size, its name, its start; and what a task file says of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import odp
from odp.algorithms.registry import algorithm_for
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError
from odp.protocol.catalogues.catalogue import Catalogue
from odp.signed.task import MOST_VERSIONS, sign_task
from odp.tasks.file import load_task, names_files, render_task

FIRST = Catalogue.make("films", [f"film {number}" for number in range(20)])
SECOND = FIRST.change(add=["new 1", "new 2"], retire=["film 0", "film 1", "film 2", "film 3", "film 4"])


def films(catalogue: Catalogue | None = SECOND, *, items: int = 17, **changes: object) -> odp.Task:
    given: dict[str, object] = {
        "name": "films",
        "model": odp.MatrixFactorization(items=items, rank=2, catalogue=catalogue),
        "data": odp.RatingsData(),
        "privacy": odp.UserLevelDP(epsilon=8, delta=1e-6),
        "training": odp.DPAM(steps=1),
    }
    return odp.Task(**{**given, **changes})  # type: ignore[arg-type]


def test_a_task_names_version_and_hash_and_retired_items_cost_no_noise() -> None:
    definition = films().definition()
    assert (definition.model.catalogue.version, definition.model.catalogue.sha256) == (2, SECOND.sha256)
    assert not films(None).definition().model.HasField("catalogue")
    releases = [release for round in algorithm_for(definition).planned_releases() for release in round]
    assert {release.shape[0] for release in releases} == {17}, "noise is drawn for the items that are there"


def test_new_items_start_from_their_features_or_from_the_mean() -> None:
    draws = np.random.default_rng(1)
    kinds = draws.integers(0, 2, 20)
    start = odp.items.WarmStart(
        keys=FIRST.keys, popularity=np.full(20, 9.0) + kinds, biases=2.0 * kinds - 1.0, factors=np.zeros((20, 0))
    )
    new = [SECOND.numbers[key] for key in ("new 1", "new 2")]
    plain = odp.MatrixFactorization(items=17, rank=2, start=start, catalogue=SECOND).features
    assert plain is not None
    assert not plain[new].any()
    assert plain[:15].any(axis=1).all()
    # Two features: which of two kinds an item is. The new items are one of each.
    own = np.eye(2)[[*kinds[5:], 0, 1]]
    helped = odp.MatrixFactorization(items=17, rank=2, start=start, catalogue=SECOND, item_features=own).features
    assert helped is not None
    bias = helped[:, 2]
    assert abs(bias[new[1]] - bias[new[0]]) > 0.5 * np.ptp(bias[:15]), "each begins near its kind"
    assert np.sign(bias[new]).tolist() == [np.sign(bias[:15][kinds[5:] == kind].mean()) for kind in (0, 1)]


def test_what_does_not_fit_its_catalogue_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="Expected items=20 to be the 17 of catalogue version 2"):
        films(items=20)
    with pytest.raises(ConfigurationError, match="Expected population='songs' to be that of the catalogue, 'films'"):
        films(population="songs")
    with pytest.raises(ConfigurationError, match="item_keys or catalogue, not both"):
        odp.MatrixFactorization(items=17, catalogue=SECOND, item_keys=SECOND.keys)
    with pytest.raises(ConfigurationError, match=r"Expected catalogue to be an odp.items.Catalogue"):
        odp.MatrixFactorization(items=17, catalogue="films.catalogue")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="without buckets or edges"):
        films(data=odp.RatingsData(low=0, high=9, events=odp.Events(service="a", type="b", item="c", buckets=17)))


def test_enclaves_and_devices_check_the_form_of_the_name() -> None:
    for field, value in (("version", 0), ("version", MOST_VERSIONS + 1), ("sha256", b"short")):
        definition = films().definition()
        setattr(definition.model.catalogue, field, value)
        with pytest.raises(ConfigurationError, match="catalogue"):
            sign_task(definition, SigningKey.generate())


def test_a_task_without_rounds_names_no_version_that_cannot_be() -> None:
    """The version before the first would be the newest one to whoever counts from the end."""
    definition = odp.Statistics(
        name="seen", trust="local", queries={"seen": odp.Histogram(bins=5)},
        privacy=odp.UserLevelDP(epsilon=2, delta=1e-6), cohort=odp.Cohort(minimum=2),
    ).definition()  # fmt: skip
    sign_task(definition, SigningKey.generate())
    definition.model.catalogue.version, definition.model.catalogue.sha256 = 0, SECOND.sha256
    with pytest.raises(ConfigurationError, match="catalogue_version=0"):
        sign_task(definition, SigningKey.generate())


def test_a_task_file_names_the_catalogue_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "films.toml"
    text = render_task(films(None)).replace("[model]\n", '[model]\ncatalogue = "films.catalogue"\n')
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"films.toml:\d+: cannot read the catalogue"):
        load_task(path)
    SECOND.save(tmp_path / "films.catalogue")
    task = load_task(path)
    assert isinstance(task, odp.Task)
    assert task.definition() == films().definition()
    assert f"# catalogue: version 2 of films, {SECOND.sha256.hex()}" in render_task(task)
    assert names_files(text)
    (tmp_path / "films.catalogue").write_text("something")
    with pytest.raises(ConfigurationError, match=r"films.toml:\d+: .* is no catalogue"):
        load_task(path)
