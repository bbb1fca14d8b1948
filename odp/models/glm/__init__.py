"""Generalised linear models: their shape, training on one device, and training of many devices at once."""

from odp.models.glm.shape import Family, GlmShape

__all__ = ["Family", "GlmShape"]
