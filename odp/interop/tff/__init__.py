"""TensorFlow Federated: tasks of this platform there. Needs the environment that `make tff-env` makes.

The core library and TensorFlow Federated run in one process, so nothing stands between them.
"""

from odp.interop.tff.processes import client_datasets, parameters_of, to_tff

__all__ = ["client_datasets", "parameters_of", "to_tff"]
