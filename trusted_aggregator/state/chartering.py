"""Whether a charter may change a population: its signatures, its predecessor, and the number of populations."""

from __future__ import annotations

from collections.abc import Mapping

from odp.errors import PrivacyError
from odp.signed.charter import Charter, check_founding, check_succession
from odp.trust.enclave.identity import EnclaveIdentity
from trusted_aggregator.state.limits import MOST_CHANGES, MOST_POPULATIONS
from trusted_aggregator.state.population import Population


def changeable(
    charter: Charter, populations: Mapping[str, Population], identity: EnclaveIdentity, *, changes: Mapping[str, int]
) -> Population:
    """The population that ``charter`` founds or changes, after all checks.

    ``changes`` counts the charters of each population since the enclave was launched.

    Raises:
        SignatureError, PrivacyError: it is not signed by those who may, does not follow the charter in force, founds
            what was founded before, or a limit is reached.
        StateError: a population of this name was founded on this platform, and its record is lost.
    """
    population = populations.get(charter.population)
    if population is None or population.charter is None:
        check_founding(charter, identity.policy.founder_keys)
        if len(populations) >= MOST_POPULATIONS:
            raise PrivacyError(
                f"population {charter.population!r} cannot be founded: this enclave has {MOST_POPULATIONS}, the most "
                "that it takes; found it at another aggregator"
            )
        return Population(identity, charter.population) if population is None else population
    if not charter.sequence:
        raise PrivacyError(
            f"population {charter.population!r} was founded before, by another charter: take another population, or "
            "have its owners add your key"
        )
    check_succession(charter, population.charter)
    if changes.get(charter.population, 0) >= MOST_CHANGES:
        raise PrivacyError(
            f"population {charter.population!r} changed its charter {MOST_CHANGES} times since the enclave started, "
            "the most that its event log takes: start the enclave again"
        )
    return population
