"""What a device contributes: computed from its data at a fixed time, or the empty contribution.

Whether a contribution follows, and when, must not depend on the data, or its absence and its time would tell what the
noise hides. So nothing here fails for what a device holds: rows that a task cannot use are left out, and whatever goes
wrong with the others, or takes too long, ends in the empty contribution, of the same length, which is sent and charged
like any other.

What is the same for every device is refused aloud: a definition when it is opened, a model by ``require_trainable``. So
is a store that cannot be read, which says something of the disk and nothing of the rows; at the fixed time, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from device_runtime.round.computations import NO_KEYS, Computation, OwnData, described
from device_runtime.round.computing_processes import ComputingProcess, TaskProcesses
from device_runtime.round.fixed_times import FixedTimes, Window
from device_runtime.store.reader import beside
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.computing_terms import ComputingTerms
from odp.errors import ConfigurationError, ServiceError
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import Slices
from odp.refusing import refusing


@dataclass(frozen=True)
class ComputedPayload:
    """The payload of a round, and new local parameters; without these it is the empty contribution."""

    payload: bytes = field(repr=False)
    local_parameters: bytes | None = field(repr=False)


def without_rows(work: Work) -> Slices:
    """What a device has of a model that it needs no rows of."""
    return Slices(work.model.manifest.version, NO_KEYS, np.zeros((0, 0), dtype=np.float32), {})


def require_trainable(work: Work, slices: Slices) -> None:
    """Returns if every device can train on the dense tables of the model.

    Raises:
      ServiceError: they cannot; no device contributes to this round.
    """
    try:
        with refusing("model"):
            work.model.client.check_model(slices.dense)
    except ConfigurationError as error:
        raise ServiceError(f"round {work.round}: {error}") from error


class Here:
    """Computes in this process."""

    def __init__(self, store: Store, computation: Computation) -> None:
        self._path, self._key, self._computation = store.path, store.key, computation
        self._own_data: OwnData | None = None

    def reserved(self) -> contextlib.AbstractContextManager[None]:
        """Needs nothing."""
        return contextlib.nullcontext()

    def keys(self, window: Window) -> Int64Array:
        """Reads the rows; which rows of the model the device needs for them."""
        with beside(self._path, self._key, over=window.reading_over) as store:
            self._own_data = self._computation.read(store)
        return self._own_data.keys

    def contribution(self, slices: Slices | None, window: Window) -> tuple[bytes, bytes | None]:
        """(payload, new local parameters), of rows that are read now where ``keys`` was not asked before."""
        if self._own_data is None:
            self.keys(window)
        if self._own_data is None:
            raise TimeoutError
        return self._computation.compute(self._own_data, slices)

    def end(self) -> None:
        """Does nothing: its worst case is short."""


class There:
    """Computes in a process of its own, which holds the rows from the keys to the contribution."""

    def __init__(
        self, store: Store, computation: Computation, processes: TaskProcesses, *, most_keys: int, payload_bytes: int
    ) -> None:
        self._path, self._key = store.path, store.key
        self._described, self._processes = described(computation), processes
        self._most_keys, self._payload_bytes = most_keys, payload_bytes
        self._process: ComputingProcess | None = None

    def reserved(self) -> contextlib.AbstractContextManager[None]:
        """What the process is forked from is there within. Raises StateError where it cannot be started."""
        return self._processes.reserved()

    def keys(self, window: Window) -> Int64Array:
        """Reads the rows; which rows of the model the device needs for them."""
        return self._begun(window).keys(window, most=self._most_keys)

    def contribution(self, slices: Slices | None, window: Window) -> tuple[bytes, bytes | None]:
        """(payload, new local parameters), of rows that are read now where ``keys`` was not asked before."""
        process = self._process or self._begun(window)
        return process.contribution(slices, window, payload_bytes=self._payload_bytes)

    def end(self) -> None:
        """Kills the process."""
        if self._process is not None:
            self._process.end()

    def _begun(self, window: Window) -> ComputingProcess:
        self._process = self._processes.fork()
        self._process.begin(self._path, self._key, self._described, window)
        return self._process


#: Where one contribution is computed. May raise anything; nothing of it is heard before the window is over.
Computer: TypeAlias = Here | There


class Contributing:
    """One device's contribution at its fixed times. A context manager, which ends its computation; for one thread.

    Args:
      fixed_times: gives the times.
      terms: of the task.
      computer: where it is computed.
      keyed: whether rows of the model are asked for by key, before the contribution.
      check: raises for what the enclave would refuse: a refusal would tell its host something of the data.
      empty: what stands for a contribution that cannot be computed; made before the data were read.
      lent: lets others use the store for the seconds in which it is computed.
    """

    def __init__(
        self, fixed_times: FixedTimes, terms: ComputingTerms, computer: Computer, *, keyed: bool,
        check: Callable[[bytes], None], empty: bytes,
        lent: Callable[[float], contextlib.AbstractContextManager[None]] = lambda seconds: contextlib.nullcontext(),
    ) -> None:  # fmt: skip
        self._fixed_times, self._terms, self._computer = fixed_times, terms, computer
        self._keyed, self._check, self._empty, self._lent = keyed, check, empty, lent
        self._usable = not keyed
        self._window: Window | None = None
        self._place: contextlib.ExitStack | None = None

    def keys(self) -> Int64Array:
        """The rows of the model that the device asks for; none where it could not read its own. At a fixed time.

        Raises:
          StateError: the store cannot be read, or the processes of the task cannot be started.
          NotNow: the host stops.
        """
        self._take_place()
        window = self._fixed_times.reading(self._terms)
        with self._lent(window.seconds_left):
            keys = window.compute(lambda: self._computer.keys(window))
        self._usable = keys is not None
        return NO_KEYS if keys is None else keys

    def contribution(self, slices: Slices | None) -> ComputedPayload:
        """The contribution, at a fixed time: what is made of it until ``leave`` leaves with it. Raises as ``keys``."""
        self._take_place()
        window = self._window = self._fixed_times.computing(self._terms)

        def computed() -> ComputedPayload:
            if not self._usable:
                raise ValueError("the rows could not be read")
            payload, local = self._computer.contribution(slices, window)
            self._check(payload)
            return ComputedPayload(payload, local)

        try:
            with self._lent(window.seconds_left):
                contribution = window.compute(computed)
        finally:
            self._end()
        return ComputedPayload(self._empty, None) if contribution is None else contribution

    def leave(self) -> None:
        """Returns when the contribution may leave the device."""
        if self._window is not None:
            self._window.leave()

    def __enter__(self) -> Contributing:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _take_place(self) -> None:
        """Until the contribution is computed: a process that read its rows for keys goes on to use its memory."""
        if self._place is None:
            with contextlib.ExitStack() as place:
                place.enter_context(self._fixed_times.place(self._terms))
                with self._fixed_times.active.given_away():
                    place.enter_context(self._computer.reserved())
                self._place = place.pop_all()

    def _end(self) -> None:
        self._computer.end()
        if self._place is not None:
            self._place.close()
            self._place = None
