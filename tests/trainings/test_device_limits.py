"""Schedules beside the limits of devices: what the ledger of a device says of the same trainings."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

import odp
from device_runtime.person.ledger import Charged, TaskTerms
from device_runtime.person.limits import Limits
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting
from odp.privacy.accounting import noised_coordinates
from odp.privacy.events import Event
from odp.protocol.wire.model import Slices
from odp.trainings.charges import charges_of_task, payable, with_share

DAY = 86_400.0
RATINGS = odp.data.synthetic_movielens(n_users=200, n_items=40, ratings_per_user=10)


def _schedule(**changes: object) -> odp.living.Schedule:
    return odp.living.Schedule(**({"every": "7d", "horizon": "2y", "lifetime_epsilon": 20.0, "delta": 1e-6} | changes))


def _task(schedule: odp.living.Schedule, number: int) -> odp.Task:
    template = odp.Task(
        name=f"films-{number}",
        population="films",
        model=odp.MatrixFactorization(items=40, rank=2),
        data=odp.RatingsData(low=1.0, high=5.0),
        privacy=odp.UserLevelDP(epsilon=1.0, delta=1e-6),
        training=odp.DPAM(steps=1),
        cohort=odp.Cohort(minimum=100, goal=200),
    )
    return with_share(schedule, number, template)


def _device(schedule: odp.living.Schedule, limits: Limits, weeks: range) -> list[int]:
    """The trainings that a device takes part in, by its own ledger and limits; one a week."""
    past: list[Charged] = []
    taken = []
    for week in weeks:
        terms = TaskTerms.of(_task(schedule, week).definition(), bytes([week]) * 32)
        try:
            for round in range(len(terms.rounds)):
                limits.check(terms, round=round, past=past, now=7 * DAY * week)
                past.append(Charged(terms, round, 7 * DAY * week))
        except PrivacyError:
            continue
        taken.append(week)
    return taken


def test_a_task_beside_a_schedule_is_refused_where_devices_would_decline_it() -> None:
    """Squares of mu add up: at one delta, 20 holds one task of 10 after 15, and no task of 10 after 18."""
    limits = odp.living.DeviceLimits(max_delta=1e-6)
    limits.check_beside(0.0, 10.0, delta=1e-6)
    limits.check_beside(15.0, 10.0, delta=1e-6)
    with pytest.raises(PrivacyError, match=r"after ε = 18: together they are above their max_total_epsilon=20"):
        limits.check_beside(18.0, 10.0, delta=1e-6)
    with pytest.raises(PrivacyError, match=r"max_epsilon=10"):
        limits.check_beside(0.0, 10.1, delta=1e-6)
    for epsilon in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises((ConfigurationError, PrivacyError)):
            limits.check_beside(1.0, epsilon, delta=1e-6)


def test_the_defaults_are_those_of_devices() -> None:
    ours, theirs = dataclasses.asdict(odp.living.DeviceLimits()), dataclasses.asdict(Limits())
    assert ours == {name: theirs[name] for name in ours}
    assert theirs["max_developer_epsilon"] == ours["max_total_epsilon"], "so a limit per developer adds nothing"
    assert theirs["max_developer_epsilon_30_days"] == ours["max_total_epsilon_30_days"]


def test_a_schedule_within_the_limits_loses_no_device() -> None:
    schedule = _schedule(horizon="12w")
    odp.living.DeviceLimits().check(schedule)
    assert _device(schedule, Limits(), range(12)) == list(range(12))


def test_a_schedule_that_is_refused_would_lose_devices_at_the_training_that_is_named() -> None:
    schedule = _schedule(horizon="12w", lifetime_epsilon=30.0)
    coordinates = noised_coordinates(charges_of_task(_task(schedule, 0).definition()))
    with pytest.raises(PrivacyError, match="decline training 7 of 12: ε of all trainings so far"):
        odp.living.DeviceLimits().check(schedule, coordinates=coordinates)
    assert _device(schedule, Limits(), range(12)) == list(range(7))


def test_a_device_that_was_away_has_room_for_the_training_of_its_return() -> None:
    """30 days forget what is older; the total does not, and holds less than that of a device that was never away."""
    schedule = _schedule(horizon="12w")
    tight = Limits(max_total_epsilon_30_days=8.0)
    assert _device(schedule, tight, range(5)) == [0, 1, 2]
    assert _device(schedule, tight, range(0, 12, 6)) == [0, 6]


def test_a_device_that_was_away_contributes_to_a_training_from_that_trainings_model_alone() -> None:
    schedule = _schedule(horizon="12w")
    early, late = (_task(schedule, week).definition() for week in (0, 9))
    items, values = RATINGS.user(0)
    rows = LocalRows(items.astype("int64"), values.astype("float64"))
    payloads = []
    for history in ((early, late), (late,)):
        for definition in history:
            algorithm = algorithm_for(definition)
            model = algorithm.server().broadcast(algorithm.server().start())
            client, data = algorithm.client(), algorithm.data_of(rows)
            keys = client.keys(data, round=0, seed=7)
            slices = Slices(model.version, keys, model.keyed.rows[keys], model.dense)
            payload, _ = client.contribute(slices, data, round=0, seed=7)
        payloads.append(payload)
    assert payloads[0] == payloads[1]
    assert any(payloads[0])


@pytest.mark.parametrize(
    ("schedule", "limits", "message"),
    [
        ({"delta": 1e-4}, {}, "max_delta=1e-05: they decline every"),
        ({"every": "30d", "horizon": "60d"}, {}, "decline training 0 of 2: its own ε is above their max_epsilon=10"),
        ({}, {"max_total_epsilon_30_days": 1.0}, "training 0 of 105"),
        (
            {"every": "1d", "horizon": "30d", "lifetime_epsilon": 30.0},
            {"max_total_epsilon": 30.0},
            "training 18 of 30: ε of 30 days",
        ),
    ],
)
def test_each_limit_is_named(schedule: dict[str, object], limits: dict[str, float], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        odp.living.DeviceLimits(**limits).check(_schedule(**schedule))


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_epsilon"):
        odp.living.DeviceLimits(max_epsilon=0.0)


@pytest.mark.parametrize("delta", [1e-6, 1e-9, 1e-10])
def test_the_last_training_of_a_catalogue_that_grew_is_paid(delta: float) -> None:
    """Two hundred times the items: at small delta, its draws cost what earlier shares did not keep."""
    schedule = odp.living.Schedule(every="7d", horizon="4w", lifetime_epsilon=20.0, delta=delta)
    spent: Counter[Event] = Counter()
    epsilons = []
    for number, items in enumerate((40, 40, 40, 8_000)):
        template = _task(schedule, 0)
        grown = dataclasses.replace(template, model=odp.MatrixFactorization(items=items, rank=2))
        task = with_share(schedule, number, grown, spent=spent)
        spent.update(payable(schedule, number, task.definition(), spent))
        epsilons.append(task.privacy.epsilon)
    assert accounting.epsilon(spent, delta=delta) <= 20.0
    assert min(epsilons) >= 0.95 * max(epsilons)
