"""The shape of a matrix factorization model."""

from __future__ import annotations

import pytest

from odp.errors import ConfigurationError
from odp.models.matrix_factorization import MatrixFactorization


def test_it_becomes_the_message_of_a_task_definition() -> None:
    message = MatrixFactorization(items=3706, rank=8).to_proto()
    assert (message.items, message.rank) == (3706, 8)


@pytest.mark.parametrize(("items", "rank"), [(0, 1), (-1, 1), (2**31, 1), (5, -1), (5, 65), (True, 1), (5, 1.5)])
def test_a_shape_out_of_range_is_refused(items: int, rank: int) -> None:
    with pytest.raises(ConfigurationError):
        MatrixFactorization(items=items, rank=rank)
