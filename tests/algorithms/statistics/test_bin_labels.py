"""Bins that a question labels: results name them, and a bin by item is that of the item with that id."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import odp
from device_runtime.host.provision import provision
from device_runtime.round.examples import examples
from device_runtime.store.keyed_ratings import rate
from device_runtime.store.store import Store, store_path
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.results import HistogramResult, results_of
from odp.algorithms.statistics.terms import Terms
from odp.errors import ConfigurationError, DataError
from odp.protocol.wire.model import Slices
from odp.tasks.file import load_task, render_task

DRINKS = ("tea", "SKU 7", "caf\u00e9", "007")
PEOPLE = 40
PARTS_OF_DAY = ("night", "morning", "afternoon", "evening $5 <b>")


def question(trust: str = "aggregator", **histogram: Any) -> odp.Statistics:
    return odp.Statistics(
        name="drinks",
        queries={"drinks": odp.Histogram(**histogram), "level": odp.Mean(low=0, high=24)},
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-4),
        cohort=odp.Cohort(minimum=20, goal=PEOPLE),
        trust=trust,
    )


def rows() -> list[tuple[str, str]]:
    """Everybody drinks tea, and person n one more."""
    return [row for n in range(PEOPLE) for row in ((f"u{n}", "tea"), (f"u{n}", DRINKS[1 + n % 3]))]


def table(folder: Path, spell: Callable[[str], str] = str) -> odp.data.Ratings:
    path = folder / "drinks.csv"
    lines = [f"{user},{spell(item)},{place % 24}" for place, (user, item) in enumerate(rows())]
    path.write_text("\n".join(["user,item,hour", *lines]) + "\n")
    return odp.load(path, value="hour", as_written=True)


EXPECTED = [PEOPLE, 14, 13, 13]


@pytest.mark.parametrize("trust", ["aggregator", "shuffle", "local"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_bin_by_label_counts_the_item_with_that_id(tmp_path: Path, trust: str, form: Any) -> None:
    people = table(tmp_path, lambda name: unicodedata.normalize(form, name))
    run = odp.simulate(question(trust, labels=DRINKS), people, noise=False)
    found = run.exact.histogram("drinks")
    np.testing.assert_allclose(found.counts, EXPECTED, atol=0.2)
    assert found.labels == DRINKS
    assert found.count("cafe\u0301") == pytest.approx(13, abs=0.2)
    assert run.results.to_json()["queries"]["drinks"]["labels"] == list(DRINKS)
    other = odp.simulate(question(trust, labels=DRINKS[::-1]), people, noise=False)
    np.testing.assert_allclose(other.exact.histogram("drinks").counts, EXPECTED[::-1], atol=0.2)


def test_an_id_without_a_label_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has bins 'tea', 'SKU 7': 2 of 4 items .* have no bin: '007', 'caf.'; name"):
        odp.simulate(question(labels=DRINKS[:2]), table(tmp_path))
    with pytest.raises(DataError, match=r"or name the ids with labels=\.\."):
        odp.simulate(question(bins=4), table(tmp_path))


def device_counts(state: Path, task: odp.Statistics, devices: int) -> Any:
    """What the devices of a state folder contribute to the histogram together."""
    definition = task.definition()
    client, terms = algorithm_for(definition).client(), Terms.of(definition)
    nothing = Slices(0, np.zeros(0, np.int64), np.zeros((0, 0), np.float32), {})
    total = np.zeros(terms.grid.size)
    for device in range(devices):
        with Store.open(store_path(state, device)) as store:
            payload, _ = client.contribute(nothing, examples(store, definition, now=0.0), round=0, seed=device)
        total += np.frombuffer(payload, "<i4") * terms.grid.step
    return results_of(definition, total, contributions=devices, epsilon=4.0)


def test_devices_count_an_item_in_the_bin_of_its_id(tmp_path: Path) -> None:
    provision(tmp_path / "devices", table(tmp_path))
    found = device_counts(tmp_path / "devices", question(labels=DRINKS), PEOPLE)
    np.testing.assert_allclose(found["drinks"].counts, EXPECTED, atol=0.3)
    assert found["drinks"].labels == DRINKS
    # The mean beside it is about all rows, whatever their items are called.
    hours = [place % 24 for place in range(2 * PEOPLE)]
    assert found["level"].value == pytest.approx(np.mean(hours), abs=0.5)
    fewer = device_counts(tmp_path / "devices", question(labels=("007", "tea")), PEOPLE)
    np.testing.assert_allclose(fewer["drinks"].counts, [13, PEOPLE], atol=0.3)


def test_numbers_and_keys_and_events_of_an_app_count_by_their_text(tmp_path: Path) -> None:
    with Store.open_or_create(store_path(tmp_path, 0)) as store:
        rate(store, 7, 1.0)
        rate(store, "tea", 1.0)
        rate(store, "milk", 1.0)
        for name in ("tea", 7, "milk"):
            store.data("bar").add_event("order", {"drink": name}, time=1.0)
    found = device_counts(tmp_path, question(labels=("7", "tea", "007")), 1)
    np.testing.assert_allclose(found["drinks"].counts, [1, 1, 0], atol=0.05)
    events = odp.Events(service="bar", type="order", item="drink")
    found = device_counts(tmp_path, question(labels=("007", "7", "tea"), events=events), 1)
    np.testing.assert_allclose(found["drinks"].counts, [0, 1, 1], atol=0.05)


def test_labels_of_ranges_name_them_in_their_order(tmp_path: Path) -> None:
    task = question(edges=(0, 6, 12, 18, 24), labels=PARTS_OF_DAY, counts="shares")
    run = odp.simulate(task, table(tmp_path), noise=False)
    unnamed = odp.simulate(question(bins=4, low=0, high=24, counts="shares"), table(tmp_path), noise=False)
    found = run.exact.histogram("drinks")
    np.testing.assert_array_equal(found.counts, unnamed.exact.histogram("drinks").counts)
    assert [found.name(bin) for bin in range(4)] == list(PARTS_OF_DAY)
    assert [unnamed.exact.histogram("drinks").name(bin) for bin in range(2)] == ["0 .. 6", "6 .. 12"]
    assert found.quantile(0.5).value > 0
    events = odp.Events(service="bar", type="order", item="hour", edges=(0, 12, 24))
    halves = question(labels=("morning", "evening"), events=events)
    with Store.open_or_create(store_path(tmp_path, 0)) as store:
        store.data("bar").add_event("order", {"hour": 13}, time=1.0)
    np.testing.assert_allclose(device_counts(tmp_path, halves, 1)["drinks"].counts, [0, 1], atol=0.05)


def test_terminal_json_and_pictures_have_the_labels(tmp_path: Path) -> None:
    run = odp.simulate(question(edges=(0, 6, 12, 18, 24), labels=PARTS_OF_DAY), table(tmp_path))
    out = StringIO()
    for line in run.results.lines(0.95, run.exact):
        Console(file=out, width=200).print(line)
    assert all(label in out.getvalue() for label in PARTS_OF_DAY)
    assert json.loads(json.dumps(run.to_json()))["exact"]["queries"]["drinks"]["labels"] == list(PARTS_OF_DAY)
    run.draw(tmp_path / "answers.svg")
    drawn = (tmp_path / "answers.svg").read_text()
    assert all(label in drawn for label in ("night", "morning", "evening $5 &lt;b&gt;"))


def test_labels_are_in_the_signed_definition_and_in_a_task_file(tmp_path: Path) -> None:
    task = question(labels=("cafe\u0301", "tea"))
    assert list(task.definition().statistics.queries[0].histogram.labels) == ["caf\u00e9", "tea"]
    (tmp_path / "task.toml").write_text(render_task(task))
    assert load_task(tmp_path / "task.toml") == task
    assert dataclasses.replace(task).queries["drinks"] == odp.Histogram(labels=("caf\u00e9", "tea"))


@pytest.mark.parametrize(
    ("histogram", "message"),
    [
        ({"labels": ("a", "b"), "bins": 3}, r"one label for each of the 3 bins \(got 2 labels\)"),
        ({"labels": ("a",), "edges": (0, 1, 2)}, "one label for each of the 2 bins"),
        ({"labels": ("caf\u00e9", "cafe\u0301")}, "distinct"),
        ({"labels": ("a", "")}, "text of 1 to 64 characters"),
        ({"labels": ("a", "x" * 65)}, "text of 1 to 64 characters"),
        ({"labels": ("a", 5)}, "text of 1 to 64 characters"),
        ({"labels": ()}, "labels"),
        ({"labels": "morning"}, "names of the bins"),
        ({"labels": 3}, "names of the bins"),
        ({"labels": [str(number) for number in range(4097)]}, "at most 4,096 labels"),
        (
            {"labels": ("a", "b"), "events": odp.Events(service="s", type="t", item=("x", "y"), buckets=2)},
            "no labels with events in buckets",
        ),
    ],
)
def test_labels_that_name_no_bins_are_refused(histogram: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        question(**histogram)


@pytest.mark.parametrize(
    "labels", [["a"], ["a", "a"], ["a", "cafe\u0301"], ["a", ""], ["a", "x" * 65], ["a", "b\0"], ["a", "b", "c"]]
)
@pytest.mark.parametrize("trust", ["aggregator", "shuffle", "local"])
def test_r434_every_party_refuses_a_definition_with_labels_that_name_no_bins(labels: list[str], trust: str) -> None:
    definition = question(trust, labels=("a", "b")).definition()
    parent = {
        "aggregator": definition.statistics,
        "shuffle": definition.shuffled_statistics.reports,
        "local": definition.local_statistics.reports,
    }[trust]
    algorithm_for(definition).check()
    parent.queries[0].histogram.labels[:] = labels
    with pytest.raises(ConfigurationError, match="label"):
        algorithm_for(definition).check()


@pytest.mark.parametrize("label", [0, 1.0, True, None, np.int64(0), "c"])
def test_what_is_no_label_names_no_count(label: Any) -> None:
    labelled = HistogramResult(np.arange(2.0), 0.0, None, "users", labels=("a", "b"))
    with pytest.raises(ConfigurationError, match="to be one of a, b"):
        labelled.count(label)
    with pytest.raises(ConfigurationError, match="this one has none, and its counts are by place"):
        HistogramResult(np.arange(2.0), 0.0, None, "users").count(label)


def test_no_labels_are_refused_as_names() -> None:
    with pytest.raises(ConfigurationError, match=r"Expected labels=\(\) to be the names of the bins"):
        odp.Histogram(labels=())


@pytest.mark.parametrize("value", ["x", None, True, float("nan")])
def test_a_quantile_of_what_is_no_number_is_refused_by_name(value: Any) -> None:
    ranges = HistogramResult(np.arange(2.0), 0.0, np.arange(3.0), "users")
    with pytest.raises(ConfigurationError, match=r"Expected q=.* to be strictly between 0 and 1"):
        ranges.quantile(value)
    with pytest.raises(ConfigurationError, match=r"Expected confidence=.* to be strictly between 0 and 1"):
        ranges.quantile(0.5, value)
    assert ranges.quantile(np.float32(0.5)) is not None
