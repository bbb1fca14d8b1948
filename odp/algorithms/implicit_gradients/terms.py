"""The numbers of a task on gradients of an item table from implicit feedback, read from its definition and checked.

An item's row is that of a model of ``implicit``, whose first factor is its popularity, and is not learned.
"""

from __future__ import annotations

from odp import _validate
from odp.algorithms.factorization.terms import MAX_RANK, check_ridges
from odp.algorithms.implicit.terms import Terms as ImplicitTerms
from odp.algorithms.item_gradients.terms import Terms, check_kind, checked, read_by
from odp.v1 import common_pb2

#: Table of the upper triangular root R of V' V, V the factors of all items.
ROOT_TABLE = "root"
#: Where a finished model has the factor that is popularity.
POPULARITY_FACTOR = 0


def terms_of(definition: common_pb2.TaskDefinition) -> Terms[ImplicitTerms]:
    """Reads and checks a task definition.

    Raises:
      ConfigurationError: another task, or a number is missing or out of range.
    """
    check_kind(definition, "implicit", unused=("row_clip", "bias_ridge", "centre"))
    written, rank = definition.item_gradients, definition.model.rank
    _validate.integer(rank=rank, low=1, high=MAX_RANK - 1)
    check_ridges(row_ridge=written.row_ridge)
    _validate.within(unobserved_weight=written.unobserved_weight, low=1e-6, high=1e6)
    return checked(definition, ImplicitTerms.of(as_read(definition)), unit=1.0, width=rank, whole_width=1 + rank)


def as_read(definition: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    """A task without noise whose devices read the items of ``definition``, with nothing checked yet."""
    written = definition.item_gradients
    training = common_pb2.DpamTraining(
        steps=1,
        row_clip=1.0,
        weighting=common_pb2.DpamTraining.WEIGHTING_UNIFORM,
        start_seed=written.start_seed,
        slices_per_device=written.slices_per_device,
    )
    read = read_by(definition, training)
    read.model.rank += 1
    return read
