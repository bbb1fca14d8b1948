from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SecAggConfig(_message.Message):
    __slots__ = ("task_sha256", "round", "model_sha256", "length", "bits", "bound", "maximum", "minimum", "corrupt", "dropout", "lying_server", "attempt", "noise_bound", "roster_size")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_FIELD_NUMBER: _ClassVar[int]
    LYING_SERVER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NOISE_BOUND_FIELD_NUMBER: _ClassVar[int]
    ROSTER_SIZE_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    model_sha256: bytes
    length: int
    bits: int
    bound: int
    maximum: int
    minimum: int
    corrupt: float
    dropout: float
    lying_server: bool
    attempt: int
    noise_bound: int
    roster_size: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., model_sha256: _Optional[bytes] = ..., length: _Optional[int] = ..., bits: _Optional[int] = ..., bound: _Optional[int] = ..., maximum: _Optional[int] = ..., minimum: _Optional[int] = ..., corrupt: _Optional[float] = ..., dropout: _Optional[float] = ..., lying_server: _Optional[bool] = ..., attempt: _Optional[int] = ..., noise_bound: _Optional[int] = ..., roster_size: _Optional[int] = ...) -> None: ...

class SecAggAdvert(_message.Message):
    __slots__ = ("identity", "channel_key", "mask_key", "commitment", "signature")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_KEY_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    identity: bytes
    channel_key: bytes
    mask_key: bytes
    commitment: bytes
    signature: bytes
    def __init__(self, identity: _Optional[bytes] = ..., channel_key: _Optional[bytes] = ..., mask_key: _Optional[bytes] = ..., commitment: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SecAggAdverts(_message.Message):
    __slots__ = ("config", "adverts")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    ADVERTS_FIELD_NUMBER: _ClassVar[int]
    config: bytes
    adverts: _containers.RepeatedCompositeFieldContainer[SecAggAdvert]
    def __init__(self, config: _Optional[bytes] = ..., adverts: _Optional[_Iterable[_Union[SecAggAdvert, _Mapping]]] = ...) -> None: ...

class SecAggReveal(_message.Message):
    __slots__ = ("session", "reveal")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REVEAL_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    reveal: bytes
    def __init__(self, session: _Optional[bytes] = ..., reveal: _Optional[bytes] = ...) -> None: ...

class SecAggReveals(_message.Message):
    __slots__ = ("session", "reveals")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REVEALS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    reveals: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[bytes] = ..., reveals: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SecAggShares(_message.Message):
    __slots__ = ("session", "sealed", "seed_sha256")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    SEED_SHA256_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    sealed: _containers.RepeatedScalarFieldContainer[bytes]
    seed_sha256: bytes
    def __init__(self, session: _Optional[bytes] = ..., sealed: _Optional[_Iterable[bytes]] = ..., seed_sha256: _Optional[bytes] = ...) -> None: ...

class SecAggInbox(_message.Message):
    __slots__ = ("session", "senders", "sealed")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    senders: _containers.RepeatedScalarFieldContainer[int]
    sealed: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[bytes] = ..., senders: _Optional[_Iterable[int]] = ..., sealed: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SecAggMasked(_message.Message):
    __slots__ = ("session", "vector")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    vector: bytes
    def __init__(self, session: _Optional[bytes] = ..., vector: _Optional[bytes] = ...) -> None: ...

class SecAggSurvivors(_message.Message):
    __slots__ = ("session", "shared", "survivors")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    shared: bytes
    survivors: bytes
    def __init__(self, session: _Optional[bytes] = ..., shared: _Optional[bytes] = ..., survivors: _Optional[bytes] = ...) -> None: ...

class SecAggAgreement(_message.Message):
    __slots__ = ("session", "signature")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    signature: bytes
    def __init__(self, session: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SecAggAgreements(_message.Message):
    __slots__ = ("session", "signers", "signatures")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SIGNERS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    signers: _containers.RepeatedScalarFieldContainer[int]
    signatures: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[bytes] = ..., signers: _Optional[_Iterable[int]] = ..., signatures: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SecAggUnmask(_message.Message):
    __slots__ = ("session", "neighbours", "shares")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    neighbours: _containers.RepeatedScalarFieldContainer[int]
    shares: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[bytes] = ..., neighbours: _Optional[_Iterable[int]] = ..., shares: _Optional[_Iterable[bytes]] = ...) -> None: ...
