"""What a device's turns say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_runtime_ledger import TASK, participation, prepare

from device_runtime.host.learned import Learned, Taken, contributions_of, outcome_of, why
from device_runtime.store.schema import State
from device_runtime.store.store import Store
from odp.errors import ServiceUnavailable


def _taken(round: int, *, local_trust: bool = False) -> Taken:
    return Taken(task="films", round=round, epsilon=8.0, delta=1e-6, local_trust=local_trust)


@pytest.mark.parametrize(
    ("learned", "told"),
    [
        (Learned(population="films", contributions=(_taken(1),)),
         "contributed to round 1 of task 'films' (ε = 8, δ = 1e-06 for all of it)"),
        (Learned(population="films", contributions=(_taken(1), _taken(2), _taken(3)), reason="that was the last"),
         "contributed to 3 rounds, 1 to 3, of task 'films' (ε = 8, δ = 1e-06 for all of it); did not contribute again: "
         "that was the last"),
        (Learned(population="films", contributions=(_taken(1, local_trust=True),)),
         "reported 1 times to task 'films' (ε = 8, δ = 1e-06 for all of it)"),
        (Learned(population="films", contributions=(), reason="no round is open"),
         "did not contribute: no round is open"),
    ],
)  # fmt: skip
def test_the_outcome_is_one_line(learned: Learned, told: str) -> None:
    assert str(learned) == told
    assert repr(learned) == f"<Learned in 'films': {told}>"


def test_only_contributions_that_were_sent_count(tmp_path: Path) -> None:
    path = tmp_path / "device.sqlite"
    with Store.open_or_create(path, durable=False) as store:
        for round, state in enumerate((State.SENT, State.REFUSED, State.SENT, None)):
            prepare(store, participation(round))
            if state is not None:
                store.settle(TASK, round, state)
    assert list(contributions_of(lambda: Store.open(path)).values()) == [_taken(1), _taken(3)]


def test_a_reason_says_whose_it_is() -> None:
    assert why(("declined", "over its limit")) == "the device declined: over its limit"
    assert why(("idle", "no round is open")) == "no round is open"


def test_an_outage_is_an_error_before_a_contribution_and_a_reason_after_one() -> None:
    class Ended:
        reason = ("idle", "no round is open")
        outage = ServiceUnavailable("nobody answers")

    with pytest.raises(ServiceUnavailable, match="nobody answers"):
        outcome_of("films", (), Ended(), wanted=1)
    assert outcome_of("films", (_taken(1),), Ended(), wanted=2).reason == "nobody answers"
    assert outcome_of("films", (_taken(1),), Ended(), wanted=1).reason == ""
