"""Neural networks that devices train: compiled from Keras by the developer, run by LiteRT on devices.

``compiler`` and ``gradients`` need TensorFlow, and only the developer's side imports them; ``program`` needs numpy
alone, ``inspection`` and ``runner`` need ai-edge-litert.
"""

from odp.models.litert.program import Parameter, Program, TensorSpec

__all__ = ["Parameter", "Program", "TensorSpec"]
