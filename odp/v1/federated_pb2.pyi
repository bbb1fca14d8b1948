from odp.v1 import private_fl_pb2 as _private_fl_pb2
from odp.v1 import statistics_pb2 as _statistics_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FederatedTraining(_message.Message):
    __slots__ = ("local", "server", "clip", "cohort", "blocks", "adaptive_clip", "stream", "spread", "report")
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ADAPTIVE_CLIP_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    local: LocalTrainingTerms
    server: ServerOptimizerTerms
    clip: float
    cohort: float
    blocks: _containers.RepeatedCompositeFieldContainer[DenseRounds]
    adaptive_clip: AdaptiveClip
    stream: StreamTerms
    spread: UpdateSpread
    report: _private_fl_pb2.PrivateReportTerms
    def __init__(self, local: _Optional[_Union[LocalTrainingTerms, _Mapping]] = ..., server: _Optional[_Union[ServerOptimizerTerms, _Mapping]] = ..., clip: _Optional[float] = ..., cohort: _Optional[float] = ..., blocks: _Optional[_Iterable[_Union[DenseRounds, _Mapping]]] = ..., adaptive_clip: _Optional[_Union[AdaptiveClip, _Mapping]] = ..., stream: _Optional[_Union[StreamTerms, _Mapping]] = ..., spread: _Optional[_Union[UpdateSpread, _Mapping]] = ..., report: _Optional[_Union[_private_fl_pb2.PrivateReportTerms, _Mapping]] = ...) -> None: ...

class UpdateSpread(_message.Message):
    __slots__ = ("weight",)
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    weight: float
    def __init__(self, weight: _Optional[float] = ...) -> None: ...

class StreamTerms(_message.Message):
    __slots__ = ("most", "separation", "tree", "banded", "buffered")
    MOST_FIELD_NUMBER: _ClassVar[int]
    SEPARATION_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    BANDED_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_FIELD_NUMBER: _ClassVar[int]
    most: int
    separation: int
    tree: TreeEncoding
    banded: BandedEncoding
    buffered: BufferedEncoding
    def __init__(self, most: _Optional[int] = ..., separation: _Optional[int] = ..., tree: _Optional[_Union[TreeEncoding, _Mapping]] = ..., banded: _Optional[_Union[BandedEncoding, _Mapping]] = ..., buffered: _Optional[_Union[BufferedEncoding, _Mapping]] = ...) -> None: ...

class TreeEncoding(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BandedEncoding(_message.Message):
    __slots__ = ("bits", "coefficients")
    BITS_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    bits: int
    coefficients: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bits: _Optional[int] = ..., coefficients: _Optional[_Iterable[int]] = ...) -> None: ...

class BufferedEncoding(_message.Message):
    __slots__ = ("scales", "decays")
    SCALES_FIELD_NUMBER: _ClassVar[int]
    DECAYS_FIELD_NUMBER: _ClassVar[int]
    scales: _containers.RepeatedScalarFieldContainer[int]
    decays: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scales: _Optional[_Iterable[int]] = ..., decays: _Optional[_Iterable[int]] = ...) -> None: ...

class AdaptiveClip(_message.Message):
    __slots__ = ("quantile", "rate", "weight")
    QUANTILE_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    quantile: float
    rate: float
    weight: float
    def __init__(self, quantile: _Optional[float] = ..., rate: _Optional[float] = ..., weight: _Optional[float] = ...) -> None: ...

class DenseRounds(_message.Message):
    __slots__ = ("rounds", "dense", "rotated", "cohort")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    ROTATED_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    dense: _statistics_pb2.DenseTerms
    rotated: RotatedTerms
    cohort: float
    def __init__(self, rounds: _Optional[int] = ..., dense: _Optional[_Union[_statistics_pb2.DenseTerms, _Mapping]] = ..., rotated: _Optional[_Union[RotatedTerms, _Mapping]] = ..., cohort: _Optional[float] = ...) -> None: ...

class RotatedTerms(_message.Message):
    __slots__ = ("clip", "upload_bits", "noise_multiplier", "maximum")
    CLIP_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_BITS_FIELD_NUMBER: _ClassVar[int]
    NOISE_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    clip: float
    upload_bits: int
    noise_multiplier: float
    maximum: int
    def __init__(self, clip: _Optional[float] = ..., upload_bits: _Optional[int] = ..., noise_multiplier: _Optional[float] = ..., maximum: _Optional[int] = ...) -> None: ...

class GlmModel(_message.Message):
    __slots__ = ("family", "features", "classes")
    class Family(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FAMILY_UNSPECIFIED: _ClassVar[GlmModel.Family]
        FAMILY_LINEAR: _ClassVar[GlmModel.Family]
        FAMILY_LOGISTIC: _ClassVar[GlmModel.Family]
        FAMILY_MULTINOMIAL: _ClassVar[GlmModel.Family]
        FAMILY_POISSON: _ClassVar[GlmModel.Family]
    FAMILY_UNSPECIFIED: GlmModel.Family
    FAMILY_LINEAR: GlmModel.Family
    FAMILY_LOGISTIC: GlmModel.Family
    FAMILY_MULTINOMIAL: GlmModel.Family
    FAMILY_POISSON: GlmModel.Family
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    family: GlmModel.Family
    features: int
    classes: int
    def __init__(self, family: _Optional[_Union[GlmModel.Family, str]] = ..., features: _Optional[int] = ..., classes: _Optional[int] = ...) -> None: ...

class NetworkModel(_message.Message):
    __slots__ = ("description", "program", "program_sha256", "start_sha256", "local_start", "operations")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_SHA256_FIELD_NUMBER: _ClassVar[int]
    START_SHA256_FIELD_NUMBER: _ClassVar[int]
    LOCAL_START_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    description: str
    program: bytes
    program_sha256: bytes
    start_sha256: bytes
    local_start: bytes
    operations: int
    def __init__(self, description: _Optional[str] = ..., program: _Optional[bytes] = ..., program_sha256: _Optional[bytes] = ..., start_sha256: _Optional[bytes] = ..., local_start: _Optional[bytes] = ..., operations: _Optional[int] = ...) -> None: ...

class TwoTowerModel(_message.Message):
    __slots__ = ("network", "items", "negatives")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    network: NetworkModel
    items: int
    negatives: int
    def __init__(self, network: _Optional[_Union[NetworkModel, _Mapping]] = ..., items: _Optional[int] = ..., negatives: _Optional[int] = ...) -> None: ...

class ExamplesData(_message.Message):
    __slots__ = ("table", "features", "label", "label_low", "label_high", "classes")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    LABEL_LOW_FIELD_NUMBER: _ClassVar[int]
    LABEL_HIGH_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    table: str
    features: _containers.RepeatedCompositeFieldContainer[TensorFeature]
    label: str
    label_low: float
    label_high: float
    classes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, table: _Optional[str] = ..., features: _Optional[_Iterable[_Union[TensorFeature, _Mapping]]] = ..., label: _Optional[str] = ..., label_low: _Optional[float] = ..., label_high: _Optional[float] = ..., classes: _Optional[_Iterable[str]] = ...) -> None: ...

class TensorFeature(_message.Message):
    __slots__ = ("name", "shape", "low", "high", "scale", "category", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    low: float
    high: float
    scale: float
    category: CategoryFeature
    text: TextFeature
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., scale: _Optional[float] = ..., category: _Optional[_Union[CategoryFeature, _Mapping]] = ..., text: _Optional[_Union[TextFeature, _Mapping]] = ...) -> None: ...

class CategoryFeature(_message.Message):
    __slots__ = ("classes", "names")
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    classes: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, classes: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class TextFeature(_message.Message):
    __slots__ = ("vocabulary", "length", "unit")
    class Unit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNIT_UNSPECIFIED: _ClassVar[TextFeature.Unit]
        UNIT_WORD: _ClassVar[TextFeature.Unit]
        UNIT_CHARACTER: _ClassVar[TextFeature.Unit]
    UNIT_UNSPECIFIED: TextFeature.Unit
    UNIT_WORD: TextFeature.Unit
    UNIT_CHARACTER: TextFeature.Unit
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    vocabulary: _containers.RepeatedScalarFieldContainer[str]
    length: int
    unit: TextFeature.Unit
    def __init__(self, vocabulary: _Optional[_Iterable[str]] = ..., length: _Optional[int] = ..., unit: _Optional[_Union[TextFeature.Unit, str]] = ...) -> None: ...

class LocalTrainingTerms(_message.Message):
    __slots__ = ("rate", "epochs", "batch", "most_examples", "proximal", "reconstruction")
    RATE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    MOST_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    PROXIMAL_FIELD_NUMBER: _ClassVar[int]
    RECONSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    rate: float
    epochs: int
    batch: int
    most_examples: int
    proximal: float
    reconstruction: ReconstructionTerms
    def __init__(self, rate: _Optional[float] = ..., epochs: _Optional[int] = ..., batch: _Optional[int] = ..., most_examples: _Optional[int] = ..., proximal: _Optional[float] = ..., reconstruction: _Optional[_Union[ReconstructionTerms, _Mapping]] = ...) -> None: ...

class ReconstructionTerms(_message.Message):
    __slots__ = ("rate", "epochs", "split")
    RATE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    rate: float
    epochs: int
    split: bool
    def __init__(self, rate: _Optional[float] = ..., epochs: _Optional[int] = ..., split: _Optional[bool] = ...) -> None: ...

class ServerOptimizerTerms(_message.Message):
    __slots__ = ("kind", "rate", "momentum", "second_moment", "adaptivity")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[ServerOptimizerTerms.Kind]
        KIND_SGD: _ClassVar[ServerOptimizerTerms.Kind]
        KIND_ADAM: _ClassVar[ServerOptimizerTerms.Kind]
        KIND_YOGI: _ClassVar[ServerOptimizerTerms.Kind]
    KIND_UNSPECIFIED: ServerOptimizerTerms.Kind
    KIND_SGD: ServerOptimizerTerms.Kind
    KIND_ADAM: ServerOptimizerTerms.Kind
    KIND_YOGI: ServerOptimizerTerms.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    SECOND_MOMENT_FIELD_NUMBER: _ClassVar[int]
    ADAPTIVITY_FIELD_NUMBER: _ClassVar[int]
    kind: ServerOptimizerTerms.Kind
    rate: float
    momentum: float
    second_moment: float
    adaptivity: float
    def __init__(self, kind: _Optional[_Union[ServerOptimizerTerms.Kind, str]] = ..., rate: _Optional[float] = ..., momentum: _Optional[float] = ..., second_moment: _Optional[float] = ..., adaptivity: _Optional[float] = ...) -> None: ...
