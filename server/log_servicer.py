"""LogService: the log for everybody. It decides nothing; readers verify every answer."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from odp._validate import integer
from odp.signed.task import HASH_BYTES, check_length
from odp.transport.backpressure import Backpressure
from odp.transport.call import hold_turn
from odp.transport.logs import Log
from odp.transport.service import NotFound, servicer
from odp.trust.log.client import PAGE, TILE_LEVEL
from odp.trust.log.log_files import LogFiles
from odp.trust.log.merkle import LARGEST_TREE
from odp.trust.log.proofs import packed
from odp.trust.log.released_values import ReleasedValues
from odp.v1 import log_pb2, log_pb2_grpc

NAME = "odp.v1.LogService"
#: Readers of values at once, and those that wait for their turn: threads that answer everything else are left.
MAX_READING, WAITING_READING = 2, 2
_MOST_ENTRIES = 1024
_ANSWER_BYTES = 4 * 2**20


def log_servicer(log: LogFiles, values: ReleasedValues, events: Log) -> log_pb2_grpc.LogServiceServicer:
    """The gRPC face of ``log``, and of the values of its releases."""
    reading = Backpressure(at_once=MAX_READING, waiting=WAITING_READING, service="server", what="readers of releases")

    def get_inclusion_proof(request: log_pb2.GetInclusionProofRequest, _: object) -> log_pb2.GetInclusionProofResponse:
        check_length("leaf_sha256", request.leaf_sha256, HASH_BYTES)
        log.reach(request.size)
        index = log.index_of(request.leaf_sha256)
        if index is None or index >= request.size:
            raise NotFound(f"no entry of the first {request.size} has this leaf hash")
        hashes = packed(log.inclusion_proof(index, request.size))
        return log_pb2.GetInclusionProofResponse(inclusion=log_pb2.Inclusion(index=index, hashes=hashes))

    def get_consistency_proof(
        request: log_pb2.GetConsistencyProofRequest, _: object
    ) -> log_pb2.GetConsistencyProofResponse:
        log.reach(request.second)
        hashes = packed(log.consistency_proof(request.first, request.second))
        return log_pb2.GetConsistencyProofResponse(hashes=hashes)

    def get_entries(request: log_pb2.GetEntriesRequest, _: object) -> log_pb2.GetEntriesResponse:
        integer(low=1, high=_MOST_ENTRIES, count=request.count)
        log.reach(request.start + request.count)
        size = log.size
        if request.start >= size:
            raise NotFound(f"the log has {size} entries")
        entries, bytes_left = [log.entry(request.start)], _ANSWER_BYTES
        for index in range(request.start + 1, min(request.start + request.count, size)):
            bytes_left -= log.length(index)
            if bytes_left < len(entries[0]):
                break
            entries.append(log.entry(index))
        return log_pb2.GetEntriesResponse(entries=entries)

    def get_hashes(request: log_pb2.GetHashesRequest, _: object) -> log_pb2.GetHashesResponse:
        integer(low=0, high=TILE_LEVEL, level=request.level)
        integer(low=0, high=LARGEST_TREE, start=request.start)
        integer(low=1, high=PAGE, count=request.count)
        log.reach((request.start + request.count) << request.level)
        return log_pb2.GetHashesResponse(hashes=packed(log.hashes(request.level, request.start, request.count)))

    def get_values(
        request: log_pb2.GetValuesRequest, context: grpc.ServicerContext
    ) -> Iterator[log_pb2.GetValuesResponse]:
        check_length("values_sha256", request.values_sha256, HASH_BYTES)
        if not values.holds(request.values_sha256):
            raise NotFound("no release of this log has values with this hash")
        hold_turn(reading, context)
        return (log_pb2.GetValuesResponse(chunk=piece) for piece in values.read(request.values_sha256))

    return servicer(
        log_pb2_grpc.LogServiceServicer,
        events,
        {
            "GetCheckpoint": lambda *_: log_pb2.GetCheckpointResponse(checkpoint=log.note),
            "GetInclusionProof": get_inclusion_proof,
            "GetConsistencyProof": get_consistency_proof,
            "GetEntries": get_entries,
            "GetHashes": get_hashes,
            "GetValues": get_values,
        },
    )
