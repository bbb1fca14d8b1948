"""Event logs that do not lead to the signed registers, or that tell of another launch."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from hypothesis import given, strategies as st
from trust.enclave.rig import (
    FUZZ,
    HPKE,
    POLICIES,
    RELAXED,
    SIGNING,
    Rig,
    log,
    reason,
    registers,
)

from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.verifier import VerifiedEnclave

GENUINE_LOG = log(POLICIES["aggregator"])


LINES = GENUINE_LOG.splitlines(keepends=True)


LOG_ATTACKS: list[tuple[str, bytes]] = [
    ("no log", b""),
    ("a line left out", b"".join(LINES[:-1])),
    ("a line more", GENUINE_LOG + b"runtime task 00\n"),
    ("a restriction that never held", GENUINE_LOG + b"sandbox held seccomp\n"),
    ("two lines exchanged", LINES[1] + LINES[0] + LINES[2]),
    ("a line twice", GENUINE_LOG + LINES[-1]),
    ("another policy", log(RELAXED)),
    ("other keys", log(POLICIES["aggregator"], keys=(SIGNING, HPKE))),
    ("a cut line", GENUINE_LOG[:-1]),
    ("an unknown register", GENUINE_LOG + b"other event\n"),
    ("a line without an event", GENUINE_LOG + b"runtime\n"),
    ("an empty line", GENUINE_LOG + b"\n"),
    ("two spaces", GENUINE_LOG.replace(b"debug off", b"debug  off")),
    ("not ASCII", GENUINE_LOG + "runtime \u00e9\n".encode()),
    ("too long", GENUINE_LOG * 2000),
]


@pytest.mark.parametrize("event_log", [row[1] for row in LOG_ATTACKS], ids=[row[0] for row in LOG_ATTACKS])
def test_a_log_that_does_not_lead_to_the_signed_registers_is_refused(rig: Rig, event_log: bytes) -> None:
    assert rig.verify(event_log=GENUINE_LOG).hpke_key == HPKE
    assert reason(lambda: rig.verify(event_log=event_log)) == Reason.EVENT_LOG


@pytest.mark.parametrize(
    "event_log",
    [
        log(RELAXED),
        log(POLICIES["aggregator"], debug="on"),
        log(POLICIES["aggregator"], keys=(SIGNING, HPKE)),
        log(POLICIES["aggregator"], f"runtime keys {HPKE.hex()} {SIGNING.hex()}"),
        log(POLICIES["aggregator"], "configuration debug off"),
        b"".join(LINES[:-1]),
        b"",
    ],
)
def test_a_log_that_leads_to_the_registers_and_tells_of_another_launch_is_refused(rig: Rig, event_log: bytes) -> None:
    token = rig.sign({**rig.claims(), "registers": registers(event_log)})
    assert reason(lambda: rig.verify(token, event_log=event_log)) == Reason.EVENT_LOG


def test_a_required_restriction_has_to_hold(rig: Rig) -> None:
    event_log = log(POLICIES["aggregator"], "sandbox held seccomp", "sandbox refused namespace-user", "runtime held x")
    token = rig.sign({**rig.claims(), "registers": registers(event_log)})
    assert rig.verify(token, event_log=event_log).restrictions == ("seccomp",)

    def verify(*required: str) -> VerifiedEnclave:
        pinned = dataclasses.replace(rig.pinned, required_restrictions=required)
        return rig.verify(token, event_log=event_log, reference_values=pinned)

    assert verify("seccomp").hpke_key == HPKE
    for missing in (("namespace-user",), ("seccomp", "landlock-no-files"), ("x",)):
        assert reason(functools.partial(verify, *missing)) == Reason.UNRESTRICTED


@FUZZ
@given(event_log=st.binary(max_size=200) | st.text("configurandbxm \n", max_size=80).map(str.encode))
def test_any_bytes_as_a_log_are_refused(rig: Rig, event_log: bytes) -> None:
    assert reason(lambda: rig.verify(event_log=event_log)) == Reason.EVENT_LOG
