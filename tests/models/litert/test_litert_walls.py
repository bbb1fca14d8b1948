"""Training behind the walls of isolated code: the same bits as outside, and contained when a program is hostile."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

from device_runtime.isolated import HandlerFailed, Reason
from device_runtime.isolated.training import IsolatedTrainer, LastingProcess
from odp.errors import ConfigurationError, DataError
from odp.models.litert import service
from odp.models.litert.program import Program
from odp.models.litert.runner import Runner, check
from odp.models.litert.trainer import LocalSteps

from . import hostile
from .compile_mlp import CLASSES, FEATURES, stored

_BATCHES = [np.array([0, 1, 2, 3]), np.array([4, 5])]


@pytest.fixture(scope="module")
def trainer() -> Iterator[IsolatedTrainer]:
    with IsolatedTrainer() as made:
        yield made


def _data(program: Program) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(8, FEATURES)).astype(np.float32)
    y = generator.integers(0, CLASSES, 8).astype(np.int32)
    return (generator.normal(size=program.size) * 0.5).astype(np.float32), x, y


def _trained(trainer: IsolatedTrainer, program: Program) -> np.ndarray:
    start, x, y = _data(stored())
    return trainer.difference(program, start, [x], y, _BATCHES, rate=0.1)


def test_training_behind_the_walls_gives_the_same_bits(trainer: IsolatedTrainer) -> None:
    program = stored()
    start, x, y = _data(program)
    expected = Runner(program).difference(start, [x], y, _BATCHES, rate=0.1, proximal=0.5)
    assert expected.any()
    found = trainer.difference(program, start, [x], y, _BATCHES, rate=0.1, proximal=0.5)
    np.testing.assert_array_equal(found, expected)


def test_long_arrays_travel_in_pieces(trainer: IsolatedTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_PIECE", 7)
    program = stored()
    start, x, y = _data(program)
    few = dataclasses.replace(program, flatbuffer=program.flatbuffer[:70])
    pieces = service.arrays_of(few, start, [x], y, _BATCHES)
    assert max(map(len, pieces.values())) == 7
    monkeypatch.setattr(service, "_PIECE", 1000)
    np.testing.assert_array_equal(
        _trained(trainer, program), Runner(program).difference(start, [x], y, _BATCHES, rate=0.1)
    )


def test_without_batches_no_process_is_needed(trainer: IsolatedTrainer) -> None:
    program = stored()
    start, x, y = _data(program)
    assert not trainer.difference(program, start, [x], y, [], rate=0.1).any()


@pytest.mark.parametrize(
    ("make", "reasons"),
    [
        (hostile.crashing, {Reason.ENDED}),
        (hostile.refusing, {Reason.RAISED}),
        (hostile.hungry, {Reason.ENDED, Reason.RAISED, Reason.LIMIT}),
    ],
    ids=["crashing", "refusing", "hungry"],
)
def test_a_program_that_crashes_or_takes_memory_is_contained(
    trainer: IsolatedTrainer, make: Any, reasons: set[Reason]
) -> None:
    program = make(stored())
    check(program)
    with pytest.raises(HandlerFailed) as failed:
        _trained(trainer, program)
    assert failed.value.reason in reasons
    assert _trained(trainer, stored()).any()


def test_a_program_that_computes_for_too_long_is_stopped() -> None:
    program = hostile.endless(stored())
    check(program)
    with IsolatedTrainer(seconds=1.0) as trainer:
        start, x, y = _data(program)
        with pytest.raises(HandlerFailed) as failed:
            trainer.difference(program, start, [x], y, _BATCHES * 500, rate=0.1)
        assert failed.value.reason in (Reason.DEADLINE, Reason.LIMIT)


def test_the_calls_of_one_contribution_share_a_process(trainer: IsolatedTrainer) -> None:
    """An evaluation runs its program several times. What a call says does not depend on the calls before it."""
    program = stored()
    start, x, y = _data(program)
    alone = trainer.measured(program, start, [x], y)
    with trainer.process() as process:
        for _ in range(2):
            shared = process.measured(program, start, [x], y)
            np.testing.assert_array_equal(shared.predictions, alone.predictions)
        moved = process.difference(program, start, [x], y, _BATCHES, rate=0.1)
    np.testing.assert_array_equal(moved, _trained(trainer, program))


def test_contributions_at_the_same_time_leave_one_process_for_the_next() -> None:
    with IsolatedTrainer() as trainer:
        trainer.prepare()
        ready = len(psutil.Process().children(recursive=True))
        with trainer.process(), trainer.process():
            assert len(psutil.Process().children(recursive=True)) == ready + 1
        trainer.prepare()
        # One that was killed is there until it is reaped.
        end = time.monotonic() + 30.0
        while len(psutil.Process().children(recursive=True)) != ready and time.monotonic() < end:
            time.sleep(0.01)
        assert len(psutil.Process().children(recursive=True)) == ready


def test_r389_a_program_that_failed_for_many_people_in_a_row_is_run_for_the_next_one_all_the_same() -> None:
    """Whether it failed for the last of them follows from that person's rows alone, and must pause nobody else's."""
    lines: list[str] = []
    with IsolatedTrainer(say=lines.append) as trainer:
        for _ in range(10):
            with pytest.raises(HandlerFailed) as failed:
                _trained(trainer, hostile.refusing(stored()))
            assert failed.value.reason is not Reason.RESTING
    assert lines == []


def test_a_device_names_what_it_cannot_train(trainer: IsolatedTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.require(stored(), most_examples=1000)
    with pytest.raises(ConfigurationError, match=r"trains networks in 1073741824 bytes.*most_examples=100000000"):
        trainer.require(stored(), most_examples=10**8)
    monkeypatch.setattr("odp._system.extras.is_installed", lambda name: False)
    with pytest.raises(ConfigurationError, match=r"pip install 'odp-platform\[litert\]'"):
        trainer.require(stored(), most_examples=1)


def test_arrays_that_do_not_fit_are_a_call_that_failed(trainer: IsolatedTrainer) -> None:
    program = stored()
    start, x, y = _data(program)
    with pytest.raises(HandlerFailed):
        trainer.difference(program, start[1:], [x], y, _BATCHES, rate=0.1)
    with pytest.raises(HandlerFailed):
        trainer.difference(program, start, [x], y.astype(np.int64), _BATCHES, rate=0.1)


@pytest.mark.parametrize(
    "result",
    [{}, {"difference": "no base64"}, {"difference": "AAAA"}, {"difference": 3}],
    ids=["nothing", "text", "short", "number"],
)
def test_what_is_no_difference_is_refused(result: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        service.difference_of(result, stored())


def test_numbers_that_are_not_finite_are_refused() -> None:
    import base64

    program = stored()
    wild = base64.b64encode(np.full(program.size, np.nan, dtype=np.float32).tobytes()).decode()
    with pytest.raises(DataError, match="finite"):
        service.difference_of({"difference": wild}, program)


def test_predictions_of_no_person_go_on_in_one_process_and_in_another_one_after_its_time_or_a_failure(
    trainer: IsolatedTrainer,
) -> None:
    program = stored()
    start, x, _ = _data(program)
    expected = Runner(program).predictions(start, [x])
    with LastingProcess(trainer, seconds=1e-9) as lasting:
        np.testing.assert_array_equal(lasting.predicted(program, start, [x], None), expected)
        first = lasting._process
        np.testing.assert_array_equal(lasting.predicted(program, start, [x], None), expected)
        assert lasting._process is not first, "its time was over"
    with LastingProcess(trainer) as lasting:
        before = lasting.predicted(program, start, [x], None)
        first = lasting._process
        other = lasting.predicted(program, start * 2, [x], None)
        np.testing.assert_array_equal(lasting.predicted(program, start, [x], None), before)
        assert lasting._process is first
        assert not np.array_equal(other, before)
        with pytest.raises(HandlerFailed):
            lasting.predicted(hostile.refusing(program, "infer"), start, [x], None)
        np.testing.assert_array_equal(lasting.predicted(program, start, [x], None), before)
        with pytest.raises(ConfigurationError, match="of a person's examples"):
            lasting.predicted(program, start, [x], ([x], x, LocalSteps([], 0.1)))
