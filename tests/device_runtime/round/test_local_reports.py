"""One device reports to a task of local trust: what it sends, when, and what it costs, whatever the server does."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_times import impatient_times, until_finished

import odp
from device_runtime.network.services import Traffic
from device_runtime.person.limits import Limits
from device_runtime.round.admission import Admission
from device_runtime.round.examples import ROW_SECONDS, STORE_SECONDS, MadeExamples
from device_runtime.round.gate import Gate
from device_runtime.round.local_reports import RESEND_SECONDS, LocalReporting
from device_runtime.round.participation import Outcome
from device_runtime.round.pipeline import Pipeline
from device_runtime.store.schema import State
from device_runtime.store.store import Store
from device_runtime.tasks.catalogues import CatalogueMemory
from device_runtime.tasks.local_assignment import LocalWork, open_local_assignment
from device_runtime.view.overview import overview
from device_runtime.view.pages import front
from device_runtime.view.privacy_page import PrivacyPage
from odp.algorithms.computing_time import SHARE_OF_TIME
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, PrivacyError, Refusal, ServiceError, ServiceUnavailable
from odp.signed.charter import approve, found
from odp.signed.task import sign_task
from odp.v1 import aggregator_pb2, local_pb2, population_pb2, server_pb2

NOW = 1_800_000_000.0
KEY = SigningKey.from_bytes(bytes(range(32)))
_GENEROUS = Limits(
    max_epsilon=100.0, max_total_epsilon=100.0, max_total_epsilon_30_days=100.0, max_developer_epsilon=100.0,
    max_developer_epsilon_30_days=100.0,
)  # fmt: skip


class Server:
    """Its answers, and what devices asked of it."""

    def __init__(self, row: bytes) -> None:
        self.row, self.drawn = row, 0
        self.reports: list[local_pb2.ReportRequest] = []
        self.refusal = aggregator_pb2.REFUSAL_UNSPECIFIED
        self.dies = False

    def draw(self, task_sha256: bytes, traffic: Traffic) -> bytes:
        self.drawn += 1
        return self.row

    def report(self, request: local_pb2.ReportRequest, traffic: Traffic) -> local_pb2.ReportResponse:
        self.reports.append(request)
        if self.dies:
            raise ServiceUnavailable("killed before it answered")
        return local_pb2.ReportResponse(refusal=self.refusal)


class Device:
    """A device, its clock and its server."""

    def __init__(self, store: Store, *, limits: Limits = _GENEROUS, **changes: object) -> None:
        self.store, self.now, self.steady = store, NOW, 0.0
        self.work = work(**changes)
        self.server = Server(self.work.algorithm.first_rows()[0])
        services: Any = self.server
        self.reporting = LocalReporting(
            services=services,
            pipeline=Pipeline(
                admission=Admission(services, clock=lambda: self.now), catalogues=CatalogueMemory(None, lambda *_: []),
                gate=Gate(limits=limits, clock=lambda: self.now), fixed_times=impatient_times(), clock=lambda: self.now,
            ),
            monotonic=lambda: self.steady,
        )  # fmt: skip

    def report(self) -> Outcome:
        return self.reporting.report(self.store, self.work, Traffic()).outcome


def task(**changes: object) -> odp.DrawAndDiscard:
    given: dict[str, object] = {
        "name": "clicks", "population": "people", "features": {"x": odp.Number()}, "epsilon": 2.0, "instances": 3,
        "most_reports": 2, "seconds_between": 100, "false_alarms": 0.0,
    }  # fmt: skip
    return odp.DrawAndDiscard(**{**given, **changes})  # type: ignore[arg-type]


def charter(owner: SigningKey = KEY) -> population_pb2.SignedCharter:
    return approve(found("people", owners=[owner.public]), owner)


def work(**changes: object) -> LocalWork:
    assignment = server_pb2.LocalAssignment(task=sign_task(task(**changes).definition(), KEY), charter=charter())
    return open_local_assignment(assignment, population="people")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open_or_create(tmp_path / "0.sqlite") as store:
        store.examples("examples").add({"x": np.array([0.5, 0.25]), "label": np.array([1.0, 0.0])}, time=NOW)
        yield store


def test_a_device_charges_itself_before_it_sends_and_sends_the_same_bytes_again(store: Store) -> None:
    device = Device(store)
    device.server.dies = True
    with pytest.raises(ServiceUnavailable):
        device.report()
    (line,) = store.ledger()
    assert (line.state, line.epsilon) == (State.PREPARED, device.work.terms.epsilon)
    assert len(store.charged(refused=True)) == 1
    device.server.dies, device.server.row = False, device.work.algorithm.first_rows()[1]
    assert device.report() is Outcome.SENT
    first, second = device.server.reports
    assert first == second
    assert device.server.drawn == 1, "nothing was computed anew"
    assert (first.report_id, len(first.report)) == (line.contribution_id, device.work.algorithm.report_bytes)
    assert store.ledger()[0].sealed is None
    assert device.report() is Outcome.SETTLED, "it is not due"
    assert len(device.server.reports) == 2


def test_a_device_reports_as_often_and_as_far_apart_as_signed(store: Store) -> None:
    device = Device(store)
    assert device.report() is Outcome.SENT
    device.now += 99
    assert device.reporting.report(store, device.work, Traffic()).next_seconds == pytest.approx(1.0)
    device.now = NOW - 1e6
    assert device.report() is Outcome.SETTLED, "a clock that was set back makes it no sooner"
    device.now = NOW + 100
    assert device.report() is Outcome.SENT
    device.now += 1e9
    assert device.reporting.report(store, device.work, Traffic()).next_seconds == np.inf
    ids = [request.report_id for request in device.server.reports]
    assert len(set(ids)) == len(ids) == 2


def test_r378_a_report_of_a_clock_that_was_ahead_holds_up_the_next_one_for_one_period(store: Store) -> None:
    device = Device(store, most_reports=3)
    device.now += 400 * 86_400.0
    assert device.report() is Outcome.SENT
    device.now = NOW + 20
    for left in (100.0, 60.0, 20.0):
        found = device.reporting.report(store, device.work, Traffic())
        assert (found.outcome, found.next_seconds) == (Outcome.SETTLED, left)
        device.now += 40
        device.steady += 40
    assert device.report() is Outcome.SENT
    assert device.report() is Outcome.SETTLED, "and as far apart as signed"
    device.now += 101
    device.steady += 101
    assert device.report() is Outcome.SENT


def test_a_report_without_an_answer_for_a_day_is_not_sent_again(store: Store) -> None:
    """The server may have forgotten its id: it would count a second time. Its charge stays."""
    device = Device(store, most_reports=1)
    device.server.dies = True
    with pytest.raises(ServiceUnavailable):
        device.report()
    device.now += RESEND_SECONDS + 1
    device.steady += RESEND_SECONDS + 1
    device.server.dies = False
    assert device.report() is Outcome.SETTLED
    assert len(device.server.reports) == 1
    assert len(store.charged(refused=True)) == 1


@pytest.mark.parametrize("leap", [RESEND_SECONDS + 1, 400 * 86_400.0, -400 * 86_400.0])
def test_r397_a_report_without_an_answer_is_sent_again_after_a_leap_of_the_clock(store: Store, leap: float) -> None:
    """A device that starts while its clock is wrong gives nothing up that the person was charged for."""
    device = Device(store, most_reports=1)
    device.server.dies = True
    with pytest.raises(ServiceUnavailable):
        device.report()
    device.server.dies = False
    again = Device(store, most_reports=1)
    again.now = device.now + leap
    found = again.reporting.report(store, again.work, Traffic())
    assert found.outcome is Outcome.SETTLED
    again.now = device.now + 100
    assert again.report() is Outcome.SENT
    assert found.next_seconds <= 60.0, "and it looks at its clock again"
    assert [request.report for request in again.server.reports] == [request.report for request in device.server.reports]


@pytest.mark.parametrize("leap", [400 * 86_400.0, 2 * 86_400.0, -400 * 86_400.0])
def test_r397_a_report_that_a_wrong_clock_dated_is_sent_again_by_the_process_that_made_it(
    store: Store, leap: float
) -> None:
    device = Device(store, most_reports=1)
    device.now += leap
    device.server.dies = True
    with pytest.raises(ServiceUnavailable):
        device.report()
    device.now, device.server.dies = NOW + 5, False
    device.steady += 5
    assert device.report() is Outcome.SENT
    assert len({request.report for request in device.server.reports}) == 1


def test_a_report_that_was_sent_again_takes_no_other_ones_turn(store: Store) -> None:
    device = Device(store, most_reports=2)
    device.server.dies = True
    with pytest.raises(ServiceUnavailable):
        device.report()
    device.server.dies = False
    assert device.reporting.report(store, device.work, Traffic()).next_seconds == 100.0
    device.now += 101
    found = device.reporting.report(store, device.work, Traffic())
    assert (found.outcome, found.next_seconds) == (Outcome.SENT, math.inf)


@pytest.mark.parametrize("row", [b"", bytes(4), bytes(12), b"\xff\xff\xff\x7f" * 2])
def test_a_row_that_is_none_is_refused_before_data_are_read(
    store: Store, row: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(store)
    device.server.row = row
    monkeypatch.setattr("device_runtime.round.computations.examples", lambda *_, **__: pytest.fail("data were read"))
    with pytest.raises(ServiceError, match="a row that is none"):
        device.report()
    assert store.ledger() == ()


@pytest.mark.parametrize("failure", [ValueError("a row of the person"), MemoryError()])
def test_a_computation_that_fails_ends_in_a_report_like_any_other(
    store: Store, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    device = Device(store)
    monkeypatch.setattr("device_runtime.round.computations.examples", fail)
    assert device.report() is Outcome.SENT
    (request,) = device.server.reports
    assert len(request.report) == device.work.algorithm.report_bytes
    assert request.report != device.server.row, "it has its noise"
    assert store.empty_contributions() == 1


class Slow:
    """A developer's own code, which makes nothing, and the most rows of it that a task reads."""

    most = 10

    def most_asked(self, work: object) -> int:
        return self.most

    def make(self, path: Path, work: object) -> list[object]:
        return []

    def keep(self, store: Store, made: object) -> None:
        """Nothing is kept."""


def test_r345_a_report_leaves_at_its_time_after_that_of_a_developers_own_code(store: Store) -> None:
    """In simulated time, each wait with the reports that were sent before it."""
    device, now, waits = Device(store), [100.0], []

    def wait(seconds: float, finished: threading.Event) -> None:
        until_finished(seconds, finished)
        waits.append((seconds, len(device.server.reports)))
        now[0] += seconds

    made = MadeExamples(maker=Slow(), code_seconds=6.0)
    fixed_times = impatient_times(wait=wait, monotonic=lambda: now[0])
    pipeline = dataclasses.replace(device.reporting.pipeline, fixed_times=fixed_times, made_examples=made)
    device.reporting = dataclasses.replace(device.reporting, pipeline=pipeline)
    assert device.report() is Outcome.SENT
    code, fixed = 6.0 + STORE_SECONDS + ROW_SECONDS * Slow.most, device.work.computing.seconds
    assert waits == [
        (pytest.approx(code), 0), (pytest.approx(SHARE_OF_TIME * fixed), 0),
        (pytest.approx((1 - SHARE_OF_TIME) * fixed), 0),
    ]  # fmt: skip


def test_what_is_sent_has_noise_even_of_the_same_row_and_data(tmp_path: Path) -> None:
    """Two devices whose reports agreed in both weights would be a false alarm of below 1e-5."""
    found = set()
    for number in range(2):
        with Store.open_or_create(tmp_path / f"{number}.sqlite") as store:
            device = Device(store)
            device.report()
            found.add(device.server.reports[0].report)
    assert len(found) == 2


@pytest.mark.parametrize("refusal", [Refusal.OUT_OF_BOUNDS, Refusal.TASK_ABANDONED, Refusal.ROUND_CLOSED])
def test_a_refused_report_stays_charged(store: Store, refusal: Refusal) -> None:
    """No enclave signs that it was not used: the server has seen it."""
    device = Device(store)
    device.server.refusal = refusal.value  # type: ignore[assignment]
    assert device.report() is Outcome.REFUSED
    (line,) = store.ledger()
    assert (line.state, line.refusal, line.sealed) == (State.SENT, refusal, None)
    assert len(store.charged()) == len(store.charged(refused=True)) == 1


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(max_epsilon=3.9), "max_epsilon=3.9"),
        (Limits(max_total_epsilon=1.0), "max_total_epsilon=1"),
        (Limits(max_local_epsilon=3.0), "max_local_epsilon=3"),
        (Limits(max_local_epsilon=0.0), "max_local_epsilon=0"),
        (Limits(tables=("ratings",)), "table='examples'"),
        (Limits(populations=("films",)), "population='people'"),
    ],
)
def test_the_limits_of_the_person_hold_before_anything_is_asked(store: Store, limits: Limits, message: str) -> None:
    device = Device(store, limits=limits, epsilon=2.0, most_reports=1)
    with pytest.raises(PrivacyError, match=message):
        device.report()
    assert (device.server.drawn, device.server.reports) == (0, [])


def test_a_person_who_opts_out_between_draw_and_report_is_heard(store: Store) -> None:
    device = Device(store)
    draw = device.server.draw

    def opted_out(task_sha256: bytes, traffic: Traffic) -> bytes:
        store.change_person(lambda person: person.with_opt_out("clicks", NOW))
        return draw(task_sha256, traffic)

    device.server.draw = opted_out  # type: ignore[method-assign]
    with pytest.raises(PrivacyError):
        device.report()
    assert device.server.reports == []
    assert store.ledger() == ()


def test_the_page_says_that_no_enclave_takes_part(store: Store) -> None:
    device = Device(store, epsilon=2.0, most_reports=2)
    device.report()
    found = overview(store, device.reporting.pipeline.gate, now=NOW)
    (line,) = found["contributions"]
    assert (line["local_trust"], line["policy_sha256"], line["charges"][0]["mechanism"]) == (True, "", "local_report")
    (read,) = found["read"]
    assert (read["table"], read["local_trust"]) == ("examples", True)
    page = front(PrivacyPage(name="device", overview=found, reasons=()), (), NOW)
    assert "reports with noise of their own leave" in page
    assert "sums with noise" not in page
    assert "no enclave: the developer" in page
    assert found["local"]["reports"] == 1
    assert found["local"]["epsilon"] == pytest.approx(2 * task().feature_epsilon)
    assert found["spent"]["total"]["epsilon"] >= found["local"]["epsilon"]


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda given: given.ClearField("charter"), ConfigurationError, "charter"),
        (lambda given: given.charter.CopyFrom(charter(SigningKey.generate())), PrivacyError, "owner"),
        (lambda given: given.task.__setattr__("signature", bytes(64)), odp.OdpError, "signature"),
        (lambda given: given.task.CopyFrom(_with_rounds()), ConfigurationError, "has rounds"),
    ],
)
def test_an_assignment_that_is_not_what_it_says_is_refused(spoil, error, message) -> None:  # type: ignore[no-untyped-def]
    given = server_pb2.LocalAssignment(task=sign_task(task().definition(), KEY), charter=charter())
    open_local_assignment(given, population="people")
    with pytest.raises(ConfigurationError, match="population 'people'"):
        open_local_assignment(given, population="others")
    spoil(given)
    with pytest.raises(error, match=message):
        open_local_assignment(given, population="people")


def _with_rounds():  # type: ignore[no-untyped-def]
    statistics = odp.Statistics(
        name="stars", population="people", queries={"seen": odp.Histogram(bins=5)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6), cohort=odp.Cohort(minimum=20, goal=100),
    )  # fmt: skip
    return sign_task(statistics.definition(), KEY)
