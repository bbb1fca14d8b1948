"""What the releases in a task's status say: checked against the signed task, and turned into answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from odp.algorithms.registry import inquiry_for
from odp.errors import ConfigurationError
from odp.signed.release import noisy_tensors, open_release, whole_values
from odp.signed.task import open_task, task_sha256
from odp.v1 import common_pb2, server_pb2

if TYPE_CHECKING:
    from odp.algorithms.capabilities import Answers
    from odp.algorithms.seam import Algorithm, NoisyTensors


def release_of_question(status: server_pb2.TaskStatus) -> common_pb2.SignedRelease:
    """The release of a question's one round. Raises ConfigurationError for a training, and before the release."""
    definition = open_task(status.task)
    inquiry_for(definition)
    if not (status.rounds and status.rounds[0].release.release):
        raise ConfigurationError(f"task {definition.name!r} has released nothing yet; wait for its round")
    return status.rounds[0].release


def releases_of(
    status: server_pb2.TaskStatus,
    algorithm: Algorithm,
    signing_key: bytes | None,
    values_of: Callable[[bytes], Iterator[bytes]],
) -> list[NoisyTensors]:
    """The releases of a training that a status has, in order."""
    task = task_sha256(status.task)
    return [
        _tensors(
            open_release(
                entry.release, task_sha256=task, round=entry.round, model_sha256=None,
                declared=algorithm.query(entry.round).releases, signing_key=signing_key,
            ),
            values_of,
        )
        for entry in status.rounds
        if entry.release.release
    ]  # fmt: skip


def answers_of(
    status: server_pb2.TaskStatus,
    signed: common_pb2.SignedRelease,
    signing_key: bytes | None,
    values_of: Callable[[bytes], Iterator[bytes]],
) -> Answers:
    """The answers in the release of a question. Raises ServiceError where it is another one, or of another signer."""
    algorithm = inquiry_for(open_task(status.task))
    release = open_release(
        signed,
        task_sha256=task_sha256(status.task),
        round=0,
        model_sha256=None,
        declared=algorithm.query(0).releases,
        signing_key=signing_key,
    )
    values = _tensors(release, values_of).tensors
    return algorithm.answers(values, contributions=release.contributions, epsilon=release.epsilon_spent)


def _tensors(release: common_pb2.Release, values_of: Callable[[bytes], Iterator[bytes]]) -> NoisyTensors:
    """The values of a release, also where they lie beside it."""
    apart = whole_values(release, values_of(release.values_sha256)) if release.values_sha256 else b""
    return noisy_tensors(release, apart)
