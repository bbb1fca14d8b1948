"""Many rounds of one population: what each leaves behind, and what a start reads. In full: `benchmarks years`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.years import NAME, Years, growth, play
from odp.errors import StateError
from trusted_aggregator.state.ledger_writes import STATE_EVERY, restored_ledger
from trusted_aggregator.state.population import Population
from trusted_aggregator.state.sealed_state import Sealer


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("years")
    return play(folder, [30, 150, 300])


@pytest.mark.parametrize("what", ["log_bytes", "stored_bytes"])
@pytest.mark.slow
def test_r250_a_later_round_adds_no_more_to_log_and_files_than_an_early_one(readings, what):
    """The whole ledger in each round would make a late round seven times as large as an early one here."""
    assert growth(readings[0], what) < 1.5


@pytest.mark.slow
def test_r250_a_start_reads_a_state_and_not_all_entries(readings):
    _, middle, last = readings[0]
    assert last.stored_bytes > 1.5 * middle.stored_bytes
    assert last.start_bytes < 0.3 * last.stored_bytes


@pytest.mark.slow
def test_r250_epsilon_of_the_compact_state_is_that_of_all_entries(readings):
    compact, whole = readings[1]
    assert compact == whole > 0


def stores(folder: Path) -> tuple[Population, Sealer, dict[str, bytes], dict[str, bytes]]:
    """A population after enough rounds for a sealed state, what a start reads, and what it read at the first state."""
    years = Years(folder)
    try:
        older: dict[str, bytes] = {}
        while years.rounds < 270:
            years.run(1)
            if not older and any(key.startswith("ledger-state/") for key in years.stored()):
                older = years.stored()
        return years.population, years.sealer, years.stored(), older
    finally:
        years.close()


@pytest.mark.slow
def test_r250_entries_and_states_that_do_not_lead_to_the_head_end_the_start(tmp_path: Path) -> None:
    population, sealer, records, older = stores(tmp_path)
    head = population.record.ledger.head
    assert restored_ledger(head, sealer, records).encode() == population.record.ledger.encode()
    key, entries = (
        f"ledger-state/{NAME}",
        sorted((key for key in records if key.startswith("ledger/")), key=lambda key: int(key.rsplit("/", 1)[1])),
    )
    assert len(entries) > 20
    assert records[key] != older[key]
    assert len(entries) < STATE_EVERY < head.entries

    first, second = entries[3], entries[4]
    attacks = {
        "an entry dropped": {**records, first: None},
        "the newest entry dropped": {**records, entries[-1]: None},
        "two entries swapped": {**records, first: records[second], second: records[first]},
        "an entry twice": {**records, second: records[first]},
        "two entries in one place": {**records, first: records[first] + records[second]},
        "an entry with another epsilon": {
            **records,
            first: records[first].replace(b'"task_epsilon":0', b'"task_epsilon":1'),
        },
        "nothing in its place": {**records, first: b""},
        "no state": {**records, key: None},
        "a state without the entries behind it": {**records, key: older[key]},
        "a state that was changed": {**records, key: records[key][:-1] + bytes([records[key][-1] ^ 1])},
    }
    for name, given in attacks.items():
        kept = {place: data for place, data in given.items() if data is not None}
        assert kept != records, name
        with pytest.raises(StateError, match=r"restore the .*state folder"):
            restored_ledger(head, sealer, kept)
