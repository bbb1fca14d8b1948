"""Whether a task could begin, asked before anything of it is opened: what would be refused then is refused now."""

from __future__ import annotations

import pytest

from odp.crypto import SigningKey
from odp.errors import BudgetExceeded, ConfigurationError, PrivacyError
from odp.signed.task import open_task, sign_task


def made_of(world, **changes):
    """The world's task, signed by its developer, with other terms."""
    definition = open_task(world.task)
    for name, value in changes.items():
        message = definition
        *parents, last = name.split("__")
        for parent in parents:
            message = getattr(message, parent)
        setattr(message, last, value)
    return sign_task(definition, changes.get("by") or world.developer)


def test_a_task_that_could_begin_is_accepted_and_nothing_changes(make_world):
    world = make_world(minimum=3)
    before = dict(world.records)
    world.core.check_task(world.task)
    world.core.check_task(made_of(world, population="nobody-founded-it"))
    assert world.core.round_states() == []
    assert world.core.charter("nobody-founded-it") is None
    world.open()
    world.core.check_task(world.task)
    assert {key for key in world.records if key not in before} != set(), "it was opened as if nothing had been asked"


def test_a_minimum_below_the_policys_is_refused_when_it_is_asked(make_world):
    world = make_world(minimum=5)
    with pytest.raises(PrivacyError, match="to be at least 5"):
        world.core.check_task(made_of(world, cohort__minimum=4, cohort__goal=5))


@pytest.mark.parametrize("founded", [True, False])
def test_a_task_beyond_the_populations_budget_is_refused_when_it_is_asked(make_world, founded):
    world = make_world(minimum=3, epsilon=30.0)
    task = world.task if founded else made_of(world, population="new")
    with pytest.raises(BudgetExceeded, match=r"budget of population .* is epsilon=20"):
        world.core.check_task(task)


def test_what_other_tasks_of_the_population_spent_is_no_budget_any_more(make_world):
    world = make_world(minimum=3, epsilon=15.0)
    other = made_of(world, name="other")
    world.core.check_task(other)
    for number in range(len(world.algorithm.planned_releases())):
        world.open(number)
        world.fill(range(3), number)
        world.learn(world.close(number))
    with pytest.raises(BudgetExceeded, match="is spent"):
        world.core.check_task(other)


def test_a_developer_who_neither_owns_the_population_nor_may_found_it_is_refused(make_world):
    world = make_world(minimum=3)
    stranger = SigningKey.generate()
    with pytest.raises(PrivacyError, match="belongs to"):
        world.core.check_task(sign_task(open_task(world.task), stranger))
    definition = open_task(world.task)
    definition.population = "new"
    with pytest.raises(PrivacyError, match="not founded here"):
        world.core.check_task(sign_task(definition, stranger))


def test_a_task_that_an_enclave_of_this_policy_cannot_run_is_refused(make_world):
    world = make_world(minimum=3)
    definition = open_task(world.task)
    definition.model.items = 2**22
    definition.dpam.slices_per_device = 4
    with pytest.raises(ConfigurationError, match="releases of at most"):
        world.core.check_task(sign_task(definition, world.developer))
