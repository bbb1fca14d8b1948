"""A contribution and its task, for tests of stores."""

from __future__ import annotations

from device_runtime.person.ledger import TaskTerms
from device_runtime.store.schema import Participation
from device_runtime.store.store import Store
from odp.privacy.events import GaussianRelease
from odp.v1 import common_pb2

TASK = bytes(range(32))


def terms(task: bytes = TASK, *, name: str = "films", rounds: int = 4) -> TaskTerms:
    return TaskTerms(
        task_sha256=task, name=name, population="people", developer=b"d" * 32, tables=("ratings",), epsilon=8.0,
        delta=1e-6, minimum_cohort=100,
        rounds=tuple((GaussianRelease(f"round{one}", 1.0, 2.0, 10),) for one in range(rounds)),
    )  # fmt: skip


def prepare(store: Store, participation: Participation, *, local_parameters: bytes = b"local", **changes: str) -> None:
    """Stores it with a task of its own; nothing of the store asks whether a developer signed that."""
    own = terms(participation.task_sha256, **changes)
    definition = common_pb2.TaskDefinition(name=own.name, population=own.population, developer_key=own.developer)
    (definition.data.table,) = own.tables
    definition.dpam.steps = 1
    definition.privacy.epsilon, definition.privacy.delta = own.epsilon, own.delta
    definition.cohort.minimum = own.minimum_cohort
    signed = common_pb2.SignedTask(definition=definition.SerializeToString(), signature=b"s" * 64)
    store.prepare(participation, local_parameters=local_parameters, task=signed, terms=own)


def participation(round: int = 0, *, task: bytes = TASK, epsilon: float = 8.0) -> Participation:
    return Participation(
        task_sha256=task, round=round, contribution_id=b"c" * 32, model_sha256=b"m" * 32, recipient=b"r" * 32,
        epsilon=epsilon, delta=1e-6, policy_sha256=b"p" * 32, image_digest="sha384:x", time=5.0, report=b"report",
        sealed=b"sealed",
    )  # fmt: skip
