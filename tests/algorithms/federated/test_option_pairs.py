"""Every pair of options of a federated training runs, or is refused with one line when the task is made."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import odp
from odp.crypto import SigningKey
from odp.errors import ConfigurationError
from odp.signed.task import sign_task

USERS = 40
MASKED, SECAGG, SAMPLED = "masked", "secagg+", "enclave_poisson"
OPTIONS: dict[str, dict[str, Any]] = {
    "noise_schedule": {"noise_schedule": [(1, 2.0), (2, 1.0)]},
    "cohort_schedule": {"cohort_schedule": [(2, 20), (1, 30)]},
    "noise_multiplier": {"noise_multiplier": 9.0},
    "clip_quantile": {"clip_quantile": 0.5},
    "diagnostics": {"diagnostics": True},
    "upload_bits": {"upload_bits": 8},
    "divisor": {"divisor": 25.0},
    "momentum": {"server_momentum": 0.5},
    "adam": {"server": "adam", "server_rate": 0.01},
    "yogi": {"server": "yogi", "server_rate": 0.01},
    "proximal": {"proximal": 0.1},
    SAMPLED: {},
    MASKED: {},
    SECAGG: {},
}
PAIRS = [*itertools.combinations(OPTIONS, 2)]
#: Two choices of the same thing are no pair.
SAME = ({"momentum", "adam", "yogi"}, {MASKED, SECAGG})
REFUSED = (
    {"upload_bits", MASKED}, {"upload_bits", SECAGG},  # a masked number has 32 bits
    {SAMPLED, MASKED}, {SAMPLED, SECAGG},  # nobody draws in secret where a host sums
    {"cohort_schedule", "divisor"},  # a schedule has its divisors
)  # fmt: skip


def task_of(pair: tuple[str, str], training: type = odp.DPFedAvg) -> odp.Task:
    choices: dict[str, Any] = {"rounds": 3, "clip": 0.5}
    if training is odp.DPFedAvg:
        choices["rate"] = 0.3
    for name in pair:
        choices |= OPTIONS[name]
    cohort: dict[str, Any] = {"minimum": 10, "goal": USERS}
    if SAMPLED in pair:
        cohort |= {"sampling": SAMPLED, "most_contributions": 2 * USERS}
        if "cohort_schedule" not in pair:
            cohort["sampling_probability"] = 0.5
    if MASKED in pair:
        cohort["aggregation"] = MASKED
    if SECAGG in pair:
        cohort |= {"aggregation": SECAGG, "corrupt_fraction": 0.0, "dropout_fraction": 0.3}
    return odp.Task(
        name="kinds", model=odp.Glm("multinomial", features=4, classes=3), training=training(**choices),
        data=odp.Examples({"x": odp.Tensor((4,), -1, 1)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-4), cohort=odp.Cohort(**cohort),
    )  # fmt: skip


def people() -> odp.data.ExamplesSplit:
    generator = np.random.default_rng(1)
    features = generator.uniform(-1, 1, (400, 4)).astype(np.float32)
    users = odp.data.UsersExamples.of_users(features, (features[:, 0] > 0).astype(int), np.arange(400) % USERS)
    return odp.data.ExamplesSplit(train=users, test=users)


@pytest.mark.usefixtures("coarse_composition")
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.slow
def test_a_pair_of_options_runs_within_the_budget_or_is_refused_by_name(pair: tuple[str, str]) -> None:
    if any(set(pair) <= same for same in SAME):
        return
    if set(pair) in REFUSED:
        with pytest.raises(ConfigurationError) as refused:
            task_of(pair)
        assert "\n" not in str(refused.value)
        return
    task = task_of(pair)
    assert sign_task(task.definition(), SigningKey.generate()).signature
    run = odp.simulate(task, people(), seed=3)
    assert len(run.rounds) == 3
    assert run.epsilon <= 4.0
    if "noise_multiplier" not in pair:
        assert run.epsilon > 3.8
    assert np.isfinite(run.model.dense["parameters"]).all()
    assert ("update_scale" in run.rounds[-1].metrics) is ("diagnostics" in pair)
    if "diagnostics" in pair:
        assert all(math.isfinite(one.metrics["client_variance"]) for one in run.rounds)


#: What a stream cannot have.
NOT_STREAMED = {
    "noise_schedule", "cohort_schedule", "noise_multiplier", "clip_quantile", "diagnostics", "upload_bits",
    SAMPLED, SECAGG,
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_a_stream_runs_with_an_option_or_refuses_it_by_name(name: str) -> None:
    if name not in NOT_STREAMED:
        assert task_of((name, name), odp.DPFTRL).training.rounds == 3  # type: ignore[union-attr]
        return
    with pytest.raises(ConfigurationError):
        task_of((name, name), odp.DPFTRL)
