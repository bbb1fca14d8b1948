from odp.v1 import aggregator_pb2 as _aggregator_pb2
from odp.v1 import attestation_pb2 as _attestation_pb2
from odp.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GreetRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class GreetResponse(_message.Message):
    __slots__ = ("nonce", "evidence")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    evidence: _attestation_pb2.GetEvidenceResponse
    def __init__(self, nonce: _Optional[bytes] = ..., evidence: _Optional[_Union[_attestation_pb2.GetEvidenceResponse, _Mapping]] = ...) -> None: ...

class Delegation(_message.Message):
    __slots__ = ("statement", "sealed", "evidence", "signature", "nonce")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    sealed: bytes
    evidence: _attestation_pb2.GetEvidenceResponse
    signature: bytes
    nonce: bytes
    def __init__(self, statement: _Optional[bytes] = ..., sealed: _Optional[bytes] = ..., evidence: _Optional[_Union[_attestation_pb2.GetEvidenceResponse, _Mapping]] = ..., signature: _Optional[bytes] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class DelegationStatement(_message.Message):
    __slots__ = ("task", "leaf", "leaves", "round")
    TASK_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    leaf: int
    leaves: int
    round: int
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., leaf: _Optional[int] = ..., leaves: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class OpenPartRequest(_message.Message):
    __slots__ = ("delegation",)
    DELEGATION_FIELD_NUMBER: _ClassVar[int]
    delegation: Delegation
    def __init__(self, delegation: _Optional[_Union[Delegation, _Mapping]] = ...) -> None: ...

class OpenPartResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPartsRequest(_message.Message):
    __slots__ = ("root", "leaf", "kept")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    leaf: int
    kept: _containers.RepeatedCompositeFieldContainer[_aggregator_pb2.GetRoundRequest]
    def __init__(self, root: _Optional[bytes] = ..., leaf: _Optional[int] = ..., kept: _Optional[_Iterable[_Union[_aggregator_pb2.GetRoundRequest, _Mapping]]] = ...) -> None: ...

class ListPartsResponse(_message.Message):
    __slots__ = ("parts",)
    class Part(_message.Message):
        __slots__ = ("task_sha256", "round", "contributions")
        TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
        ROUND_FIELD_NUMBER: _ClassVar[int]
        CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
        task_sha256: bytes
        round: int
        contributions: int
        def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., contributions: _Optional[int] = ...) -> None: ...
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[ListPartsResponse.Part]
    def __init__(self, parts: _Optional[_Iterable[_Union[ListPartsResponse.Part, _Mapping]]] = ...) -> None: ...

class ClosePartResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ClosePartRequest(_message.Message):
    __slots__ = ("task_sha256", "round")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class AskLeafNonce(_message.Message):
    __slots__ = ("leaf",)
    LEAF_FIELD_NUMBER: _ClassVar[int]
    leaf: int
    def __init__(self, leaf: _Optional[int] = ...) -> None: ...

class DelegateRound(_message.Message):
    __slots__ = ("task_sha256", "round", "leaf", "greeting")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    GREETING_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    leaf: int
    greeting: GreetResponse
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., leaf: _Optional[int] = ..., greeting: _Optional[_Union[GreetResponse, _Mapping]] = ...) -> None: ...

class PartHeader(_message.Message):
    __slots__ = ("contributions", "drawn", "set_sha256")
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    SET_SHA256_FIELD_NUMBER: _ClassVar[int]
    contributions: int
    drawn: int
    set_sha256: bytes
    def __init__(self, contributions: _Optional[int] = ..., drawn: _Optional[int] = ..., set_sha256: _Optional[bytes] = ...) -> None: ...

class GivePart(_message.Message):
    __slots__ = ("task_sha256", "round", "piece")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    piece: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class CheckClose(_message.Message):
    __slots__ = ("order", "signature", "contributions")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    order: bytes
    signature: bytes
    contributions: int
    def __init__(self, order: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., contributions: _Optional[int] = ...) -> None: ...

class ClosedPart(_message.Message):
    __slots__ = ("contributions", "pieces")
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    contributions: int
    pieces: int
    def __init__(self, contributions: _Optional[int] = ..., pieces: _Optional[int] = ...) -> None: ...

class Told(_message.Message):
    __slots__ = ("yes",)
    YES_FIELD_NUMBER: _ClassVar[int]
    yes: bool
    def __init__(self, yes: _Optional[bool] = ...) -> None: ...

class TakePart(_message.Message):
    __slots__ = ("task_sha256", "round", "number")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    number: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...
