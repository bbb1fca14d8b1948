"""Every mode of aggregation: the one table for what a developer writes, a task says and a party asks.

A ``Mode`` is what tasks and all parties but the aggregator know of it. ``Sessions`` are the developer's options for
SecAgg+, their terms in the signed task, and what they rest on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from odp._validate import integer, one_of
from odp.crypto.secure_aggregation import terms as session_terms
from odp.crypto.secure_aggregation.parameters import LARGEST_COHORT, Threat
from odp.errors import ConfigurationError
from odp.v1 import common_pb2, secagg_terms_pb2
from odp.v1.common_pb2 import CohortTerms

_FRACTION = 0.1
_DEFAULT_THREAT = "lying"


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A mode without options of its own; one with options is a subclass.

    Attributes:
      name: as a developer writes it.
      number: of it in a signed task.
      dense_only: contributions have to be vectors, since nobody opens them.
      samples: the enclave can draw in secret which contributions count.
      in_session: devices take part together, in sessions, and add the noise themselves.
      minimum: the fewest contributions that a round can have.
      options: the fields of ``odp.Cohort`` that this mode alone has.
    """

    name: str
    number: common_pb2.CohortTerms.Aggregation
    dense_only: bool
    samples: bool = False
    in_session: bool = False
    minimum: int = 1
    options: tuple[str, ...] = ()

    def write(self, terms: common_pb2.CohortTerms, options: Mapping[str, object]) -> None:
        """Adds what the mode says of itself to the terms of a cohort, whose other fields are there.

        Raises:
          ConfigurationError, PrivacyError: a value of ``options`` is out of range, or the cohort cannot keep it.
        """

    def check(self, cohort: common_pb2.CohortTerms) -> None:
        """Returns if a cohort has the terms of this mode exactly where it is of this mode.

        Raises:
          ConfigurationError, PrivacyError: as ``write``.
        """

    def lines(self, cohort: common_pb2.CohortTerms, epsilon_if_alone: Callable[[], float]) -> list[str]:
        """What ``odp task show`` says of a task beside its releases; ``epsilon_if_alone``: if all others conspired."""
        return []


@dataclass(frozen=True, kw_only=True)
class Sessions(Mode):
    """Devices mask in pairs, and each adds a share of the noise."""

    def write(self, terms: common_pb2.CohortTerms, options: Mapping[str, Any]) -> None:
        adversary, roster, size = options["threat"], options["roster_sha256"], options["roster_size"]
        if adversary is not None:
            one_of(session_terms.THREATS, threat=adversary)
        if roster is not None and not re.fullmatch(r"[0-9a-f]{64}", roster):
            raise ConfigurationError("Expected roster_sha256 to be 64 digits of lower-case hexadecimal")
        if size is not None:
            integer(low=1, high=LARGEST_COHORT, roster_size=size)
        fractions = (options["corrupt_fraction"], options["dropout_fraction"])
        corrupt, dropout = (_FRACTION if fraction is None else fraction for fraction in fractions)
        threat = Threat(
            adversary=session_terms.THREATS[adversary or _DEFAULT_THREAT], corrupt=corrupt, dropout=dropout,
            roster=size or 0,
        )  # fmt: skip
        terms.secagg.CopyFrom(
            session_terms.resolve(
                threat, minimum=terms.minimum, goal=terms.goal, roster_sha256=bytes.fromhex(roster or "")
            )
        )

    def check(self, cohort: common_pb2.CohortTerms) -> None:
        session_terms.check(cohort)

    def lines(self, cohort: common_pb2.CohortTerms, epsilon_if_alone: Callable[[], float]) -> list[str]:
        terms = cohort.secagg
        return [
            f"# {cohort.goal} devices: each masks with {terms.neighbours} neighbours, {terms.threshold} "
            "shares rebuild a secret; fewer devices take what the same rule gives them",
            f"# noise: each device adds a share of variance v / {terms.sharers}, the fewest honest devices in any sum",
            f"# assumed: {_assumed(terms)}; if all others did, epsilon would be {epsilon_if_alone():.4f}",
        ]


def _assumed(terms: secagg_terms_pb2.SecAggTerms) -> str:
    """What the noise rests on."""
    if terms.roster_size:
        corrupt = session_terms.threat_of(terms).most_corrupt(terms.roster_size)
        return f"at most {corrupt} of the {terms.roster_size} devices on the roster work for the server, in any session"
    return (
        f"at most {terms.corrupt:g} of each session's devices work for the server: an assumption about whoever the "
        "host lets in, since the task names no roster"
    )


ENCLAVE, MASKED, SECAGG = "enclave", "masked", "secagg+"

_ALL = (
    Mode(name=ENCLAVE, number=CohortTerms.AGGREGATION_UNSPECIFIED, dense_only=False, samples=True),
    Mode(name=MASKED, number=CohortTerms.AGGREGATION_MASKED, dense_only=True),
    Sessions(
        name=SECAGG, number=CohortTerms.AGGREGATION_SECAGG, dense_only=True, in_session=True, minimum=3,
        options=("threat", "corrupt_fraction", "dropout_fraction", "roster_sha256", "roster_size"),
    ),
)  # fmt: skip

#: The modes by their names; the first one is what a task has unless it says otherwise.
MODES: Mapping[str, Mode] = MappingProxyType({mode.name: mode for mode in _ALL})
DEFAULT = ENCLAVE


def mode_of(cohort: CohortTerms) -> Mode:
    """The mode of a task's cohort. Raises ConfigurationError where this version knows none of its number."""
    for mode in _ALL:
        if mode.number == cohort.aggregation:
            return mode
    raise ConfigurationError(f"Expected cohort.aggregation={cohort.aggregation} to be a mode that this version knows")


def noise_sharers(cohort: CohortTerms) -> int:
    """The fewest honest devices that add the noise of a sum in shares; 0 where the enclave adds it."""
    return int(cohort.secagg.sharers)
