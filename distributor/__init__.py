"""The distributor: gives devices the rows of a model that they need, without its host learning which."""

from distributor.program import Config, start
from odp.transport.running import Running

__all__ = ["Config", "Running", "start"]
