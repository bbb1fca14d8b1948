"""Hand-overs in the log: the code that had a population's ledger, and the ledger's continuity.

An auditor follows each population from code to code. A ledger by other code than the last one's needs a hand-over
between the two, and continues what was handed over: the same id, the same first entries under the same head. What the
old code signs afterwards may only be of what it had charged before, unless the population was handed back to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from odp.crypto import domains
from odp.crypto.signing import SignatureError, verify
from odp.errors import ConfigurationError, OdpError
from odp.privacy.ledger_entry import Entry
from odp.privacy.ledger_state import LedgerHead
from odp.signed.task import HASH_BYTES, check_length
from odp.trust.enclave.verifier import VerifiedEnclave
from odp.trust.log.entries import HandOverEntry
from odp.v1 import hand_over_pb2


class WrongHandOver(OdpError):
    """The fault of a hand-over, or of a ledger after one; one line."""


@dataclass(frozen=True)
class _Handed:
    predecessor_image: str
    entries: int
    head: bytes


def open_hand_over(entry: HandOverEntry, enclave: VerifiedEnclave) -> hand_over_pb2.HandOverStatement:
    """The statement of ``enclave``, whose key has signed the entry.

    Raises:
        SignatureError: another key has signed it.
        ConfigurationError: a field is malformed, or it is about other code or another chip than that enclave's.
    """
    verify(enclave.signing_key, entry.signature, domains.HAND_OVER, entry.statement)
    try:
        statement = hand_over_pb2.HandOverStatement.FromString(entry.statement)
    except DecodeError:
        raise ConfigurationError("Expected a HandOverStatement; it cannot be read") from None
    if (statement.predecessor_image, statement.chip_id) != (enclave.image_digest, enclave.chip_id):
        raise ConfigurationError("it is about another code or chip than that of the enclave that signed it")
    if statement.policy_sha256 != enclave.policy.sha256:
        raise ConfigurationError("it is about another policy than that of the enclave that signed it")
    names = [population.population for population in statement.populations]
    if not names or names != sorted(set(names)):
        raise ConfigurationError("Expected populations of a hand-over, ascending and distinct")
    for handed_over in statement.populations:
        for name in ("ledger_id", "charter_sha256", "head"):
            check_length(name, getattr(handed_over, name), HASH_BYTES)
    return statement


class HandOvers:
    """Takes evidence, hand-overs and ledgers in the order of the log."""

    def __init__(self) -> None:
        # By population: the code that has it, as far as ledgers and hand-overs say.
        self._holder: dict[str, str] = {}
        self._ids: dict[str, bytes] = {}
        # Entries of its newest ledger in the log.
        self._logged: dict[str, int] = {}
        # By population, the oldest first.
        self._handed: dict[str, list[_Handed]] = {}

    def attested(self, ledgers: Mapping[str, bytes]) -> None:
        """Records ids of ledgers from evidence. Raises WrongHandOver if a population has two."""
        for name, ledger_id in ledgers.items():
            if self._ids.setdefault(name, ledger_id) != ledger_id:
                raise WrongHandOver(f"the ledger of population {name!r} started again: its evidence shows another id")

    def add(self, entry: HandOverEntry, enclave: VerifiedEnclave) -> None:
        """Adds a hand-over that ``enclave`` has signed.

        Raises:
            SignatureError, ConfigurationError: as ``open_hand_over``.
            WrongHandOver: the population is not that code's any more, or has another ledger.
        """
        statement = open_hand_over(entry, enclave)
        for population in statement.populations:
            self.attested({population.population: population.ledger_id})
            if self._holder.get(population.population, enclave.image_digest) != enclave.image_digest:
                raise WrongHandOver(f"population {population.population!r} is not owned by the code that hands it over")
            if population.entries < self._logged.get(population.population, 0):
                raise WrongHandOver(
                    f"it hands over fewer entries of population {population.population!r} than were logged"
                )
            handed = _Handed(enclave.image_digest, population.entries, population.head)
            self._handed.setdefault(population.population, []).append(handed)
            self._holder[population.population] = statement.successor_image

    def charged(self, before: LedgerHead, new: Sequence[Entry], image_digest: str) -> None:
        """Adds entries after ``before``, the last logged head; an enclave with this code has signed the new head.

        Raises WrongHandOver where the population is another code's, or its first entries are not those handed over.
        """
        name, entries = before.population, before.entries + len(new)
        hand_overs = self._handed.get(name, [])
        if self._holder.setdefault(name, image_digest) != image_digest:
            given_away = [handed.entries for handed in hand_overs if handed.predecessor_image == image_digest]
            if not given_away:
                raise WrongHandOver(f"population {name!r} was not handed over to the code that signed it")
            if entries > given_away[-1]:
                raise WrongHandOver(
                    f"it has {entries} entries, and the code that signed it handed population {name!r} over "
                    f"with {given_away[-1]}"
                )
        heads = [before.sha256, *(entry.sha256 for entry in new)]
        for handed in hand_overs:
            # No hand-over has fewer entries than were logged before it, so each is compared once.
            first = handed.entries - before.entries
            if 0 <= first <= len(new) and heads[first] != handed.head:
                raise WrongHandOver(f"its first {handed.entries} entries are not those that were handed over")
        self._logged[name] = entries


def signer_of(entry: HandOverEntry, enclaves: list[VerifiedEnclave]) -> VerifiedEnclave:
    """The enclave among ``enclaves`` that has signed a hand-over, newest first. Raises WrongHandOver if none."""
    for enclave in reversed(enclaves):
        try:
            verify(enclave.signing_key, entry.signature, domains.HAND_OVER, entry.statement)
        except SignatureError:
            continue
        return enclave
    raise WrongHandOver("no aggregator whose evidence is in the log before it has signed it")
