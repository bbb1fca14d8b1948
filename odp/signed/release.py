"""A release of the aggregator: checked before use, then turned into the arrays that the algorithm reads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError

from odp.algorithms.seam import DeclaredRelease, Float64Array, NoisyTensors
from odp.crypto import domains
from odp.crypto.signing import SIGNATURE_BYTES, SignatureError, verify
from odp.errors import ServiceError
from odp.v1 import common_pb2


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
    for tensor, entry in zip(release.tensors, declared, strict=True):
        if tuple(tensor.shape) != entry.shape or len(tensor.integers) != 8 * entry.coordinates:
            raise ReleaseRefused(f"{where}: {entry.name} does not have the declared shape {entry.shape}")
        if not math.isclose(tensor.step, entry.step, rel_tol=1e-12):
            raise ReleaseRefused(f"{where}: {entry.name} has step={tensor.step!r}, not {entry.step!r}")


def noisy_tensors(release: common_pb2.Release) -> NoisyTensors:
    """The arrays of a checked release: value = integer * step."""
    return NoisyTensors(
        round=release.round,
        tensors={tensor.name: _values(tensor) for tensor in release.tensors},
        contributions=release.contributions,
    )


def _values(tensor: common_pb2.ReleasedTensor) -> Float64Array:
    integers = np.frombuffer(tensor.integers, dtype="<i8").reshape(tuple(tensor.shape))
    return np.asarray(integers * tensor.step, dtype=np.float64)
