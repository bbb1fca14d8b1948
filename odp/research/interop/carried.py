"""Which tasks a process of TensorFlow Federated can carry over, decided without TensorFlow.

The list is of what is carried: a training that is not named here is refused, and so is each setting that changes what
is computed or how much noise there is.
"""

from __future__ import annotations

from odp.algorithms.dense.rotated import RotatedGrid
from odp.algorithms.federated.terms import Terms
from odp.errors import ConfigurationError
from odp.protocol.aggregation import mode_of
from odp.tasks.task import Task

_CARRIED = ("fedavg", "dpsgd")
# Field of a definition -> what a process of equal rounds would leave out of it.
_LEFT_OUT = {
    "private_fl": "odp.PrivateFL: its devices randomize each update, and a process would sum the updates themselves",
    "dpftrl": "odp.DPFTRL: its noise is correlated between rounds, and a process would draw it anew in each",
}
_PROCESS = "a process of TensorFlow Federated"


def carried_terms(task: Task, *, noise: bool) -> Terms:
    """The terms of a task that a process carries over exactly, but for the grid of its contributions.

    Args:
      task: any.
      noise: whether the process adds the task's noise.

    Raises:
      ConfigurationError: the training or a setting is not carried over; the message names it.
    """
    if task.count_usable is not None:
        raise ConfigurationError(f"Expected count_usable=None: {_PROCESS} asks no question before its rounds")
    definition = task.definition()
    if (training := definition.WhichOneof("training")) not in _CARRIED:
        reason = _LEFT_OUT.get(training, f"training={training!r}, of which {_PROCESS} has nothing")
        raise ConfigurationError(f"Expected a task of odp.DPFedAvg or odp.DPSGD (got {reason})")
    terms, cohort = Terms.of(definition), definition.cohort
    if terms.adaptive is not None:
        raise ConfigurationError(f"Expected clip_quantile=None: {_PROCESS} has one clip norm")
    if terms.spread:
        raise ConfigurationError(f"Expected no diagnostics: {_PROCESS} releases updates alone")
    if cohort.HasField("enclave_poisson"):
        raise ConfigurationError(f"Expected sampling='full': {_PROCESS} draws no contributions, and counts all of them")
    if len({block.cohort for block in terms.blocks}) > 1 or cohort.schedule:
        raise ConfigurationError(f"Expected no cohort_schedule: {_PROCESS} has one denominator")
    if any(isinstance(block.grid, RotatedGrid) for block in terms.blocks):
        raise ConfigurationError(f"Expected upload_bits=None: {_PROCESS} does not round contributions at random")
    mode = mode_of(cohort)
    if mode.in_session:
        raise ConfigurationError(
            f"Expected another aggregation than {mode.name!r}: its noise grows with the number of shares, and "
            f"{_PROCESS} has the same in each round"
        )
    if noise and len(terms.blocks) > 1:
        raise ConfigurationError(f"Expected no noise_schedule: {_PROCESS} has equal noise")
    return terms
