"""Generalised linear models: their shape, training on one device, and training of many devices at once."""

from odp.models.glm.shape import Family, Glm

__all__ = ["Family", "Glm"]
