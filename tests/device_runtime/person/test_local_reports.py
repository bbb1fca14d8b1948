"""A device sends as many reports that are private by themselves as signed, and as its person allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import device_runtime_ledger
import pytest

import odp
from device_runtime.person.ledger import TaskTerms
from device_runtime.person.limits import Limits, local_epsilon, require_report_allowed
from device_runtime.round.gate import Gate
from device_runtime.store.schema import State
from device_runtime.store.store import Store
from device_runtime.view.overview import explain, overview
from device_runtime.view.pages import front
from device_runtime.view.privacy_page import PrivacyPage
from odp.errors import ConfigurationError, PrivacyError, Refusal
from odp.privacy.local_charge import LocalCharge
from odp.privacy.reconstruction import projection_breach
from odp.v1 import common_pb2

NOW = 1_800_000_000.0
TASK = bytes(range(32))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open_or_create(tmp_path / "0.sqlite") as store:
        yield store


def signed(participations: int, *, largest_norm: float = 0.5) -> tuple[common_pb2.SignedTask, TaskTerms]:
    """A task of 24 local epsilon per report; its signature is not looked at here."""
    definition = odp.Task(
        name="clicks", population="people", model=odp.Glm("logistic", 3),
        data=odp.Examples({"x": odp.Tensor((3,), -1.0, 1.0)}, label="clicked"),
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-6),
        training=odp.PrivateFL(rounds=6, participations=participations, largest_norm=largest_norm),
        cohort=odp.Cohort(minimum=100, goal=200),
    ).definition()  # fmt: skip
    definition.developer_key = b"d" * 32
    written = common_pb2.SignedTask(definition=definition.SerializeToString(), signature=b"s" * 64)
    return written, TaskTerms.of(definition, TASK)


def gate(**limits: float) -> Gate:
    return Gate(limits=Limits(**{"max_total_epsilon": 1e3, **limits}), clock=lambda: NOW)  # type: ignore[arg-type]


def send(store: Store, task: common_pb2.SignedTask, terms: TaskTerms, round: int, ending: State = State.SENT) -> None:
    gate(max_local_epsilon=1e3).person_allows(store, terms, round)
    line = dataclasses.replace(device_runtime_ledger.participation(round, task=terms.task_sha256), time=NOW)
    store.prepare(line, local_parameters=None, task=task, terms=terms)
    if ending is not State.PREPARED:
        store.settle(TASK, round, ending, Refusal.ROUND_CLOSED if ending is State.REFUSED else None)


@pytest.mark.parametrize("ending", [State.SENT, State.REFUSED, State.PREPARED])
def test_a_second_report_is_declined_whatever_became_of_the_first(store: Store, ending: State) -> None:
    """The enclave saw a report that it refused: it counts, since the guarantee holds against enclaves too."""
    task, terms = signed(participations=1)
    send(store, task, terms, 0, ending)
    gate().person_allows(store, terms, 0)  # the same round: the same bytes are sent again
    with pytest.raises(
        PrivacyError, match=r"the device sent 1 reports of it, and a device sends at most 1, .*=24 over"
    ):
        gate().person_allows(store, terms, 3)
    assert len(store.charged(refused=True)) == 1


def test_two_reports_double_epsilon_and_the_third_is_declined(store: Store) -> None:
    task, terms = signed(participations=2)
    send(store, task, terms, 0)
    once = overview(store, gate(), now=NOW)["local"]
    send(store, task, terms, 4)
    twice = overview(store, gate(), now=NOW)
    assert once["epsilon"] == pytest.approx(24.0, rel=1e-6)
    assert (twice["local"]["adjacency"], twice["local"]["reports"]) == ("any_two_inputs", 2)
    assert twice["local"]["epsilon"] == 2 * once["epsilon"]
    assert [one["local"]["lifetime_epsilon"] for one in twice["contributions"]] == pytest.approx([48.0, 48.0], rel=1e-6)
    assert twice["spent"]["total"]["epsilon"] <= 4.0  # what is released is a guarantee of its own
    with pytest.raises(PrivacyError, match="at most 2"):
        gate(max_local_epsilon=1e3).person_allows(store, terms, 5)
    (told,) = [one for one in explain(store, gate(), task=(terms, 5)) if one.name == "reports"]
    assert not told.met


def test_the_persons_limit_is_over_all_tasks_and_names_its_number(store: Store) -> None:
    task, terms = signed(participations=3)
    send(store, task, terms, 0)
    other = dataclasses.replace(terms, task_sha256=b"o" * 32, name="others")
    gate(max_local_epsilon=48.1).person_allows(store, other, 0)
    with pytest.raises(PrivacyError, match="'others' declined: local epsilon=48 of all reports is above max_local_eps"):
        gate(max_local_epsilon=47.9).person_allows(store, other, 0)
    with pytest.raises(PrivacyError, match="max_local_epsilon=0"):
        gate(max_local_epsilon=0.0).person_allows(store, other, 0)


def test_a_device_computes_the_cost_from_the_signed_numbers_after_a_restart(store: Store, tmp_path: Path) -> None:
    task, terms = signed(participations=2)
    send(store, task, terms, 0)
    with Store.open(store.path) as again:
        (line,) = again.charged()
    assert line.terms.local == terms.local
    assert local_epsilon([line]) == pytest.approx(24.0, rel=1e-6)


def shuffled() -> tuple[common_pb2.SignedTask, TaskTerms]:
    """Shuffled statistics; the signature is not looked at here."""
    definition = odp.Statistics(
        name="stars", population="people", trust="shuffle", queries={"stars": odp.Mean(low=0, high=6)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6), cohort=odp.Cohort(minimum=10_000, goal=10_000),
    ).definition()  # fmt: skip
    definition.developer_key = b"d" * 32
    written = common_pb2.SignedTask(definition=definition.SerializeToString(), signature=b"s" * 64)
    return written, TaskTerms.of(definition, TASK)


def test_a_shuffled_report_counts_at_its_own_epsilon_and_once(store: Store) -> None:
    """The enclave may fail: then a report has no more than its own epsilon, which the person's limit is about."""
    task, terms = shuffled()
    own = common_pb2.TaskDefinition.FromString(task.definition).shuffled_statistics.reports.report_epsilon
    assert terms.local is not None
    assert terms.local.lifetime == pytest.approx(own, rel=1e-6)
    assert own > 2 * terms.epsilon
    with pytest.raises(PrivacyError, match="max_local_epsilon"):
        gate(max_local_epsilon=0.99 * own).person_allows(store, terms, 0)
    send(store, task, terms, 0, State.REFUSED)
    assert overview(store, gate(), now=NOW)["local"]["epsilon"] == pytest.approx(own, rel=1e-6)
    with pytest.raises(PrivacyError, match="at most 1"):
        require_report_allowed(terms, store.charged(refused=True), Limits(max_local_epsilon=1e3))
    other = dataclasses.replace(terms, task_sha256=b"o" * 32, name="others")
    with pytest.raises(PrivacyError, match="'others' declined: local epsilon"):
        gate(max_local_epsilon=1.99 * own).person_allows(store, other, 0)


def test_the_page_has_what_each_report_tells_and_the_certificate_of_all_of_them(store: Store) -> None:
    task, terms = signed(participations=2)
    send(store, task, terms, 0)
    found = overview(store, gate(), now=NOW)
    (one,) = found["local"]["tasks"]
    assert (one["name"], one["sent"], one["most_participations"]) == ("clicks", 1, 2)
    assert (one["epsilon"], one["lifetime_epsilon"]) == pytest.approx((24.0, 48.0), rel=1e-6)
    assert terms.local is not None
    expected = projection_breach(terms.local.lifetime, terms.local.dimension, correlation=0.5)
    assert one["certificate"] == expected.in_words
    page = front(PrivacyPage(name="0", overview=found, reasons=()), (), NOW)
    for text in ("max_local_epsilon", "of at most ε 50", "1 of 2", "probability of a breach"):
        assert text in page


def test_tasks_without_reports_have_no_local_cost(store: Store) -> None:
    plain = device_runtime_ledger.terms()
    device_runtime_ledger.prepare(store, device_runtime_ledger.participation())
    gate(max_local_epsilon=0.0).person_allows(store, plain, 1)
    assert overview(store, gate(), now=NOW)["local"] == {
        "adjacency": "any_two_inputs",
        "reports": 0,
        "epsilon": 0.0,
        "tasks": [],
    }


@pytest.mark.parametrize("charge", [((), 1), ((("direction", 0.0),), 1), ((("direction", 1.0),), 0)])
def test_a_charge_without_numbers_is_refused(charge: tuple[tuple[tuple[str, float], ...], int]) -> None:
    with pytest.raises(ConfigurationError):
        LocalCharge(*charge)
