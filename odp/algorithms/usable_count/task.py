"""The question that counts usable rows, made with a training: a part of the same budget, asked first."""

from __future__ import annotations

from dataclasses import dataclass, field

from odp._validate import strict_keywords
from odp.algorithms.question import Question
from odp.algorithms.usable_count.places import SIZE
from odp.algorithms.usable_count.reads import read_part
from odp.v1 import common_pb2


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
