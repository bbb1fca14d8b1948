"""CatalogueService: the catalogues of the populations of a server's tasks, as its transparency log holds them.

The log is the store: what is not in it was never published. Each step is appended only where it follows the newest one
in the log, also where several servers share the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc

from odp._validate import identifier, integer
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError
from odp.protocol.catalogues.catalogue import Catalogue, versions_in
from odp.protocol.catalogues.named import named_in, require_named
from odp.protocol.catalogues.step import LARGEST_STEP, LARGEST_VERSION, SignedStep, Step, step_sha256
from odp.transport.backpressure import Backpressure
from odp.transport.call import hold_turn
from odp.transport.logs import Log
from odp.transport.service import NotFound, servicer
from odp.trust.log.entries import HEAD_BYTES, CatalogueEntry, decode, type_of
from odp.trust.log.log_files import LogFiles
from odp.v1 import catalogue_pb2, catalogue_pb2_grpc, common_pb2
from server.operator_token import OperatorToken

NAME = "odp.v1.CatalogueService"
_READING, _WAITING = 4, 16


class LoggedCatalogues:
    """The newest version of each catalogue in ``log``; thread-safe."""

    def __init__(self, log: LogFiles) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._steps: dict[str, list[bytes]] = {}
        self._newest: dict[str, Catalogue] = {}
        self._read = 0

    def newest(self, population: str) -> Catalogue | None:
        """The newest version of a population's catalogue; None where it has none. Raises StateError."""
        # Outside of the lock: the log calls from inside of its own (``unless``).
        begin, size = self._read, self._log.size
        read = {index: self._step(index) for index in range(begin, size)}
        with self._lock:
            for index in range(self._read, size):
                if (step := read.get(index)) is not None:
                    self._steps.setdefault(Step.decode(step).population, []).append(step)
                self._read = index + 1
            if (steps := self._steps.get(population)) is None:
                return None
            catalogue = self._newest.get(population)
            if catalogue is None or catalogue.version != len(steps):
                catalogue = self._newest[population] = Catalogue(tuple(steps))
            return catalogue

    def _step(self, index: int) -> bytes | None:
        """The step of entry ``index`` of the log; None of another entry."""
        if type_of(self._log.head(index, HEAD_BYTES)) is not CatalogueEntry:
            return None
        entry = decode(self._log.entry(index))
        return entry.step if isinstance(entry, CatalogueEntry) else None

    def shared(self, population: str, version: int) -> Catalogue | None:
        """``newest``, after a look at what other servers of a shared log published, where it is not ``version`` yet.

        Not from inside of the log's own lock. Raises StateError.
        """
        catalogue = self.newest(population)
        if catalogue is None or catalogue.version < version:
            self._log.reach(self._log.size + 1)
            catalogue = self.newest(population)
        return catalogue

    def after(self, step: Step, data: bytes) -> bool:
        """Whether ``data``, a checked step, is the next version of its catalogue; False where it is one already.

        Raises:
          ConfigurationError: it follows another version than the newest one.
          StateError: the log cannot be read.
        """
        newest = self.newest(step.population)
        if newest is not None and step.version <= newest.version:
            if newest.hashes[step.version - 1] == step_sha256(data):
                return False
            raise ConfigurationError(
                f"catalogue version {step.version} of population {step.population!r} was published with other items: "
                "change the catalogue file that was published last"
            )
        Catalogue((*(() if newest is None else newest.steps), data))
        return True

    def require(self, definition: common_pb2.TaskDefinition, *, shared: bool = True) -> None:
        """Returns if a task names no catalogue, or may name the version that it does.

        Without ``shared``, the log is as it is: for calls from inside of its lock.

        Raises:
          ConfigurationError: as ``require_named``.
          StateError: the log cannot be read.
        """
        if (named := named_in(definition)) is not None:
            population = named.population
            require_named(self.shared(population, named.version) if shared else self.newest(population), named)


def catalogue_servicer(
    catalogues: LoggedCatalogues,
    *,
    publish: Callable[[SignedStep], bool],
    require_owned: Callable[[str], object],
    key: SigningKey,
    operator: OperatorToken,
    log: Log,
) -> catalogue_pb2_grpc.CatalogueServiceServicer:
    """The service; publishing is the operator's.

    Args:
      catalogues: what was published.
      publish: appends a signed step to the log, as ``LogKeeper.log_catalogue``.
      require_owned: returns once this server's key owns a population and its charter is logged.
      key: the server's.
      operator: who publishes.
      log: where versions are noted.
    """
    reading = Backpressure(at_once=_READING, waiting=_WAITING, service="server", what="readers of catalogues")

    def publish_step(
        requests: Iterator[catalogue_pb2.PublishCatalogueRequest], context: grpc.ServicerContext
    ) -> catalogue_pb2.PublishCatalogueResponse:
        operator.require(context)
        data = bytearray()
        for request in requests:
            data += request.chunk
            if len(data) > LARGEST_STEP:
                raise ConfigurationError(f"Expected a catalogue step of at most {LARGEST_STEP} bytes")
        step = Step.decode(bytes(data))
        catalogues.shared(step.population, step.version - 1)
        if catalogues.after(step, bytes(data)):
            require_owned(step.population)
            if publish(SignedStep.by(key, bytes(data))):
                log.event("catalogue_published", population=step.population, version=step.version, items=step.items)
        if (newest := catalogues.newest(step.population)) is None:
            raise NotFound(f"population {step.population!r} has no catalogue")
        return catalogue_pb2.PublishCatalogueResponse(version=newest.version, sha256=newest.sha256)

    def get_steps(
        request: catalogue_pb2.GetCatalogueStepsRequest, context: grpc.ServicerContext
    ) -> Iterator[catalogue_pb2.GetCatalogueStepsResponse]:
        identifier(population=request.population)
        integer(low=0, high=LARGEST_VERSION, block=request.block)
        wanted = versions_in(request.block)
        if (newest := catalogues.shared(request.population, wanted.stop - 1)) is None:
            raise NotFound(f"population {request.population!r} has no catalogue; `odp catalogue publish` gives it one")
        hold_turn(reading, context)
        steps = newest.steps[wanted.start - 1 : wanted.stop - 1]
        return (catalogue_pb2.GetCatalogueStepsResponse(step=step) for step in steps)

    return servicer(
        catalogue_pb2_grpc.CatalogueServiceServicer,
        log,
        {"PublishCatalogue": publish_step, "GetCatalogueSteps": get_steps},
    )
