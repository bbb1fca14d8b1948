"""A bin by item is what the file calls the item: in every form of table, for every trust, on devices and simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import odp
from device_runtime.host.provision import provision
from device_runtime.round.examples import examples
from device_runtime.store.keyed_ratings import rate
from device_runtime.store.store import Store, store_path
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.terms import Terms
from odp.errors import DataError
from odp.models.left_out import LeftOut
from odp.protocol.wire.model import Slices

pandas = pytest.importorskip("pandas")

#: Nobody is up at hours 2, 3 and 4.
HOURS = (0, 1, *range(5, 24))
BINS, PEOPLE = 24, 40


def rows() -> list[tuple[str, int]]:
    chosen = np.random.default_rng(5)
    return [(f"u{user}", int(hour)) for user in range(PEOPLE) for hour in chosen.choice(HOURS, 4, replace=False)]


def people_per_hour() -> npt.NDArray[np.int64]:
    return np.bincount([hour for _, hour in rows()], minlength=BINS)


def question(trust: str = "aggregator", bins: int = BINS) -> odp.Statistics:
    return odp.Statistics(
        name="hours",
        queries={"hours": odp.Histogram(bins=bins)},
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-4),
        cohort=odp.Cohort(minimum=20, goal=PEOPLE),
        trust=trust,
    )


def csv(folder: Path, kind: Callable[[int], object] = int) -> Path:
    path = folder / "hours.csv"
    path.write_text("user,item\n" + "".join(f"{user},{kind(hour)}\n" for user, hour in rows()))
    return path


def json_lines(folder: Path) -> Path:
    path = folder / "hours.jsonl"
    path.write_text("".join(json.dumps({"user": user, "item": hour}) + "\n" for user, hour in rows()))
    return path


def frame(kind: str) -> Any:
    return pandas.DataFrame(rows(), columns=["user", "item"]).astype({"item": kind})


FORMS: dict[str, Callable[[Path], Any]] = {
    "csv": csv,
    "json": json_lines,
    "integers": lambda _: frame("int8"),
    "floats": lambda _: frame("float64"),
    "categories": lambda _: frame("category"),
}


@pytest.mark.parametrize("form", FORMS)
def test_hour_five_is_in_bin_five_in_each_form_of_table(tmp_path: Path, form: str) -> None:
    run = odp.simulate(question(), odp.load(FORMS[form](tmp_path)), noise=False)
    np.testing.assert_allclose(run.exact["hours"].counts, people_per_hour(), atol=0.1)


@pytest.mark.parametrize("trust", ["aggregator", "shuffle", "local"])
def test_hour_five_is_in_bin_five_whoever_is_trusted(tmp_path: Path, trust: str) -> None:
    run = odp.simulate(question(trust), odp.load(csv(tmp_path)), noise=False)
    np.testing.assert_allclose(run.exact["hours"].counts, people_per_hour(), atol=0.1)
    assert run.left_out == {"hours": LeftOut(len(rows()))}


def test_the_only_people_of_an_hour_move_nobody_else(tmp_path: Path) -> None:
    path = csv(tmp_path)
    everybody = odp.simulate(question(), odp.load(path), noise=False).exact["hours"].counts
    path.write_text(path.read_text() + "guest,2\nguest,3\n")
    people = odp.load(path)
    others = [place for place, name in enumerate(people.user_ids) if name != "guest"]  # type: ignore[arg-type]
    with_guest = odp.simulate(question(), people.select_users(others), noise=False)
    np.testing.assert_allclose(with_guest.exact["hours"].counts, everybody, atol=0.1)


def device_counts(state: Path, task: odp.Statistics, devices: int) -> npt.NDArray[np.float64]:
    """What the devices of a state folder contribute together."""
    definition = task.definition()
    client, terms = algorithm_for(definition).client(), Terms.of(definition)
    nothing = Slices(0, np.zeros(0, np.int64), np.zeros((0, 0), np.float32), {})
    total = np.zeros(terms.grid.size)
    for device in range(devices):
        with Store.open(store_path(state, device)) as store:
            payload, _ = client.contribute(nothing, examples(store, definition, now=0.0), round=0, seed=device)
        total += np.frombuffer(payload, "<i4") * terms.grid.step
    return total[terms.parts[0].place] / terms.parts[0].scale


def test_hour_five_is_in_bin_five_on_devices(tmp_path: Path) -> None:
    provision(tmp_path / "devices", odp.load(csv(tmp_path)))
    np.testing.assert_allclose(device_counts(tmp_path / "devices", question(), PEOPLE), people_per_hour(), atol=0.2)


def test_devices_leave_out_ids_that_are_no_bin(tmp_path: Path) -> None:
    """Text as it is written: "05" is another id than 5."""
    provision(tmp_path / "devices", odp.load(csv(tmp_path, kind="{:02d}".format)))
    expected = np.where(np.arange(BINS) < 10, 0, people_per_hour())
    np.testing.assert_allclose(device_counts(tmp_path / "devices", question(), PEOPLE), expected, atol=0.2)


def test_what_an_app_rated_by_number_or_by_key_is_in_the_bin_of_that_name(tmp_path: Path) -> None:
    with Store.open_or_create(store_path(tmp_path, 0)) as store:
        rate(store, 3, 1.0)
        rate(store, "7", 1.0)
        rate(store, "seven", 1.0)
        rate(store, "3", 2.0)
        rate(store, "-1", 2.0)
    expected = np.isin(np.arange(BINS), (3, 7))
    np.testing.assert_allclose(device_counts(tmp_path, question(), 1), expected, atol=0.05)


def test_a_store_that_was_filled_without_ids_gets_them(tmp_path: Path) -> None:
    hours = odp.load(csv(tmp_path))
    state = tmp_path / "devices"
    provision(state, hours)
    for device in range(PEOPLE):
        with Store.open(store_path(state, device)) as store, store.transaction():
            store.execute("UPDATE ratings SET id = NULL")
    assert provision(state, hours) == 0
    np.testing.assert_allclose(device_counts(state, question(), PEOPLE), people_per_hour(), atol=0.2)


def test_models_number_the_items_of_a_table_by_their_places(tmp_path: Path) -> None:
    """Rows of a model are places in the data that it was trained on, on devices as in a simulation."""
    hours = odp.load(csv(tmp_path))
    provision(tmp_path / "devices", hours)
    with Store.open(store_path(tmp_path / "devices", 0)) as store:
        np.testing.assert_array_equal(store.ratings().items, hours.user(0)[0])
        store.rate(int(hours.user(0)[0][0]), 5.0)
        (name,) = store.first("SELECT id FROM ratings ORDER BY item") or ()
        assert name == str(hours.item_ids[hours.user(0)[0][0]])  # type: ignore[index]


@pytest.mark.parametrize("wrong", ["2.0", "02", "-1", "24", "noon", "1e1", "5 o'clock"])
@pytest.mark.parametrize("trust", ["aggregator", "shuffle", "local"])
def test_ids_that_are_no_bin_are_refused_by_name(tmp_path: Path, wrong: str, trust: str) -> None:
    path = csv(tmp_path)
    path.write_text(path.read_text() + f"u0,{wrong}\n")
    with pytest.raises(DataError, match=r"1 of 22 items .* have no bin: .* ask for more bins") as refused:
        odp.simulate(question(trust), odp.load(path))
    assert wrong in str(refused.value)


def test_a_question_about_values_takes_items_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "minutes.csv"
    path.write_text("user,item,value\n" + "".join(f"{user},at {hour},{hour / 4}\n" for user, hour in rows()))
    task = odp.Statistics(
        name="minutes",
        queries={"minutes": odp.Mean(low=0, high=6, max_records=4)},
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-4),
        cohort=odp.Cohort(minimum=20, goal=PEOPLE),
    )
    run = odp.simulate(task, odp.load(path, low=0, high=6), noise=False)
    assert run.exact.mean("minutes").value == pytest.approx(np.mean([hour for _, hour in rows()]) / 4, abs=0.01)


def test_items_without_ids_are_the_numbers_that_they_have() -> None:
    """Of arrays, the number is the name; what is beyond the bins is counted."""
    people = odp.data.Ratings.from_triples("hours", [0, 0, 1], [5, 30, 5], [1.0, 1.0, 1.0], low=0, high=1, n_users=30)
    run = odp.simulate(question(), people, noise=False)
    assert run.exact["hours"].counts[5] == pytest.approx(2, abs=0.05)
    assert run.left_out["hours"] == LeftOut(3, {"beyond its bins": 1})
