"""What a distributor forgets by age, and what an open round keeps."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distributor.enclave import DistributorCore
from distributor.model_folders import ModelFolders
from distributor.model_store import Held, check_keep_days, forgettable
from distributor.servicer import DistributorService
from odp.algorithms.registry import algorithm_for
from odp.crypto import HpkeKey, SignatureError, SigningKey, domains
from odp.errors import ConfigurationError, StateError
from odp.transport.logs import Log
from odp.transport.service import NotFound
from odp.transport.sweeping import DAY, Sweeping
from odp.v1 import distributor_pb2, population_pb2

TASK, OTHER = b"t" * 32, b"o" * 32


def held(version: int, *, last: int | None = 5, used: float = 0.0, task: bytes = TASK) -> Held:
    return Held(task[:1] + bytes([version]), task, version, last, used)


@pytest.mark.parametrize(
    ("models", "forgotten"),
    [
        ([held(3), held(4)], []),  # a round may be open on either
        ([held(4), held(5)], [4, 5]),  # behind the last round
        ([held(4), held(5, used=60.0)], [4]),  # somebody asked for the last model
        ([held(4), held(5, used=1000.0)], [4]),  # the clock went back
        ([held(7, last=None), held(8, last=None)], [7]),  # a public table keeps its newest version
        ([held(5, task=OTHER), held(3)], [5]),  # another task's end ends no round of this one
        ([], []),
    ],
)
def test_models_go_by_age_where_no_round_can_be_open_on_them(models: list[Held], forgotten: list[int]) -> None:
    found = forgettable(models, now=150.0, seconds=100.0)
    assert [model[1] for model in found] == forgotten
    assert forgettable(models, now=100.0, seconds=100.0) == ()


@pytest.mark.parametrize("days", [0.0, -1.0, float("nan"), float("inf")])
def test_an_age_below_a_day_is_refused(days: float) -> None:
    with pytest.raises(ConfigurationError, match="keep_days="):
        check_keep_days(days)


class Place:
    """A distributor's host without its network; ``now`` is its clock."""

    def __init__(self, folder: Path) -> None:
        self.now = 1e9
        self.steady = 0.0
        self.folder = folder
        self.start()

    def start(self) -> None:
        self.core = DistributorCore(HpkeKey.generate())
        self.store = ModelFolders(self.folder)
        self.log = Log("test", stream=io.StringIO())
        self.service = DistributorService(
            self.core, self.store, self.log, keep_seconds=30 * DAY,
            clock=lambda: self.now, monotonic=lambda: self.steady,
        )  # fmt: skip
        self.service.restore()
        assert self.service.sweep() == ()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds

    def publish(self, model: Any) -> bytes:
        class Context:
            def cancel(self) -> None: ...

        self.service.publish(model.stream(), Context())  # type: ignore[arg-type]
        return bytes(model.id)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "models")


@pytest.fixture
def last(developer: Any) -> int:
    return len(algorithm_for(developer.definition).planned_releases())


def test_a_finished_tasks_models_go_when_nobody_asked_for_a_month(place: Place, developer: Any, last: int) -> None:
    ids = [place.publish(developer.model(version)) for version in (last - 1, last)]
    place.wait(20 * DAY)
    place.service.list_blocks(distributor_pb2.ListBlocksRequest(model_sha256=ids[1], table="items"))
    place.wait(20 * DAY)
    assert place.service.sweep() == (ids[0],)
    assert place.store.models() == place.core.models() == (ids[1],)
    place.wait(20 * DAY)
    assert place.service.sweep() == (ids[1],)
    with pytest.raises(NotFound, match="is not held here; check in again"):
        place.service.require(ids[1])


def test_the_model_of_an_open_round_stays_whatever_its_age(place: Place, developer: Any, last: int) -> None:
    for version in (last - 2, last - 1):
        place.publish(developer.model(version))
    place.wait(1000 * DAY)
    assert place.service.sweep() == ()


def test_the_last_use_is_known_after_a_restart(place: Place, developer: Any, last: int) -> None:
    model = place.publish(developer.model(last))
    place.wait(29 * DAY)
    place.service.require(model)
    place.wait(29 * DAY)
    place.start()
    assert place.service.sweep() == ()
    place.wait(2 * DAY)
    place.start()
    assert place.service.sweep() == (model,)


def test_r252_a_clock_that_is_wrong_for_a_moment_forgets_no_model(place: Place, developer: Any, last: int) -> None:
    model = place.publish(developer.model(last))
    place.now += 1000 * DAY
    assert place.service.sweep() == ()
    place.start()
    place.now -= 1000 * DAY
    place.wait(3600.0)
    assert place.service.sweep() == ()
    place.wait(31 * DAY)
    assert place.service.sweep() == (model,)


@pytest.mark.parametrize("step", ["rename", "delete"])
def test_a_kill_while_models_are_forgotten_leaves_whole_models_or_none(
    place: Place, developer: Any, last: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = sorted(place.publish(developer.model(version)) for version in (last - 1, last))
    place.wait(31 * DAY)

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if step == "rename":
            patch.setattr(Path, "rename", die)
        else:
            patch.setattr(shutil, "rmtree", die)
        with pytest.raises(Killed):
            place.service.sweep()
    place.start()
    left = place.store.models()
    assert left == place.core.models() == (tuple(ids) if step == "rename" else (ids[1],))
    assert sorted(path.name for path in place.folder.iterdir()) == [model.hex() for model in left]
    assert place.service.sweep() == left


def test_a_forgotten_model_may_be_published_again(place: Place, developer: Any, last: int) -> None:
    model = place.publish(developer.model(last))
    place.wait(31 * DAY)
    place.service.sweep()
    assert place.publish(developer.model(last)) == model
    assert place.service.sweep() == ()


def end_of(key: SigningKey, task: bytes) -> distributor_pb2.ForgetTaskRequest:
    order = population_pb2.AbandonOrder(task_sha256=task).SerializeToString()
    return distributor_pb2.ForgetTaskRequest(order=order, signature=key.sign(domains.ABANDON, order))


def test_the_models_of_a_task_that_was_ended_go_at_once_and_stay_away(place: Place, developer: Any, kit: Any) -> None:
    other = kit.Developer("songs")
    stays = place.publish(other.model(0))
    ids = [place.publish(developer.model(version)) for version in range(2)]
    place.service.forget_task(end_of(developer.key, developer.task_sha256))
    place.service.forget_task(end_of(developer.key, developer.task_sha256))
    place.start()
    assert place.store.models() == place.core.models() == (stays,)
    for model in ids:
        with pytest.raises(NotFound, match="is not held here"):
            place.service.require(model)


def test_nobody_but_its_developer_ends_a_task(place: Place, developer: Any, kit: Any) -> None:
    model, stranger = place.publish(developer.model(0)), kit.Developer(key=bytes(31) + b"1")
    with pytest.raises(SignatureError):
        place.service.forget_task(end_of(stranger.key, developer.task_sha256))
    place.service.forget_task(end_of(stranger.key, stranger.task_sha256))
    moved = end_of(stranger.key, stranger.task_sha256)
    moved.order = end_of(developer.key, developer.task_sha256).order
    with pytest.raises(SignatureError):
        place.service.forget_task(moved)
    assert place.core.models() == (model,)


def test_sweeps_go_on_after_one_that_failed(tmp_path: Path, kit: Any) -> None:
    lines, again = kit.Lines(), threading.Event()
    outcomes: Iterator[Callable[[], None]] = iter([_fail, again.set])
    sweeping = Sweeping(lambda: next(outcomes, lambda: None)(), Log("test", stream=lines), every=0.01)
    assert again.wait(20.0)
    sweeping.close()
    assert "not_swept" in lines.getvalue()
    assert "the disk is away" in lines.getvalue()


def _fail() -> None:
    raise StateError("the disk is away")
