"""Ends a task at the aggregator and the distributor."""

from __future__ import annotations

import grpc

from odp.crypto import domains
from odp.crypto.signing import SigningKey
from odp.errors import ServiceError
from odp.transport.logs import Log, short
from odp.v1 import population_pb2
from server.clients import Aggregator, Distributor
from server.storage import TaskRecord, TaskState

#: The aggregator holds nothing of the task: of a population that is not this server's, for one.
_NOTHING_HELD = frozenset(
    {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED}
)


def end_elsewhere(
    task: TaskRecord, key: SigningKey, *, aggregator: Aggregator, distributor: Distributor, log: Log
) -> None:
    """Returns once the aggregator has ended a task, and of a cancelled one the distributor has dropped the models.

    Raises ServiceError: it is to be done again.
    """
    order = population_pb2.AbandonOrder(task_sha256=task.sha256).SerializeToString(deterministic=True)
    signature = population_pb2.CharterSignature(key=key.public, signature=key.sign(domains.ABANDON, order))
    try:
        aggregator.abandon(task.signed, order, signature)
    except ServiceError as error:
        if error.code not in _NOTHING_HELD:
            raise
        log.warning("task_not_abandoned", task=short(task.sha256), name=task.name, reason=str(error))
    if task.state is TaskState.CANCELLING:
        distributor.forget_task(order, signature.signature)
