"""Tasks, manifests and orders under their developer's signature: signing, and checking before use.

Hashes and signatures are over the bytes as received; nothing is serialized again in order to be checked.

A number that no field can mean is refused in any field. Each algorithm has the range of its own fields, which holds for
fields that it reads; a signed message has others, which later code, or another version, may read. And what is next to
zero, or huge, is no sane choice of any of them.
"""

from __future__ import annotations

import hashlib
import math
from typing import TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from odp._validate import identifier, integer, positive, within
from odp.algorithms.capabilities import Inquiry
from odp.algorithms.computing_time import fixed_seconds, require_payable
from odp.algorithms.registry import TABLE, algorithm_for, training_of
from odp.algorithms.release import sampling_of
from odp.algorithms.seam import SampledQuery
from odp.crypto import domains
from odp.crypto.public_keys import require_ed25519
from odp.crypto.signing import SigningKey, verify
from odp.errors import ConfigurationError
from odp.protocol.aggregation import MODES, mode_of
from odp.protocol.catalogues.named import named_in
from odp.protocol.wire.encoding import encoding_of
from odp.refusing import refusing
from odp.signed.broadcast.terms import check_broadcast, check_sizes
from odp.v1 import aggregator_pb2, common_pb2

HASH_BYTES = 32
SIGNATURE_BYTES = 64
#: Nobody needs more; a longer message is refused before it is parsed.
LARGEST_DEFINITION = 64 * 2**10
LARGEST_MANIFEST = 64 * 2**10
MOST_ITEMS = 2**24
#: Of a catalogue (``odp.protocol.catalogues.step``, which enclaves do not load).
MOST_VERSIONS = 10_000
#: Numbers of a dense vector: as many as a contribution can have.
MOST_NUMBERS = 2**25

_TASK = "task definition"
_Known = TypeVar("_Known", bound=Message)
#: Every number is 0, or of a size within these: its square, and the square of that, are ordinary numbers.
SMALLEST, LARGEST = 1e-60, 1e60

_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def sign_task(definition: common_pb2.TaskDefinition, key: SigningKey) -> common_pb2.SignedTask:
    """The task under ``key``, whose public half becomes ``developer_key``; it names its computing time, if it did not.

    Raises:
      ConfigurationError: a field is out of its range, or no device can pay what the task asks.
    """
    signed = common_pb2.TaskDefinition()
    signed.CopyFrom(definition)
    signed.developer_key = key.public
    check_numbers(signed, _TASK)
    check_definition(signed)
    signed.computing_milliseconds = round(1000 * fixed_seconds(signed))
    data = signed.SerializeToString(deterministic=True)
    return common_pb2.SignedTask(definition=data, signature=key.sign(domains.TASK, data))


def task_sha256(signed: common_pb2.SignedTask) -> bytes:
    """The task's id: SHA-256 of the definition's bytes."""
    return hashlib.sha256(signed.definition).digest()


@refusing("task definition")
def open_task(signed: common_pb2.SignedTask) -> common_pb2.TaskDefinition:
    """The definition, after its signature and every field were checked.

    Raises SignatureError, or ConfigurationError naming the field.
    """
    if not 0 < len(signed.definition) <= LARGEST_DEFINITION:
        raise ConfigurationError(
            f"Expected a task definition of 1 to {LARGEST_DEFINITION} bytes, got {len(signed.definition)}"
        )
    definition = parse_known(common_pb2.TaskDefinition(), signed.definition, _TASK)
    require_ed25519(definition.developer_key, name="developer_key")
    verify(definition.developer_key, signed.signature, domains.TASK, signed.definition)
    check_definition(definition)
    return definition


@refusing("task definition")
def check_definition(definition: common_pb2.TaskDefinition) -> None:
    """Raises ConfigurationError naming the first field that is out of its range, or the size that cannot be served."""
    identifier(name=definition.name, population=definition.population)
    require_ed25519(definition.developer_key, name="developer_key")
    if definition.HasField("model") and definition.WhichOneof("trained_model") is not None:
        raise ConfigurationError(f"Expected one model of task {definition.name!r}, of items or of examples")
    _check_catalogue(definition)
    _check_count_first(definition)
    if training_of(definition) in TABLE and not algorithm_for(definition).has_rounds:
        positive(epsilon=definition.privacy.epsilon)
        algorithm_for(definition).check_for_devices()
        require_payable(definition)
        return
    privacy, cohort = definition.privacy, definition.cohort
    positive(epsilon=privacy.epsilon, delta=privacy.delta)
    within(low=0.0, high=1e-2, delta=privacy.delta)
    integer(low=1, high=2**31, cohort_minimum=cohort.minimum)
    integer(low=cohort.minimum, high=2**31, cohort_goal=cohort.goal)
    integer(low=1, high=10**7, round_seconds=cohort.round_seconds)
    if (sampling := sampling_of(definition, 0)) is not None:
        integer(low=cohort.goal, high=10**9, most_contributions=sampling.population_bound)
    check_broadcast(definition)
    algorithm = algorithm_for(definition)
    if cohort.schedule and not algorithm.schedules_cohorts:
        raise ConfigurationError(f"Expected no schedule of cohorts in task {definition.name!r}: its rounds are alike")
    _check_aggregation(definition, dense=algorithm.dense)
    algorithm.check_for_devices()
    if sampling is not None and not isinstance(algorithm.query(0), SampledQuery):
        raise ConfigurationError("Expected no sampling of such contributions: nothing can stand for what is not drawn")
    check_sizes(definition)
    require_payable(definition)


def _check_catalogue(definition: common_pb2.TaskDefinition) -> None:
    if (named := named_in(definition)) is not None:
        integer(low=1, high=MOST_VERSIONS, catalogue_version=named.version)
        check_length("catalogue sha256", named.sha256, HASH_BYTES)


def _check_count_first(definition: common_pb2.TaskDefinition) -> None:
    if not definition.HasField("count_first"):
        return
    algorithm = algorithm_for(definition)
    if isinstance(algorithm, Inquiry) or not algorithm.has_rounds:
        raise ConfigurationError(f"Expected no count_first in task {definition.name!r}: it is for trainings in rounds")
    check_length("count_first task_sha256", definition.count_first.task_sha256, HASH_BYTES)
    within(low=0.0, high=1.0, least_share=definition.count_first.least_share)


def _check_aggregation(definition: common_pb2.TaskDefinition, *, dense: bool) -> None:
    mode = mode_of(definition.cohort)
    if mode.dense_only and not dense:
        raise ConfigurationError(f"Expected aggregation={mode.name!r} with dense contributions alone")
    if definition.cohort.HasField("enclave_poisson") and not mode.samples:
        raise ConfigurationError(f"Expected no sampling with aggregation={mode.name!r}: nobody could draw in secret")
    for mode in MODES.values():
        mode.check(definition.cohort)


def sign_manifest(manifest: common_pb2.ModelManifest, key: SigningKey) -> common_pb2.SignedManifest:
    """The manifest under the developer's ``key``."""
    data = manifest.SerializeToString(deterministic=True)
    return common_pb2.SignedManifest(manifest=data, signature=key.sign(domains.MANIFEST, data))


def model_sha256(signed: common_pb2.SignedManifest) -> bytes:
    """The model's id: SHA-256 of the manifest's bytes."""
    return hashlib.sha256(signed.manifest).digest()


@refusing("model manifest")
def open_manifest(
    signed: common_pb2.SignedManifest, *, task: common_pb2.SignedTask, developer_key: bytes
) -> common_pb2.ModelManifest:
    """The manifest, after its signature, its task and every field were checked.

    Raises SignatureError, or ConfigurationError naming the field.
    """
    if not 0 < len(signed.manifest) <= LARGEST_MANIFEST:
        raise ConfigurationError(f"Expected a manifest of 1 to {LARGEST_MANIFEST} bytes, got {len(signed.manifest)}")
    verify(developer_key, signed.signature, domains.MANIFEST, signed.manifest)
    manifest = parse_known(common_pb2.ModelManifest(), signed.manifest, "model manifest")
    if manifest.task_sha256 != task_sha256(task):
        raise ConfigurationError("the model manifest belongs to another task")
    names = [table.name for table in manifest.tables]
    if len(set(names)) != len(names) or not names:
        raise ConfigurationError(f"Expected distinct table names in the manifest, got {names}")
    if sum(table.keyed for table in manifest.tables) > 1:
        raise ConfigurationError("Expected at most one keyed table in the manifest")
    for table in manifest.tables:
        identifier(table=table.name)
        integer(low=1, high=MOST_ITEMS if table.keyed else MOST_NUMBERS, rows=table.rows)
        integer(low=1, high=2**16, width=table.width)
        encoding_of(table.encoding)
        check_length("table sha256", table.sha256, HASH_BYTES)
    return manifest


def sign_order(order: aggregator_pb2.RoundOrder, key: SigningKey, domain: bytes) -> tuple[bytes, bytes]:
    """(bytes of the order, signature), ``domain`` one of domains.OPEN and domains.CLOSE."""
    data = order.SerializeToString(deterministic=True)
    return data, key.sign(domain, data)


@refusing("round order")
def open_order(order: bytes, signature: bytes, *, domain: bytes, developer_key: bytes) -> aggregator_pb2.RoundOrder:
    """The order, after its signature and fields were checked. Raises SignatureError, ConfigurationError."""
    if len(order) > 256:
        raise ConfigurationError(f"Expected a round order of at most 256 bytes, got {len(order)}")
    verify(developer_key, signature, domain, order)
    parsed = parse_known(aggregator_pb2.RoundOrder(), order, "round order")
    check_length("task_sha256", parsed.task_sha256, HASH_BYTES)
    check_length("model_sha256", parsed.model_sha256, HASH_BYTES)
    return parsed


def check_length(name: str, value: bytes, length: int) -> None:
    """Raises ConfigurationError unless ``value`` has ``length`` bytes."""
    if len(value) != length:
        raise ConfigurationError(f"Expected {name} of {length} bytes, got {len(value)}")


def parse_known(message: _Known, data: bytes, what: str) -> _Known:
    """``message``, filled from ``data``; ``what`` names it.

    Raises ConfigurationError where it is no message, or has unknown fields or a number that no field can mean.
    """
    with refusing(what):
        message.ParseFromString(data)
    understood = type(message)()
    understood.CopyFrom(message)
    understood.DiscardUnknownFields()
    # Something that this version does not know could change the meaning of what it checks.
    if understood.ByteSize() != len(data):
        raise ConfigurationError(f"the {what} holds fields that this version does not know; update this program")
    check_numbers(message, what)
    return message


def check_numbers(message: Message, what: str) -> None:
    """Returns if every floating-point number in ``message``, which ``what`` names, is of an ordinary size.

    Raises:
      ConfigurationError: one is NaN, infinite, subnormal or otherwise out of ``SMALLEST`` to ``LARGEST``; the message
        names its field.
    """
    _check(message, what, "")


def _check(message: Message, what: str, path: str) -> None:
    for field, held in message.ListFields():
        values = held if field.is_repeated else (held,)
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for part in values:
                _check(part, what, f"{path}{field.name}.")
        elif field.cpp_type in _FLOATS:
            for value in values:
                # NaN is within nothing.
                if value and not SMALLEST <= math.fabs(value) <= LARGEST:
                    raise ConfigurationError(
                        f"Expected {path}{field.name}={value!r} of the {what} to be 0, or of a size from "
                        f"{SMALLEST:g} to {LARGEST:g}"
                    )
