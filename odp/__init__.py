"""ODP: on-device personalization with user-level differential privacy that anyone can check.

``import odp`` is all a developer needs: a model, a task, a simulation, a connection to a server. More is in
``odp.data``, ``odp.items``, ``odp.living``, ``odp.mechanisms`` and ``odp.errors``. Names and modules are loaded when
first used, so that the import stays fast and brings no heavy library with it.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

from odp.errors import OdpError

if TYPE_CHECKING:
    from device_runtime.sdk import Device, Learned, Limits
    from odp import (
        data as data,
        errors as errors,
        isolated as isolated,
        items as items,
        living as living,
        mechanisms as mechanisms,
    )
    from odp.algorithms.dpam.config import DPAM, RatingsData
    from odp.algorithms.dpftrl.config import DPFTRL
    from odp.algorithms.dpsgd.config import DPSGD
    from odp.algorithms.draw_and_discard.config import DrawAndDiscard
    from odp.algorithms.draw_and_discard.features import Boolean, Number
    from odp.algorithms.fedavg.config import DPFedAvg
    from odp.algorithms.heavy_hitters.task import HeavyHitters
    from odp.algorithms.implicit.config import ImplicitData, ImplicitDPAM
    from odp.algorithms.model_evaluation.task import Evaluation, PersonalTraining
    from odp.algorithms.private_fl.config import PrivateFL
    from odp.algorithms.quantiles.task import Quantiles
    from odp.algorithms.statistics.task import Histogram, Mean, Statistics
    from odp.datasets import load
    from odp.isolated import IsolatedService
    from odp.models.events import Events
    from odp.models.examples import Examples
    from odp.models.features import Category, Tensor, Text
    from odp.models.glm import Glm
    from odp.models.litert.compiled_model import CompiledModel
    from odp.models.litert.keras_model import KerasModel
    from odp.models.litert.two_tower import TwoTower
    from odp.models.local_training import Reconstruction
    from odp.models.matrix_factorization import MatrixFactorization
    from odp.models.rated_items import RatedItems
    from odp.protocol.terms import Cohort, UserLevelDP
    from odp.research.simulation.comparing import Comparison, compare
    from odp.research.simulation.engine import RunResult, simulate
    from odp.research.simulation.tuning import Tuning, tune
    from odp.services.connection import Connection, connect
    from odp.signed.broadcast.config import Broadcast
    from odp.tasks.file import load_task
    from odp.tasks.task import CountUsable, Task

__version__ = "0.1.0"

_HOME = {
    "Boolean": "odp.algorithms.draw_and_discard.features",
    "Broadcast": "odp.signed.broadcast.config",
    "DPAM": "odp.algorithms.dpam.config",
    "DPFedAvg": "odp.algorithms.fedavg.config",
    "DPFTRL": "odp.algorithms.dpftrl.config",
    "DPSGD": "odp.algorithms.dpsgd.config",
    "DrawAndDiscard": "odp.algorithms.draw_and_discard.config",
    "Evaluation": "odp.algorithms.model_evaluation.task",
    "Examples": "odp.models.examples",
    "Glm": "odp.models.glm",
    "Category": "odp.models.features",
    "Tensor": "odp.models.features",
    "Text": "odp.models.features",
    "Events": "odp.models.events",
    "Cohort": "odp.protocol.terms",
    "CompiledModel": "odp.models.litert.compiled_model",
    "Comparison": "odp.research.simulation.comparing",
    "Connection": "odp.services.connection",
    "CountUsable": "odp.tasks.task",
    "HeavyHitters": "odp.algorithms.heavy_hitters.task",
    "Histogram": "odp.algorithms.statistics.task",
    "ImplicitDPAM": "odp.algorithms.implicit.config",
    "ImplicitData": "odp.algorithms.implicit.config",
    "IsolatedService": "odp.isolated",
    "KerasModel": "odp.models.litert.keras_model",
    "MatrixFactorization": "odp.models.matrix_factorization",
    "Mean": "odp.algorithms.statistics.task",
    "Number": "odp.algorithms.draw_and_discard.features",
    "PersonalTraining": "odp.algorithms.model_evaluation.task",
    "PrivateFL": "odp.algorithms.private_fl.config",
    "Quantiles": "odp.algorithms.quantiles.task",
    "RatedItems": "odp.models.rated_items",
    "RatingsData": "odp.algorithms.dpam.config",
    "Reconstruction": "odp.models.local_training",
    "RunResult": "odp.research.simulation.engine",
    "Statistics": "odp.algorithms.statistics.task",
    # The names here that a service provides: what an app embeds.
    "Device": "device_runtime.sdk",
    "Learned": "device_runtime.sdk",
    "Limits": "device_runtime.sdk",
    "Task": "odp.tasks.task",
    "TwoTower": "odp.models.litert.two_tower",
    "UserLevelDP": "odp.protocol.terms",
    "compare": "odp.research.simulation.comparing",
    "connect": "odp.services.connection",
    "load": "odp.datasets",
    "load_task": "odp.tasks.file",
    "simulate": "odp.research.simulation.engine",
    "Tuning": "odp.research.simulation.tuning",
    "tune": "odp.research.simulation.tuning",
}

__all__ = [
    "DPAM",
    "DPFTRL",
    "DPSGD",
    "Boolean",
    "Broadcast",
    "Category",
    "Cohort",
    "Comparison",
    "CompiledModel",
    "Connection",
    "CountUsable",
    "DPFedAvg",
    "Device",
    "DrawAndDiscard",
    "Evaluation",
    "Events",
    "Examples",
    "Glm",
    "HeavyHitters",
    "Histogram",
    "ImplicitDPAM",
    "ImplicitData",
    "IsolatedService",
    "KerasModel",
    "Learned",
    "Limits",
    "MatrixFactorization",
    "Mean",
    "Number",
    "OdpError",
    "PersonalTraining",
    "PrivateFL",
    "Quantiles",
    "RatedItems",
    "RatingsData",
    "Reconstruction",
    "RunResult",
    "Statistics",
    "Task",
    "Tensor",
    "Text",
    "Tuning",
    "TwoTower",
    "UserLevelDP",
    "compare",
    "connect",
    "load",
    "load_task",
    "simulate",
    "tune",
]

#: Modules whose names are public, too; each is loaded when first used.
_MODULES = ("data", "errors", "isolated", "items", "living", "mechanisms")

# Names that were here before those modules had them, until the version below.
_MOVED = {
    "AttestationError": "errors",
    "BudgetExceeded": "errors",
    "Catalogue": "items",
    "Classifier": "items",
    "ConfigurationError": "errors",
    "ContributionRefused": "errors",
    "DataError": "errors",
    "DeviceLimits": "living",
    "DiskFull": "errors",
    "ExampleColumns": "data",
    "ExamplesSplit": "data",
    "GaussianMean": "mechanisms",
    "GridScalar": "mechanisms",
    "ItemIndex": "items",
    "ItemTable": "items",
    "LaplaceMean": "mechanisms",
    "LivingModel": "living",
    "PrivUnit": "mechanisms",
    "PrivUnitInfinity": "mechanisms",
    "PrivacyError": "errors",
    "RandomSource": "mechanisms",
    "RandomizedResponse": "mechanisms",
    "Ratings": "data",
    "ReconstructionCertificate": "mechanisms",
    "Retraining": "living",
    "ScalarDP": "mechanisms",
    "ScalarRelDP": "mechanisms",
    "Schedule": "living",
    "SeparatedVector": "mechanisms",
    "ServiceError": "errors",
    "ServiceUnavailable": "errors",
    "SidePrior": "items",
    "StateError": "errors",
    "Table": "data",
    "UnaryEncoding": "mechanisms",
    "UsersExamples": "data",
    "UsersTexts": "data",
    "WarmStart": "items",
    "amplified_epsilon": "mechanisms",
    "amplified_epsilon_binary": "mechanisms",
    "amplified_epsilon_k_rr": "mechanisms",
    "dictionary_breach": "mechanisms",
    "export_classifier": "items",
    "export_items": "items",
    "load_examples": "data",
    "load_items": "items",
    "open_index": "items",
    "projection_breach": "mechanisms",
    "random_split": "data",
    "retrain": "living",
    "side_prior": "items",
    "synthetic_movielens": "data",
    "synthetic_words": "data",
    "warm_start": "items",
}
_GONE_WITH = "0.2"


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"odp.{name}")
    if name in _MOVED:
        place = f"odp.{_MOVED[name]}"
        warnings.warn(
            f"odp.{name} is {place}.{name}; version {_GONE_WITH} removes the name odp.{name}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(place), name)
    if name in _HOME:
        from odp._system.own_packages import check_own_packages

        check_own_packages([_HOME[name].partition(".")[0]])
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    from odp._validate import nearest

    raise AttributeError(f"module 'odp' has no attribute {name!r}{nearest(name, __all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
