"""The steps that every upload of a device shares, whether it is of a round, of a session, or a report of local trust.

1. ``admitted``: the person's decisions and limits, the conditions, the transparency log   nothing was asked of anybody
2. the token, and the model: the caller's own calls, the same of every device              nothing private was sent
3. ``before_data``: the conditions again; time for the device's own code                   a fixed time
4. ``contributing``: rows are read, and a contribution is computed                         in ``fixed_times.py``
5. the store: PREPARED, in the caller's own words, and ``leave``                           within that time

From step 3 on, which calls a device makes, when, of which sizes and in which order follows from public facts, the
person's decisions, mains power and network alone, and never from the data.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from device_runtime.round.admission import Admission
from device_runtime.round.computations import Computation, ReportComputation, RoundComputation
from device_runtime.round.computing_processes import ComputingProcesses
from device_runtime.round.contribution import Computer, Contributing, Here, There
from device_runtime.round.examples import MadeExamples
from device_runtime.round.fixed_times import FixedTimes
from device_runtime.round.gate import Gate
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.catalogues import CatalogueMemory
from device_runtime.tasks.charters import CharterMemory
from device_runtime.tasks.computing_terms import Place
from device_runtime.tasks.local_assignment import LocalWork, Offered
from odp.errors import PrivacyError
from odp.privacy.mechanisms.random_source import RandomSource
from odp.trust.log.proofs import LoggedEndorsement, LogGuard
from odp.v1 import common_pb2

#: Endorsements that an assignment's proofs showed to be in the log.
Logged = Sequence[LoggedEndorsement]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The shared steps, for one device after another; holds nothing of any device; thread-safe.

    Attributes: as of ``Participant``.
    """

    admission: Admission
    catalogues: CatalogueMemory
    gate: Gate = field(default_factory=Gate)
    log: LogGuard | None = None
    charters: CharterMemory = field(default_factory=CharterMemory)
    made_examples: MadeExamples | None = None
    fixed_times: FixedTimes = field(default_factory=FixedTimes)
    processes: ComputingProcesses = field(default_factory=ComputingProcesses)
    clock: Callable[[], float] = time.time

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps a developer's code from the store within, after a time in which its last commit ends."""
        if self.made_examples is None:
            yield
            return
        with self.made_examples.precedence.taken(self.fixed_times.sleep):
            yield

    def admitted(
        self, store: Store, work: Offered, round: int, *, model: common_pb2.SignedManifest | None = None
    ) -> Logged:
        """Returns if the person's decisions, this machine and the log let the device take part now.

        The task's catalogue is there then.

        Raises:
          PrivacyError: the person's limits decline the task, they opted out of it, or this machine cannot compute it in
            its time; nothing was read or sent.
          NotNow: the device is paused, or a training condition is not met.
          TransparencyError: task, model or charter are not in the pinned log.
        """
        try:
            self.gate.task(store, work.terms, round)
            self.fixed_times.require(work.definition, work.computing)
        except PrivacyError:
            store.declined(work.signed_task, work.terms, round, time=self.clock())
            raise
        logged = self.logged(work, model=model)
        # Whatever the device holds: what is asked for follows from the versions alone.
        self.catalogues.of(work.definition)
        return logged

    def logged(self, work: Offered, *, model: common_pb2.SignedManifest | None = None) -> Logged:
        """What the server's proofs show to be in the pinned log.

        Raises PrivacyError, TransparencyError as ``admitted``.
        """
        if work.charter is not None:
            self.charters.check(work.charter)
        if self.log is None:
            return ()
        charter = None if work.charter is None else work.charter.signed
        return self.log.logged(work.log, task=work.signed_task, model=model, charter=charter)

    def before_data(self, store: Store, work: Offered) -> None:
        """The last look at the conditions, and the time of the device's own code: then the data may be read.

        Raises NotNow, PrivacyError as ``admitted``.
        """
        self.gate.before_data(store, work.terms)
        if self.made_examples is not None:
            self.made_examples.make(store, work, self.fixed_times)
            self.gate.after_data(store, work.terms)

    def contributing(self, store: Store, work: Work, *, seed: int) -> Contributing:
        """A device's contribution to a round."""
        model, query = work.model, work.model.queries[work.round]
        computation = RoundComputation(
            definition=model.definition, client=model.client, round=work.round, seed=seed, now=self.clock(),
            keyed=model.keyed, catalogue=self.catalogues.of(model.definition, fetch=False),
        )  # fmt: skip
        return Contributing(
            self.fixed_times, work.computing,
            self._computer(store, work, computation, most_keys=model.rows_per_request, length=query.payload_bytes),
            keyed=model.keyed, check=query.check, empty=model.client.empty(work.round), lent=self._lent,
        )  # fmt: skip

    def reporting(
        self, store: Store, work: LocalWork, *, drawn_row: bytes, source: RandomSource, empty: bytes
    ) -> Contributing:
        """A device's report to a task of local trust, in the place of a contribution."""
        computation = ReportComputation(
            definition=work.definition, algorithm=work.algorithm, drawn_row=drawn_row, now=self.clock(), source=source
        )
        length = work.algorithm.report_bytes

        def check(report: bytes) -> None:
            if len(report) != length:
                raise ValueError("a report of another length")

        return Contributing(
            self.fixed_times, work.computing, self._computer(store, work, computation, most_keys=0, length=length),
            keyed=False, check=check, empty=empty, lent=self._lent,
        )  # fmt: skip

    def _lent(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        """Lets a developer's code use the store for the seconds in which a contribution is computed."""
        return contextlib.nullcontext() if self.made_examples is None else self.made_examples.precedence.lent(seconds)

    def _computer(
        self, store: Store, work: Offered, computation: Computation, *, most_keys: int, length: int
    ) -> Computer:
        if work.computing.place is Place.HERE:
            return Here(store, computation)
        catalogue = self.catalogues.of(work.definition, fetch=False)
        processes = self.processes.of(
            work.definition, () if catalogue is None else catalogue.steps, seconds=work.computing.seconds
        )
        return There(store, computation, processes, most_keys=most_keys, payload_bytes=length)
