"""R294: catalogues come from a hostile server; a host takes the chain that its logged tasks name, and no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from device_runtime.tasks import catalogues as module
from device_runtime.tasks.catalogues import CatalogueMemory
from odp.errors import StateError, TransparencyError
from odp.protocol.catalogues.catalogue import BLOCK, Catalogue, versions_in
from odp.v1 import common_pb2

FIRST = Catalogue.make("people", [f"film {number}" for number in range(12)])


def grown(base: Catalogue, versions: int, *, word: str = "new") -> Catalogue:
    for _ in range(versions):
        base = base.change(add=[f"{word} {base.version + 1}"])
    return base


LONG = grown(FIRST, 20)


class Server:
    """Serves the steps of a catalogue, or what a test puts in their place; notes what it is asked."""

    def __init__(self, steps: Sequence[bytes]) -> None:
        self.steps = list(steps)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, population: str, block: int) -> list[bytes]:
        self.asked.append((population, block))
        wanted = versions_in(block)
        return self.steps[wanted.start - 1 : wanted.stop - 1]


def naming(catalogue: Catalogue, *, items: int | None = None) -> common_pb2.TaskDefinition:
    model = common_pb2.MatrixFactorizationModel(
        items=catalogue.items if items is None else items, catalogue=catalogue.to_proto()
    )
    return common_pb2.TaskDefinition(name="films", population=catalogue.population, model=model)


def test_a_host_fetches_whole_blocks_of_what_it_lacks_and_asks_for_nothing_twice(tmp_path: Path) -> None:
    server = Server(LONG.steps)
    memory = CatalogueMemory(tmp_path, server)
    assert memory.of(common_pb2.TaskDefinition(name="a task without items")) is None
    assert memory.of(naming(FIRST)) == FIRST
    assert server.asked == [("people", 0)]
    assert memory.of(naming(LONG.at(3))) == LONG.at(3)
    assert memory.of(naming(LONG.at(2))) == LONG.at(2), "a version that it passed"
    assert memory.of(naming(FIRST)) == FIRST
    assert server.asked == [("people", 0), ("people", 1)]
    again = CatalogueMemory(tmp_path, server)
    assert again.of(naming(LONG.at(3)), fetch=False) == LONG.at(3), "the next run knows it"
    assert again.of(naming(LONG)) == LONG
    assert server.asked[2:] == [("people", 1), ("people", 2), ("people", 3)]


def test_a_host_with_any_version_of_a_block_asks_alike() -> None:
    """The request does not name the version that the host has."""
    asked = []
    for version in range(2, BLOCK + 1):
        server = Server(LONG.steps)
        memory = CatalogueMemory(None, server)
        memory.of(naming(LONG.at(version)))
        server.asked.clear()
        memory.of(naming(LONG.at(BLOCK + 1)))
        asked.append(server.asked)
    assert asked == [[("people", 1)]] * (BLOCK - 1)


def _forged(at: int) -> Callable[[], Catalogue]:
    return lambda: grown(LONG.at(at - 1), 21 - at + 1, word="forged")


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (lambda: LONG.steps[:2], "missing"),
        (lambda: (), "missing"),
        (lambda: (LONG.steps[0], b"nonsense", *LONG.steps[2:]), "malformed"),
        (lambda: (LONG.steps[0], LONG.steps[2], *LONG.steps[2:]), "malformed"),
        (lambda: (LONG.steps[0], *_forged(2)().steps[1:3], *LONG.steps[3:]), "malformed"),
        (lambda: _forged(2)().steps, "split_view"),
        (lambda: grown(Catalogue.make("others", FIRST.keys), 20).steps, "split_view"),
    ],
    ids=["too few", "nothing", "nonsense", "a gap", "tampered", "a fork", "another population"],
)
def test_r294_a_new_host_refuses_what_does_not_lead_to_the_named_hash(
    tmp_path: Path, steps: Callable[[], Sequence[bytes]], reason: str
) -> None:
    memory = CatalogueMemory(tmp_path, Server(steps()))
    with pytest.raises(TransparencyError) as caught:
        memory.of(naming(LONG.at(5)))
    assert caught.value.reason == reason
    assert not list(tmp_path.iterdir()), "nothing of it is remembered"
    assert CatalogueMemory(tmp_path, Server(LONG.steps)).of(naming(LONG.at(5))) == LONG.at(5)


def test_r294_a_host_refuses_a_fork_and_a_rollback_of_what_it_knows(tmp_path: Path) -> None:
    memory = CatalogueMemory(tmp_path, Server(LONG.steps))
    memory.of(naming(LONG.at(4)))
    fork = _forged(4)()
    with pytest.raises(TransparencyError, match=r"version 4 .* is another one than the version of this number before"):
        memory.of(naming(fork.at(4)))
    for steps, words in ((fork.steps, "another version 4 than before"), (LONG.steps[:3], "had 4 versions, and has 3")):
        with pytest.raises(TransparencyError, match=words):
            CatalogueMemory(tmp_path, Server(steps)).of(naming(fork.at(6)))
    assert memory.of(naming(LONG.at(6))) == LONG.at(6)


def test_r294_a_withdrawn_version_is_refused_once_a_task_showed_its_withdrawal() -> None:
    changed = LONG.at(3).change(withdraw=[2])
    memory = CatalogueMemory(None, Server(changed.steps))
    assert memory.of(naming(LONG.at(2))) == LONG.at(2)
    assert memory.of(naming(changed)) == changed
    with pytest.raises(TransparencyError, match=r"version 2 .* was withdrawn"):
        memory.of(naming(LONG.at(2)))
    assert memory.of(naming(LONG.at(3))) == LONG.at(3)


def test_r294_versions_that_no_task_named_are_not_believed(tmp_path: Path) -> None:
    """A server that adds a version of its own to an honest block cannot keep a host from the honest one later."""
    forged = grown(LONG.at(3), 2, word="forged")
    CatalogueMemory(tmp_path, Server(forged.steps)).of(naming(LONG.at(3)))
    assert CatalogueMemory(tmp_path, Server(LONG.steps)).of(naming(LONG.at(5))) == LONG.at(5)


def test_a_model_of_another_size_and_a_catalogue_of_too_many_bytes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = CatalogueMemory(tmp_path, Server(LONG.steps))
    with pytest.raises(TransparencyError, match="has 14 items, and the task's model 13"):
        memory.of(naming(LONG.at(3), items=13))
    monkeypatch.setattr(module, "LARGEST_CATALOGUE", 500)
    with pytest.raises(TransparencyError, match="more than 500 bytes"):
        memory.of(naming(LONG))


def test_a_damaged_memory_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    CatalogueMemory(tmp_path, Server(LONG.steps)).of(naming(FIRST))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StateError, match="remove it to trust the next answer"):
        CatalogueMemory(tmp_path, Server(LONG.steps)).of(naming(FIRST))
