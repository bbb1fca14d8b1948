from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ItemGradientTraining(_message.Message):
    __slots__ = ("steps", "rate", "clip", "row_clip", "row_ridge", "bias_ridge", "centre", "mass_noise", "gradient_noise", "start_seed", "slices_per_device", "unobserved_weight", "gramian_noise")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    ROW_CLIP_FIELD_NUMBER: _ClassVar[int]
    ROW_RIDGE_FIELD_NUMBER: _ClassVar[int]
    BIAS_RIDGE_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    MASS_NOISE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NOISE_FIELD_NUMBER: _ClassVar[int]
    START_SEED_FIELD_NUMBER: _ClassVar[int]
    SLICES_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    UNOBSERVED_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    GRAMIAN_NOISE_FIELD_NUMBER: _ClassVar[int]
    steps: int
    rate: float
    clip: float
    row_clip: float
    row_ridge: float
    bias_ridge: float
    centre: float
    mass_noise: float
    gradient_noise: float
    start_seed: int
    slices_per_device: int
    unobserved_weight: float
    gramian_noise: float
    def __init__(self, steps: _Optional[int] = ..., rate: _Optional[float] = ..., clip: _Optional[float] = ..., row_clip: _Optional[float] = ..., row_ridge: _Optional[float] = ..., bias_ridge: _Optional[float] = ..., centre: _Optional[float] = ..., mass_noise: _Optional[float] = ..., gradient_noise: _Optional[float] = ..., start_seed: _Optional[int] = ..., slices_per_device: _Optional[int] = ..., unobserved_weight: _Optional[float] = ..., gramian_noise: _Optional[float] = ...) -> None: ...
