"""The distributor: gives devices the rows of a model that they need, without its host learning which."""

from distributor.program import Config, Running, start

__all__ = ["Config", "Running", "start"]
