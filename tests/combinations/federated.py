"""The tasks of a federated training; see the package."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from odp.algorithms.choices import define
from odp.algorithms.dense.rotated import LARGEST_WIDTH
from odp.algorithms.federated.config import FederatedTraining
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.models.litert.program import MOST_BATCH, Parameter, Program, TensorSpec
from odp.models.litert.trained import network_message
from odp.protocol.aggregation import ENCLAVE
from odp.protocol.terms import Cohort, UserLevelDP
from odp.v1 import common_pb2, federated_pb2, statistics_pb2

_FEATURES = 3


def aggregated_by(
    training: FederatedTraining, aggregations: Mapping[str, int], *, every_way: bool = False
) -> tuple[common_pb2.TaskDefinition, ...]:
    """A task of ``training`` per way of aggregation; ``aggregations`` has the fewest contributions of each.

    With ``every_way`` also one with ``upload_bits``, and one per further kind of model. An enclave runs the same code
    for them whatever the training is, so one training has them: each task is time at every start of an enclave.
    """
    ways = [(training, *way) for way in aggregations.items()]
    if every_way:
        few_bits = dataclasses.replace(training, upload_bits=LARGEST_WIDTH)
        ways += [(few_bits, name, clients) for name, clients in aggregations.items() if name == ENCLAVE]
    tasks = tuple(
        define(
            name="recorded",
            model=Glm("linear", _FEATURES),
            data=Examples({"x": Tensor((_FEATURES,), -1.0, 1.0)}, label_low=-1.0, label_high=1.0),
            privacy=UserLevelDP(epsilon=0.5, delta=1e-6),
            training=choices,
            cohort=Cohort(minimum=clients, goal=clients, aggregation=name),
        )
        for choices, name, clients in ways
    )
    return (*tasks, *_of_networks(tasks[0])) if every_way else tasks


def published_by(field: str, *, every_way: bool = False) -> tuple[common_pb2.TaskDefinition, ...]:
    """A task whose training is ``field``, made without the accountant and its libraries; ``every_way`` as above."""
    definition = common_pb2.TaskDefinition(
        name="recorded",
        population="recorded",
        privacy=common_pb2.PrivacyTerms(epsilon=1.0, delta=1e-6),
        cohort=common_pb2.CohortTerms(minimum=1, goal=1, round_seconds=256),
    )
    Glm("linear", _FEATURES).write(definition)
    Examples({"x": Tensor((_FEATURES,), -1.0, 1.0)}, label_low=-1.0, label_high=1.0).write(definition)
    dense = statistics_pb2.DenseTerms(clip=1.0, grid_bits=6, noise_std=1.0, maximum=2)
    getattr(definition, field).CopyFrom(
        federated_pb2.FederatedTraining(
            local=federated_pb2.LocalTrainingTerms(rate=1.0, epochs=1, batch=1, most_examples=1),
            server=federated_pb2.ServerOptimizerTerms(kind=federated_pb2.ServerOptimizerTerms.KIND_SGD, rate=1.0),
            clip=1.0,
            cohort=1.0,
            blocks=[federated_pb2.DenseRounds(rounds=1, dense=dense)],
        )
    )
    return (definition, *_of_networks(definition)) if every_way else (definition,)


def _of_networks(definition: common_pb2.TaskDefinition) -> tuple[common_pb2.TaskDefinition, ...]:
    """The task with networks of as many parameters: no enclave runs their programs."""
    x, y, item = TensorSpec("x0", (_FEATURES,)), TensorSpec("y", (1,)), TensorSpec("x1", (1,))
    parameters = (Parameter("kernel", (_FEATURES, 1), 0), Parameter("bias", (1,), _FEATURES))
    program = Program(
        flatbuffer=bytes(8), features=(x,), target=y, prediction=TensorSpec("prediction", (1,)), parameters=parameters,
        metrics=(), batch=MOST_BATCH,
    )  # fmt: skip
    of_network, of_towers = common_pb2.TaskDefinition(), common_pb2.TaskDefinition()
    for changed in (of_network, of_towers):
        changed.CopyFrom(definition)
    of_network.network.CopyFrom(network_message(program, None))
    towers = dataclasses.replace(program, features=(dataclasses.replace(x, shape=(_FEATURES - 1,)), item))
    of_towers.two_tower.CopyFrom(federated_pb2.TwoTowerModel(network=network_message(towers, None), items=2))
    tensors = {"x": Tensor((_FEATURES - 1,), -1.0, 1.0), "item": Tensor((1,), 0.0, 1.0)}
    Examples(tensors, label_low=-1.0, label_high=1.0).write(of_towers)
    return of_network, of_towers
