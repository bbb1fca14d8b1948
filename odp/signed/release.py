"""A release of the aggregator: checked before use, then turned into the arrays that the algorithm reads."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.seam import NoisyTensors
from odp.crypto import domains
from odp.crypto.signing import SIGNATURE_BYTES, SignatureError, verify
from odp.errors import ServiceError
from odp.numerics.arrays import Float64Array
from odp.v1 import common_pb2

_HASH_BYTES = 32
_INTEGER_BYTES = 8


class ReleaseRefused(ServiceError):
    """A release is not what was ordered. Retrying cannot succeed: the aggregator answers with the same bytes again."""


def open_release(
    signed: common_pb2.SignedRelease,
    *,
    task_sha256: bytes,
    round: int,
    model_sha256: bytes | None,
    declared: Sequence[DeclaredRelease],
    signing_key: bytes | None,
) -> common_pb2.Release:
    """The release, if it is the declared one of exactly this task, round and model.

    ``signing_key`` is the attested key of the enclave; None leaves the signature to the auditors, who check it in any
    case. ``model_sha256`` is None where the caller does not know the model. Raises ReleaseRefused naming the first
    thing that is wrong.
    """
    if len(signed.signature) != SIGNATURE_BYTES:
        raise ReleaseRefused(
            f"release of round {round}: its signature is {len(signed.signature)} bytes, not {SIGNATURE_BYTES}"
        )
    if signing_key is not None:
        try:
            verify(signing_key, signed.signature, domains.RELEASE, signed.release)
        except SignatureError as error:
            raise ReleaseRefused(f"release of round {round}: not signed by the attested aggregator") from error
    try:
        release = common_pb2.Release.FromString(signed.release)
    except DecodeError as error:
        raise ReleaseRefused(f"release of round {round}: not a valid message") from error
    if release.task_sha256 != task_sha256:
        raise ReleaseRefused(f"release of round {round}: it is of another task")
    if release.round != round:
        raise ReleaseRefused(f"release of round {round}: it is of round {release.round}")
    if model_sha256 is not None and release.model_sha256 != model_sha256:
        raise ReleaseRefused(f"release of round {round}: it is of another model")
    check_tensors(release, declared)
    return release


def check_tensors(release: common_pb2.Release, declared: Sequence[DeclaredRelease]) -> None:
    """Raises ReleaseRefused unless names, shapes and steps of the tensors are the declared ones."""
    where = f"release of round {release.round}"
    wanted = [entry.name for entry in declared]
    if [tensor.name for tensor in release.tensors] != wanted:
        raise ReleaseRefused(f"{where}: its tensors are not {', '.join(wanted)}")
    detached = bool(release.values_sha256 or release.values_bytes)
    numbers = sum(entry.coordinates for entry in declared)
    if detached and (len(release.values_sha256) != _HASH_BYTES or release.values_bytes != _INTEGER_BYTES * numbers):
        raise ReleaseRefused(
            f"{where}: it names {release.values_bytes} bytes of values with a hash of {len(release.values_sha256)} "
            f"bytes, not {_INTEGER_BYTES * numbers} with one of {_HASH_BYTES}"
        )
    for tensor, entry in zip(release.tensors, declared, strict=True):
        size = 0 if detached else _INTEGER_BYTES * entry.coordinates
        if tuple(tensor.shape) != entry.shape or len(tensor.integers) != size:
            raise ReleaseRefused(f"{where}: {entry.name} does not have the declared shape {entry.shape}")
        if not math.isclose(tensor.step, entry.step, rel_tol=1e-12):
            raise ReleaseRefused(f"{where}: {entry.name} has step={tensor.step!r}, not {entry.step!r}")


def noisy_tensors(release: common_pb2.Release, values: bytes | bytearray = b"") -> NoisyTensors:
    """The arrays of a checked release: value = integer * step.

    ``values`` are the integers of all tensors where the release has their hash alone, as ``whole_values`` gives them.
    """
    tensors: dict[str, Float64Array] = {}
    start = 0
    for tensor in release.tensors:
        size = _INTEGER_BYTES * math.prod(tensor.shape)
        data = memoryview(values)[start : start + size] if release.values_sha256 else tensor.integers
        integers = np.frombuffer(data, dtype="<i8").reshape(tuple(tensor.shape))
        tensors[tensor.name] = np.asarray(integers * tensor.step, dtype=np.float64)
        start += size
    return NoisyTensors(round=release.round, tensors=tensors, contributions=release.contributions)


def checked_values(release: common_pb2.Release, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """``pieces``, which are complete and unchanged once the last one is given: use none of them before.

    Raises ReleaseRefused as soon as they are more than the release names, or at their end where they are less, or have
    another hash.
    """
    size, digest = 0, hashlib.sha256()
    for piece in pieces:
        size += len(piece)
        if size > release.values_bytes:
            raise ReleaseRefused(
                f"values of round {release.round}: more than the {release.values_bytes} bytes that the release names"
            )
        digest.update(piece)
        yield piece
    if size < release.values_bytes:
        raise ReleaseRefused(
            f"values of round {release.round}: {size} bytes of the {release.values_bytes} that the release names"
        )
    if digest.digest() != release.values_sha256:
        raise ReleaseRefused(f"values of round {release.round}: their hash is not the one that the release names")


def whole_values(release: common_pb2.Release, pieces: Iterable[bytes]) -> bytearray:
    """The checked values in one piece of memory. Raises ReleaseRefused as ``checked_values``."""
    whole, end = bytearray(release.values_bytes), 0
    for piece in checked_values(release, pieces):
        whole[end : end + len(piece)] = piece
        end += len(piece)
    return whole
