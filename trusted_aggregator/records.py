"""The names under which the enclave has its host keep sealed records; sealed_state.py says what is in them."""

from __future__ import annotations

from dataclasses import dataclass

from odp.errors import StateError

POPULATION_PREFIX = "population/"
TASK_PREFIX = "task/"
ROUND_PREFIX = "round/"
NOISE_PREFIX = "noise/"
RELEASE_PREFIX = "release/"
#: What an enclave does not need in order to start: the large records, each handed in by itself when it is used.
LATER_PREFIXES = (NOISE_PREFIX, RELEASE_PREFIX)


@dataclass(frozen=True)
class SealedRecord:
    """One record for the host to make durable: ``data`` replaces what stood under ``key``; None erases it."""

    key: str
    data: bytes | None


def population_key(population: str) -> str:
    """Key of the record of a population: its charter, its ledger, its abandoned tasks."""
    return f"{POPULATION_PREFIX}{population}"


def task_key(task_sha256: bytes) -> str:
    """Key of a task's record."""
    return f"{TASK_PREFIX}{task_sha256.hex()}"


def round_key(task_sha256: bytes, round: int) -> str:
    """Key of a round's record."""
    return f"{ROUND_PREFIX}{task_sha256.hex()}/{round}"


def noise_key(task_sha256: bytes, round: int) -> str:
    """Key of a round's noise."""
    return f"{NOISE_PREFIX}{task_sha256.hex()}/{round}"


def task_of(round_key: str) -> bytes:
    """The task of the key of a round's record. Raises StateError where it is none."""
    try:
        return bytes.fromhex(round_key.split("/")[1])
    except (IndexError, ValueError):
        raise StateError(f"sealed record {round_key!r} has no such name: restore the state folder") from None


def noise_beside(round_key: str) -> str:
    """The key of the noise of the round whose record has this key."""
    return NOISE_PREFIX + round_key.removeprefix(ROUND_PREFIX)


def release_key(task_sha256: bytes, round: int) -> str:
    """Key of a round's release."""
    return f"{RELEASE_PREFIX}{task_sha256.hex()}/{round}"
