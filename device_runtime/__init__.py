"""The programs of a person's device, and a host that runs many devices in one process."""

from device_runtime.host.program import Config, Running, catalogue_memory, charter_memory, log_guard, run, start
from device_runtime.host.provision import provision
from device_runtime.inference.candidates import CandidateModel, find_candidates, recommend_candidates
from device_runtime.inference.offline import Available, indexed_model, newest_model, recommend_indexed
from device_runtime.inference.recommend import (
    DownloadedModel,
    Recommendation,
    download_model,
    predict,
    predict_ranges,
    recommend,
)
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Services
from device_runtime.person.conditions import Conditions
from device_runtime.person.decisions import Person
from device_runtime.person.limits import Limits
from device_runtime.person.sensors import MachineSensors, Sensors, SimulatedSensors, Unreadable
from device_runtime.round.gate import Gate
from device_runtime.rows.lookup import FoundTable, Lookup
from device_runtime.rows.table_cache import TableCache
from device_runtime.store.app_data import AppData
from device_runtime.store.database import Bounds
from device_runtime.store.keys import AtRest, HostKey, at_rest, host_key
from device_runtime.store.recovery import repair
from device_runtime.store.retention import Retention, prune
from device_runtime.store.schema import Participation, State
from device_runtime.store.store import Store, store_path
from device_runtime.tasks.charters import CharterMemory
from odp.isolated import Event, PastRequest as Request

__all__ = [
    "AppData",
    "AtRest",
    "Available",
    "Bounds",
    "CandidateModel",
    "CharterMemory",
    "Conditions",
    "Config",
    "DownloadedModel",
    "Enclaves",
    "Event",
    "FoundTable",
    "Gate",
    "HostKey",
    "Limits",
    "Lookup",
    "MachineSensors",
    "Participation",
    "Person",
    "PinnedAddresses",
    "Recommendation",
    "Request",
    "Retention",
    "Running",
    "Sensors",
    "Services",
    "SimulatedSensors",
    "State",
    "Store",
    "TableCache",
    "Unreadable",
    "at_rest",
    "catalogue_memory",
    "charter_memory",
    "download_model",
    "find_candidates",
    "host_key",
    "indexed_model",
    "log_guard",
    "newest_model",
    "predict",
    "predict_ranges",
    "provision",
    "prune",
    "recommend",
    "recommend_candidates",
    "recommend_indexed",
    "repair",
    "run",
    "start",
    "store_path",
]
