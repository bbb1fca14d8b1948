"""Training and inference by LiteRT, against the same network in numpy, and what a damaged program does."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

import flatbuffers
from ai_edge_litert import schema_py_generated as schema

from odp.errors import ConfigurationError, DataError
from odp.models.litert.program import Program
from odp.models.litert.runner import ProgramFailed, Runner, check
from odp.models.local_training import LocalTraining

from .compile_mlp import CLASSES, FEATURES, HIDDEN, stored

_TRAINING = LocalTraining(rate=0.1, batch=4, epochs=3)


@pytest.fixture(scope="module")
def program() -> Program:
    return stored()


@pytest.fixture(scope="module")
def runner(program: Program) -> Runner:
    return Runner(program)


def _data(program: Program, count: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(count, FEATURES)).astype(np.float32)
    y = generator.integers(0, CLASSES, count).astype(np.int32)
    return (generator.normal(size=program.size) * 0.5).astype(np.float32), x, y


def _forward(vector: np.ndarray, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    ends = np.cumsum([FEATURES * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES])[:-1]
    w, b, v, c = np.split(vector.astype(np.float64), ends)
    w, v = w.reshape(FEATURES, HIDDEN), v.reshape(HIDDEN, CLASSES)
    hidden = np.maximum(x @ w + b, 0)
    return [w, b, v, c], hidden, hidden @ v + c


def _reference(start: np.ndarray, x: np.ndarray, y: np.ndarray, rate: float, proximal: float) -> np.ndarray:
    vector = start.astype(np.float64)
    for rows in _TRAINING.batches(len(y), seed=8, round=2):
        (_, _, v, _), hidden, z = _forward(vector, x[rows])
        error = np.exp(z - z.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(rows)), y[rows]] -= 1
        error /= len(rows)
        back = (error @ v.T) * (hidden > 0)
        slope = [x[rows].T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
        step = np.concatenate([part.ravel() for part in slope])
        vector = vector - rate * (step + proximal * (vector - start))
    return vector - start


@pytest.mark.parametrize("proximal", [0.0, 2.0])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_training_is_gradient_descent(runner: Runner, program: Program, count: int, proximal: float) -> None:
    start, x, y = _data(program, count)
    batches = list(_TRAINING.batches(count, seed=8, round=2))
    moved = runner.difference(start, [x], y, batches, rate=0.1, proximal=proximal)
    np.testing.assert_allclose(moved, _reference(start, x, y, 0.1, proximal), rtol=0, atol=1e-6)
    again = runner.difference(start, [x], y, batches, rate=0.1, proximal=proximal)
    np.testing.assert_array_equal(moved, again)


def test_without_examples_nothing_moves(runner: Runner, program: Program) -> None:
    start, x, y = _data(program, 0)
    assert not runner.difference(start, [x], y, [], rate=0.1).any()


def test_examples_that_are_no_numbers_move_nothing(runner: Runner, program: Program) -> None:
    start, x, y = _data(program)
    x[3, 2] = np.nan
    assert not runner.difference(start, [x], y, list(_TRAINING.batches(10, seed=8, round=2)), rate=0.1).any()
    # What came before does not show.
    start, x, y = _data(program)
    assert runner.difference(start, [x], y, [np.arange(4)], rate=0.1).any()


def test_predictions_and_measures_are_those_of_the_network(runner: Runner, program: Program) -> None:
    vector, x, y = _data(program)
    _, _, z = _forward(vector, x)
    np.testing.assert_allclose(runner.predictions(vector, [x]), z, atol=1e-5)
    measured = runner.measures(vector, [x], y)
    losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(10), y]
    np.testing.assert_allclose(measured["loss"], losses, atol=1e-5)
    assert measured["accuracy"].tolist() == (z.argmax(axis=1) == y).astype(float).tolist()


def test_arrays_that_do_not_fit_are_refused(runner: Runner, program: Program) -> None:
    start, x, y = _data(program)
    with pytest.raises(DataError, match="x0"):
        runner.difference(start, [x[:, 1:]], y, [np.arange(4)], rate=0.1)
    with pytest.raises(DataError, match="y"):
        runner.difference(start, [x], y.astype(np.int64), [np.arange(4)], rate=0.1)
    with pytest.raises(DataError, match="batches of 1 to 4"):
        runner.difference(start, [x], y, [np.arange(5)], rate=0.1)


def test_a_program_comes_back_from_its_description(program: Program) -> None:
    assert Program.from_json(program.to_json(), program.flatbuffer) == program
    for wrong in ("", "[]", "{}", program.to_json().replace('"float32"', '"float64"')):
        with pytest.raises(ConfigurationError):
            Program.from_json(wrong, program.flatbuffer)


def test_parameters_that_leave_gaps_or_share_a_name_are_refused(program: Program) -> None:
    first, second, *others = program.parameters
    for wrong in (dataclasses.replace(second, offset=1), dataclasses.replace(second, name=first.name)):
        with pytest.raises(ConfigurationError, match=r"offset=1|name of its own"):
            dataclasses.replace(program, parameters=(first, wrong, *others))


@pytest.mark.parametrize(
    "wrong",
    [b"", b"TFL3", b"\x00" * 4096, b"\xff" * 4096, b"\x1c\x00\x00\x00TFL3" + b"\xff" * 64],
    ids=["nothing", "short", "zeros", "ones", "offsets"],
)
def test_what_is_no_flatbuffer_is_refused(program: Program, wrong: bytes) -> None:
    with pytest.raises(ConfigurationError):
        check(dataclasses.replace(program, flatbuffer=wrong))


def test_a_truncated_or_changed_flatbuffer_is_refused_or_declares_the_same(program: Program) -> None:
    """``check`` itself never fails in another way, whatever the bytes."""
    generator = random.Random(4)
    refused = 0
    for _ in range(300):
        data = bytearray(program.flatbuffer)
        for _ in range(generator.choice([1, 4, 30])):
            data[generator.randrange(len(data))] = generator.randrange(256)
        if generator.random() < 0.2:
            del data[generator.randrange(len(data)) :]
        try:
            check(dataclasses.replace(program, flatbuffer=bytes(data)))
        except ConfigurationError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch": 5}, "'x0'"),
        ({"metrics": ()}, "evaluate"),
        ({"proximal": False}, "train"),
        ({"metrics": ("accuracy", "other")}, "other"),
    ],
    ids=["batch", "metric", "proximal", "missing"],
)
def test_a_flatbuffer_of_another_program_is_refused(program: Program, change: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        check(dataclasses.replace(program, **change))  # type: ignore[arg-type]


def test_operations_beyond_the_list_are_refused_by_name(program: Program) -> None:
    for operation in ("WHILE", "CALL_ONCE", "IF", "CUSTOM", "HASHTABLE", "RANDOM_UNIFORM"):
        model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(program.flatbuffer, 0))
        code = model.operatorCodes[0]
        code.builtinCode = getattr(schema.BuiltinOperator, operation)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        with pytest.raises(ConfigurationError, match=operation):
            check(dataclasses.replace(program, flatbuffer=bytes(builder.Output())))


def test_tensors_beyond_the_limit_are_refused_before_anything_is_allocated(program: Program) -> None:
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(program.flatbuffer, 0))
    tensor = schema.TensorT()
    tensor.shape, tensor.type, tensor.name, tensor.buffer = [2**20, 2**10], 0, b"large", 0
    model.subgraphs[0].tensors.append(tensor)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    with pytest.raises(ConfigurationError, match="at most 2147483648 bytes"):
        Runner(dataclasses.replace(program, flatbuffer=bytes(builder.Output())))


def test_a_program_that_litert_does_not_load_is_told_apart(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odp.models.litert.runner.check", lambda program: None)
    with pytest.raises(ProgramFailed):
        Runner(dataclasses.replace(program, flatbuffer=b"no model at all"))


def test_a_signature_names_each_tensor_of_its_graph_once(program: Program) -> None:
    """A number beyond the graph's tensors would be that of whatever lies there in the file."""

    def changed(change: Callable[[Any], None]) -> Program:
        model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(program.flatbuffer, 0))
        change(next(one for one in model.signatureDefs if one.signatureKey == b"train"))
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return dataclasses.replace(program, flatbuffer=bytes(builder.Output()))

    def beyond(signature: Any) -> None:
        signature.inputs[0].tensorIndex = 2**31

    def twice(signature: Any) -> None:
        signature.inputs.append(signature.inputs[0])

    check(changed(lambda signature: None))
    for change in (beyond, twice):
        with pytest.raises(ConfigurationError, match="each tensor of its graph once"):
            check(changed(change))


def test_operations_that_share_a_long_list_of_tensors_are_refused(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 4 MiB may have 16384 operations that all name the same 16384 tensors: hours for a reader."""
    model = schema.Model.GetRootAs(program.flatbuffer, 0)
    largest = max(
        sum(
            graph.Operators(place).InputsLength() + graph.Operators(place).OutputsLength()
            for place in range(graph.OperatorsLength())
        )
        for graph in map(model.Subgraphs, range(model.SubgraphsLength()))
    )
    monkeypatch.setattr("odp.models.litert.runner.MOST_OPERANDS", largest)
    check(program)
    monkeypatch.setattr("odp.models.litert.runner.MOST_OPERANDS", largest - 1)
    with pytest.raises(ConfigurationError, match=f"at most {largest - 1} tensors"):
        check(program)
