"""TensorFlow Federated: tasks of this platform there, and its models here. Needs the environment of `make tff-env`.

The core library and TensorFlow Federated run in one process, so nothing stands between them.
"""

from odp.research.interop.tff.models import ModelFromTff, from_tff
from odp.research.interop.tff.processes import client_datasets, parameters_of, to_tff

__all__ = ["ModelFromTff", "client_datasets", "from_tff", "parameters_of", "to_tff"]
