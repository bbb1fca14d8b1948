"""What a process of TensorFlow Federated leaves out of a task is refused by name, before TensorFlow is imported."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import pytest

import odp
from odp.algorithms.federated.config import FederatedTraining
from odp.errors import ConfigurationError
from odp.research.interop.carried import carried_terms

NUMBERS = {"minimum": 200, "goal": 200}


def task(training: Any, **cohort: Any) -> odp.Task:
    return odp.Task(
        name="carried",
        model=odp.Glm("linear", 5),
        data=odp.Examples({"x": odp.Tensor((5,), -1, 1)}, label_low=-3.0, label_high=3.0),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
        training=training,
        cohort=odp.Cohort(**{**NUMBERS, **cohort}),
    )


@pytest.mark.parametrize(
    ("training", "cohort", "message"),
    [
        (odp.PrivateFL(rounds=2), {}, r"odp\.PrivateFL: its devices randomize each update"),
        (odp.DPFTRL(rounds=4, min_separation=2), {}, r"odp\.DPFTRL: its noise is correlated between rounds"),
        (odp.DPFedAvg(rounds=2, clip_quantile=0.5), {}, "clip_quantile"),
        (odp.DPFedAvg(rounds=2, diagnostics=True), {}, "diagnostics"),
        (odp.DPFedAvg(rounds=2, noise_schedule=[(1, 2.0), (1, 1.0)]), {}, "noise_schedule"),
        (odp.DPFedAvg(rounds=2, cohort_schedule=[(1, 200), (1, 300)]), {"goal": 300}, "cohort_schedule"),
        (odp.DPFedAvg(rounds=2, upload_bits=10), {}, "upload_bits"),
        (
            odp.DPSGD(rounds=2),
            {"sampling": "enclave_poisson", "sampling_probability": 0.2, "most_contributions": 1000},
            "sampling='full'",
        ),
        (odp.DPFedAvg(rounds=2), {"aggregation": "secagg+"}, r"'secagg\+'"),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("coarse_composition")
def test_r356_what_a_process_leaves_out_is_refused_by_name(training: Any, cohort: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        carried_terms(task(training, **cohort), noise=True)


def test_r356_a_count_of_usable_rows_is_left_out_by_name() -> None:
    counted = dataclasses.replace(task(odp.DPFedAvg(rounds=2)), count_usable=odp.CountUsable())
    with pytest.raises(ConfigurationError, match="count_usable=None"):
        carried_terms(counted, noise=True)


@pytest.mark.parametrize("aggregation", ["enclave", "masked"])
def test_what_is_carried_over_is_taken(aggregation: str) -> None:
    for training in (odp.DPSGD(rounds=2), odp.DPFedAvg(rounds=2, proximal=0.1, server="adam", divisor=150.0)):
        assert carried_terms(task(training, aggregation=aggregation), noise=True).rounds == 2
    uneven = odp.DPFedAvg(rounds=2, noise_schedule=[(1, 2.0), (1, 1.0)])
    assert len(carried_terms(task(uneven, aggregation=aggregation), noise=False).blocks) == 2


def test_r356_every_training_is_carried_over_or_refused() -> None:
    """A new training, or a new setting of one, has to be thought of here."""
    public = [value for value in (getattr(odp, name) for name in odp.__all__) if inspect.isclass(value)]
    assert {one.__name__ for one in public if issubclass(one, FederatedTraining)} == {
        "DPFedAvg", "DPSGD", "DPFTRL", "PrivateFL",
    }  # fmt: skip
    shared, carried = _fields(FederatedTraining), _fields(odp.DPFedAvg) | _fields(odp.DPSGD)
    assert shared == {
        "rounds", "clip", "clip_quantile", "clip_rate", "server", "server_rate", "server_momentum", "second_moment",
        "adaptivity", "noise_schedule", "cohort_schedule", "noise_multiplier", "diagnostics", "divisor", "upload_bits",
    }  # fmt: skip
    of_items = {"unobserved_weight"}  # refused where the model is none of items, and such a task is not carried over
    assert carried - shared - of_items == {"rate", "epochs", "batch", "most_examples", "proximal", "reconstruction"}
    with pytest.raises(ConfigurationError):
        carried_terms(_of_items(), noise=True)


def _of_items() -> odp.Task:
    return odp.Task(
        name="items", model=odp.MatrixFactorization(items=9, rank=2), data=odp.ImplicitData(),
        privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=3), training=odp.DPSGD(rounds=2),
    )  # fmt: skip


def _fields(training: type[FederatedTraining]) -> set[str]:
    return {field.name for field in dataclasses.fields(training)}


def test_the_refusals_import_no_tensorflow() -> None:
    code = "import sys, odp.research.interop.carried; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False\n"
