"""Importing this makes LiteRT ready for processes without files: it reads once what the processor can do. Side effect!

LiteRT's fast kernels read files of the kernel (``/proc/cpuinfo``) when they are first used. In a process behind the
walls of ``odp.isolated`` they could not, and slow kernels would run instead, ten times slower. So the template, which
those processes are copied from, imports this module.
"""

from __future__ import annotations

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter


def _sum_of_two() -> bytes:
    """A program that adds two vectors."""
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ADD
    code.version = 1
    graph = schema.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs = [], [0, 1], [2]
    for name in (b"a", b"b", b"c"):
        tensor = schema.TensorT()
        tensor.shape, tensor.type, tensor.name, tensor.buffer = [4], schema.TensorType.FLOAT32, name, 0
        graph.tensors.append(tensor)
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, [0, 1], [2]
    operator.builtinOptionsType, operator.builtinOptions = schema.BuiltinOptions.AddOptions, schema.AddOptionsT()
    graph.operators = [operator]
    model = schema.ModelT()
    model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, [code], [graph], [schema.BufferT()]
    builder = flatbuffers.Builder(256)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _run() -> None:
    interpreter = Interpreter(model_content=_sum_of_two(), num_threads=1)
    interpreter.allocate_tensors()
    for place in (0, 1):
        interpreter.set_tensor(place, np.ones(4, dtype=np.float32))
    interpreter.invoke()


_run()
