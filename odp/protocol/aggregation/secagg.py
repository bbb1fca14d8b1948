"""Sessions of SecAgg+ in a task: the developer's options, their terms in the signed task, and what they rest on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from odp._validate import integer, one_of
from odp.crypto.secure_aggregation import terms as session_terms
from odp.crypto.secure_aggregation.parameters import LARGEST_COHORT, Threat
from odp.errors import ConfigurationError
from odp.protocol.aggregation.mode import Mode
from odp.v1 import common_pb2, secagg_terms_pb2

_FRACTION = 0.1
_DEFAULT_THREAT = "lying"


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
