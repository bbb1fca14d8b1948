"""What the campaign's trials run: tasks of every kind of trust, on services of every shape."""

from __future__ import annotations

import dataclasses

import numpy as np
from task_combinations import DEVICES, Combination

import odp
from odp.models.example_columns import ExampleColumns
from odp.protocol.terms import Cohort

STATISTICS, DRAW_AND_DISCARD = "local statistics", "draw and discard"
_PEOPLE = Combination("ratings", "enclave", "full", "enclave")


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One kind of task on one shape of services.

    ``data``: the combination whose data the devices hold, and whose task is submitted unless ``local`` names one of
    local trust, whose reports the server alone sees. ``trainings``: of a living model, one task each.
    """

    data: Combination = _PEOPLE
    leaves: int = 0
    replicated: bool = False
    local: str = ""
    trainings: int = 1

    @property
    def devices(self) -> int:
        """Devices of a trial, each of which counts in each round."""
        return self.data.devices

    @property
    def shape(self) -> tuple[int, bool]:
        """Configurations of the same shape share services."""
        return self.leaves, self.replicated

    def task(self, name: str) -> odp.Task | odp.Statistics | odp.Evaluation | odp.DrawAndDiscard:
        """The task of this name, whose population has the same one."""
        if self.local == STATISTICS:
            return odp.Statistics(
                name=name, trust="local", queries={"seen": odp.Histogram(bins=5), "stars": odp.Mean(low=0, high=6)},
                privacy=odp.UserLevelDP(epsilon=4, delta=1e-6), cohort=Cohort(minimum=DEVICES, goal=DEVICES),
            )  # fmt: skip
        if self.local == DRAW_AND_DISCARD:
            return odp.DrawAndDiscard(
                name=name,
                features={"x": odp.Number()},
                epsilon=2.0,
                instances=3,
                most_updates=DEVICES,
                false_alarms=0.0,
            )
        return dataclasses.replace(self.data.task(""), name=name, population=name)

    def own_examples(self) -> ExampleColumns | None:
        """The devices' data in the place of those of ``data``."""
        if self.local != DRAW_AND_DISCARD:
            return None
        columns = {"x": np.full(DEVICES, 0.5), "label": np.arange(DEVICES) % 2.0}
        return ExampleColumns.of_users(columns, np.arange(DEVICES))


CONFIGURATIONS: dict[str, Configuration] = {
    "enclave": Configuration(),
    "masked": Configuration(Combination("statistics", "masked", "full", "")),
    "secagg+": Configuration(Combination("statistics", "secagg+", "full", "")),
    "tree": Configuration(leaves=2),
    "stream": Configuration(Combination("dpftrl", "enclave", "full", "")),
    "sampled": Configuration(Combination("fedavg", "enclave", "enclave_poisson", "")),
    "implicit": Configuration(Combination("implicit", "enclave", "full", "all")),
    "shuffled": Configuration(Combination("shuffled_statistics", "enclave", "full", "")),
    "searches": Configuration(Combination("heavy_hitters", "enclave", "full", "")),
    "private-fl": Configuration(Combination("private_fl", "enclave", "full", "")),
    "local": Configuration(local=STATISTICS),
    "local-model": Configuration(local=DRAW_AND_DISCARD),
    "living": Configuration(trainings=2),
    "replicas": Configuration(replicated=True),
}
