"""The names under which the enclave has its host keep sealed records; sealed_state.py has their content."""

from __future__ import annotations

import re
from dataclasses import dataclass

from odp.errors import StateError

POPULATION_PREFIX = "population/"
TASK_PREFIX = "task/"
ROUND_PREFIX = "round/"
NOISE_PREFIX = "noise/"
RELEASE_PREFIX = "release/"
STREAM_PREFIX = "stream/"
PARTICIPATION_PREFIX = "participation/"
LEDGER_PREFIX = "ledger/"
LEDGER_STATE_PREFIX = "ledger-state/"
#: Of a hand-over alone: the pieces of a release, behind all records.
PIECES_PREFIX = "values/"
#: What an enclave does not need in order to start: the large records, each handed in by itself when it is used.
LATER_PREFIXES = (NOISE_PREFIX, RELEASE_PREFIX, STREAM_PREFIX)

_NUMBER_BYTES = 8
_ENTRY_KEY = re.compile(LEDGER_PREFIX + "([^/]+)/([0-9]{1,18})")
_ROUND_KEY = re.compile(f"(?:{ROUND_PREFIX}|{PARTICIPATION_PREFIX}|{STREAM_PREFIX})([0-9a-f]{{64}})/([0-9]{{1,10}})")


@dataclass(frozen=True)
class SealedRecord:
    """One record for the host to make durable, sealed but for entries of a ledger.

    ``data`` replaces what stood under ``key``; None erases it. ``pieces`` is the number of sealed pieces that belong to
    the record: the enclave gives them one by one, and they are durable before it.
    """

    key: str
    data: bytes | None
    pieces: int = 0


#: What one change asks the host to make durable, all or none.
Writes = tuple[SealedRecord, ...]


def population_key(population: str) -> str:
    """Key of the record of a population: its charter, the head of its ledger, its abandoned tasks."""
    return f"{POPULATION_PREFIX}{population}"


def ledger_key(population: str, number: int) -> str:
    """Key of an entry of a population's ledger."""
    return f"{LEDGER_PREFIX}{population}/{number}"


def ledger_entry(key: str) -> tuple[str, int] | None:
    """Population and number of the ledger entry with this key; None for any other key."""
    match = _ENTRY_KEY.fullmatch(key)
    return None if match is None else (match[1], int(match[2]))


def ledger_state_key(population: str) -> str:
    """Key of the sealed state of a population's ledger."""
    return f"{LEDGER_STATE_PREFIX}{population}"


def numbered_state(entries: int, sealed: bytes) -> bytes:
    """The record of a ledger's sealed state after its first ``entries``."""
    return entries.to_bytes(_NUMBER_BYTES, "big") + sealed


def split_state(data: bytes) -> tuple[int, bytes]:
    """Number of entries, and the sealed state, of what ``numbered_state`` made."""
    return int.from_bytes(data[:_NUMBER_BYTES], "big"), data[_NUMBER_BYTES:]


def task_key(task_sha256: bytes) -> str:
    """Key of a task's record."""
    return f"{TASK_PREFIX}{task_sha256.hex()}"


def round_key(task_sha256: bytes, round: int) -> str:
    """Key of a round's record."""
    return f"{ROUND_PREFIX}{task_sha256.hex()}/{round}"


def piece_key(release_key: str, number: int) -> str:
    """The name of a piece of a release in a hand-over; names of later pieces are higher."""
    return f"{PIECES_PREFIX}{release_key.removeprefix(RELEASE_PREFIX)}/{number:06d}"


def release_of(piece_key: str) -> str | None:
    """The key of the release that a piece belongs to; None for any other key."""
    if not piece_key.startswith(PIECES_PREFIX):
        return None
    return RELEASE_PREFIX + piece_key.removeprefix(PIECES_PREFIX).rpartition("/")[0]


def noise_key(task_sha256: bytes, round: int) -> str:
    """Key of a round's noise."""
    return f"{NOISE_PREFIX}{task_sha256.hex()}/{round}"


def stream_key(task_sha256: bytes, round: int) -> str:
    """Key of the past sums of a task's stream, as ``round`` needs them."""
    return f"{STREAM_PREFIX}{task_sha256.hex()}/{round}"


def participation_key(task_sha256: bytes, round: int) -> str:
    """Key of the record of who was in the rounds of a stream before ``round``."""
    return f"{PARTICIPATION_PREFIX}{task_sha256.hex()}/{round}"


def stream_beside(participation_key: str) -> str:
    """The key of the past sums of the stream whose record of participations has this key."""
    return STREAM_PREFIX + participation_key.removeprefix(PARTICIPATION_PREFIX)


def task_and_round(key: str) -> tuple[bytes, int]:
    """The task and the round in the key of a record of a round. Raises StateError for any other key."""
    return task_of(key), int(key.rpartition("/")[2])


def task_of(round_key: str) -> bytes:
    """The task in the key of a round's record. Raises StateError for any other key."""
    if (match := _ROUND_KEY.fullmatch(round_key)) is None:
        raise StateError(f"the name of sealed record {round_key!r} was changed: restore the state folder")
    return bytes.fromhex(match[1])


def noise_beside(round_key: str) -> str:
    """The key of the noise of the round whose record has this key."""
    return NOISE_PREFIX + round_key.removeprefix(ROUND_PREFIX)


def release_key(task_sha256: bytes, round: int) -> str:
    """Key of a round's release."""
    return f"{RELEASE_PREFIX}{task_sha256.hex()}/{round}"
