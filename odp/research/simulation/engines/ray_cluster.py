"""A Ray cluster: users in parts in its object store, partial sums on its workers, merged there in pairs.

A worker or a node that is lost is replaced by Ray: what it had not given back is computed again, and a part counts
once, because its sum is one object, however often it was made. Nothing but the sums of a round comes back to this
process.

Source: Moritz et al. 2018, "Ray: a distributed framework for emerging AI applications" (lineage of objects).

The users of a simulation in parts, each of which can go to another machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from odp import _validate
from odp._system.extras import require
from odp.algorithms.seam import Population
from odp.datasets.examples import UsersExamples
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, OdpError, StateError
from odp.models.litert.keras_model import KerasModel
from odp.numerics.arrays import Int64Array, UInt64Array
from odp.protocol.wire.model import ModelVersion
from odp.research.simulation.engines.seam import Progress, population_of
from odp.tasks.task import Task
from odp.transport.channel import parse_address


class Part(NamedTuple):
    """Consecutive users, and their seeds uint64."""

    users: Ratings | UsersExamples
    seeds: UInt64Array


def edges_of(users: int, parts: int) -> Int64Array:
    """The first user of each of at most ``parts`` parts of about one size, and the end; int64."""
    return np.unique(np.linspace(0, users, min(parts, max(users, 1)) + 1).astype(np.int64))


def parts_of(users: Ratings | UsersExamples, seeds: UInt64Array, edges: Int64Array) -> Iterator[Part]:
    """The parts between ``edges``, one in memory at a time."""
    for first, end in itertools.pairwise(edges):
        some = users.select_users(np.arange(first, end))
        yield Part(_own_rows(some) if isinstance(some, UsersExamples) else some, seeds[first:end])


def selected_of(selected: Int64Array | None, edges: Int64Array) -> list[Int64Array | None]:
    """For each part the users of ``selected`` (ascending), counted from its first; None for all of them."""
    if selected is None:
        return [None] * (len(edges) - 1)
    bounds = np.searchsorted(selected, edges)
    return [selected[start:end] - edges[number] for number, (start, end) in enumerate(itertools.pairwise(bounds))]


def _own_rows(users: UsersExamples) -> UsersExamples:
    """The same users with a table of their own rows alone: a part does not carry everybody's."""
    rows, places = np.unique(users.rows, return_inverse=True)
    features: Any = users.features[rows]
    return UsersExamples(
        np.ascontiguousarray(features), users.targets[rows], places.astype(np.int64).ravel(), users.offsets,
        users.scale,
    )  # fmt: skip


_Key = TypeVar("_Key")
_Result = TypeVar("_Result")
_Sums = Mapping[str, Int64Array]
_POPULATIONS: dict[bytes, Population[Any]] = {}

#: How long an address that does not answer is tried, and between two tries.
_WAIT_SECONDS, _PAUSE_SECONDS = 30.0, 2.0
#: Parts for each processor: so many that a slow one holds nobody up for long.
_PARTS_PER_PROCESSOR = 4
# A task is one thread: the cluster's processors are shared out by tasks.
_WORKERS = {"env_vars": {"ODP_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}}


@dataclass(frozen=True)
class Worker:
    """What a worker process used when it last finished a part: resident MiB; ``node`` is where it runs."""

    node: str
    pid: int
    memory: float


class RayEngine:
    """Implements ``odp.research.simulation.engines.seam.Engine`` on a cluster. A context manager.

    Args:
      address: of a running cluster, as ``ray start`` printed it; None starts one on this machine, which ends with it.
      parts: of the users; None is a few for each processor.
      processors: of a cluster on this machine; None is all.
      wait_seconds: how long an address that does not answer is tried.
      on_worker: called with what a worker used, after each part.

    Raises, on entering:
      ConfigurationError: the extra is missing, or its version is not the cluster's.
      StateError: nobody answers at ``address``.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        parts: int | None = None,
        processors: int | None = None,
        wait_seconds: float = _WAIT_SECONDS,
        on_worker: Callable[[Worker], None] | None = None,
    ) -> None:
        require("ray", to="simulate on a cluster")
        if parts is not None:
            _validate.integer(parts=parts, low=1, high=100_000)
        if processors is not None:
            _validate.integer(processors=processors, low=1, high=1024)
        self._address, self._parts, self._wait = address, parts, wait_seconds
        self._processors = processors
        self._on_worker = on_worker
        self._ray: Any = None

    def __enter__(self) -> RayEngine:
        # Nothing of a run is told to anybody.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        self._ray = ray
        if self._address is not None:
            self._wait_for(self._address)
        try:
            self._connect()
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            ray.shutdown()
            if "mismatch" in str(error).lower():
                raise ConfigurationError(f"the Ray cluster has another version: {_line(error)}") from error
            raise StateError(f"the Ray cluster at {self._address or 'this machine'} fails: {_line(error)}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray.shutdown()

    def sums(self, task: Task, users: Ratings | UsersExamples, seeds: UInt64Array) -> RaySums:
        if isinstance(task.model, KerasModel) and task.model.own_engine() is not None:
            raise ConfigurationError(
                f"Expected no engine of its own in the network of task {task.name!r} on Ray: leave it out, and the "
                "workers train by LiteRT"
            )
        with self._translated_errors():
            processors = int(self._ray.cluster_resources().get("CPU", 1))
            parts = _PARTS_PER_PROCESSOR * max(processors, 1) if self._parts is None else self._parts
            return RaySums(
                self._ray,
                task,
                users,
                seeds,
                parts=parts,
                translated_errors=self._translated_errors,
                on_worker=self._on_worker,
            )

    def each(
        self, trial: Callable[..., _Result], trials: Iterable[tuple[_Key, tuple[Any, ...]]]
    ) -> Iterator[tuple[_Key, _Result]]:
        with self._translated_errors():
            run = self._ray.remote(num_cpus=1, max_retries=-1)(trial)
            # Once for all trials that share it.
            held: dict[int, tuple[Any, Any]] = {}

            def put(value: Any) -> Any:
                if id(value) not in held:
                    held[id(value)] = (value, self._ray.put(value))
                return held[id(value)][1]

            under_way = {run.remote(*map(put, arguments)): key for key, arguments in trials}
        while under_way:
            with self._translated_errors():
                (done,), _ = self._ray.wait(list(under_way), num_returns=1)
                result = self._ray.get(done)
            yield under_way.pop(done), result

    def _wait_for(self, address: str) -> None:
        """Returns once somebody listens at ``address``. Raises ConfigurationError, StateError."""
        host, port = parse_address(address)
        until = time.monotonic() + self._wait
        while True:
            try:
                socket.create_connection((host, port), timeout=_PAUSE_SECONDS).close()
                return
            except OSError as error:
                if time.monotonic() + _PAUSE_SECONDS > until:
                    raise StateError(
                        f"no Ray cluster answers at {address} ({error.strerror or error}); check --address, and that "
                        "`ray start --head` runs there"
                    ) from error
                time.sleep(_PAUSE_SECONDS)

    def _connect(self) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL", "runtime_env": _WORKERS}
        if self._address is None:
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "num_cpus": self._processors}
        self._ray.init(address=self._address or "local", **options)

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turns Ray's errors into ours: those of a task as they were raised, all else as a lost cluster."""
        try:
            yield
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, OdpError) else None
            if cause is not None:
                raise cause from None
            raise StateError(f"a worker of the Ray cluster failed: {_line(error)}") from error
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise StateError(
                f"the Ray cluster was lost in the middle: {_line(error)}; with --checkpoint, the same command goes on"
            ) from error


class RaySums:
    """Implements ``odp.research.simulation.engines.seam.Sums``."""

    def __init__(
        self, ray: Any, task: Task, users: Ratings | UsersExamples, seeds: UInt64Array, *, parts: int,
        translated_errors: Callable[[], contextlib.AbstractContextManager[None]],
        on_worker: Callable[[Worker], None] | None,
    ) -> None:  # fmt: skip
        self._ray, self._translated_errors, self._on_worker = ray, translated_errors, on_worker
        self._edges = edges_of(users.n_users, parts)
        self._task = ray.put(task)
        self._parts = [ray.put(part) for part in parts_of(users, seeds, self._edges)]
        self._partial = ray.remote(num_cpus=1, num_returns=2, max_retries=-1)(_partial)
        self._merge = ray.remote(num_cpus=1, max_retries=-1)(_merged)

    def of(
        self, broadcast: ModelVersion, selected: Int64Array | None, *, round: int, progress: Progress | None
    ) -> Mapping[str, Int64Array]:
        with self._translated_errors():
            return self._summed(broadcast, selected, round=round, progress=progress)

    def _summed(
        self, broadcast: ModelVersion, selected: Int64Array | None, *, round: int, progress: Progress | None
    ) -> Mapping[str, Int64Array]:
        model = self._ray.put(broadcast)
        chosen = selected_of(selected, self._edges)
        partial: dict[Any, tuple[Any, int]] = {}
        for part, some, users in zip(self._parts, chosen, np.diff(self._edges), strict=True):
            # A part of which nobody is drawn still gives its zeros, for the shapes.
            sums, used = self._partial.remote(self._task, part, some, model, round)
            partial[used] = sums, int(users) if some is None else len(some)
        waiting: list[Any] = []
        done = 0
        while partial:
            (used,), _ = self._ray.wait(list(partial), num_returns=1)
            sums, users = partial.pop(used)
            done += users
            if self._on_worker is not None:
                self._on_worker(self._ray.get(used))
            if progress is not None:
                progress(done)
            # In pairs as they come: a tree, whose sum does not depend on its shape.
            waiting.append(sums)
            while len(waiting) > 1:
                waiting.append(self._merge.remote(waiting.pop(0), waiting.pop(0)))
        # What the store holds is read-only, and noise is added in place.
        return {name: np.array(total) for name, total in self._ray.get(waiting[0]).items()}


def _partial(task: Task, part: Part, selected: Int64Array | None, broadcast: ModelVersion, round: int) -> Any:
    users, seeds = part.users, part.seeds
    if selected is not None:
        users, seeds = users.select_users(selected), seeds[selected]
    return dict(_population(task).contribute(broadcast, users, round=round, seeds=seeds)), _used()


def _population(task: Task) -> Population[Any]:
    """Of the task; a worker keeps that of its last one."""
    definition = task.definition().SerializeToString(deterministic=True)
    if definition not in _POPULATIONS:
        _POPULATIONS.clear()
        _POPULATIONS[definition] = population_of(task)
    return _POPULATIONS[definition]


def _merged(first: _Sums, second: _Sums) -> _Sums:
    return {name: total + second[name] for name, total in first.items()}


def _used() -> Worker:
    import resource

    return Worker(socket.gethostname(), os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0)


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
