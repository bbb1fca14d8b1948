"""The server opens rounds with the token key of the issuer that the population's charter names, and waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trust.enrolment.world import Developer, World as IssuerWorld

from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, EnrolmentError, ServiceUnavailable
from odp.trust.enrolment.token_key import TokenKey
from odp.v1 import aggregator_pb2, common_pb2, enrolment_pb2
from server.program import Config
from server.storage import TaskState
from server.token_keys import TokenKeys


class Asked:
    """An issuer behind no network, which notes what it is asked, and can be away."""

    def __init__(self, issuer: IssuerWorld) -> None:
        self.issuer = issuer
        self.orders: list[bytes] = []
        self.error: Exception | None = None

    def token_key(self, task: common_pb2.SignedTask, order: bytes, signature: bytes) -> enrolment_pb2.SignedTokenKey:
        self.orders.append(order)
        if self.error is not None:
            raise self.error
        return self.issuer.issuer.token_key(task, order, signature)


@pytest.fixture
def issuer(world: Any, tmp_path: Path) -> Iterator[Asked]:
    made = IssuerWorld(tmp_path / "issuer")
    made.developer = Developer(world.key)
    made.restart()
    yield Asked(made)
    made.close()


def driver(world: Any, issuer: Asked | None, *, issuer_key: bytes) -> Any:
    """A driver, as after a restart of the program; it founds populations that name ``issuer_key``."""
    populations = world.populations(issuer_key=issuer_key)
    tokens = TokenKeys(
        world.storage, populations=populations, key=world.key, log=world.log, issuer=issuer, clock=world.clock
    )
    board = world.board(token_key=tokens.stored_key, issuer_address="issuer.example:7220")
    return world.driver(populations=populations, tokens=tokens, board=board), board


def opened_with(world: Any, monkeypatch: pytest.MonkeyPatch) -> list[aggregator_pb2.OpenRoundRequest]:
    """The requests that the aggregator got."""
    requests: list[aggregator_pb2.OpenRoundRequest] = []
    real = world.aggregator._open_round

    def opening(request: aggregator_pb2.OpenRoundRequest) -> Any:
        requests.append(request)
        return real(request)

    monkeypatch.setattr(world.aggregator, "_open_round", opening)
    return requests


def test_a_round_opens_with_the_issuers_key_and_devices_get_the_same_one(
    world: Any, issuer: Asked, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = opened_with(world, monkeypatch)
    task = world.submit(definition)
    running, board = driver(world, issuer, issuer_key=issuer.issuer.key.public)
    world.run(running)
    (request,) = requests
    assignment = board.answer("viewers").assignment
    assert request.token_key == assignment.token_key == issuer.issuer.signed_key(request.task, 0)
    assert assignment.issuer_address == "issuer.example:7220"
    stated = enrolment_pb2.TokenKey.FromString(request.token_key.token_key)
    assert (stated.population, stated.task_sha256, stated.round) == ("viewers", task, 0)
    # After a restart, nobody is asked again.
    again, board = driver(world, issuer, issuer_key=issuer.issuer.key.public)
    world.run(again)
    assert len(issuer.orders) == 1
    assert board.answer("viewers").assignment.token_key == request.token_key


def test_a_population_without_an_issuer_is_served_as_before(
    world: Any, issuer: Asked, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = opened_with(world, monkeypatch)
    world.submit(definition)
    running, board = driver(world, issuer, issuer_key=b"")
    world.run(running)
    assert not requests[0].HasField("token_key")
    assert not board.answer("viewers").assignment.HasField("token_key")
    assert board.answer("viewers").assignment.issuer_address == ""
    assert issuer.orders == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ServiceUnavailable("could not get a token key: nobody answers"),
            "nobody answers",
        ),
        (EnrolmentError("this issuer does not serve the task's developer"), "does not serve"),
    ],
)
def test_a_task_waits_for_an_issuer_that_is_away_or_refuses_and_says_so_in_one_line(
    world: Any, issuer: Asked, definition: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    requests = opened_with(world, monkeypatch)
    task = world.submit(definition)
    issuer.error = error
    running, _board = driver(world, issuer, issuer_key=issuer.issuer.key.public)
    world.run(running)
    assert requests == []
    assert world.storage.task(task).state is TaskState.ACTIVE
    (line,) = [line for line in world.lines.text.splitlines() if "task_waits" in line]
    assert told in line
    issuer.error = None
    world.monotonic.now += 60
    world.run(running)
    assert len(requests) == 1


@pytest.mark.parametrize("known", [False, True], ids=["no issuer", "another issuer"])
def test_a_task_waits_where_the_charter_names_an_issuer_that_the_server_does_not_ask(
    world: Any, issuer: Asked, definition: Any, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    requests = opened_with(world, monkeypatch)
    task = world.submit(definition)
    running, _board = driver(world, issuer if known else None, issuer_key=SigningKey.generate().public)
    world.run(running)
    assert requests == []
    assert world.storage.task(task).state is TaskState.ACTIVE
    assert ("names (issuer key" if known else "--issuer-control") in world.lines.text


def test_r289_a_round_whose_token_key_ended_says_so_and_is_not_opened_again_with_it(
    world: Any, issuer: Asked, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = opened_with(world, monkeypatch)
    task = world.submit(definition)
    running, _board = driver(world, issuer, issuer_key=issuer.issuer.key.public)
    world.run(running)
    assert "its minimum" in running.waits_for(task).reason
    world.clock.now = enrolment_pb2.TokenKey.FromString(requests[0].token_key.token_key).not_after + 1.0
    world.run(running)
    assert "its token key ended at 20" in running.waits_for(task).reason
    assert "cancel the task, and submit it anew" in running.waits_for(task).reason
    world.aggregator.opened.clear()  # it lost the round, and would open it again
    world.run(running)
    assert len(requests) == 1
    assert "the token key of round 0 ended at 20" in running.waits_for(task).reason


def test_a_key_that_was_kept_of_another_issuer_is_asked_for_anew(world: Any, issuer: Asked, definition: Any) -> None:
    world.submit(definition)
    running, _board = driver(world, issuer, issuer_key=issuer.issuer.key.public)
    world.run(running)
    task = world.storage.tasks()[0]
    populations = world.populations(issuer_key=issuer.issuer.key.public)
    tokens = TokenKeys(
        world.storage, populations=populations, key=world.key, log=world.log, issuer=issuer, clock=world.clock
    )
    order = aggregator_pb2.RoundOrder.FromString(issuer.orders[0])
    right = tokens.stored_key(task.signed, 0)
    assert right is not None
    stated = enrolment_pb2.TokenKey.FromString(right.token_key)
    old = TokenKey(stated.population, stated.task_sha256, 0, stated.modulus, stated.not_after).signed(
        SigningKey.generate()
    )
    world.storage.set_token_key(order.task_sha256, order.round, old)
    assert tokens.stored_key(task.signed, 0) == old
    assert tokens.ordered(task.signed, order, population="viewers") == right
    assert tokens.stored_key(task.signed, 0) == right


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "127.0.0.1:7220"},
        {"issuer_control": "127.0.0.1:7221"},
        {"issuer_key": "00" * 32},
        {"issuer": "127.0.0.1:7220", "issuer_control": "127.0.0.1:7221", "issuer_key": "no hex"},
        {"issuer": "127.0.0.1:7220", "issuer_control": "127.0.0.1:7221", "issuer_key": "00" * 31},
        {"issuer": "nowhere", "issuer_control": "127.0.0.1:7221"},
    ],
)
def test_half_an_issuer_is_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        Config(state=tmp_path, **wrong)  # type: ignore[arg-type]
