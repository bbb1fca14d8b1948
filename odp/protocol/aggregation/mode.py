"""One mode of aggregation, as tasks and all parties but the aggregator know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from odp.v1 import common_pb2


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A mode without options of its own; one with options is a subclass.

    Attributes:
      name: as a developer writes it.
      number: of it in a signed task.
      dense_only: contributions have to be vectors, since nobody opens them.
      samples: the enclave can draw in secret which contributions count.
      in_session: devices take part together, in sessions, and add the noise themselves.
      minimum: the fewest contributions that a round can have.
      options: the fields of ``odp.Cohort`` that this mode alone has.
    """

    name: str
    number: common_pb2.CohortTerms.Aggregation
    dense_only: bool
    samples: bool = False
    in_session: bool = False
    minimum: int = 1
    options: tuple[str, ...] = ()

    def write(self, terms: common_pb2.CohortTerms, options: Mapping[str, object]) -> None:
        """Adds what the mode says of itself to the terms of a cohort, whose other fields are there.

        Raises:
          ConfigurationError, PrivacyError: a value of ``options`` is out of range, or the cohort cannot keep it.
        """

    def check(self, cohort: common_pb2.CohortTerms) -> None:
        """Returns if a cohort has the terms of this mode exactly where it is of this mode.

        Raises:
          ConfigurationError, PrivacyError: as ``write``.
        """

    def lines(self, cohort: common_pb2.CohortTerms, epsilon_if_alone: Callable[[], float]) -> list[str]:
        """What ``odp task show`` says of a task beside its releases; ``epsilon_if_alone``: if all others conspired."""
        return []
