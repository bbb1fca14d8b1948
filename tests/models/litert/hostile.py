"""Programs that ``inspection.check`` accepts and that do harm when they run: ``stored()`` with operations added."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from odp.models.litert.program import Program

_OPTIONS = {
    "FILL": (schema.BuiltinOptions.FillOptions, schema.FillOptionsT),
    "POW": (schema.BuiltinOptions.PowOptions, schema.PowOptionsT),
    "CONV_2D": (schema.BuiltinOptions.Conv2DOptions, schema.Conv2DOptionsT),
}


class _Graph:
    """The graph of a signature, which operations can be added to."""

    def __init__(self, program: Program, signature: str) -> None:
        self.model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(program.flatbuffer, 0))
        place = next(one.subgraphIndex for one in self.model.signatureDefs if one.signatureKey == signature.encode())
        self._graph = self.model.subgraphs[place]
        self._added = 0

    def tensor(self, shape: Sequence[int], values: np.ndarray | None = None) -> int:
        """A float32 tensor that operations fill, or a constant."""
        made = schema.TensorT()
        made.shape, made.name, made.buffer = list(shape), b"added", 0
        made.type = schema.TensorType.FLOAT32
        if values is not None:
            made.type = schema.TensorType.INT32 if values.dtype == np.int32 else schema.TensorType.FLOAT32
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(values.tobytes(), dtype=np.uint8)
            made.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self._graph.tensors.append(made)
        return len(self._graph.tensors) - 1

    def operation(self, name: str, inputs: Sequence[int], output: int, *, options: bool = True) -> None:
        """Runs before those that were there."""
        made = schema.OperatorT()
        made.opcodeIndex = self._code(getattr(schema.BuiltinOperator, name))
        made.inputs, made.outputs = list(inputs), [output]
        if options:
            made.builtinOptionsType, kind = _OPTIONS[name]
            made.builtinOptions = kind()
        self._graph.operators.insert(self._added, made)
        self._added += 1

    def _code(self, number: int) -> int:
        codes = self.model.operatorCodes
        if codes[-1].builtinCode != number:
            code = schema.OperatorCodeT()
            code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), 1
            codes.append(code)
        return len(codes) - 1

    def filled(self, declared: Sequence[int], filled: Sequence[int]) -> int:
        """A tensor of ones of the shape ``filled`` that declares another."""
        dims = self.tensor([len(filled)], np.array(filled, dtype=np.int32))
        one = self.tensor([], np.ones((), dtype=np.float32))
        output = self.tensor(declared)
        self.operation("FILL", [dims, one], output)
        return output

    def program(self, program: Program) -> Program:
        """With this graph."""
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), file_identifier=b"TFL3")
        return dataclasses.replace(program, flatbuffer=bytes(builder.Output()))


def _made(program: Program, change: Callable[[_Graph], Any], signature: str = "train") -> Program:
    graph = _Graph(program, signature)
    change(graph)
    return graph.program(program)


def endless(program: Program) -> Program:
    """One that computes 40 million powers in each step."""

    def change(graph: _Graph) -> None:
        many = graph.filled([2**22], [2**22])
        for _ in range(10):
            graph.operation("POW", [many, many], graph.tensor([2**22]))

    return _made(program, change)


def hungry(program: Program, signature: str = "train") -> Program:
    """One whose tensor takes 16 GiB and declares 4 bytes."""
    return _made(program, lambda graph: graph.filled([1], [2**16, 2**16]), signature)


def refusing(program: Program, signature: str = "train") -> Program:
    """One with a convolution whose strides are zero, which LiteRT does not run."""

    def change(graph: _Graph) -> None:
        image = graph.filled([1, 4, 4, 1], [1, 4, 4, 1])
        kernel = graph.tensor([1, 2, 2, 1], np.ones((1, 2, 2, 1), dtype=np.float32))
        bias = graph.tensor([1], np.zeros(1, dtype=np.float32))
        graph.operation("CONV_2D", [image, kernel, bias], graph.tensor([1, 2, 2, 1]), options=False)

    return _made(program, change, signature)


def crashing(program: Program) -> Program:
    """One that was damaged so that the list of an operation's outputs lies beyond the file: LiteRT follows it."""
    data = bytearray(program.flatbuffer)
    data[18052], data[14594] = 84, 166
    return dataclasses.replace(program, flatbuffer=bytes(data))
