"""Cancelling cancels: a server, a host or a device that goes on with a task that an owner of its population ended.

Before, cancelling was a note in the server's database: contributions stayed, more were accepted, and whoever held the
signed orders had them released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aggregator_host import StoredHost

from odp._system.files.state_folder import StateFolder
from odp.crypto import SigningKey, domains
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError, OdpError, PrivacyError, Refusal, StateError
from odp.v1 import aggregator_pb2, population_pb2
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.state.limits import MOST_ABANDONED, MOST_TASKS

Make = Callable[..., Any]
SECONDS = 60.0
MARK = b"planted in what a device sealed!"


def run_to(world: Any, stage: str) -> None:
    """A round of five devices, up to a stage."""
    world.open()
    world.fill(range(5))
    steps: dict[str, Callable[[], object]] = {
        "charge stored": lambda: world.persist(world.charge().writes),
        "charged": lambda: world.core.commit(),
        "release stored": lambda: world.persist(world.seal_release()),
        "released": lambda: world.core.commit(),
    }
    for name, step in steps.items():
        if stage == "open":
            return
        step()
        if name == stage:
            return


STAGES = ("open", "charge stored", "charged", "release stored", "released")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("killed", ["never", "stored"])
def test_r167_after_the_end_nothing_is_accepted_or_released_at_whatever_stage_it_came(
    make_world: Make, stage: str, killed: str
) -> None:
    world = make_world(minimum=3)
    run_to(world, stage)
    old, rows = dict(world.records), {key: list(kept) for key, kept in world.rows.items()}
    late = world.sealed(9)
    if stage.endswith("stored"):
        with pytest.raises(StateError, match="not stored yet"):
            world.abandon()
        world.core.commit()
    charges = world.charges()
    writes = world.abandon()
    world.persist(writes)
    if killed == "never":
        world.core.commit()
    else:
        world.restart()
    assert not [key for key in world.records if not key.startswith(("population/", "ledger"))], (
        "noise and records are gone"
    )
    for start in range(3):
        assert world.submit(late) is Refusal.TASK_ABANDONED
        for call in (world.open, world.charge, world.seal_release, world.release):
            with pytest.raises(OdpError):
                call()
        assert world.abandon() == (), "idempotent"
        assert world.core.state.populations[world.population].ledger.charges == charges, (
            "what was charged stays charged"
        )
        if start == 1:
            # All that the host erased comes back, beside the record that it cannot set back.
            world.restart({**old, **world.records}, rows)
        else:
            world.restart()
    with pytest.raises(StateError, match="rolled back"):
        world.restart(old, rows)


def test_r167_an_end_needs_an_owners_signature_over_this_task(make_world: Make) -> None:
    world = make_world(minimum=3)
    world.open()
    order = population_pb2.AbandonOrder(task_sha256=world.task_sha256).SerializeToString()
    other = population_pb2.AbandonOrder(task_sha256=bytes(32)).SerializeToString()

    def signed(key: SigningKey, data: bytes, domain: bytes = domains.ABANDON) -> population_pb2.CharterSignature:
        return population_pb2.CharterSignature(key=key.public, signature=key.sign(domain, data))

    stranger = SigningKey.generate()
    with pytest.raises(PrivacyError, match="belongs to other keys"):
        world.core.abandon(world.task, order, signed(stranger, order))
    with pytest.raises(SignatureError):
        world.core.abandon(world.task, order, signed(world.developer, order, domains.CLOSE))
    with pytest.raises(SignatureError):
        world.core.abandon(world.task, order, signed(world.developer, other))
    with pytest.raises(ConfigurationError, match="ends another task"):
        world.core.abandon(world.task, other, signed(world.developer, other))
    forged = population_pb2.CharterSignature(
        key=world.developer.public, signature=stranger.sign(domains.ABANDON, order)
    )
    with pytest.raises(SignatureError):
        world.core.abandon(world.task, order, forged)
    world.fill(range(3))
    assert world.close()


def test_r167_a_task_that_was_never_opened_is_not_opened_after_its_end(make_world: Make) -> None:
    world = make_world(minimum=3)
    world.settle(world.abandon())
    with pytest.raises(PrivacyError, match="was ended by its developer"):
        world.open()


def test_r167_another_owner_may_end_a_task_and_tasks_of_others_go_on(make_world: Make) -> None:
    world = make_world(minimum=3)
    second = SigningKey.generate()
    world.settle(world.core.set_charter(world.other_owner(world.developer, second)))
    first = world.task
    world.open()
    world.adopt(world.sign(world.definition(minimum=3, epsilon=8.0, name="other")))
    world.open()
    world.fill(range(3))
    going = world.task
    world.adopt(first)
    world.settle(world.abandon(second))
    assert world.submit(world.sealed(1)) is Refusal.TASK_ABANDONED
    world.adopt(going)
    assert world.close()


def test_r167_every_task_that_is_held_can_be_ended_however_many_were_before(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended tasks are remembered for good, so their number is bounded; an owner cannot use that up against an end."""
    for module in ("state.population", "enclave.opening"):
        for name, most in (("MOST_ABANDONED", 6), ("MOST_TASKS", 2)):
            monkeypatch.setattr(f"trusted_aggregator.{module}.{name}", most, raising=False)
    world = make_world(minimum=3)
    tasks = [world.sign(world.definition(minimum=3, epsilon=8.0, name=f"task-{number}")) for number in range(9)]
    for task in tasks[:4]:
        world.adopt(task)
        world.settle(world.abandon())
    world.adopt(tasks[4])
    with pytest.raises(PrivacyError, match="has ended 4 tasks, of at most 6: this enclave has no state"):
        world.abandon()
    for task in tasks[4:6]:
        world.adopt(task)
        world.open()
    for task in tasks[4:6]:
        world.adopt(task)
        world.settle(world.abandon())
        assert world.submit(world.sealed(1)) is Refusal.TASK_ABANDONED
    world.adopt(tasks[6])
    with pytest.raises(PrivacyError, match="has ended 6 tasks, of at most 6: take another"):
        world.open()
    assert MOST_TASKS < MOST_ABANDONED


class Host(StoredHost):
    """A world's enclave behind its real storage."""

    def submit(self, device: int) -> Refusal | None:
        request = aggregator_pb2.SubmitRequest(
            task_sha256=self.world.task_sha256, round=0, sealed_contribution=self.world.sealed(device)
        )
        refused = self.service.submit(request).result(SECONDS)
        return None if refused is None else refused.refusal

    def abandon(self) -> None:
        order = population_pb2.AbandonOrder(task_sha256=self.world.task_sha256).SerializeToString()
        key = self.world.developer
        signature = population_pb2.CharterSignature(key=key.public, signature=key.sign(domains.ABANDON, order))
        self.control.abandon(aggregator_pb2.AbandonTaskRequest(task=self.world.task, order=order, signature=signature))

    def files(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.state.root.rglob("*")) if path.is_file())


@pytest.fixture
def host(make_world: Make, tmp_path: Path) -> Iterator[Host]:
    with StateFolder.open(tmp_path / "state", "aggregator") as state:
        made = Host(make_world(minimum=3), state)
        made.open()
        yield made
        made.end()


class Killed(BaseException):
    """Stands for kill -9."""


@pytest.mark.parametrize("killed", ["nowhere", "before it is stored", "stored", "in force", "erasing"])
def test_r167_a_host_that_dies_around_the_end_of_a_task_ends_it_or_goes_on(
    host: Host, killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device in range(3):
        assert host.submit(device) is None
    ciphertexts = [row[:64] for row in host.storage.contributions(host.world.task_sha256, 0)]
    apply, commit, erase = SqliteStorage.apply, host.core.calls.commit, SqliteStorage.erase

    def dies(*arguments: Any) -> None:
        raise Killed

    def stores_and_dies(storage: SqliteStorage, writes: Any) -> None:
        apply(storage, writes)
        raise Killed

    def commits_and_dies(request: Any) -> None:
        commit(request)
        raise Killed

    with monkeypatch.context() as patched:
        if killed == "before it is stored":
            patched.setattr(SqliteStorage, "apply", dies)
        if killed == "stored":
            patched.setattr(SqliteStorage, "apply", stores_and_dies)
        if killed == "in force":
            patched.setattr(host.core.calls, "commit", commits_and_dies)
        if killed == "erasing":
            patched.setattr(SqliteStorage, "erase", dies)
        if killed == "nowhere":
            host.abandon()
        else:
            with pytest.raises(Killed):
                host.abandon()
    assert erase is SqliteStorage.erase
    host.restart()
    if killed == "before it is stored":
        assert host.count() == 3, "nobody was told that it is over"
        host.abandon()
    host.abandon()
    everything = host.files()
    assert not any(one in everything for one in ciphertexts), "no byte of a contribution is left on the disk"
    host.restart()
    assert host.submit(5) is Refusal.TASK_ABANDONED
    for call in (host.open, host.close_round):
        with pytest.raises(OdpError):
            call()
    assert host.storage.idle(1e12) == []


def test_r167_a_close_that_comes_after_the_end_releases_nothing(host: Host) -> None:
    """The orders of both are signed and true; a host or a slow server sends the close last."""
    for device in range(4):
        host.submit(device)
    host.abandon()
    with pytest.raises(OdpError):
        host.close_round()
    assert "round_released" not in host.log.getvalue()
    assert "round_charged" not in host.log.getvalue()
