"""Catalogues to and from a server: a developer publishes steps, everybody reads them in whole blocks."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from odp.errors import ConfigurationError, ServiceError
from odp.protocol.catalogues.catalogue import LARGEST_BLOCK, Catalogue, block_of, versions_in
from odp.protocol.catalogues.named import named_in
from odp.transport.backpressure import Patience
from odp.transport.channel import CHUNK_BYTES, LONG_DEADLINE, SHORT_DEADLINE, call, read_stream
from odp.v1 import catalogue_pb2, catalogue_pb2_grpc, common_pb2


def publish(catalogue: Catalogue, channel: grpc.Channel, *, address: str, metadata: list[tuple[str, str]]) -> None:
    """Publishes the versions of a catalogue that the server lacks, in order. Idempotent.

    Raises:
      ConfigurationError: the server has other versions of these numbers.
      ServiceError, ServiceUnavailable: it refuses one, or does not answer.
    """
    stub = catalogue_pb2_grpc.CatalogueServiceStub(channel)
    published = _published(stub, catalogue, address)
    for version in range(published + 1, catalogue.version + 1):
        what = f"publish version {version} of the catalogue of {catalogue.population!r}"
        step = catalogue.steps[version - 1]
        reply: catalogue_pb2.PublishCatalogueResponse = call(
            stub.PublishCatalogue,
            (
                catalogue_pb2.PublishCatalogueRequest(chunk=step[start : start + CHUNK_BYTES])
                for start in range(0, len(step), CHUNK_BYTES)
            ),
            timeout=LONG_DEADLINE if len(step) > CHUNK_BYTES else SHORT_DEADLINE,
            what=what,
            address=address,
            metadata=metadata,
        )
        if (reply.version, reply.sha256) != (version, catalogue.hashes[version - 1]):
            raise ConfigurationError(f"could not {what}: the server at {address} has version {reply.version} already")


def steps_of(
    stub: catalogue_pb2_grpc.CatalogueServiceStub, population: str, block: int, *, address: str, patience: Patience
) -> list[bytes]:
    """The steps of a block that the server has: unchecked, at most as many and as long as a block may be.

    Raises:
      ServiceError: the server sent more than a block, or refuses.
      ServiceUnavailable, Busy: nobody answers, or too many ask.
    """
    what = f"read the catalogue of {population!r}"
    request = catalogue_pb2.GetCatalogueStepsRequest(population=population, block=block)

    def start() -> Iterator[catalogue_pb2.GetCatalogueStepsResponse]:
        replies = call(stub.GetCatalogueSteps, request, timeout=LONG_DEADLINE, what=what, address=address)
        return read_stream(replies, what=what, address=address)

    steps: list[bytes] = []
    size = 0
    for reply in patience.stream(start):
        steps.append(reply.step)
        size += len(reply.step)
        if len(steps) > len(versions_in(block)) or size > LARGEST_BLOCK:
            raise ServiceError(f"could not {what}: {address} sent more than block {block} can have")
    return steps


def named_catalogue(definition: common_pb2.TaskDefinition, channel: grpc.Channel, *, address: str) -> Catalogue | None:
    """The catalogue version that a task names, checked against the hash in the task; None where it names none.

    Raises:
      ServiceError: the server does not have this version.
      ServiceUnavailable, Busy: it does not answer.
    """
    named, population = named_in(definition), definition.population
    if named is None:
        return None
    stub, steps = catalogue_pb2_grpc.CatalogueServiceStub(channel), list[bytes]()
    for block in range(block_of(named.version) + 1):
        steps += steps_of(stub, population, block, address=address, patience=Patience())
    what = f"catalogue version {named.version} of {population!r} that task {definition.name!r} names"
    try:
        catalogue = Catalogue(tuple(steps[: named.version]))
    except ConfigurationError as error:
        raise ServiceError(f"{address} does not have {what}: {error}") from error
    if (catalogue.population, catalogue.version, catalogue.sha256) != (population, named.version, named.sha256):
        raise ServiceError(f"{address} does not have {what}: publish the catalogue file that the task was made with")
    return catalogue


def _published(stub: catalogue_pb2_grpc.CatalogueServiceStub, catalogue: Catalogue, address: str) -> int:
    """The newest version of ``catalogue`` that the server has: 0 for none.

    Raises ConfigurationError where the server has others of these numbers.
    """
    for block in range(block_of(catalogue.version), -1, -1):
        try:
            steps = steps_of(stub, catalogue.population, block, address=address, patience=Patience())
        except ServiceError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            return 0
        if not steps:
            continue
        first = versions_in(block).start
        for version, (mine, other) in enumerate(zip(catalogue.steps[first - 1 :], steps, strict=False), start=first):
            if mine != other:
                raise ConfigurationError(
                    f"the server at {address} has another version {version} of the catalogue of "
                    f"{catalogue.population!r}: change the catalogue file that was published last"
                )
        return first + len(steps) - 1
    return 0
