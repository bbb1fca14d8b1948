"""What runs on a person's device, and a host that runs many such devices in one process."""

from device_runtime.limits import Limits
from device_runtime.program import Config, Running, log_guard, run, start
from device_runtime.provision import provision
from device_runtime.recommend import DownloadedModel, Recommendation, download_model, predict, recommend
from device_runtime.services import Services
from device_runtime.store import Participation, State, Store, store_path
from device_runtime.table_cache import TableCache

__all__ = [
    "Config",
    "DownloadedModel",
    "Limits",
    "Participation",
    "Recommendation",
    "Running",
    "Services",
    "State",
    "Store",
    "TableCache",
    "download_model",
    "log_guard",
    "predict",
    "provision",
    "recommend",
    "run",
    "start",
    "store_path",
]
