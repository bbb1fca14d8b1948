"""Runs a network's program by LiteRT. Needs ai-edge-litert.

A stranger's program runs only behind walls (``odp.isolated``): see ``odp.models.litert.runner``.

Numbers: LiteRT chooses its arithmetic by the processor, so that two kinds of device differ in the last bits. On one
device, with one thread, equal inputs give equal bits.

What a network's flatbuffer may hold, read before anything runs it. Needs ai-edge-litert.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from odp.errors import ConfigurationError, DataError
from odp.models.litert.program import (
    LOCAL_RATE,
    LOSS,
    MASK,
    MOST_DIMENSIONS,
    PREDICTION,
    PROXIMAL,
    RATE,
    SIGNATURES,
    TARGET,
    VECTOR,
    Array,
    Program,
    Tensors,
    padded,
)
from odp.models.litert.trainer import LocalSteps, Measured
from odp.numerics.arrays import Float32Array, Int64Array

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
    if (kind := _types().get(tensor.Type(), "?")) not in _BYTES:
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
    return repr((tensor.Name() or b"?")[:80].decode("ascii", "replace"))


def _upto(count: int, most: int) -> range:
    if not 0 <= count <= most:
        raise ConfigurationError(f"{_MALFORMED} with at most {most} parts of a kind (got {count})")
    return range(count)


class ProgramFailed(Exception):
    """LiteRT could not load or run the program."""


class Runner:
    """One loaded program; one thread at a time.

    Raises:
      ConfigurationError: ``check`` does not accept it; nothing was loaded.
      ProgramFailed: LiteRT does not load it.
    """

    def __init__(self, program: Program) -> None:
        check(program)
        from ai_edge_litert.interpreter import Interpreter

        self._program = program
        try:
            self._interpreter = Interpreter(model_content=program.flatbuffer, num_threads=1)
            self._run = {
                name: self._interpreter.get_signature_runner(name)
                for name in ("load", "save", "train", "infer", "evaluate")
            }
        except (ValueError, RuntimeError) as error:
            raise ProgramFailed(str(error)) from None

    def difference(
        self,
        start: Float32Array,
        features: Sequence[Array],
        targets: Array,
        batches: Iterable[Int64Array],
        *,
        rate: float,
        proximal: float = 0.0,
        local: LocalSteps | None = None,
        out: Float32Array | None = None,
    ) -> Float32Array:
        """What training moves the shared parameters by, float32 [shared_size].

        Zeros without batches, and where a number is not finite.

        Args:
          start: parameters that training begins with, the local ones too, float32 [size].
          features: one array [n, ..] per input.
          targets: [n, ..].
          batches: rows of each step, at least one and at most as many as the program's batch
            (``odp.models.local_training``, whose seed stays outside of the walls).
          rate: step size.
          proximal: factor of the proximal term.
          local: steps of the local parameters, which then stay while the shared ones are trained.
          out: where the result is written, float32 [shared_size]; a new array without.

        Raises:
          DataError: arrays have other shapes than the program says, batches are larger, there is no proximal term, or
            local steps do not go with a program that has local parameters, and with it alone.
          ProgramFailed: LiteRT failed.
        """
        self._check(features, targets)
        if proximal and not self._program.proximal:
            raise DataError(f"Expected proximal={proximal} to be 0: the program has no proximal term")
        self._check_local(local)
        shared = self._program.shared_size
        moved = np.empty(shared, dtype=np.float32) if out is None else out
        if not len(targets):
            moved[:] = 0.0
            return moved
        self._call("load", {VECTOR: start})
        proximal_term = {PROXIMAL: proximal} if self._program.proximal else {}
        self._train_local(features, targets, local)
        frozen = {} if local is None else {LOCAL_RATE: 0.0}
        self._steps(features, targets, batches, {RATE: rate, **frozen, **proximal_term})
        with np.errstate(invalid="ignore", over="ignore"):
            after = self._call("save", {})[VECTOR]
            np.subtract(after[:shared], start[:shared], out=moved)
            whole = np.isfinite(moved).all() and np.isfinite(after[shared:]).all()
        if not whole:
            moved[:] = 0.0
        return moved

    def reconstructed(
        self, start: Float32Array, features: Sequence[Array], targets: Array, local: LocalSteps
    ) -> Float32Array:
        """``start`` with local parameters after these steps, float32 [size]; ``start`` where they are not finite.

        Raises:
          DataError: as ``difference``.
          ProgramFailed: LiteRT failed.
        """
        self._check(features, targets)
        self._check_local(local)
        self._call("load", {VECTOR: start})
        self._train_local(features, targets, local)
        saved = self._call("save", {})[VECTOR]
        return saved if np.isfinite(saved).all() else start

    def predictions(self, vector: Float32Array, features: Sequence[Array]) -> Float32Array:
        """What the model says of each example, float32 [n, ..]. Raises DataError and ProgramFailed."""
        self._check(features, None)
        self._call("load", {VECTOR: vector})
        parts = [self._call("infer", self._batch(features, None, rows))[PREDICTION][: len(rows)] for rows in
                 self._all(len(features[0]))]  # fmt: skip
        return np.concatenate(parts) if parts else np.zeros((0, *self._program.prediction.shape), dtype=np.float32)

    def measures(self, vector: Float32Array, features: Sequence[Array], targets: Array) -> dict[str, Float32Array]:
        """The loss and each metric of every example, float32 [n]. Raises DataError and ProgramFailed."""
        self._check(features, targets)
        self._call("load", {VECTOR: vector})
        names = (LOSS, *self._program.metrics)
        parts_by_name: dict[str, list[Float32Array]] = {name: [np.zeros(0, dtype=np.float32)] for name in names}
        for rows in self._all(len(targets)):
            answer = self._call("evaluate", self._batch(features, targets, rows))
            for name in names:
                parts_by_name[name].append(answer[name][: len(rows)])
        return {name: np.concatenate(parts) for name, parts in parts_by_name.items()}

    def measured(self, vector: Float32Array, features: Sequence[Array], targets: Array, *, items: int = 0) -> Measured:
        """As ``ProgramTrainer.measured``. Raises DataError and ProgramFailed."""
        if items:
            none = np.zeros((0, *self._program.prediction.shape), dtype=np.float32)
            return Measured(np.zeros(0, dtype=np.float32), none, self.places(vector, features, items=items))
        losses = self.measures(vector, features, targets)[LOSS]
        return Measured(losses, self.predictions(vector, features), np.zeros(0, dtype=np.int64))

    def places(self, vector: Float32Array, features: Sequence[Array], *, items: int) -> Int64Array:
        """The place of each example's item by its score, int64 [n], 0 the best. Raises DataError and ProgramFailed.

        The other items of the examples are left out of the ranking. Of equal scores, the lower number comes first.
        A score that is not a number is the lowest.

        Args:
          features: one array [n, ..] per input; the last one is the number of an item, below ``items``.
        """
        self._check(features, None)
        if self._program.prediction.size != 1:
            raise DataError("Expected a program that gives one score")
        self._call("load", {VECTOR: vector})
        *context, item = features
        chosen_items, numbers = item.reshape(-1).astype(np.int64), np.arange(items, dtype=np.int64)
        if len(chosen_items) and not 0 <= chosen_items.min() <= chosen_items.max() < items:
            raise DataError(f"Expected items from 0 to {items - 1}")
        others = np.ones(items, dtype=bool)
        others[chosen_items] = False
        places = np.zeros(len(chosen_items), dtype=np.int64)
        # People's own features are mostly the same in all their examples: then items are scored once.
        of_context: dict[bytes, list[int]] = {}
        for row in range(len(chosen_items)):
            of_context.setdefault(b"".join(values[row].tobytes() for values in context), []).append(row)
        for rows in of_context.values():
            scores = self._scores([values[rows[0]] for values in context], item, numbers)
            for row in rows:
                score = scores[chosen_items[row]]
                before = (scores > score) | ((scores == score) & (numbers < chosen_items[row]))
                places[row] = np.count_nonzero(before & others)
        return places

    def scores(self, vector: Float32Array, context: Sequence[Array], *, items: int) -> Float32Array:
        """The score of each item for each row of ``context``, float32 [n, items]. Raises DataError and ProgramFailed.

        Args:
          context: one array [n, ..] per input before the last one, which is the number of an item.
        """
        item = np.zeros((len(context[0]), *self._program.features[-1].shape), dtype=self._program.features[-1].dtype)
        self._check([*context, item], None)
        if self._program.prediction.size != 1:
            raise DataError("Expected a program that gives one score")
        self._call("load", {VECTOR: vector})
        numbers = np.arange(items, dtype=np.int64)
        rows = [self._scores([values[row] for values in context], item, numbers) for row in range(len(item))]
        return np.stack(rows) if rows else np.zeros((0, items), dtype=np.float32)

    def _scores(self, context: Sequence[Array], item: Array, numbers: Int64Array) -> Float32Array:
        """The score of each of ``numbers``, float32, where the inputs before the item are ``context``."""
        batch = self._program.batch
        fixed = {f"x{place}": np.repeat(values[None], batch, axis=0) for place, values in enumerate(context)}
        scores = np.empty(len(numbers), dtype=np.float32)
        for rows in self._all(len(numbers)):
            part = padded(numbers[rows].reshape(-1, *item.shape[1:]).astype(item.dtype), batch)
            answer = self._call("infer", {**fixed, f"x{len(context)}": part})[PREDICTION]
            scores[rows] = answer.reshape(-1)[: len(rows)]
        return np.where(np.isnan(scores), np.float32(-np.inf), scores)

    def _check_local(self, local: LocalSteps | None) -> None:
        if (local is not None) is not self._program.has_local:
            raise DataError("Expected local steps of a program with local parameters, and only there")

    def _train_local(self, features: Sequence[Array], targets: Array, local: LocalSteps | None) -> None:
        if local is not None:
            # The pull of a proximal term is one on shared parameters, which do not move here.
            proximal_term = {PROXIMAL: 0.0} if self._program.proximal else {}
            self._steps(features, targets, local.batches, {RATE: 0.0, LOCAL_RATE: local.rate, **proximal_term})

    def _steps(
        self, features: Sequence[Array], targets: Array, batches: Iterable[Int64Array], numbers: Mapping[str, float]
    ) -> None:
        scalars = {name: np.float32(number) for name, number in numbers.items()}
        mask = np.zeros(self._program.batch, dtype=np.float32)
        for rows in batches:
            if not 1 <= len(rows) <= self._program.batch:
                raise DataError(f"Expected batches of 1 to {self._program.batch} examples (got {len(rows)})")
            mask[: len(rows)], mask[len(rows) :] = 1.0, 0.0
            self._call("train", {**self._batch(features, targets, rows), **scalars, MASK: mask})

    def _all(self, examples: int) -> Sequence[Int64Array]:
        places = np.arange(examples, dtype=np.int64)
        return [places[begin : begin + self._program.batch] for begin in range(0, examples, self._program.batch)]

    def _batch(self, features: Sequence[Array], targets: Array | None, rows: Int64Array) -> dict[str, Array]:
        batch = self._program.batch
        arrays = {f"x{place}": padded(values[rows], batch) for place, values in enumerate(features)}
        return arrays if targets is None else {**arrays, TARGET: padded(targets[rows], batch)}

    def _check(self, features: Sequence[Array], targets: Array | None) -> None:
        wanted = list(self._program.features)
        arrays = list(features)
        if targets is not None:
            wanted, arrays = [*wanted, self._program.target], [*arrays, targets]
        if len(arrays) != len(wanted) or len({len(values) for values in arrays}) != 1:
            raise DataError(f"Expected {len(wanted)} arrays of as many examples each")
        for spec, values in zip(wanted, arrays, strict=True):
            if values.shape[1:] != spec.shape or values.dtype != spec.dtype:
                raise DataError(f"Expected {spec.name!r} to be {spec.dtype} of shape [n, *{list(spec.shape)}]")

    def _call(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            outputs: dict[str, Any] = self._run[signature](**inputs)
        except (ValueError, RuntimeError) as error:
            raise ProgramFailed(str(error)) from None
        wanted = self._program.outputs(signature)
        # What came back is the program's word.
        if {name: (values.shape, str(values.dtype)) for name, values in outputs.items()} != wanted:
            raise ProgramFailed(f"the program's signature {signature!r} gave something else than it declared")
        return outputs
