"""The time that every device takes for its contribution to a task, whatever it holds: one of five public steps.

How long a computation takes depends on a person's data, and when an upload leaves would tell it. So a contribution
leaves at a time that the signed definition fixes, and the definition's caps bound what a device computes until then:

::

    worst case = sum of products of caps (``Algorithm.computing_cost``), on a device of the reference speed
    fixed time = ``computing_milliseconds`` of the definition, at least SAFETY times the worst case
               <= a quarter of ``round_seconds``: a round must not end while its devices wait

Whoever signs a task chooses the smallest step that suffices; devices and enclaves refuse a shorter one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from odp.algorithms.computing_cost import ComputingCost
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError, PrivacyError
from odp.v1 import common_pb2

#: Seconds: the only fixed times there are.
STEPS = (0.25, 1.0, 4.0, 16.0, 64.0)
#: Between the worst case on a device of the reference speed and the fixed time: for slower and busy devices.
SAFETY = 4.0
#: Of ``round_seconds``, for devices that wait.
SHARE_OF_ROUND = 0.25
#: Of a device's own fixed time that its own worst case may take: what is left seals and stores the contribution.
SHARE_OF_TIME = 0.75
#: What ``machine_speed`` computes takes so long on a machine of the reference speed.
REFERENCE_SECONDS = 2e-3

_REPEATS = 5


def worst_case_seconds(definition: common_pb2.TaskDefinition) -> float:
    """What a device of the reference speed computes for one contribution at most, without a safety factor.

    Raises:
      ConfigurationError: the definition is not valid.
    """
    return algorithm_for(definition).computing_cost.seconds


def worst_case_bytes(definition: common_pb2.TaskDefinition) -> float:
    """Bytes of memory that one contribution takes at most, beside those of the program itself.

    Raises:
      ConfigurationError: the definition is not valid.
    """
    return algorithm_for(definition).computing_cost.bytes


def fixed_seconds(definition: common_pb2.TaskDefinition) -> float:
    """Seconds from the data's first read to the moment at which the contribution leaves.

    The step that the definition names; of a definition without one, the smallest that its caps allow.

    Raises:
      ConfigurationError: the definition is not valid, or no step suffices for its caps.
    """
    if definition.computing_milliseconds:
        return definition.computing_milliseconds / 1000
    return _smallest_step(definition)


def with_fixed_time(definition: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    """A copy of the definition that names its step.

    Raises:
      ConfigurationError: as ``require_payable``.
    """
    named = common_pb2.TaskDefinition()
    named.CopyFrom(definition)
    named.computing_milliseconds = round(1000 * fixed_seconds(definition))
    require_payable(named)
    return named


def require_payable(definition: common_pb2.TaskDefinition) -> None:
    """Returns if devices can pay what a task asks of them.

    Raises:
      ConfigurationError: its caps need more than the largest step, than its own step, or than a quarter of its
        ``round_seconds``; the message names a cap and the number that would fit.
    """
    named = definition.computing_milliseconds
    if named and named / 1000 not in STEPS:
        raise ConfigurationError(
            f"Expected computing_milliseconds={named} of task {definition.name!r} to be one of "
            f"{', '.join(str(round(1000 * step)) for step in STEPS)}"
        )
    cost, most = algorithm_for(definition).computing_cost, _most_seconds(definition)
    step = named / 1000 if named else _smallest_step(definition, cost)
    if SAFETY * cost.seconds > step:
        raise _too_costly(definition, cost, step, f"its computing_milliseconds={named}")
    if step > most:
        raise ConfigurationError(
            f"Expected round_seconds={definition.cohort.round_seconds} of task {definition.name!r} to be at least "
            f"{step / SHARE_OF_ROUND:g}: its devices compute for {step:g} s, and a round must not end while they do"
            + _advice(cost, max((one for one in STEPS if one <= most), default=0.0))
        )


def require_fast_enough(definition: common_pb2.TaskDefinition, speed: float) -> None:
    """Returns if a device of this ``speed`` (``machine_speed``) can compute what the task asks in its fixed time.

    Public facts alone decide: the definition, and a computation on public numbers. A device calls it before it reads
    data, since one that is too slow would send charged empty contributions for ever.

    Raises:
      PrivacyError: it cannot.
      ConfigurationError: the definition is not valid.
    """
    needed, fixed = speed * worst_case_seconds(definition), fixed_seconds(definition)
    if needed > SHARE_OF_TIME * fixed:
        raise PrivacyError(
            f"this device is too slow for task {definition.name!r}: it may need {needed:.3g} s for a contribution that "
            f"leaves after {fixed:g} s on every device; nothing was read"
        )


def machine_speed() -> float:
    """Time of a public reference computation on this machine, in units of the reference: above 1 is slower.

    Measured once per process, the best of a few runs: load at one moment does not make a machine slow.
    """
    return _machine_speed()


@functools.cache
def _machine_speed() -> float:
    return reference_seconds(time.perf_counter) / REFERENCE_SECONDS


def reference_seconds(clock: Callable[[], float]) -> float:
    """Seconds of the reference computation by ``clock``, the best of a few runs."""
    generator = np.random.Generator(np.random.PCG64(0))
    matrix, numbers = generator.random((128, 128)), generator.random(2**15)
    best = np.inf
    for _ in range(_REPEATS):
        begin = clock()
        for _ in range(4):
            matrix @ matrix
            np.sort(numbers)
        total = 0
        for number in range(2**15):
            total += number & 7
        best = min(best, clock() - begin)
    return float(best)


def _most_seconds(definition: common_pb2.TaskDefinition) -> float:
    if not algorithm_for(definition).has_rounds:
        return STEPS[-1]
    return SHARE_OF_ROUND * definition.cohort.round_seconds


def _smallest_step(definition: common_pb2.TaskDefinition, cost: ComputingCost | None = None) -> float:
    cost = algorithm_for(definition).computing_cost if cost is None else cost
    needed = SAFETY * cost.seconds
    for step in STEPS:
        if needed <= step:
            return step
    raise _too_costly(definition, cost, STEPS[-1], f"the {STEPS[-1]:g} s that a device takes for any task")


def _too_costly(
    definition: common_pb2.TaskDefinition, cost: ComputingCost, step: float, limit: str
) -> ConfigurationError:
    return ConfigurationError(
        f"Expected the work of a device in task {definition.name!r} to fit {limit}: it may take "
        f"{SAFETY * cost.seconds:.3g} s, {SAFETY:g} times its worst case at the reference speed{_advice(cost, step)}"
    )


def _advice(cost: ComputingCost, step: float) -> str:
    """Each cap that alone could be lowered until ``step`` suffices, with the number that does."""
    fitting = {name: cost.largest(name, seconds=step / SAFETY) for name in cost.caps} if step else {}
    lower = [f"{name}={cost.caps[name]} (at most {most})" for name, most in fitting.items() if most]
    return f"; lower one of {', '.join(lower)}" if lower else ""
