"""The names under which the enclave has its host keep sealed records; sealed_state.py says what is in them."""

from __future__ import annotations

from dataclasses import dataclass

RELEASE_PREFIX = "release/"


@dataclass(frozen=True)
class SealedRecord:
    """One record for the host to make durable: ``data`` replaces what stood under ``key``; None erases it."""

    key: str
    data: bytes | None


def task_key(task_sha256: bytes) -> str:
    """Key of a task's record."""
    return f"task/{task_sha256.hex()}"


def ledger_key(population: str) -> str:
    """Key of a population's ledger."""
    return f"ledger/{population}"


def round_key(task_sha256: bytes, round: int) -> str:
    """Key of a round's record."""
    return f"round/{task_sha256.hex()}/{round}"


def noise_key(task_sha256: bytes, round: int) -> str:
    """Key of a round's noise."""
    return f"noise/{task_sha256.hex()}/{round}"


def release_key(task_sha256: bytes, round: int) -> str:
    """Key of a round's release; the only large record that is read back by itself."""
    return f"{RELEASE_PREFIX}{task_sha256.hex()}/{round}"
