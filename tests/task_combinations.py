"""Every combination of what a task can be made of, and the task of each that can be made."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

import odp
from odp.protocol.aggregation import DEFAULT, MODES, SECAGG
from odp.protocol.terms import ENCLAVE_POISSON, FULL, Cohort
from odp.signed.broadcast.terms import ALL, AUTO, ENCLAVE, PIR

ITEMS = 12
DEVICES = 4
QUESTIONS = ("statistics", "shuffled_statistics", "quantiles", "model_evaluation", "heavy_hitters")
#: Words of the devices, for searches.
WORDS = ("ab", "ba", "ab", "a")
#: Trainings on labelled examples.
FEDERATED = {
    "fedavg": odp.DPFedAvg(rounds=2, clip_quantile=0.5, noise_schedule=[(1, 2.0), (1, 1.0)]),
    "dpsgd": odp.DPSGD(rounds=1),
    "dpftrl": odp.DPFTRL(rounds=2, bands=2),
    "scheduled": odp.DPFedAvg(
        rounds=2, cohort_schedule=[(1, DEVICES), (1, DEVICES)], noise_multiplier=9, diagnostics=True
    ),
    "private_fl": odp.PrivateFL(rounds=2, participations=2),
    "eight-bits": odp.DPFedAvg(rounds=2, clip_quantile=0.5, upload_bits=8),
}
EXAMPLES = odp.Examples({"x": odp.Tensor((2, 2), -1, 1)}, label="kind")
MODEL = odp.Glm("multinomial", features=4, classes=3)
#: Those that read them.
OF_EXAMPLES = (*FEDERATED, "model_evaluation")
#: Trainings of items.
OF_ITEMS = {
    "ratings": (odp.RatingsData(low=1, high=5), odp.DPAM(steps=1)),
    "ratings-gradients": (odp.RatingsData(low=1, high=5), odp.DPAM(step="gradient", steps=2)),
    "implicit": (odp.ImplicitData(), odp.ImplicitDPAM(steps=1)),
    "ratings-dpsgd": (odp.RatingsData(low=1, high=5), odp.DPSGD(rounds=2)),
    "implicit-dpsgd": (odp.ImplicitData(), odp.DPSGD(rounds=2, clip=1.0)),
}
ALGORITHMS = (*OF_ITEMS, *QUESTIONS, *FEDERATED)
AGGREGATIONS = tuple(MODES)
SAMPLINGS = (FULL, ENCLAVE_POISSON)
#: "" leaves out the broadcast, as questions do.
BROADCASTS = ("", ENCLAVE, ALL, PIR, AUTO)


@dataclasses.dataclass(frozen=True)
class Combination:
    """One choice of each."""

    algorithm: str
    aggregation: str
    sampling: str
    broadcast: str

    @property
    def name(self) -> str:
        parts = (self.algorithm, self.aggregation.rstrip("+"), self.sampling, self.broadcast or "default")
        return "-".join(parts).replace("_", "-")

    @property
    def devices(self) -> int:
        """Devices that contribute to each round."""
        return DEVICES + (self.algorithm == "scheduled" and self.sampling != FULL)

    @property
    def is_offered(self) -> bool:
        """Whether there is such a task (docs/secure-aggregation.md, "Modes")."""
        if self.algorithm in QUESTIONS:
            return self.sampling == FULL and not self.broadcast and self._is_asked
        if self.algorithm in FEDERATED:
            return self._is_trained and self.broadcast in ("", ENCLAVE)
        if self.algorithm == "ratings-gradients":  # vectors of all items, where masks hide them
            return self.sampling == FULL or self.aggregation == DEFAULT
        return self.aggregation == DEFAULT

    @property
    def _is_asked(self) -> bool:
        """Whether there is such a question."""
        match self.algorithm:
            case "shuffled_statistics":  # what devices send is no vector
                return self.aggregation == DEFAULT
            case "heavy_hitters":  # later rounds ask by what earlier ones released
                return self.aggregation != SECAGG
            case _:
                return True

    @property
    def _is_trained(self) -> bool:
        """Whether there is such a training on labelled examples."""
        unmasked = self.aggregation == DEFAULT
        match self.algorithm:
            case "dpftrl":  # no sampling, and no noise of devices
                return self.sampling == FULL and self.aggregation != SECAGG
            case "private_fl":  # a device pays for every report
                return self.sampling == FULL
            case "eight-bits":  # a masked number has 32 bits
                return unmasked
            case _:  # nobody draws in secret where a host sums
                return self.sampling == FULL or unmasked

    @property
    def is_distinct(self) -> bool:
        """Whether it is offered and none of the others is the same task: "" and "auto" stand for one of the rest."""
        without_rows = self.algorithm in (*QUESTIONS, *FEDERATED)
        return self.is_offered and (not self.broadcast if without_rows else self.broadcast in (ENCLAVE, ALL, PIR))

    def task(self, helper_key: str) -> odp.Task | odp.Statistics | odp.Quantiles | odp.Evaluation | odp.HeavyHitters:
        """The task. Raises ConfigurationError or PrivacyError where there is none."""
        sampled: dict[str, float] = {"sampling_probability": 0.5, "most_contributions": 2 * DEVICES}
        if self.algorithm == "scheduled":  # which says how many count, of all that contribute
            del sampled["sampling_probability"]
        secagg = {"corrupt_fraction": 0.0, "dropout_fraction": 0.3}
        cohort = Cohort(
            minimum=DEVICES, goal=self.devices, round_seconds=600, aggregation=self.aggregation, sampling=self.sampling,
            **(sampled if self.sampling != FULL else {}),
            **(secagg if self.aggregation == SECAGG else {}),
        )  # fmt: skip
        broadcast = {}
        if self.broadcast:
            key = helper_key if self.broadcast in (PIR, AUTO) else ""
            broadcast = {"broadcast": odp.Broadcast(method=self.broadcast, helper_key=key)}
        if self.algorithm in QUESTIONS:
            asked = {"name": self.name, "cohort": cohort, "privacy": odp.UserLevelDP(epsilon=4.0, delta=1e-6)}
            if self.algorithm == "quantiles":
                return odp.Quantiles(low=0, high=6, bins=ITEMS, **asked, **broadcast)
            if self.algorithm == "model_evaluation":
                of = np.zeros(MODEL.size)
                return odp.Evaluation(model=MODEL, data=EXAMPLES, of=of, against=of, bins=4, **asked, **broadcast)
            if self.algorithm == "heavy_hitters":
                events = odp.Events(service="keyboard", type="typed", item="word")
                return odp.HeavyHitters(events=events, alphabet="ab", length=2, prefixes=2, **asked, **broadcast)
            if self.algorithm == "shuffled_statistics":
                queries = {"items": odp.Histogram(bins=ITEMS), "stars": odp.Mean(low=0, high=6)}
                return odp.Statistics(queries=queries, trust="shuffle", **asked, **broadcast)
            return odp.Statistics(queries={"items": odp.Histogram(bins=ITEMS)}, **asked, **broadcast)
        if self.algorithm in FEDERATED:
            return odp.Task(
                name=self.name, model=MODEL, cohort=cohort, data=EXAMPLES,
                privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6), training=FEDERATED[self.algorithm], **broadcast,
            )  # fmt: skip
        data, training = OF_ITEMS[self.algorithm]
        rank = 4 if self.algorithm == "ratings-gradients" else 2
        return odp.Task(
            name=self.name, model=odp.MatrixFactorization(items=ITEMS, rank=rank), cohort=cohort, data=data,
            privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=4), training=training, **broadcast,
        )  # fmt: skip


COMBINATIONS = tuple(itertools.starmap(Combination, itertools.product(ALGORITHMS, AGGREGATIONS, SAMPLINGS, BROADCASTS)))
