"""The time that every device takes for its contribution to a task, whatever it holds: one of five public steps.

How long a computation takes depends on a person's data, and when an upload leaves would tell it. So a contribution
leaves at a time that the signed definition fixes, and the definition's caps bound what a device computes until then:

::

    worst case = sum of products of caps (``Algorithm.computing_cost``), on a device of the reference speed
    fixed time = ``computing_milliseconds`` of the definition, at least SAFETY times the worst case
               <= a quarter of ``round_seconds``: a round must not end while its devices wait

Whoever signs a task names the smallest step that suffices; devices and enclaves refuse a shorter one, and a task that
no step pays. A task without rounds has the largest step as its only limit.

What reading a device's rows takes: where the cost of every algorithm begins.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalTable
from odp.errors import ConfigurationError, PrivacyError
from odp.models.computing_cost import (
    BASE_SECONDS,
    COLUMN_SECONDS,
    EVENT_SECONDS,
    EXAMPLE_SECONDS,
    FILTER_SECONDS,
    MOST_BYTES,
    NUMBER_BYTES,
    RATING_SECONDS,
    ROW_BYTES,
    ComputingCost,
    Product,
)
from odp.v1 import common_pb2


def reading_cost(
    tables: Sequence[LocalTable], *, row_seconds: float = 0.0, most_examples: int = 0
) -> ComputingCost:  # fmt: skip
    """The cost of a contribution that reads ``tables``, and works for ``row_seconds`` on each row.

    ``most_examples`` is the definition's number that ``LocalTable.most_rows`` of labelled examples follows from.
    """
    caps: dict[str, int] = {}
    products, memory = [Product(BASE_SECONDS)], []
    for table in tables:
        rows, names = float(table.most_rows), []
        if table.label or table.events is not None:
            name = "most_examples" if table.label else "most_events"
            names = [name if len(tables) == 1 else f"{name} of {table.name}"]
            caps[names[0]] = most_examples if table.label else table.most_rows
            rows /= caps[names[0]]
        products.append(Product(rows * (_row_seconds(table) + row_seconds), *names))
        numbers = sum(feature.size for feature in table.features.values())
        memory.append(Product(rows * (ROW_BYTES + NUMBER_BYTES * numbers), *names))
    return ComputingCost(caps, tuple(products), tuple(memory))


def _row_seconds(table: LocalTable) -> float:
    if table.label:
        return EXAMPLE_SECONDS + sum(feature.seconds for feature in table.features.values())
    if table.events is None:
        return RATING_SECONDS
    further = len(table.events.item_columns) - 1 + (table.events.buckets > 0)
    return EVENT_SECONDS + COLUMN_SECONDS * further + FILTER_SECONDS * len(table.events.filters)


#: Seconds: the only fixed times there are.
STEPS = (0.25, 1.0, 4.0, 16.0, 64.0)
#: Between the worst case on a device of the reference speed and the fixed time: for slower and busy devices.
SAFETY = 4.0
#: Of ``round_seconds``, for devices that wait.
SHARE_OF_ROUND = 0.25
#: Of the fixed time, at most, that a device's own worst case may take: the rest seals and stores the contribution.
SHARE_OF_TIME = 0.75
#: What ``machine_speed`` computes takes so long on a machine of the reference speed.
REFERENCE_SECONDS = 2e-3

_REPEATS = 5
_MEASUREMENTS = 5


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
    """Seconds from the first read of a device's data to the moment at which its contribution leaves.

    The step that the definition names; of a definition without one, the smallest that its caps allow.

    Raises:
      ConfigurationError: the definition is not valid, or no step suffices for its caps.
    """
    if definition.computing_milliseconds:
        return definition.computing_milliseconds / 1000
    return _smallest_step(definition, algorithm_for(definition).computing_cost)


def keys_seconds(definition: common_pb2.TaskDefinition) -> float:
    """Seconds from the first read of a device's data to its request for rows of the model by key.

    The smallest step that suffices to read all rows that the task may read; where the definition names a longer time
    than its caps need, that time. ``fixed_seconds`` begins when the rows of the model are there: a device takes both.

    Raises:
      ConfigurationError: as ``fixed_seconds``.
    """
    algorithm, named = algorithm_for(definition), definition.computing_milliseconds / 1000
    reading = _smallest_step(definition, reading_cost(algorithm.local_data))
    patient = named > reading and named > _smallest_step(definition, algorithm.computing_cost)
    return named if patient else reading


def with_fixed_time(definition: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    """A copy of the definition that names its step: the smallest, unless it names one.

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
      ConfigurationError: its caps need more than its step or any, more memory than MOST_BYTES, or its step is above a
        quarter of its ``round_seconds``; the message names each cap that alone could be lowered, and the number that
        would fit.
    """
    algorithm, named = algorithm_for(definition), definition.computing_milliseconds
    cost = algorithm.computing_cost
    if named and named / 1000 not in STEPS:
        raise ConfigurationError(
            f"Expected computing_milliseconds={named} of task {definition.name!r} to be one of "
            f"{', '.join(str(round(1000 * step)) for step in STEPS)}"
        )
    step = named / 1000 if named else _smallest_step(definition, cost)
    if not cost.fits(seconds=step / SAFETY, bytes=MOST_BYTES):
        raise _too_costly(definition, cost, step)
    if algorithm.has_rounds and step > SHARE_OF_ROUND * definition.cohort.round_seconds:
        raise ConfigurationError(
            f"Expected round_seconds={definition.cohort.round_seconds} of task {definition.name!r} to be at least "
            f"{step / SHARE_OF_ROUND:g}: a contribution leaves {step:g} s after it is begun, and a round must not end "
            f"while devices wait{_advice(cost, SHARE_OF_ROUND * definition.cohort.round_seconds)}"
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


class Speed:
    """Time of a public reference computation on this machine, in units of the reference: above 1 is slower.

    Measured of the processor's time and the best of a few runs, once per process; of a machine that seems slow up to
    five times, as other programs may have had its caches. Thread-safe: threads that measure at a time slow each other.
    """

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure, self._lock = measure, threading.Lock()
        self._best, self._left = math.inf, _MEASUREMENTS

    def __call__(self) -> float:
        """The best of the measurements."""
        with self._lock:
            while self._left and self._best > 1.0:
                self._best, self._left = min(self._best, self._measure()), self._left - 1
            return self._best


def reference_seconds(clock: Callable[[], float]) -> float:
    """Seconds of the reference computation by ``clock``, the best of a few runs."""
    generator = np.random.Generator(np.random.PCG64(0))
    matrix, numbers = generator.random((128, 128)), generator.random(2**15)
    best = np.inf
    for _ in range(_REPEATS):
        begin, total = clock(), 0
        for _ in range(4):
            matrix @ matrix
            np.sort(numbers)
        for number in range(2**15):
            total += number & 7
        best = min(best, clock() - begin)
    return float(best)


machine_speed = Speed(lambda: reference_seconds(time.thread_time) / REFERENCE_SECONDS)


def _smallest_step(definition: common_pb2.TaskDefinition, cost: ComputingCost) -> float:
    for step in STEPS:
        if SAFETY * cost.seconds <= step:
            return step
    raise _too_costly(definition, cost, STEPS[-1])


def _too_costly(definition: common_pb2.TaskDefinition, cost: ComputingCost, step: float) -> ConfigurationError:
    return ConfigurationError(
        f"Expected the work of a device in task {definition.name!r} to fit {step:g} s and {MOST_BYTES / 2**20:g} MiB: "
        f"at its caps it may take {SAFETY * cost.seconds:.3g} s, {SAFETY:g} times its worst case at the reference "
        f"speed, and {cost.bytes / 2**20:.3g} MiB{_advice(cost, step)}"
    )


def _advice(cost: ComputingCost, most_seconds: float) -> str:
    """Each cap that alone could be lowered until a step within ``most_seconds`` suffices, with the number that does."""
    step = max((step for step in STEPS if step <= most_seconds), default=0.0)
    fitting = ((name, cost.largest(name, seconds=step / SAFETY, bytes=MOST_BYTES)) for name in cost.caps)
    lower = [f"{name}={cost.caps[name]} (at most {most})" for name, most in fitting if 0 < most < cost.caps[name]]
    return f"; lower {' or '.join(lower)}" if lower else ""
