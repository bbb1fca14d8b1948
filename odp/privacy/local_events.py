"""Events of reports that are private by themselves: each reaches its reader under a name, or in a shuffled multiset.

- ``LocalReport``: the reader knows whose it is. Pure epsilon, for any two inputs; epsilons of several add up.
- ``ShuffledReports``: the reader knows the multiset alone. Its epsilon at delta is that of ``shuffling.py``.

``zero_out_user`` for the second: the neighbour has the same devices, and the one without data reports "none", which is
an input of the randomiser like every other, or a choice drawn without data. So this is a replacement of one input, and
the theorems hold word for word. For ``add_remove_user`` they do not: one report would be missing from the multiset.
"""

from __future__ import annotations

from dataclasses import dataclass

from odp import _validate
from odp.errors import ConfigurationError
from odp.privacy.adjacency import Adjacency, require_adjacency
from odp.privacy.shuffling import LARGEST_EPSILON0, MOST_CHOICES, MOST_REPORTS, SMALLEST_EPSILON0

LOCAL = "local_report"
SHUFFLED = "shuffled_local_reports"

#: Of one report.
LARGEST_LOCAL_EPSILON = 1e4
LOCAL_KEYS = ("adjacency", "epsilon", "mechanism", "name")
SHUFFLED_KEYS = ("adjacency", "choices", "epsilon0", "mechanism", "name", "reports")
LOCAL_ADJACENCIES = (Adjacency.ANY_TWO_INPUTS,)
SHUFFLED_ADJACENCIES = (Adjacency.ZERO_OUT_USER,)


@dataclass(frozen=True)
class LocalReport:
    """One report of an epsilon-local randomiser that reaches its reader under the name of its device.

    Attributes:
        name: what is reported.
        epsilon: of all numbers of the report together, pure; at most 10^4.
        adjacency: ``any_two_inputs``, "no data" among them.

    Raises:
        ConfigurationError: a number is out of range, or not a name.
        PrivacyError: another adjacency.
    """

    name: str
    epsilon: float
    adjacency: Adjacency = Adjacency.ANY_TWO_INPUTS

    def __post_init__(self) -> None:
        _validate.identifier(name=self.name)
        _validate.positive(epsilon=self.epsilon)
        _validate.within(low=SMALLEST_EPSILON0, high=LARGEST_LOCAL_EPSILON, epsilon=self.epsilon)
        object.__setattr__(self, "adjacency", require_adjacency(self.adjacency, LOCAL_ADJACENCIES, LOCAL))
        object.__setattr__(self, "epsilon", float(self.epsilon))

    @property
    def coordinates(self) -> int:
        """Numbers whose noise an enclave draws: none."""
        return 0

    def to_json(self) -> dict[str, object]:
        """Plain values, keys sorted; ``events.from_json`` gives back an equal event, bit for bit."""
        return {"adjacency": self.adjacency.value, "epsilon": self.epsilon, "mechanism": LOCAL, "name": self.name}


@dataclass(frozen=True)
class ShuffledReports:
    """The multiset of the reports of one round, one of each device, without their senders.

    Attributes:
        name: what is reported.
        epsilon0: of each report, pure, for any two inputs; from 1e-6 to 32. Whoever sees a report under a name, or
            works for the shuffler, learns this much.
        reports: of honest devices, at least; from 1 to 10^9. Reports of devices that work for the reader hide nobody.
        choices: of k-ary randomised response, at least 2; 0 for any randomiser.
        adjacency: ``zero_out_user`` (see the module).

    Raises:
        ConfigurationError: a number is out of range, or not a name.
        PrivacyError: another adjacency.
    """

    name: str
    epsilon0: float
    reports: int
    choices: int = 0
    adjacency: Adjacency = Adjacency.ZERO_OUT_USER

    def __post_init__(self) -> None:
        _validate.identifier(name=self.name)
        _validate.within(low=SMALLEST_EPSILON0, high=LARGEST_EPSILON0, epsilon0=self.epsilon0)
        _validate.integer(low=1, high=MOST_REPORTS, reports=self.reports)
        _validate.integer(low=0, high=MOST_CHOICES, choices=self.choices)
        if self.choices == 1:
            raise ConfigurationError("Expected choices=1 to be 0 (any randomiser) or at least 2")
        object.__setattr__(self, "adjacency", require_adjacency(self.adjacency, SHUFFLED_ADJACENCIES, SHUFFLED))
        object.__setattr__(self, "epsilon0", float(self.epsilon0))

    @property
    def coordinates(self) -> int:
        """Numbers whose noise an enclave draws: none."""
        return 0

    def to_json(self) -> dict[str, object]:
        """Plain values, keys sorted; ``events.from_json`` gives back an equal event, bit for bit."""
        return {
            "adjacency": self.adjacency.value,
            "choices": self.choices,
            "epsilon0": self.epsilon0,
            "mechanism": SHUFFLED,
            "name": self.name,
            "reports": self.reports,
        }
