"""The declared query of a statistics task: one joint release of one dense vector.

=============  =======  =====================================  ===========  =============
release        shape    sum over users of                      sensitivity  noise std
=============  =======  =====================================  ===========  =============
statistics     [size]   the user's scaled vector (terms.py)    clip         noise_std
=============  =======  =====================================  ===========  =============

Guarantee: that of ``odp.algorithms.dense.query``, whatever the parts mean. A dishonest device can put its whole bound
into one part, so it can move one query by at most clip in place of sqrt(share) * clip: it spoils accuracy, never
privacy.
"""

from __future__ import annotations

from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.seam import DeclaredRelease
from odp.algorithms.statistics.terms import RELEASE, ROUND, Terms
from odp.v1 import common_pb2


def query_for(definition: common_pb2.TaskDefinition, round: int) -> DenseQuery:
    """The declared query of ``round``, of which there is one.

    Raises:
      ConfigurationError: the definition is no valid statistics task, or has no such round.
    """
    terms = Terms.of(definition)
    terms.check_round(round)
    return DenseQuery(RELEASE, terms.grid)


def planned_releases(definition: common_pb2.TaskDefinition) -> list[tuple[DeclaredRelease, ...]]:
    """The releases of the only round.

    Raises:
      ConfigurationError: the definition is no valid statistics task.
    """
    return [query_for(definition, ROUND).releases]
