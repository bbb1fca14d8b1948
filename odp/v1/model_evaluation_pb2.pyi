from odp.v1 import catalogue_version_pb2 as _catalogue_version_pb2
from odp.v1 import federated_pb2 as _federated_pb2
from odp.v1 import statistics_pb2 as _statistics_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelEvaluation(_message.Message):
    __slots__ = ("models", "parameters_sha256", "loss", "top", "bins", "most_examples", "personal", "dense", "ranked")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_SHA256_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    MOST_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    RANKED_FIELD_NUMBER: _ClassVar[int]
    models: int
    parameters_sha256: bytes
    loss: LossRange
    top: _containers.RepeatedScalarFieldContainer[int]
    bins: int
    most_examples: int
    personal: PersonalTerms
    dense: _statistics_pb2.DenseTerms
    ranked: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, models: _Optional[int] = ..., parameters_sha256: _Optional[bytes] = ..., loss: _Optional[_Union[LossRange, _Mapping]] = ..., top: _Optional[_Iterable[int]] = ..., bins: _Optional[int] = ..., most_examples: _Optional[int] = ..., personal: _Optional[_Union[PersonalTerms, _Mapping]] = ..., dense: _Optional[_Union[_statistics_pb2.DenseTerms, _Mapping]] = ..., ranked: _Optional[_Iterable[int]] = ...) -> None: ...

class LossRange(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: float
    high: float
    def __init__(self, low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class PersonalTerms(_message.Message):
    __slots__ = ("training", "held_out")
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    training: _federated_pb2.LocalTrainingTerms
    held_out: float
    def __init__(self, training: _Optional[_Union[_federated_pb2.LocalTrainingTerms, _Mapping]] = ..., held_out: _Optional[float] = ...) -> None: ...

class RatedItems(_message.Message):
    __slots__ = ("items", "rank", "low", "high", "centre", "catalogue")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_FIELD_NUMBER: _ClassVar[int]
    items: int
    rank: int
    low: float
    high: float
    centre: float
    catalogue: _catalogue_version_pb2.CatalogueVersion
    def __init__(self, items: _Optional[int] = ..., rank: _Optional[int] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., centre: _Optional[float] = ..., catalogue: _Optional[_Union[_catalogue_version_pb2.CatalogueVersion, _Mapping]] = ...) -> None: ...
