"""What runs on a person's device, and a host that runs many such devices in one process."""

from device_runtime.addresses import PinnedAddresses
from device_runtime.app_data import AppData, Bounds, Event, Request
from device_runtime.candidates import CandidateModel, find_candidates, recommend_candidates
from device_runtime.charters import CharterMemory
from device_runtime.conditions import Conditions
from device_runtime.enclaves import Enclaves
from device_runtime.gate import Gate
from device_runtime.keys import AtRest, HostKey, at_rest, host_key
from device_runtime.limits import Limits
from device_runtime.lookup import FoundTable, Lookup
from device_runtime.offline import Available, newest_model
from device_runtime.person import Person
from device_runtime.program import Config, Running, charter_memory, log_guard, run, start
from device_runtime.provision import provision
from device_runtime.recommend import DownloadedModel, Recommendation, download_model, predict, recommend
from device_runtime.recovery import repair
from device_runtime.retention import Retention, prune
from device_runtime.schema import Participation, State
from device_runtime.sensors import MachineSensors, Sensors, SimulatedSensors, Unreadable
from device_runtime.services import Services
from device_runtime.store import Store, store_path
from device_runtime.table_cache import TableCache

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
    "charter_memory",
    "download_model",
    "find_candidates",
    "host_key",
    "log_guard",
    "newest_model",
    "predict",
    "provision",
    "prune",
    "recommend",
    "recommend_candidates",
    "repair",
    "run",
    "start",
    "store_path",
]
