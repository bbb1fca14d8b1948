"""What a network's flatbuffer may hold, read before anything runs it. Needs ai-edge-litert.

Guarantee: a program that :func:`check` accepts computes by operations of a closed list, each of which runs once per
call: none repeats, none calls another graph, none is custom code. The sizes that its tensors declare are within limits,
and its signatures take and give what the program says.

No guarantee: the file is read in Python, and LiteRT reads it again in C++. A file that was made to mislead LiteRT can
end its process, or take more memory than it declares; so whoever runs a stranger's program runs it behind the walls of
``odp.isolated``, and takes what comes back for the developer's word.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import flatbuffers
from ai_edge_litert import schema_py_generated as schema

from odp.errors import ConfigurationError
from odp.models.litert.program import MOST_DIMENSIONS, SIGNATURES, Program, Tensors

MOST_BYTES = 2**27
MOST_SUBGRAPHS = 16
MOST_OPERATIONS = 2**14
#: Of a graph's operations together: tables of a small file may share one long list, which is read for each.
MOST_OPERANDS = 2**18
#: Of a graph's tensors together, in bytes: what they declare.
MOST_MEMORY = 2**31

#: Names of ``BuiltinOperator``: arithmetic, shapes and variables. Left out: control flow (WHILE, IF, CALL), what reads
#: or writes beyond tensors, random numbers, hash tables, and what no gradient needs.
_ALLOWED = (
    "ABS ADD ADD_N ARG_MAX AVERAGE_POOL_2D BATCH_MATMUL BROADCAST_TO CAST CONCATENATION CONV_2D COS DEPTHWISE_CONV_2D "
    "DIV ELU EMBEDDING_LOOKUP EQUAL EXP EXPAND_DIMS FILL FLOOR FLOOR_DIV FULLY_CONNECTED GATHER GATHER_ND GELU GREATER "
    "GREATER_EQUAL HARD_SWISH L2_NORMALIZATION LEAKY_RELU LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR "
    "LOGISTIC LOG_SOFTMAX MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NEG NOT_EQUAL ONE_HOT PACK PAD PADV2 POW "
    "RANGE REDUCE_MAX REDUCE_MIN REDUCE_PROD RELU RELU6 RELU_N1_TO_1 RESHAPE REVERSE_V2 RSQRT SCATTER_ND SELECT "
    "SELECT_V2 SHAPE SIGN SIN SLICE SOFTMAX SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM "
    "TANH TILE TRANSPOSE TRANSPOSE_CONV UNPACK UNSORTED_SEGMENT_SUM ZEROS_LIKE "
    "ASSIGN_VARIABLE READ_VARIABLE VAR_HANDLE"
)
OPERATIONS = frozenset(_ALLOWED.split())
_BYTES = {"FLOAT32": 4, "INT32": 4, "INT64": 8, "BOOL": 1, "INT8": 1, "UINT8": 1, "RESOURCE": 8}
_DTYPES = {"float32": "FLOAT32", "int32": "INT32"}
_MALFORMED = "Expected a flatbuffer of LiteRT"


def check(program: Program) -> None:
    """Checks the flatbuffer of a program.

    Raises:
      ConfigurationError: it is malformed, too large, uses another operation, or its signatures are others; the message
        names which.
    """
    size = len(program.flatbuffer)
    if not 8 <= size <= MOST_BYTES:
        raise ConfigurationError(f"Expected a flatbuffer of 8 to {MOST_BYTES} bytes (got {size})")
    if program.flatbuffer[4:8] != b"TFL3":
        raise ConfigurationError(_MALFORMED)
    try:
        model = schema.Model.GetRootAs(program.flatbuffer, 0)
        operations = [_operation(model.OperatorCodes(place)) for place in _upto(model.OperatorCodesLength(), 512)]
        graphs = [model.Subgraphs(place) for place in _upto(model.SubgraphsLength(), MOST_SUBGRAPHS)]
        if model.ExternalBuffersLength() or model.ExternalBufferGroupsLength():
            raise ConfigurationError("Expected a flatbuffer that names no other files")
        buffers = [_buffer(model.Buffers(place), size) for place in _upto(model.BuffersLength(), MOST_OPERATIONS)]
        for graph in graphs:
            _check_graph(graph, operations, buffers)
        _check_signatures(model, graphs, program)
    except ConfigurationError:
        raise
    except Exception:  # a malformed file makes the reader fail in its own ways
        raise ConfigurationError(_MALFORMED) from None


def without_initial_values(flatbuffer: bytes) -> bytes:
    """The same program without the graph that sets variables when it is loaded: ``load`` sets them all.

    A converted program carries the initial value of each variable, which takes as many bytes as the model.
    """
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(flatbuffer, 0))
    once = schema.BuiltinOperator.CALL_ONCE
    codes = {place for place, code in enumerate(model.operatorCodes) if code.builtinCode == once}
    emptied = set()
    for graph in model.subgraphs:
        calls = [operator for operator in graph.operators if operator.opcodeIndex in codes]
        emptied |= {call.builtinOptions.initSubgraphIndex for call in calls}
        graph.operators = [operator for operator in graph.operators if operator.opcodeIndex not in codes]
    remaining = [place for place in range(len(model.subgraphs)) if place not in emptied]
    for holder in [
        *model.signatureDefs,
        *(operator.builtinOptions for graph in model.subgraphs for operator in graph.operators),
    ]:
        for name in vars(holder) if holder is not None else ():
            if name.lower().endswith("subgraphindex"):
                setattr(holder, name, remaining.index(getattr(holder, name)))
    model.subgraphs = [model.subgraphs[place] for place in remaining]
    _drop_unused(model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _drop_unused(model: Any) -> None:
    """Removes operator codes, buffers and notes that nothing names any more."""
    used = sorted({operator.opcodeIndex for graph in model.subgraphs for operator in graph.operators})
    for graph in model.subgraphs:
        for operation in graph.operators:
            operation.opcodeIndex = used.index(operation.opcodeIndex)
    model.operatorCodes = [model.operatorCodes[place] for place in used]
    places = {0: 0}  # the first buffer stands for "no data"
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.buffer = places.setdefault(tensor.buffer, len(places))
    model.buffers = [model.buffers[place] for place in places]
    model.metadata, model.metadataBuffer = [], []


def _operation(code: Any) -> str:
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    name = _names().get(number, f"operation {number}")
    if code.CustomCode() is not None or name not in OPERATIONS:
        raise ConfigurationError(f"Expected operations that training may use; the flatbuffer has {name}")
    return name


@functools.cache
def _names() -> dict[int, str]:
    return {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}


@functools.cache
def _types() -> dict[int, str]:
    return {number: name for name, number in vars(schema.TensorType).items() if isinstance(number, int)}


def _buffer(buffer: Any, size: int) -> int:
    length = buffer.DataLength()
    if buffer.Offset() or buffer.Size() or not 0 <= length <= size:
        raise ConfigurationError(_MALFORMED)
    return int(length)


def _check_graph(graph: Any, operations: list[str], buffers: list[int]) -> None:
    total = 0
    tensors = graph.TensorsLength()
    for place in _upto(tensors, MOST_OPERATIONS):
        tensor = graph.Tensors(place)
        size = _bytes_of(tensor)
        total += size
        if total > MOST_MEMORY:
            raise ConfigurationError(f"Expected the tensors of a graph to take at most {MOST_MEMORY} bytes")
        constant = buffers[tensor.Buffer()]
        if tensor.Sparsity() is not None or tensor.VariantTensorsLength() or constant not in (0, size):
            raise ConfigurationError(f"Expected the constant {_name(tensor)} to be as long as its shape says")
    operands = 0
    for place in _upto(graph.OperatorsLength(), MOST_OPERATIONS):
        operator = graph.Operators(place)
        name = operations[operator.OpcodeIndex()]
        operands += operator.InputsLength() + operator.OutputsLength()
        if operands > MOST_OPERANDS:
            raise ConfigurationError(f"Expected the operations of a graph to name at most {MOST_OPERANDS} tensors")
        for count, at in ((operator.InputsLength(), operator.Inputs), (operator.OutputsLength(), operator.Outputs)):
            numbers = [at(index) for index in _upto(count, MOST_OPERATIONS)]
            if any(not -1 <= number < tensors for number in numbers):
                raise ConfigurationError(f"Expected {name} to take and give tensors of its graph")


def _bytes_of(tensor: Any) -> int:
    kind = _types().get(tensor.Type(), "?")
    if kind not in _BYTES:
        raise ConfigurationError(f"Expected tensors of {', '.join(sorted(_BYTES))}; {_name(tensor)} has another type")
    shape = _shape(tensor)
    if min(shape, default=0) < 0 or min(_signature(tensor), default=0) < 0:
        raise ConfigurationError(f"Expected tensors of known shape; {_name(tensor)} has none")
    return math.prod(shape) * _BYTES[kind]


def _check_signatures(model: Any, graphs: list[Any], program: Program) -> None:
    signatures = [model.SignatureDefs(place) for place in _upto(model.SignatureDefsLength(), len(SIGNATURES))]
    names = sorted((entry.SignatureKey() or b"").decode("ascii") for entry in signatures)
    if names != sorted(SIGNATURES):
        raise ConfigurationError(f"Expected the signatures {', '.join(SIGNATURES)} (got {', '.join(names)})")
    for signature in signatures:
        name = signature.SignatureKey().decode("ascii")
        graph = graphs[signature.SubgraphIndex()]
        tensors = (signature.Inputs(place) for place in _upto(signature.InputsLength(), MOST_OPERATIONS))
        _check_tensors(name, graph, tensors, program.inputs(name))
        tensors = (signature.Outputs(place) for place in _upto(signature.OutputsLength(), MOST_OPERATIONS))
        _check_tensors(name, graph, tensors, program.outputs(name))


def _check_tensors(signature: str, graph: Any, tensor_maps: Iterator[Any], wanted: Tensors) -> None:
    actual: dict[str, tuple[tuple[int, ...], str]] = {}
    tensors = graph.TensorsLength()
    for mapped in tensor_maps:
        name = mapped.Name().decode("utf-8")
        # The reader takes any number for a place in the list, and reads what lies there.
        if mapped.TensorIndex() >= tensors or name in actual:
            raise ConfigurationError(f"Expected the signature {signature!r} to have each tensor of its graph once")
        tensor = graph.Tensors(mapped.TensorIndex())
        actual[name] = (tuple(_shape(tensor)), _types()[tensor.Type()])
    for name, (shape, dtype) in wanted.items():
        if actual.get(name) != (shape, _DTYPES[dtype]):
            raise ConfigurationError(
                f"Expected {name!r} of the signature {signature!r} to be {dtype} {list(shape)} (got {actual.get(name)})"
            )
    if actual.keys() != wanted.keys():
        raise ConfigurationError(f"Expected the signature {signature!r} to have {', '.join(wanted) or 'no inputs'}")


def _shape(tensor: Any) -> list[int]:
    return [tensor.Shape(place) for place in _upto(tensor.ShapeLength(), MOST_DIMENSIONS)]


def _signature(tensor: Any) -> list[int]:
    return [tensor.ShapeSignature(place) for place in _upto(tensor.ShapeSignatureLength(), MOST_DIMENSIONS)]


def _name(tensor: Any) -> str:
    name = (tensor.Name() or b"?")[:80].decode("ascii", "replace")
    return repr(name)


def _upto(count: int, most: int) -> range:
    if not 0 <= count <= most:
        raise ConfigurationError(f"{_MALFORMED} with at most {most} parts of a kind (got {count})")
    return range(count)
