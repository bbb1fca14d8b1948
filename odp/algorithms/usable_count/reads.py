"""What a task reads of a device, without how it trains: what a training and its count of usable rows have in common."""

from __future__ import annotations

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
    for field, value in definition.ListFields():
        oneof = field.containing_oneof
        if oneof is not None and oneof.name in ("trained_model", "local_data"):
            getattr(part, field.name).CopyFrom(value)
    written = getattr(definition, kind)
    most = written.most_examples if kind == _TRAINING else 0
    if part.HasField("examples") and kind != _TRAINING:
        most = written.local.most_examples
    part.usable_count.most_examples = most
    return part
