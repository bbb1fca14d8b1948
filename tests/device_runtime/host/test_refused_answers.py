"""No answer of a server ends a device host: what cannot be opened is refused, and the next answer is worked on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hosts import Host, states
from security import hostile_definitions as hostile

from device_runtime.host.roster import Roster
from device_runtime.store.schema import State
from device_runtime.tasks import assignment
from odp.crypto import domains
from odp.v1 import common_pb2

_FEDERATED = next(one for one in hostile.kinds() if one.WhichOneof("training") == "fedavg")


def _tiny_clip(definition: common_pb2.TaskDefinition) -> None:
    definition.fedavg.blocks[0].dense.clip = 5e-324


def _huge_clip(definition: common_pb2.TaskDefinition) -> None:
    definition.fedavg.blocks[0].dense.clip = 1.7e308


def _tiny_delta(definition: common_pb2.TaskDefinition) -> None:
    definition.privacy.delta = 5e-324


@pytest.mark.parametrize("change", [_tiny_clip, _huge_clip, _tiny_delta])
def test_r365_a_task_with_hostile_numbers_ends_no_device_host(
    world: Any, change: Callable[[common_pb2.TaskDefinition], None]
) -> None:
    """The first was a ZeroDivisionError that ended the host with all its devices."""
    world.fill([3] * 2)
    definition = hostile.changed(_FEDERATED, change)
    assert definition is not None
    definition.developer_key = world.developer.public
    data = definition.SerializeToString()
    task = common_pb2.SignedTask(definition=data, signature=world.developer.sign(domains.TASK, data))
    _refused_and_then_works(world, lambda offered: offered.task.CopyFrom(task))


@pytest.mark.unforeseen
def test_r365_an_error_that_no_check_foresaw_ends_no_device_host(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fill([3] * 2)
    opened = assignment.open_manifest
    planted = [RuntimeError("private 4.5")]

    def broken(*given: Any, **named: Any) -> Any:
        if planted:
            raise planted.pop()
        return opened(*given, **named)

    monkeypatch.setattr(assignment, "open_manifest", broken)
    _refused_and_then_works(world, lambda offered: None)
    assert "RuntimeError in broken" in world.log_text.getvalue()
    assert "private" not in world.log_text.getvalue()


def test_r393_a_device_host_without_memory_pauses_and_refuses_no_task(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill([3] * 2)
    opened = assignment.open_manifest
    planted: list[Exception] = [MemoryError()]

    def short(*given: Any, **named: Any) -> Any:
        if planted:
            raise planted.pop()
        return opened(*given, **named)

    monkeypatch.setattr(assignment, "open_manifest", short)
    _refused_and_then_works(world, lambda offered: None)
    assert "this machine could not open the task with its model: no memory" in world.log_text.getvalue()


def test_r393_an_error_of_the_host_itself_is_no_answer_of_the_server(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill([3] * 2)

    def broken(self: object, opening: object) -> list[int]:
        raise RuntimeError("of this program")

    monkeypatch.setattr(Roster, "pending", broken)
    with pytest.raises(RuntimeError, match="of this program"):
        Host(world, count=2).run()


def _refused_and_then_works(world: Any, spoil: Callable[[Any], None]) -> None:
    offered = world.server.assignment
    world.server.assignment = type(offered)()
    world.server.assignment.CopyFrom(offered)
    spoil(world.server.assignment)
    host = Host(world, count=2)

    def honest() -> None:
        world.server.assignment = offered

    host.events = [honest, world.close_round, world.close_round, world.close_round]
    host.run()
    assert states(world, 2) == [[State.SENT] * 3] * 2
    assert world.log_text.getvalue().count(" outage ") == 1
    assert "device_crashed" not in world.log_text.getvalue()
