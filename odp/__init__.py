"""ODP: on-device personalization with user-level differential privacy that anyone can check.

``import odp`` is all a developer needs: a model, a task, a simulation, a connection to a server. The names below are
loaded when first used, so that the import stays fast and brings no heavy library with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from odp.errors import (
    AttestationError,
    BudgetExceeded,
    ConfigurationError,
    ContributionRefused,
    DataError,
    DiskFull,
    OdpError,
    PrivacyError,
    ServiceError,
    ServiceUnavailable,
    StateError,
)

if TYPE_CHECKING:
    from device_runtime.sdk import Device, Learned, Limits
    from odp.algorithms.dpam.config import DPAM
    from odp.algorithms.dpam.data import RatingsData
    from odp.algorithms.dpam.side_prior import side_prior
    from odp.algorithms.dpam.warm_start import warm_start
    from odp.algorithms.dpftrl.config import DPFTRL
    from odp.algorithms.dpsgd.config import DPSGD
    from odp.algorithms.draw_and_discard.config import DrawAndDiscard
    from odp.algorithms.draw_and_discard.features import Boolean, Number
    from odp.algorithms.fedavg.config import DPFedAvg
    from odp.algorithms.heavy_hitters.task import HeavyHitters
    from odp.algorithms.implicit.config import ImplicitDPAM
    from odp.algorithms.implicit.data import ImplicitData
    from odp.algorithms.model_evaluation.task import Evaluation, PersonalTraining
    from odp.algorithms.private_fl.config import PrivateFL
    from odp.algorithms.quantiles.task import Quantiles
    from odp.algorithms.statistics.config import Histogram, Mean
    from odp.algorithms.statistics.task import Statistics
    from odp.broadcast.config import Broadcast
    from odp.catalogues.catalogue import Catalogue
    from odp.classifier import Classifier
    from odp.classifier_export import export_classifier
    from odp.client import Connection, connect
    from odp.count_usable import CountUsable
    from odp.datasets import Ratings, load, random_split, synthetic_movielens
    from odp.datasets.examples import ExamplesSplit, UsersExamples
    from odp.datasets.texts import UsersTexts, synthetic_words
    from odp.isolated import IsolatedService
    from odp.item_export import export_items
    from odp.living_model import LivingModel
    from odp.models.events import Events
    from odp.models.example_columns import ExampleColumns
    from odp.models.example_tables import load_examples
    from odp.models.examples import Examples
    from odp.models.features import Category, Tensor, Text
    from odp.models.glm import Glm
    from odp.models.item_files import load_items
    from odp.models.item_table import ItemTable
    from odp.models.litert.compiled_model import CompiledModel
    from odp.models.litert.keras_model import KerasModel
    from odp.models.litert.two_tower import TwoTower
    from odp.models.local_training import Reconstruction
    from odp.models.matrix_factorization import MatrixFactorization
    from odp.models.rated_items import RatedItems
    from odp.models.side_prior import SidePrior
    from odp.models.warm_start import WarmStart
    from odp.privacy.mechanisms.categorical import UnaryEncoding
    from odp.privacy.mechanisms.local_means import GaussianMean, LaplaceMean
    from odp.privacy.mechanisms.privunit import PrivUnit
    from odp.privacy.mechanisms.privunit_infinity import PrivUnitInfinity
    from odp.privacy.mechanisms.random_source import RandomSource
    from odp.privacy.mechanisms.randomized_response import RandomizedResponse
    from odp.privacy.mechanisms.scalar import GridScalar, ScalarDP, ScalarRelDP
    from odp.privacy.mechanisms.separated import SeparatedVector
    from odp.privacy.reconstruction import ReconstructionCertificate, dictionary_breach, projection_breach
    from odp.privacy.shuffling import amplified_epsilon, amplified_epsilon_binary, amplified_epsilon_k_rr
    from odp.protocol.terms import Cohort, UserLevelDP
    from odp.public_tables.table import Table
    from odp.schedule import Schedule
    from odp.schedule_limits import DeviceLimits
    from odp.serving.index_file import open_index
    from odp.serving.item_index import ItemIndex
    from odp.simulation.comparing import Comparison, compare
    from odp.simulation.engine import RunResult, simulate
    from odp.simulation.retraining import Retraining, retrain
    from odp.simulation.tuning import Tuning, tune
    from odp.task import Task
    from odp.task_file import load_task

__version__ = "0.1.0"

_HOME = {
    "Boolean": "odp.algorithms.draw_and_discard.features",
    "Broadcast": "odp.broadcast.config",
    "DPAM": "odp.algorithms.dpam.config",
    "DPFedAvg": "odp.algorithms.fedavg.config",
    "DPFTRL": "odp.algorithms.dpftrl.config",
    "DPSGD": "odp.algorithms.dpsgd.config",
    "ExampleColumns": "odp.models.example_columns",
    "DrawAndDiscard": "odp.algorithms.draw_and_discard.config",
    "Evaluation": "odp.algorithms.model_evaluation.task",
    "Examples": "odp.models.examples",
    "ExamplesSplit": "odp.datasets.examples",
    "UsersExamples": "odp.datasets.examples",
    "Glm": "odp.models.glm",
    "Catalogue": "odp.catalogues.catalogue",
    "Category": "odp.models.features",
    "Tensor": "odp.models.features",
    "Text": "odp.models.features",
    "Events": "odp.models.events",
    "Cohort": "odp.protocol.terms",
    "CompiledModel": "odp.models.litert.compiled_model",
    "Comparison": "odp.simulation.comparing",
    "Connection": "odp.client",
    "CountUsable": "odp.count_usable",
    "HeavyHitters": "odp.algorithms.heavy_hitters.task",
    "Histogram": "odp.algorithms.statistics.config",
    "ImplicitDPAM": "odp.algorithms.implicit.config",
    "ImplicitData": "odp.algorithms.implicit.data",
    "IsolatedService": "odp.isolated",
    "KerasModel": "odp.models.litert.keras_model",
    "LivingModel": "odp.living_model",
    "MatrixFactorization": "odp.models.matrix_factorization",
    "Mean": "odp.algorithms.statistics.config",
    "Number": "odp.algorithms.draw_and_discard.features",
    "Ratings": "odp.datasets",
    "PersonalTraining": "odp.algorithms.model_evaluation.task",
    "PrivateFL": "odp.algorithms.private_fl.config",
    "Quantiles": "odp.algorithms.quantiles.task",
    "RatedItems": "odp.models.rated_items",
    "RatingsData": "odp.algorithms.dpam.data",
    "Reconstruction": "odp.models.local_training",
    "Retraining": "odp.simulation.retraining",
    "RunResult": "odp.simulation.engine",
    "Schedule": "odp.schedule",
    "DeviceLimits": "odp.schedule_limits",
    "Statistics": "odp.algorithms.statistics.task",
    "Table": "odp.public_tables.table",
    # The names here that a service provides: what an app embeds.
    "Device": "device_runtime.sdk",
    "Learned": "device_runtime.sdk",
    "Limits": "device_runtime.sdk",
    "Task": "odp.task",
    "SidePrior": "odp.models.side_prior",
    "WarmStart": "odp.models.warm_start",
    "side_prior": "odp.algorithms.dpam.side_prior",
    "warm_start": "odp.algorithms.dpam.warm_start",
    "TwoTower": "odp.models.litert.two_tower",
    "UserLevelDP": "odp.protocol.terms",
    # Reports that are private by themselves.
    "GaussianMean": "odp.privacy.mechanisms.local_means",
    "GridScalar": "odp.privacy.mechanisms.scalar",
    "LaplaceMean": "odp.privacy.mechanisms.local_means",
    "PrivUnit": "odp.privacy.mechanisms.privunit",
    "PrivUnitInfinity": "odp.privacy.mechanisms.privunit_infinity",
    "RandomSource": "odp.privacy.mechanisms.random_source",
    "RandomizedResponse": "odp.privacy.mechanisms.randomized_response",
    "ScalarDP": "odp.privacy.mechanisms.scalar",
    "ScalarRelDP": "odp.privacy.mechanisms.scalar",
    "SeparatedVector": "odp.privacy.mechanisms.separated",
    "UnaryEncoding": "odp.privacy.mechanisms.categorical",
    "UsersTexts": "odp.datasets.texts",
    "compare": "odp.simulation.comparing",
    "connect": "odp.client",
    "ItemIndex": "odp.serving.item_index",
    "ItemTable": "odp.models.item_table",
    "Classifier": "odp.classifier",
    "export_classifier": "odp.classifier_export",
    "export_items": "odp.item_export",
    "load": "odp.datasets",
    "load_examples": "odp.models.example_tables",
    "load_items": "odp.models.item_files",
    "load_task": "odp.task_file",
    "open_index": "odp.serving.index_file",
    "random_split": "odp.datasets",
    "retrain": "odp.simulation.retraining",
    "simulate": "odp.simulation.engine",
    "synthetic_movielens": "odp.datasets",
    "synthetic_words": "odp.datasets.texts",
    "Tuning": "odp.simulation.tuning",
    "tune": "odp.simulation.tuning",
    "ReconstructionCertificate": "odp.privacy.reconstruction",
    "amplified_epsilon": "odp.privacy.shuffling",
    "amplified_epsilon_binary": "odp.privacy.shuffling",
    "amplified_epsilon_k_rr": "odp.privacy.shuffling",
    "dictionary_breach": "odp.privacy.reconstruction",
    "projection_breach": "odp.privacy.reconstruction",
}

__all__ = [
    "DPAM",
    "DPFTRL",
    "DPSGD",
    "AttestationError",
    "Boolean",
    "Broadcast",
    "BudgetExceeded",
    "Catalogue",
    "Category",
    "Classifier",
    "Cohort",
    "Comparison",
    "CompiledModel",
    "ConfigurationError",
    "Connection",
    "ContributionRefused",
    "CountUsable",
    "DPFedAvg",
    "DataError",
    "Device",
    "DeviceLimits",
    "DiskFull",
    "DrawAndDiscard",
    "Evaluation",
    "Events",
    "ExampleColumns",
    "Examples",
    "ExamplesSplit",
    "GaussianMean",
    "Glm",
    "GridScalar",
    "HeavyHitters",
    "Histogram",
    "ImplicitDPAM",
    "ImplicitData",
    "IsolatedService",
    "ItemIndex",
    "ItemTable",
    "KerasModel",
    "LaplaceMean",
    "Learned",
    "Limits",
    "LivingModel",
    "MatrixFactorization",
    "Mean",
    "Number",
    "OdpError",
    "PersonalTraining",
    "PrivUnit",
    "PrivUnitInfinity",
    "PrivacyError",
    "PrivateFL",
    "Quantiles",
    "RandomSource",
    "RandomizedResponse",
    "RatedItems",
    "Ratings",
    "RatingsData",
    "Reconstruction",
    "ReconstructionCertificate",
    "Retraining",
    "RunResult",
    "ScalarDP",
    "ScalarRelDP",
    "Schedule",
    "SeparatedVector",
    "ServiceError",
    "ServiceUnavailable",
    "SidePrior",
    "StateError",
    "Statistics",
    "Table",
    "Task",
    "Tensor",
    "Text",
    "Tuning",
    "TwoTower",
    "UnaryEncoding",
    "UserLevelDP",
    "UsersExamples",
    "UsersTexts",
    "WarmStart",
    "amplified_epsilon",
    "amplified_epsilon_binary",
    "amplified_epsilon_k_rr",
    "compare",
    "connect",
    "dictionary_breach",
    "export_classifier",
    "export_items",
    "load",
    "load_examples",
    "load_items",
    "load_task",
    "open_index",
    "projection_breach",
    "random_split",
    "retrain",
    "side_prior",
    "simulate",
    "synthetic_movielens",
    "synthetic_words",
    "tune",
    "warm_start",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        from odp._own_packages import check_own_packages

        check_own_packages([_HOME[name].partition(".")[0]])
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    from odp._validate import nearest

    raise AttributeError(f"module 'odp' has no attribute {name!r}{nearest(name, __all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
