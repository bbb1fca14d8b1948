"""MNIST in its IDX files, plain or gzip.

Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits" (IDX: big-endian header, then bytes).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.datasets import _parsing
from odp.errors import DataError

_PREFIX = {"train": "train", "test": "t10k"}


@dataclass(frozen=True, eq=False)
class Images:
    """Grey images with class labels; treat the arrays as read-only.

    Attributes:
      name: what reports call the data set.
      images: uint8 [n, height, width], 0 (background) to 255.
      labels: uint8 [n].

    Raises:
      DataError: the arrays have another type or shape, or differ in length.
    """

    name: str
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        bytes_only = self.images.dtype == np.uint8 and self.labels.dtype == np.uint8
        if not bytes_only or self.images.ndim != 3 or self.labels.ndim != 1:
            raise DataError(f"Expected images uint8 [n, height, width] and labels uint8 [n] in {self.name!r}")
        if len(self.images) != len(self.labels):
            raise DataError(
                f"Expected one label per image in {self.name!r}: {len(self.images)} images, {len(self.labels)} labels"
            )

    def __len__(self) -> int:
        return len(self.images)


def load_mnist(folder: str | os.PathLike[str], *, part: str = "train") -> Images:
    """The 60,000 training images (``part="train"``) or the 10,000 test images (``part="test"``), 28 x 28, labels 0..9.

    Raises:
      ConfigurationError: ``part`` is neither "train" nor "test".
      DataError: a file is missing, truncated, or not of the IDX type of its name.
    """
    _validate.one_of(_PREFIX, part=part)
    path = Path(folder)
    images = _read_idx(_required(path, f"{_PREFIX[part]}-images-idx3-ubyte"), dimensions=3)
    labels_file = _required(path, f"{_PREFIX[part]}-labels-idx1-ubyte")
    labels = _read_idx(labels_file, dimensions=1)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{path}: expected images of 28 x 28 (got {images.shape[1]} x {images.shape[2]})")
    if labels.size and labels.max() > 9:
        raise DataError(f"{labels_file}: expected labels from 0 to 9")
    return Images(f"mnist-{part}", images, labels)


def _required(folder: Path, name: str) -> Path:
    if (file := _parsing.find(folder, name, name.replace("-idx", ".idx"))) is None:
        raise DataError(f"{folder}: {name} (or {name}.gz) is missing")
    return file


def _read_idx(path: Path, *, dimensions: int) -> npt.NDArray[np.uint8]:
    content = _parsing.read_bytes(path)
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise DataError(f"{path}: not an IDX file of bytes with {dimensions} dimensions")
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4))
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(f"{path}: {len(content)} bytes where its header needs {expected}; fetch it again")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
