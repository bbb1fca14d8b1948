"""Who waits for whom on the way of a contribution through the host."""

from __future__ import annotations

import threading

import pytest

from odp.errors import StateError
from trusted_aggregator.boundary.interface import SealedContribution
from trusted_aggregator.host import ingest
from trusted_aggregator.host.ingest import Ingest

SECONDS = 60.0
FOREVER = 1000.0


class Enclave:
    """Accepts everything, and remembers how many came together."""

    def __init__(self):
        self.together = []

    def submit_batch(self, submits):
        self.together.append(len(submits))
        return [None] * len(submits)


class Gated:
    """A storage whose commits wait for the gate."""

    def __init__(self):
        self.gate = threading.Event()
        self.arrived = threading.Event()
        self.stored = 0

    def add(self, contributions):
        self.arrived.set()
        self.gate.wait(SECONDS)
        self.stored += len(contributions)


@pytest.fixture
def path(monkeypatch):
    monkeypatch.setattr(ingest, "_COMPANY_SECONDS", FOREVER)
    monkeypatch.setattr(ingest, "_ENOUGH", 3)
    enclave, storage, failures = Enclave(), Gated(), []
    made = Ingest(enclave, storage, failed=failures.append)
    yield made, enclave, storage
    storage.gate.set()
    made.close()
    assert failures == []


def _submit(made, sealed=b""):
    answers = []

    def run():
        try:
            answers.append(made.submit(SealedContribution(b"", 0, sealed)).result(SECONDS))
        except StateError as error:
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, answers


def _join(submitted):
    for thread, answers in submitted:
        thread.join(SECONDS)
        assert answers == [None]


def test_a_caller_alone_does_not_wait_for_company(path):
    made, enclave, storage = path
    storage.gate.set()
    for _ in range(3):
        _join([_submit(made)])
    assert enclave.together == [1, 1, 1]


def test_while_others_are_under_way_enough_callers_go_together(path):
    made, enclave, storage = path
    first = _submit(made)
    assert storage.arrived.wait(SECONDS)
    others = [_submit(made) for _ in range(3)]
    storage.gate.set()
    _join([first, *others])
    assert enclave.together == [1, 3]
    assert storage.stored == 4


def test_who_waits_for_company_is_counted_when_the_program_stops(path):
    made, enclave, storage = path
    first = _submit(made)
    assert storage.arrived.wait(SECONDS)
    second = _submit(made)
    while not made._waiting and len(enclave.together) < 2:
        storage.arrived.wait(0.001)
    storage.gate.set()
    made.close()
    _join([first, second])
    assert enclave.together == [1, 1]


def test_a_large_contribution_does_not_wait_for_company(path):
    made, enclave, storage = path
    first = _submit(made)
    assert storage.arrived.wait(SECONDS)
    large = _submit(made, sealed=bytes(ingest._ENOUGH_BYTES))
    storage.gate.set()
    _join([first, large])
    assert enclave.together == [1, 1]


@pytest.mark.parametrize("error", [StateError("disk full"), MemoryError(), OSError("/a/path"), KeyError("data")])
def test_whatever_the_storage_raises_callers_hear_it_and_the_program_once(error):
    class Broken:
        def add(self, contributions):
            if contributions:
                raise error

    failures = []
    made = Ingest(Enclave(), Broken(), failed=failures.append)
    for _ in range(2):
        with pytest.raises(StateError) as told:
            made.submit(SealedContribution(b"", 0, b"")).result(SECONDS)
        assert "/a/path" not in str(told.value)
    made.close()
    assert len(failures) == 1
