from odp.v1 import broadcast_pb2 as _broadcast_pb2
from odp.v1 import catalogue_version_pb2 as _catalogue_version_pb2
from odp.v1 import draw_and_discard_pb2 as _draw_and_discard_pb2
from odp.v1 import encoding_pb2 as _encoding_pb2
from odp.v1 import events_query_pb2 as _events_query_pb2
from odp.v1 import federated_pb2 as _federated_pb2
from odp.v1 import heavy_hitters_pb2 as _heavy_hitters_pb2
from odp.v1 import item_gradients_pb2 as _item_gradients_pb2
from odp.v1 import local_statistics_pb2 as _local_statistics_pb2
from odp.v1 import model_evaluation_pb2 as _model_evaluation_pb2
from odp.v1 import public_table_pb2 as _public_table_pb2
from odp.v1 import secagg_terms_pb2 as _secagg_terms_pb2
from odp.v1 import statistics_pb2 as _statistics_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Adjacency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADJACENCY_UNSPECIFIED: _ClassVar[Adjacency]
    ADJACENCY_ZERO_OUT_USER: _ClassVar[Adjacency]
    ADJACENCY_ADD_REMOVE_USER: _ClassVar[Adjacency]
ADJACENCY_UNSPECIFIED: Adjacency
ADJACENCY_ZERO_OUT_USER: Adjacency
ADJACENCY_ADD_REMOVE_USER: Adjacency

class TaskDefinition(_message.Message):
    __slots__ = ("name", "population", "model", "data", "implicit", "examples", "privacy", "dpam", "statistics", "table", "quantiles", "fedavg", "dpsgd", "dpftrl", "model_evaluation", "local_statistics", "shuffled_statistics", "heavy_hitters", "draw_and_discard", "local_heavy_hitters", "private_fl", "usable_count", "item_gradients", "glm", "network", "two_tower", "rated_items", "cohort", "developer_key", "broadcast", "computing_milliseconds", "count_first")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IMPLICIT_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    DPAM_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    QUANTILES_FIELD_NUMBER: _ClassVar[int]
    FEDAVG_FIELD_NUMBER: _ClassVar[int]
    DPSGD_FIELD_NUMBER: _ClassVar[int]
    DPFTRL_FIELD_NUMBER: _ClassVar[int]
    MODEL_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    SHUFFLED_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    HEAVY_HITTERS_FIELD_NUMBER: _ClassVar[int]
    DRAW_AND_DISCARD_FIELD_NUMBER: _ClassVar[int]
    LOCAL_HEAVY_HITTERS_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_FL_FIELD_NUMBER: _ClassVar[int]
    USABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ITEM_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    GLM_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    TWO_TOWER_FIELD_NUMBER: _ClassVar[int]
    RATED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    DEVELOPER_KEY_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIRST_FIELD_NUMBER: _ClassVar[int]
    name: str
    population: str
    model: MatrixFactorizationModel
    data: RatingsData
    implicit: ImplicitData
    examples: _federated_pb2.ExamplesData
    privacy: PrivacyTerms
    dpam: DpamTraining
    statistics: _statistics_pb2.Statistics
    table: _public_table_pb2.PublicTable
    quantiles: Quantiles
    fedavg: _federated_pb2.FederatedTraining
    dpsgd: _federated_pb2.FederatedTraining
    dpftrl: _federated_pb2.FederatedTraining
    model_evaluation: _model_evaluation_pb2.ModelEvaluation
    local_statistics: _local_statistics_pb2.LocalStatistics
    shuffled_statistics: _local_statistics_pb2.ShuffledStatistics
    heavy_hitters: _heavy_hitters_pb2.HeavyHitters
    draw_and_discard: _draw_and_discard_pb2.DrawAndDiscard
    local_heavy_hitters: _heavy_hitters_pb2.LocalHeavyHitters
    private_fl: _federated_pb2.FederatedTraining
    usable_count: UsableCount
    item_gradients: _item_gradients_pb2.ItemGradientTraining
    glm: _federated_pb2.GlmModel
    network: _federated_pb2.NetworkModel
    two_tower: _federated_pb2.TwoTowerModel
    rated_items: _model_evaluation_pb2.RatedItems
    cohort: CohortTerms
    developer_key: bytes
    broadcast: _broadcast_pb2.BroadcastTerms
    computing_milliseconds: int
    count_first: CountFirst
    def __init__(self, name: _Optional[str] = ..., population: _Optional[str] = ..., model: _Optional[_Union[MatrixFactorizationModel, _Mapping]] = ..., data: _Optional[_Union[RatingsData, _Mapping]] = ..., implicit: _Optional[_Union[ImplicitData, _Mapping]] = ..., examples: _Optional[_Union[_federated_pb2.ExamplesData, _Mapping]] = ..., privacy: _Optional[_Union[PrivacyTerms, _Mapping]] = ..., dpam: _Optional[_Union[DpamTraining, _Mapping]] = ..., statistics: _Optional[_Union[_statistics_pb2.Statistics, _Mapping]] = ..., table: _Optional[_Union[_public_table_pb2.PublicTable, _Mapping]] = ..., quantiles: _Optional[_Union[Quantiles, _Mapping]] = ..., fedavg: _Optional[_Union[_federated_pb2.FederatedTraining, _Mapping]] = ..., dpsgd: _Optional[_Union[_federated_pb2.FederatedTraining, _Mapping]] = ..., dpftrl: _Optional[_Union[_federated_pb2.FederatedTraining, _Mapping]] = ..., model_evaluation: _Optional[_Union[_model_evaluation_pb2.ModelEvaluation, _Mapping]] = ..., local_statistics: _Optional[_Union[_local_statistics_pb2.LocalStatistics, _Mapping]] = ..., shuffled_statistics: _Optional[_Union[_local_statistics_pb2.ShuffledStatistics, _Mapping]] = ..., heavy_hitters: _Optional[_Union[_heavy_hitters_pb2.HeavyHitters, _Mapping]] = ..., draw_and_discard: _Optional[_Union[_draw_and_discard_pb2.DrawAndDiscard, _Mapping]] = ..., local_heavy_hitters: _Optional[_Union[_heavy_hitters_pb2.LocalHeavyHitters, _Mapping]] = ..., private_fl: _Optional[_Union[_federated_pb2.FederatedTraining, _Mapping]] = ..., usable_count: _Optional[_Union[UsableCount, _Mapping]] = ..., item_gradients: _Optional[_Union[_item_gradients_pb2.ItemGradientTraining, _Mapping]] = ..., glm: _Optional[_Union[_federated_pb2.GlmModel, _Mapping]] = ..., network: _Optional[_Union[_federated_pb2.NetworkModel, _Mapping]] = ..., two_tower: _Optional[_Union[_federated_pb2.TwoTowerModel, _Mapping]] = ..., rated_items: _Optional[_Union[_model_evaluation_pb2.RatedItems, _Mapping]] = ..., cohort: _Optional[_Union[CohortTerms, _Mapping]] = ..., developer_key: _Optional[bytes] = ..., broadcast: _Optional[_Union[_broadcast_pb2.BroadcastTerms, _Mapping]] = ..., computing_milliseconds: _Optional[int] = ..., count_first: _Optional[_Union[CountFirst, _Mapping]] = ...) -> None: ...

class SignedTask(_message.Message):
    __slots__ = ("definition", "signature")
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    definition: bytes
    signature: bytes
    def __init__(self, definition: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class MatrixFactorizationModel(_message.Message):
    __slots__ = ("items", "rank", "item_features_sha256", "item_features_width", "catalogue", "item_feature_groups")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ITEM_FEATURES_SHA256_FIELD_NUMBER: _ClassVar[int]
    ITEM_FEATURES_WIDTH_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_FIELD_NUMBER: _ClassVar[int]
    ITEM_FEATURE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    items: int
    rank: int
    item_features_sha256: bytes
    item_features_width: int
    catalogue: _catalogue_version_pb2.CatalogueVersion
    item_feature_groups: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, items: _Optional[int] = ..., rank: _Optional[int] = ..., item_features_sha256: _Optional[bytes] = ..., item_features_width: _Optional[int] = ..., catalogue: _Optional[_Union[_catalogue_version_pb2.CatalogueVersion, _Mapping]] = ..., item_feature_groups: _Optional[_Iterable[int]] = ...) -> None: ...

class RatingsData(_message.Message):
    __slots__ = ("table", "low", "high", "events")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    table: str
    low: float
    high: float
    events: _events_query_pb2.EventsQuery
    def __init__(self, table: _Optional[str] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., events: _Optional[_Union[_events_query_pb2.EventsQuery, _Mapping]] = ...) -> None: ...

class ImplicitData(_message.Message):
    __slots__ = ("table", "events", "confidence")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    table: str
    events: _events_query_pb2.EventsQuery
    confidence: float
    def __init__(self, table: _Optional[str] = ..., events: _Optional[_Union[_events_query_pb2.EventsQuery, _Mapping]] = ..., confidence: _Optional[float] = ...) -> None: ...

class PrivacyTerms(_message.Message):
    __slots__ = ("epsilon", "delta", "max_items_per_user")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_PER_USER_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    max_items_per_user: int
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., max_items_per_user: _Optional[int] = ...) -> None: ...

class DpamTraining(_message.Message):
    __slots__ = ("steps", "row_clip", "bias_target_clip", "factor_target_clip", "count_noise_std", "bias_mass_noise", "bias_sum_noise", "gram_noise", "target_noise", "weighting", "weight_exponent", "centre", "user_ridge", "user_bias_ridge", "item_ridge", "start_seed", "slices_per_device", "bias_vector_clip", "factor_vector_clip", "unobserved_weight", "gramian_noise", "head_items", "item_grams", "items_encoding", "kernel_variance", "gradient_steps")
    class Weighting(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WEIGHTING_UNSPECIFIED: _ClassVar[DpamTraining.Weighting]
        WEIGHTING_UNIFORM: _ClassVar[DpamTraining.Weighting]
        WEIGHTING_ADAPTIVE: _ClassVar[DpamTraining.Weighting]
    WEIGHTING_UNSPECIFIED: DpamTraining.Weighting
    WEIGHTING_UNIFORM: DpamTraining.Weighting
    WEIGHTING_ADAPTIVE: DpamTraining.Weighting
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ROW_CLIP_FIELD_NUMBER: _ClassVar[int]
    BIAS_TARGET_CLIP_FIELD_NUMBER: _ClassVar[int]
    FACTOR_TARGET_CLIP_FIELD_NUMBER: _ClassVar[int]
    COUNT_NOISE_STD_FIELD_NUMBER: _ClassVar[int]
    BIAS_MASS_NOISE_FIELD_NUMBER: _ClassVar[int]
    BIAS_SUM_NOISE_FIELD_NUMBER: _ClassVar[int]
    GRAM_NOISE_FIELD_NUMBER: _ClassVar[int]
    TARGET_NOISE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTING_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    USER_RIDGE_FIELD_NUMBER: _ClassVar[int]
    USER_BIAS_RIDGE_FIELD_NUMBER: _ClassVar[int]
    ITEM_RIDGE_FIELD_NUMBER: _ClassVar[int]
    START_SEED_FIELD_NUMBER: _ClassVar[int]
    SLICES_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    BIAS_VECTOR_CLIP_FIELD_NUMBER: _ClassVar[int]
    FACTOR_VECTOR_CLIP_FIELD_NUMBER: _ClassVar[int]
    UNOBSERVED_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    GRAMIAN_NOISE_FIELD_NUMBER: _ClassVar[int]
    HEAD_ITEMS_FIELD_NUMBER: _ClassVar[int]
    ITEM_GRAMS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_ENCODING_FIELD_NUMBER: _ClassVar[int]
    KERNEL_VARIANCE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    row_clip: float
    bias_target_clip: float
    factor_target_clip: float
    count_noise_std: float
    bias_mass_noise: float
    bias_sum_noise: float
    gram_noise: float
    target_noise: float
    weighting: DpamTraining.Weighting
    weight_exponent: float
    centre: float
    user_ridge: float
    user_bias_ridge: float
    item_ridge: float
    start_seed: int
    slices_per_device: int
    bias_vector_clip: float
    factor_vector_clip: float
    unobserved_weight: float
    gramian_noise: float
    head_items: int
    item_grams: bool
    items_encoding: _encoding_pb2.TableEncoding
    kernel_variance: float
    gradient_steps: bool
    def __init__(self, steps: _Optional[int] = ..., row_clip: _Optional[float] = ..., bias_target_clip: _Optional[float] = ..., factor_target_clip: _Optional[float] = ..., count_noise_std: _Optional[float] = ..., bias_mass_noise: _Optional[float] = ..., bias_sum_noise: _Optional[float] = ..., gram_noise: _Optional[float] = ..., target_noise: _Optional[float] = ..., weighting: _Optional[_Union[DpamTraining.Weighting, str]] = ..., weight_exponent: _Optional[float] = ..., centre: _Optional[float] = ..., user_ridge: _Optional[float] = ..., user_bias_ridge: _Optional[float] = ..., item_ridge: _Optional[float] = ..., start_seed: _Optional[int] = ..., slices_per_device: _Optional[int] = ..., bias_vector_clip: _Optional[float] = ..., factor_vector_clip: _Optional[float] = ..., unobserved_weight: _Optional[float] = ..., gramian_noise: _Optional[float] = ..., head_items: _Optional[int] = ..., item_grams: _Optional[bool] = ..., items_encoding: _Optional[_Union[_encoding_pb2.TableEncoding, str]] = ..., kernel_variance: _Optional[float] = ..., gradient_steps: _Optional[bool] = ...) -> None: ...

class Quantiles(_message.Message):
    __slots__ = ("table", "events", "edges", "at", "dense")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    table: str
    events: _events_query_pb2.EventsQuery
    edges: bytes
    at: _containers.RepeatedScalarFieldContainer[float]
    dense: _statistics_pb2.DenseTerms
    def __init__(self, table: _Optional[str] = ..., events: _Optional[_Union[_events_query_pb2.EventsQuery, _Mapping]] = ..., edges: _Optional[bytes] = ..., at: _Optional[_Iterable[float]] = ..., dense: _Optional[_Union[_statistics_pb2.DenseTerms, _Mapping]] = ...) -> None: ...

class UsableCount(_message.Message):
    __slots__ = ("most_examples", "dense")
    MOST_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    most_examples: int
    dense: _statistics_pb2.DenseTerms
    def __init__(self, most_examples: _Optional[int] = ..., dense: _Optional[_Union[_statistics_pb2.DenseTerms, _Mapping]] = ...) -> None: ...

class CountFirst(_message.Message):
    __slots__ = ("task_sha256", "least_share")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    LEAST_SHARE_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    least_share: float
    def __init__(self, task_sha256: _Optional[bytes] = ..., least_share: _Optional[float] = ...) -> None: ...

class CohortTerms(_message.Message):
    __slots__ = ("minimum", "goal", "round_seconds", "enclave_poisson", "aggregation", "secagg", "schedule")
    class Aggregation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        AGGREGATION_UNSPECIFIED: _ClassVar[CohortTerms.Aggregation]
        AGGREGATION_MASKED: _ClassVar[CohortTerms.Aggregation]
        AGGREGATION_SECAGG: _ClassVar[CohortTerms.Aggregation]
    AGGREGATION_UNSPECIFIED: CohortTerms.Aggregation
    AGGREGATION_MASKED: CohortTerms.Aggregation
    AGGREGATION_SECAGG: CohortTerms.Aggregation
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    ROUND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENCLAVE_POISSON_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    SECAGG_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    goal: int
    round_seconds: int
    enclave_poisson: EnclavePoisson
    aggregation: CohortTerms.Aggregation
    secagg: _secagg_terms_pb2.SecAggTerms
    schedule: _containers.RepeatedCompositeFieldContainer[CohortRounds]
    def __init__(self, minimum: _Optional[int] = ..., goal: _Optional[int] = ..., round_seconds: _Optional[int] = ..., enclave_poisson: _Optional[_Union[EnclavePoisson, _Mapping]] = ..., aggregation: _Optional[_Union[CohortTerms.Aggregation, str]] = ..., secagg: _Optional[_Union[_secagg_terms_pb2.SecAggTerms, _Mapping]] = ..., schedule: _Optional[_Iterable[_Union[CohortRounds, _Mapping]]] = ...) -> None: ...

class CohortRounds(_message.Message):
    __slots__ = ("rounds", "goal", "probability", "cap")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    goal: int
    probability: float
    cap: int
    def __init__(self, rounds: _Optional[int] = ..., goal: _Optional[int] = ..., probability: _Optional[float] = ..., cap: _Optional[int] = ...) -> None: ...

class EnclavePoisson(_message.Message):
    __slots__ = ("probability", "most_contributions", "cap")
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    MOST_CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    probability: float
    most_contributions: int
    cap: int
    def __init__(self, probability: _Optional[float] = ..., most_contributions: _Optional[int] = ..., cap: _Optional[int] = ...) -> None: ...

class ModelManifest(_message.Message):
    __slots__ = ("task_sha256", "version", "tables")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    version: int
    tables: _containers.RepeatedCompositeFieldContainer[TableManifest]
    def __init__(self, task_sha256: _Optional[bytes] = ..., version: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableManifest, _Mapping]]] = ...) -> None: ...

class SignedManifest(_message.Message):
    __slots__ = ("manifest", "signature")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    signature: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class TableManifest(_message.Message):
    __slots__ = ("name", "rows", "width", "sha256", "keyed", "encoding")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    width: int
    sha256: bytes
    keyed: bool
    encoding: _encoding_pb2.TableEncoding
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., width: _Optional[int] = ..., sha256: _Optional[bytes] = ..., keyed: _Optional[bool] = ..., encoding: _Optional[_Union[_encoding_pb2.TableEncoding, str]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("task_sha256", "round", "model_sha256", "tensors", "charges", "epsilon_spent", "epsilon_remaining", "contributions", "values_sha256", "values_bytes")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CHARGES_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SPENT_FIELD_NUMBER: _ClassVar[int]
    EPSILON_REMAINING_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    VALUES_SHA256_FIELD_NUMBER: _ClassVar[int]
    VALUES_BYTES_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    model_sha256: bytes
    tensors: _containers.RepeatedCompositeFieldContainer[ReleasedTensor]
    charges: _containers.RepeatedCompositeFieldContainer[Charge]
    epsilon_spent: float
    epsilon_remaining: float
    contributions: int
    values_sha256: bytes
    values_bytes: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., model_sha256: _Optional[bytes] = ..., tensors: _Optional[_Iterable[_Union[ReleasedTensor, _Mapping]]] = ..., charges: _Optional[_Iterable[_Union[Charge, _Mapping]]] = ..., epsilon_spent: _Optional[float] = ..., epsilon_remaining: _Optional[float] = ..., contributions: _Optional[int] = ..., values_sha256: _Optional[bytes] = ..., values_bytes: _Optional[int] = ...) -> None: ...

class SignedRelease(_message.Message):
    __slots__ = ("release", "signature")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    release: bytes
    signature: bytes
    def __init__(self, release: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SignedRoundKey(_message.Message):
    __slots__ = ("hpke_key", "signature", "voided")
    HPKE_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    VOIDED_FIELD_NUMBER: _ClassVar[int]
    hpke_key: bytes
    signature: bytes
    voided: _containers.RepeatedCompositeFieldContainer[VoidedKey]
    def __init__(self, hpke_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., voided: _Optional[_Iterable[_Union[VoidedKey, _Mapping]]] = ...) -> None: ...

class VoidedKey(_message.Message):
    __slots__ = ("hpke_key", "signature")
    HPKE_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    hpke_key: bytes
    signature: bytes
    def __init__(self, hpke_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ReleasedTensor(_message.Message):
    __slots__ = ("name", "integers", "shape", "step")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    integers: bytes
    shape: _containers.RepeatedScalarFieldContainer[int]
    step: float
    def __init__(self, name: _Optional[str] = ..., integers: _Optional[bytes] = ..., shape: _Optional[_Iterable[int]] = ..., step: _Optional[float] = ...) -> None: ...

class Charge(_message.Message):
    __slots__ = ("name", "sensitivity", "noise_std", "coordinates", "sharers", "step", "adjacency", "graph_delta", "stream", "shuffled")
    class Stream(_message.Message):
        __slots__ = ("rounds", "most", "separation", "matrix_sha256", "place")
        ROUNDS_FIELD_NUMBER: _ClassVar[int]
        MOST_FIELD_NUMBER: _ClassVar[int]
        SEPARATION_FIELD_NUMBER: _ClassVar[int]
        MATRIX_SHA256_FIELD_NUMBER: _ClassVar[int]
        PLACE_FIELD_NUMBER: _ClassVar[int]
        rounds: int
        most: int
        separation: int
        matrix_sha256: bytes
        place: int
        def __init__(self, rounds: _Optional[int] = ..., most: _Optional[int] = ..., separation: _Optional[int] = ..., matrix_sha256: _Optional[bytes] = ..., place: _Optional[int] = ...) -> None: ...
    class Shuffled(_message.Message):
        __slots__ = ("report_epsilon", "reports", "choices")
        REPORT_EPSILON_FIELD_NUMBER: _ClassVar[int]
        REPORTS_FIELD_NUMBER: _ClassVar[int]
        CHOICES_FIELD_NUMBER: _ClassVar[int]
        report_epsilon: float
        reports: int
        choices: int
        def __init__(self, report_epsilon: _Optional[float] = ..., reports: _Optional[int] = ..., choices: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    NOISE_STD_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_FIELD_NUMBER: _ClassVar[int]
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ADJACENCY_FIELD_NUMBER: _ClassVar[int]
    GRAPH_DELTA_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SHUFFLED_FIELD_NUMBER: _ClassVar[int]
    name: str
    sensitivity: float
    noise_std: float
    coordinates: int
    sharers: int
    step: float
    adjacency: Adjacency
    graph_delta: float
    stream: Charge.Stream
    shuffled: Charge.Shuffled
    def __init__(self, name: _Optional[str] = ..., sensitivity: _Optional[float] = ..., noise_std: _Optional[float] = ..., coordinates: _Optional[int] = ..., sharers: _Optional[int] = ..., step: _Optional[float] = ..., adjacency: _Optional[_Union[Adjacency, str]] = ..., graph_delta: _Optional[float] = ..., stream: _Optional[_Union[Charge.Stream, _Mapping]] = ..., shuffled: _Optional[_Union[Charge.Shuffled, _Mapping]] = ...) -> None: ...
