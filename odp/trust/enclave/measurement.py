"""Measurement of an enclave: the digest of the one image that its process runs (``odp.trust.enclave.image``).

Evidence carries the digest, and devices compare it with the digests that they pin. The configuration (the policy) is
measured apart from the code, in a runtime register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from odp.errors import ConfigurationError
from odp.trust.enclave.image.built import built, image_of
from odp.trust.enclave.image.parts import Image

AGGREGATOR_ENTRY = "trusted_aggregator.enclave.process"
DISTRIBUTOR_ENTRY = "distributor.enclave_process"
#: Of the process below each enclave; no device sees its measurement.
PLATFORM_ENTRY = "odp.trust.enclave.platform_process"
#: Of an enclave without a task.
PROBE_ENTRY = "odp.trust.enclave.probe"
#: Entry module -> name of its image in a folder of images that were built elsewhere.
FILES: Mapping[str, str] = {
    AGGREGATOR_ENTRY: "aggregator.image",
    DISTRIBUTOR_ENTRY: "distributor.image",
    PLATFORM_ENTRY: "platform.image",
    PROBE_ENTRY: "probe.image",
}


def measure(entry: str, packages: Sequence[str] = (), *, images: Path | None = None) -> Image:
    """The image that starts with the module ``entry``: its digest is the measurement.

    Raises:
        ConfigurationError, StateError: as ``file_of``.
    """
    return image_of(file_of(entry, packages, images=images))


def file_of(entry: str, packages: Sequence[str] = (), *, images: Path | None = None) -> Path:
    """The file of the image, in a folder of ``odp enclave build`` or, without one, built from this installation.

    Raises:
        ConfigurationError, StateError: as ``odp.trust.enclave.image.built``; it is not in the folder, or is another
        one's.
    """
    if images is None or entry not in FILES:
        return built(entry, packages)
    file = images / FILES[entry]
    try:
        image_of(file).require_entry(entry)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from None
    return file
