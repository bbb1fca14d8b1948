"""How much arithmetic a compiled network does per example. Needs ai-edge-litert."""

from __future__ import annotations

import math
from typing import Any

from ai_edge_litert import schema_py_generated as schema

from odp.models.litert.program import Program

# Operation -> the axis of its filter, the second input, that is not summed over.
_FILTERS = {
    schema.BuiltinOperator.CONV_2D: 0,
    schema.BuiltinOperator.DEPTHWISE_CONV_2D: -1,
    schema.BuiltinOperator.FULLY_CONNECTED: 0,
}


def multiplications(program: Program) -> int:
    """Of convolutions and products of matrices, to predict one example.

    The program is one that ``odp.models.litert.runner.check`` accepts.
    """
    model = schema.Model.GetRootAs(program.flatbuffer, 0)
    signatures = (model.SignatureDefs(place) for place in range(model.SignatureDefsLength()))
    graph = next(
        model.Subgraphs(signature.SubgraphIndex()) for signature in signatures if signature.SignatureKey() == b"infer"
    )
    total = 0
    for place in range(graph.OperatorsLength()):
        operator = graph.Operators(place)
        code = model.OperatorCodes(operator.OpcodeIndex())
        operation = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        if operation == schema.BuiltinOperator.BATCH_MATMUL:
            # Each number of the left one meets each column of the right one.
            total += math.prod(_shape(graph, operator.Inputs(0))) * _shape(graph, operator.Outputs(0))[-1]
        elif operation in _FILTERS:
            shape = _shape(graph, operator.Inputs(1))
            total += math.prod(_shape(graph, operator.Outputs(0))) * math.prod(shape) // shape[_FILTERS[operation]]
    return total // program.batch


def _shape(graph: Any, tensor: int) -> list[int]:
    entry = graph.Tensors(tensor)
    return [entry.Shape(place) for place in range(entry.ShapeLength())]
