"""A server founds populations, follows their charters, and changes them with the approvals of other owners."""

from __future__ import annotations

from typing import Any

import pytest

from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, PrivacyError, ServiceError
from odp.signed.charter import approve, found, open_charter, succeed
from server.storage import TaskState


def test_a_population_is_founded_once_by_the_first_task(world: Any, definition: Any) -> None:
    first = world.submit(definition)
    definition.name = "again"
    world.submit(definition)
    world.run(world.driver())
    (signed,) = world.aggregator.chains["viewers"]
    charter = open_charter(signed)
    assert (charter.sequence, charter.owners, charter.approvals) == (0, (world.key.public,), 1)
    assert world.populations().newest("viewers") == signed, "after a restart, too"
    assert world.storage.task(first).state is TaskState.ACTIVE


def test_a_server_that_dies_around_the_founding_founds_the_same_population(world: Any) -> None:
    """Before it keeps what the aggregator put in force, and with a charter that came to the aggregator another way."""
    signed = approve(found("viewers", owners=[world.key.public]), world.key)
    world.services.aggregator_client.set_charter(signed)
    assert world.populations().newest("viewers") is None
    assert world.populations().require_owned("viewers")
    assert not world.populations().require_owned("viewers"), "nothing new"
    assert world.aggregator.chains["viewers"] == [signed]


def test_a_population_of_others_fails_the_task_and_nothing_of_it_is_opened(world: Any, definition: Any) -> None:
    stranger = SigningKey.generate()
    world.services.aggregator_client.set_charter(approve(found("viewers", owners=[stranger.public]), stranger))
    sha256 = world.submit(definition)
    world.run(world.driver())
    task = world.storage.task(sha256)
    assert task.state is TaskState.FAILED
    assert "belongs to other keys" in task.failure
    assert world.aggregator.opened == {}
    assert world.distributor.models == {}


def test_a_change_that_other_owners_made_is_followed_between_two_looks(world: Any, definition: Any) -> None:
    world.submit(definition)
    populations = world.populations()
    board = world.board(charter=populations.newest)
    driver = world.driver(board=board, populations=populations)
    world.run(driver)
    before = open_charter(board.answer("viewers").assignment.charter)
    other = SigningKey.generate()
    signed = approve(succeed(before, owners=[world.key.public, other.public]), world.key)
    world.services.aggregator_client.set_charter(signed)
    world.monotonic.now += 31.0
    world.run(driver)
    assert board.answer("viewers").assignment.charter == signed


def test_a_change_is_in_force_only_with_all_approvals(world: Any) -> None:
    other, third = SigningKey.generate(), SigningKey.generate()
    populations = world.populations()
    founding, missing = populations.change(found("viewers", owners=[world.key.public, other.public], approvals=2))
    assert missing == 0
    proposal = succeed(open_charter(founding), owners=[third.public], approvals=1)
    half, missing = populations.change(proposal)
    assert missing == 1
    assert [one.key for one in half.signatures] == [world.key.public]
    assert world.aggregator.chains["viewers"] == [founding]
    whole, missing = populations.change(approve(half, other))
    assert missing == 0
    assert populations.change(whole) == (whole, 0), "the same again changes nothing"
    assert world.aggregator.chains["viewers"] == [founding, whole]
    with pytest.raises(PrivacyError, match="belongs to other keys"):
        populations.require_owned("viewers")


def test_a_change_that_does_not_follow_the_charter_in_force_is_refused_here(world: Any) -> None:
    populations = world.populations()
    founding, _ = populations.change(found("viewers", owners=[world.key.public]))
    second, _ = populations.change(succeed(open_charter(founding), owners=[world.key.public], approvals=1))
    for wrong in (
        succeed(open_charter(founding), owners=[SigningKey.generate().public]),
        found("viewers", owners=[SigningKey.generate().public]),
        succeed(open_charter(found("listeners", owners=[world.key.public])), owners=[world.key.public]),
    ):
        with pytest.raises(ConfigurationError, match="does not follow"):
            populations.change(wrong)
    assert world.aggregator.chains == {"viewers": [founding, second]}


def test_nothing_is_kept_of_a_charter_that_the_aggregator_refuses(world: Any) -> None:
    populations = world.populations()
    founding, _ = populations.change(found("viewers", owners=[world.key.public]))
    proposal = succeed(open_charter(founding), owners=[SigningKey.generate().public, world.key.public])
    real = world.aggregator._set_charter
    world.aggregator._set_charter = lambda request: (_ for _ in ()).throw(PrivacyError("changed 8 times"))
    with pytest.raises(ServiceError, match="changed 8 times"):
        populations.change(proposal)
    world.aggregator._set_charter = real
    assert populations.newest("viewers") == founding
    assert world.populations().newest("viewers") == founding
