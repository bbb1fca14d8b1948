"""Private federated learning as the platform sees it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from odp.algorithms.federated import algorithm
from odp.algorithms.federated.terms import Terms
from odp.algorithms.registry import is_here
from odp.algorithms.seam import Client, Population
from odp.errors import ConfigurationError
from odp.models.computing_cost import ComputingCost, Product
from odp.privacy.local_charge import LocalCharge

if TYPE_CHECKING:
    from odp.algorithms.private_fl.report import Reports


# Of a parameter in the randomizer of directions.
_RANDOMIZED_SECONDS = 3e-7


class TaskAlgorithm(algorithm.TaskAlgorithm):
    """``odp.algorithms.seam.Algorithm`` of tasks whose devices randomize their updates."""

    schedules_cohorts = False
    samples = False

    @functools.cached_property
    def _terms(self) -> Terms:
        from odp.algorithms.private_fl.checks import check_numbers

        terms = Terms.of(self.definition)
        check_numbers(self.definition.private_fl.report)
        if self.definition.cohort.HasField("enclave_poisson"):
            raise ConfigurationError("Expected no sampling with reports that are private by themselves")
        return terms

    def reports(self) -> Reports:
        """The randomizers of a device."""
        from odp.algorithms.private_fl.report import Reports

        return Reports.of(self.definition, self.terms())

    @property
    def computing_cost(self) -> ComputingCost:
        return super().computing_cost.plus(Product(_RANDOMIZED_SECONDS * self.terms().model.size))

    @property
    def local_charge(self) -> LocalCharge:
        return self.reports().charge

    def check_for_devices(self) -> None:
        super().check_for_devices()
        # Devices alone rely on the randomizers, and enclaves do without the libraries of these.
        if is_here("odp.algorithms.private_fl.report"):
            self.reports()

    def client(self) -> Client:
        from odp.algorithms.private_fl.client import PrivateClient

        return PrivateClient(self.terms(), self.reports())

    def population(self) -> Population[Any]:
        from odp.algorithms.private_fl.population import PrivatePopulation

        return PrivatePopulation(self.terms(), self.reports())
