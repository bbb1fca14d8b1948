"""The terms of a task's SecAgg+ sessions: the developer's API creates them, and every device recomputes them.

Guarantee: a definition that ``check`` accepts has the neighbours and the threshold of the exact finder, and noise
shares for no more sharers than any sum surely has. A developer who signs lower numbers is refused by every device.

With a roster, the corrupt clients are a fraction of it, and all of them are counted into every session: the host picks
who is in one, so no fraction of a session follows from a fraction of the roster.
"""

from __future__ import annotations

from odp import _validate
from odp.crypto.secure_aggregation.parameters import Adversary, Threat, fewest_honest, find
from odp.errors import ConfigurationError
from odp.v1 import common_pb2, secagg_terms_pb2

_HASH_BYTES = 32

#: How a task names its server, by what the server may do.
THREATS = {"lying": Adversary.LYING, "semi-honest": Adversary.SEMI_HONEST}


def resolve(threat: Threat, *, minimum: int, goal: int, roster_sha256: bytes = b"") -> secagg_terms_pb2.SecAggTerms:
    """Every number of the terms of a task whose sessions have from ``minimum`` to ``goal`` clients.

    ``roster_sha256`` names the roster of ``threat.roster`` clients; neither goes without the other.

    Raises:
        ConfigurationError: a number is out of range, or the roster is smaller than ``goal``.
        PrivacyError: no graph keeps the promise for ``minimum`` or ``goal`` clients, or no honest client is sure to be
            in a sum.
    """
    if bool(roster_sha256) != bool(threat.roster):
        raise ConfigurationError(
            f"Expected roster_size={threat.roster} with roster_sha256, and neither without the other: "
            "`odp device roster` prints both"
        )
    if threat.roster and goal > threat.roster:
        raise ConfigurationError(f"Expected goal={goal} to be at most roster_size={threat.roster}")
    find(clients=minimum, threat=threat)
    parameters = find(clients=goal, threat=threat)
    return secagg_terms_pb2.SecAggTerms(
        lying_server=threat.adversary is Adversary.LYING,
        corrupt=threat.corrupt,
        dropout=threat.dropout,
        neighbours=parameters.neighbours,
        threshold=parameters.threshold,
        sharers=fewest_honest(minimum=minimum, maximum=goal, threat=threat),
        roster_sha256=roster_sha256,
        roster_size=threat.roster,
    )


def is_secagg(definition: common_pb2.TaskDefinition) -> bool:
    """Whether the task's rounds are SecAgg+ sessions."""
    return bool(definition.cohort.aggregation == common_pb2.CohortTerms.AGGREGATION_SECAGG)


def threat_of(terms: secagg_terms_pb2.SecAggTerms) -> Threat:
    """The threat that the terms withstand. Raises ConfigurationError or PrivacyError as ``Threat``."""
    adversary = Adversary.LYING if terms.lying_server else Adversary.SEMI_HONEST
    return Threat(adversary=adversary, corrupt=terms.corrupt, dropout=terms.dropout, roster=terms.roster_size)


def check(cohort: common_pb2.CohortTerms) -> None:
    """Returns if the cohort has no SecAgg+ terms and needs none, or has exactly those of ``resolve``.

    Raises:
        ConfigurationError: terms without the mode or the mode without terms, a number that does not follow from the
            others, or a roster that is no hash.
        PrivacyError: as ``resolve``.
    """
    uses_secagg = cohort.aggregation == common_pb2.CohortTerms.AGGREGATION_SECAGG
    if uses_secagg != cohort.HasField("secagg"):
        raise ConfigurationError("Expected the terms of secure aggregation with aggregation='secagg+' alone")
    if not uses_secagg:
        return
    if cohort.HasField("enclave_poisson"):
        raise ConfigurationError("Expected no sampling with aggregation='secagg+': no enclave could draw in secret")
    terms = cohort.secagg
    if len(terms.roster_sha256) not in (0, _HASH_BYTES):
        raise ConfigurationError(f"Expected roster_sha256 to be {_HASH_BYTES} bytes or none")
    _validate.integer(low=3, high=2**31, cohort_minimum=cohort.minimum)
    expected = resolve(threat_of(terms), minimum=cohort.minimum, goal=cohort.goal, roster_sha256=terms.roster_sha256)
    for name in ("neighbours", "threshold", "sharers"):
        if getattr(terms, name) != getattr(expected, name):
            raise ConfigurationError(
                f"Expected {name}={getattr(terms, name)} of the task's secure aggregation to be "
                f"{getattr(expected, name)}, which its cohort and its threat give: have the developer sign it anew"
            )
