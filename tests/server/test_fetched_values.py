"""The values of long releases at the server: fetched whole or not at all, whatever dies or lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odp._system.files.durability import Health
from odp.algorithms.registry import algorithm_for
from odp.signed.release import noisy_tensors, whole_values
from odp.trust.log.released_values import VALUES, ReleasedValues
from odp.v1 import common_pb2
from server.fetched_values import FetchedValues
from server.storage import TaskState

GOAL = 5


@pytest.fixture
def detached(world: Any, definition: Any) -> tuple[Any, bytes]:
    """A world whose aggregator releases values in pieces, and its task."""
    world.aggregator.contributions = GOAL
    world.aggregator.detaches = True
    return world, world.submit(definition)


def driver(world: Any, folder: Path) -> Any:
    """As after a start of the program: nothing is left in memory."""
    stored = ReleasedValues(folder / VALUES, Health())
    return world.driver(values=FetchedValues(stored, world.services.aggregator_client, world.log))


def outcome(world: Any, sha256: bytes) -> tuple[TaskState, str]:
    task = world.storage.task(sha256)
    return task.state, task.failure


def files(folder: Path) -> list[Path]:
    return sorted((folder / VALUES).glob("*")) if (folder / VALUES).is_dir() else []


def test_a_task_runs_on_values_that_are_fetched_once_and_kept(detached: Any, definition: Any, tmp_path: Path) -> None:
    world, sha256 = detached
    world.run(driver(world, tmp_path))
    assert outcome(world, sha256) == (TaskState.FINISHED, "")
    assert world.aggregator.reads == len(files(tmp_path)) == 3
    server = algorithm_for(definition).server()
    state = server.start()
    for round in range(3):
        release = common_pb2.Release.FromString(world.storage.release(sha256, round).release)
        values = whole_values(release, [world.aggregator.values[sha256, round]])
        state = server.step(state, noisy_tensors(release, values))
    assert world.storage.state_and_tables(sha256, 3)[0] == state


def test_a_server_that_dies_in_the_middle_of_a_fetch_fetches_again(detached: Any, tmp_path: Path) -> None:
    world, sha256 = detached

    class Killed(BaseException):
        """As a SIGKILL: nothing behind it runs, but for what the interpreter itself does."""

    class Dying(ReleasedValues):
        def write(self, sha256: bytes, pieces: Iterable[bytes]) -> None:
            def some() -> Iterator[bytes]:
                yield next(iter(pieces))
                raise Killed

            super().write(sha256, some())

    dying = FetchedValues(Dying(tmp_path / VALUES, Health()), world.services.aggregator_client, world.log)
    with pytest.raises(Killed):
        world.run(world.driver(values=dying))
    assert files(tmp_path) == []
    assert world.storage.round(sha256, 0).release_bytes == 0
    world.run(driver(world, tmp_path))
    assert outcome(world, sha256) == (TaskState.FINISHED, "")


def test_a_server_that_dies_between_fetch_and_record_does_not_fetch_again(
    detached: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, sha256 = detached

    class Killed(BaseException):
        """As above."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(world.storage, "release_round", killed)
        with pytest.raises(Killed):
            world.run(driver(world, tmp_path))
    assert (world.aggregator.reads, len(files(tmp_path))) == (1, 1)
    world.run(driver(world, tmp_path))
    assert outcome(world, sha256) == (TaskState.FINISHED, "")
    assert world.aggregator.reads == 3


@pytest.mark.parametrize(
    ("sends", "word"),
    [
        (lambda pieces: [pieces[0][:-1] + bytes([pieces[0][-1] ^ 1]), *pieces[1:]], "their hash is not the one"),
        (lambda pieces: pieces[::-1], "their hash is not the one"),
        (lambda pieces: pieces[:-1], "that the release names"),
        (lambda pieces: [*pieces, bytes(8)], "more than the"),
        (lambda pieces: [], "0 bytes of the"),
    ],
)
def test_values_of_a_host_that_lies_end_the_task_and_nothing_is_applied(
    detached: Any, tmp_path: Path, sends: Any, word: str
) -> None:
    world, sha256 = detached
    world.aggregator.sends = sends
    world.run(driver(world, tmp_path))
    state, failure = outcome(world, sha256)
    assert state is TaskState.FAILED
    assert word in failure
    assert files(tmp_path) == []
    assert world.storage.newest_version(sha256).version == 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda release: setattr(release, "values_sha256", bytes(31)), "with a hash of 31 bytes"),
        (lambda release: setattr(release, "values_bytes", release.values_bytes - 8), "bytes of values"),
        (lambda release: setattr(release, "values_bytes", 2**40), "bytes of values"),
        (lambda release: setattr(release, "values_sha256", b""), "bytes of values"),
        (lambda release: setattr(release.tensors[0], "integers", bytes(8)), "does not have the declared shape"),
    ],
)
def test_a_release_that_names_other_values_is_refused_before_any_is_read(
    detached: Any, tmp_path: Path, change: Any, word: str
) -> None:
    world, sha256 = detached
    world.aggregator.tamper = change
    world.run(driver(world, tmp_path))
    state, failure = outcome(world, sha256)
    assert state is TaskState.FAILED
    assert word in failure
    assert world.aggregator.reads == 0


def test_a_file_that_was_damaged_later_is_not_applied_and_the_task_waits(
    detached: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, sha256 = detached
    release_round = world.storage.release_round

    def then_damaged(*given: Any, **named: Any) -> bool:
        done = release_round(*given, **named)
        (stored,) = files(tmp_path)
        stored.write_bytes(bytes(stored.stat().st_size))
        return bool(done)

    monkeypatch.setattr(world.storage, "release_round", then_damaged)
    started = driver(world, tmp_path)
    world.run(started)
    assert outcome(world, sha256) == (TaskState.ACTIVE, "")
    assert "restore the folder of the log" in started.waits_for(sha256).reason
    assert world.storage.newest_version(sha256).version == 0
