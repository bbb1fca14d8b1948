"""The question that counts usable rows, made with a training: a part of the same budget, asked first.

What a task reads of a device, without how it trains: what a training and its count of usable rows have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from odp._validate import strict_keywords
from odp.algorithms.choices import Question
from odp.algorithms.usable_count.terms import SIZE
from odp.errors import ConfigurationError
from odp.v1 import common_pb2

_TRAINING = "usable_count"


def read_part(definition: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    """Population, model, local data and the most examples, of a training as of its count.

    A model of items is only which items there are: how it is trained decides nothing about rows.

    Raises:
      ConfigurationError: the task reads no rows that could be unusable.
    """
    kind = definition.WhichOneof("training")
    if definition.WhichOneof("local_data") is None or kind is None:
        raise ConfigurationError(f"Expected task {definition.name!r} to train on rows of devices, to count usable ones")
    part = common_pb2.TaskDefinition(population=definition.population)
    if definition.HasField("model"):
        part.rated_items.items = definition.model.items
        if definition.model.HasField("catalogue"):
            part.rated_items.catalogue.CopyFrom(definition.model.catalogue)
    for descriptor, value in definition.ListFields():
        oneof = descriptor.containing_oneof
        if oneof is not None and oneof.name in ("trained_model", "local_data"):
            getattr(part, descriptor.name).CopyFrom(value)
    written = getattr(definition, kind)
    most = written.most_examples if kind == _TRAINING else 0
    if part.HasField("examples") and kind != _TRAINING:
        most = written.local.most_examples
    part.usable_count.most_examples = most
    return part


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class UsableQuestion(Question):
    """How many devices have rows that a training can use, in one round; ``odp.Task.usable_question`` makes it.

    Attributes:
      training: definition of the training, whose model, local data and caps the question has.

    Raises ConfigurationError where the training reads no rows, PrivacyError for a delta that is no guarantee.
    """

    training: common_pb2.TaskDefinition = field(repr=False)

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""
        from odp.algorithms.dense.grid import Grid

        definition, privacy = self.unresolved(), self.privacy
        grid = Grid.within_budget(size=SIZE, epsilon=privacy.epsilon, delta=privacy.delta, cohort=definition.cohort)
        definition.MergeFrom(read_part(self.training))
        definition.usable_count.dense.CopyFrom(grid.to_proto())
        return definition
