from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrawAndDiscard(_message.Message):
    __slots__ = ("data", "family", "classes", "weights", "instances", "rate", "clip", "step", "noise_scale", "feature_epsilon", "model_epsilon", "bound", "spam", "start", "start_std", "seed", "most_updates", "most_reports", "most_examples", "seconds_between")
    class Family(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FAMILY_UNSPECIFIED: _ClassVar[DrawAndDiscard.Family]
        FAMILY_LINEAR: _ClassVar[DrawAndDiscard.Family]
        FAMILY_LOGISTIC: _ClassVar[DrawAndDiscard.Family]
        FAMILY_MULTINOMIAL: _ClassVar[DrawAndDiscard.Family]
        FAMILY_POISSON: _ClassVar[DrawAndDiscard.Family]
    FAMILY_UNSPECIFIED: DrawAndDiscard.Family
    FAMILY_LINEAR: DrawAndDiscard.Family
    FAMILY_LOGISTIC: DrawAndDiscard.Family
    FAMILY_MULTINOMIAL: DrawAndDiscard.Family
    FAMILY_POISSON: DrawAndDiscard.Family
    DATA_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NOISE_SCALE_FIELD_NUMBER: _ClassVar[int]
    FEATURE_EPSILON_FIELD_NUMBER: _ClassVar[int]
    MODEL_EPSILON_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    SPAM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    START_STD_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MOST_UPDATES_FIELD_NUMBER: _ClassVar[int]
    MOST_REPORTS_FIELD_NUMBER: _ClassVar[int]
    MOST_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_BETWEEN_FIELD_NUMBER: _ClassVar[int]
    data: LocalFeatures
    family: DrawAndDiscard.Family
    classes: int
    weights: int
    instances: int
    rate: float
    clip: float
    step: float
    noise_scale: int
    feature_epsilon: float
    model_epsilon: float
    bound: float
    spam: SpamRule
    start: bytes
    start_std: float
    seed: int
    most_updates: int
    most_reports: int
    most_examples: int
    seconds_between: int
    def __init__(self, data: _Optional[_Union[LocalFeatures, _Mapping]] = ..., family: _Optional[_Union[DrawAndDiscard.Family, str]] = ..., classes: _Optional[int] = ..., weights: _Optional[int] = ..., instances: _Optional[int] = ..., rate: _Optional[float] = ..., clip: _Optional[float] = ..., step: _Optional[float] = ..., noise_scale: _Optional[int] = ..., feature_epsilon: _Optional[float] = ..., model_epsilon: _Optional[float] = ..., bound: _Optional[float] = ..., spam: _Optional[_Union[SpamRule, _Mapping]] = ..., start: _Optional[bytes] = ..., start_std: _Optional[float] = ..., seed: _Optional[int] = ..., most_updates: _Optional[int] = ..., most_reports: _Optional[int] = ..., most_examples: _Optional[int] = ..., seconds_between: _Optional[int] = ...) -> None: ...

class SpamRule(_message.Message):
    __slots__ = ("most_deviations", "most_spread", "false_alarms")
    MOST_DEVIATIONS_FIELD_NUMBER: _ClassVar[int]
    MOST_SPREAD_FIELD_NUMBER: _ClassVar[int]
    FALSE_ALARMS_FIELD_NUMBER: _ClassVar[int]
    most_deviations: float
    most_spread: float
    false_alarms: float
    def __init__(self, most_deviations: _Optional[float] = ..., most_spread: _Optional[float] = ..., false_alarms: _Optional[float] = ...) -> None: ...

class LocalFeatures(_message.Message):
    __slots__ = ("table", "label", "label_low", "label_high", "features", "crosses", "intercept", "classes")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    LABEL_LOW_FIELD_NUMBER: _ClassVar[int]
    LABEL_HIGH_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CROSSES_FIELD_NUMBER: _ClassVar[int]
    INTERCEPT_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    table: str
    label: str
    label_low: float
    label_high: float
    features: _containers.RepeatedCompositeFieldContainer[LocalFeature]
    crosses: _containers.RepeatedCompositeFieldContainer[FeatureCross]
    intercept: bool
    classes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, table: _Optional[str] = ..., label: _Optional[str] = ..., label_low: _Optional[float] = ..., label_high: _Optional[float] = ..., features: _Optional[_Iterable[_Union[LocalFeature, _Mapping]]] = ..., crosses: _Optional[_Iterable[_Union[FeatureCross, _Mapping]]] = ..., intercept: _Optional[bool] = ..., classes: _Optional[_Iterable[str]] = ...) -> None: ...

class LocalFeature(_message.Message):
    __slots__ = ("name", "boolean", "number", "levels")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    boolean: BooleanFeature
    number: NumberFeature
    levels: LevelsFeature
    def __init__(self, name: _Optional[str] = ..., boolean: _Optional[_Union[BooleanFeature, _Mapping]] = ..., number: _Optional[_Union[NumberFeature, _Mapping]] = ..., levels: _Optional[_Union[LevelsFeature, _Mapping]] = ...) -> None: ...

class BooleanFeature(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NumberFeature(_message.Message):
    __slots__ = ("low", "high", "clip", "size")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    low: float
    high: float
    clip: bool
    size: int
    def __init__(self, low: _Optional[float] = ..., high: _Optional[float] = ..., clip: _Optional[bool] = ..., size: _Optional[int] = ...) -> None: ...

class LevelsFeature(_message.Message):
    __slots__ = ("count", "names")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    count: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, count: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class FeatureCross(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: str
    second: str
    def __init__(self, first: _Optional[str] = ..., second: _Optional[str] = ...) -> None: ...
