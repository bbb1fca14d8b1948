"""MNIST: the IDX files, plain and gzip."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from odp.datasets import Images, load_mnist
from odp.errors import ConfigurationError, DataError


def write(folder: Path, *, n: int = 3, labels: int | None = None, prefix: str = "train") -> np.ndarray:
    pixels = np.random.default_rng(5).integers(0, 256, size=(n, 28, 28), dtype=np.uint8)
    images = struct.pack(">IIII", 0x0803, n, 28, 28) + pixels.tobytes()
    (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    count = n if labels is None else labels
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x0801, count) + bytes(range(count)))
    return pixels


def test_plain_and_gzip_files_are_read(tmp_path: Path) -> None:
    pixels = write(tmp_path)
    data = load_mnist(tmp_path)
    assert np.array_equal(data.images, pixels)
    assert data.labels.tolist() == [0, 1, 2]
    assert len(data) == 3
    assert data.name == "mnist-train"


def test_the_test_part_is_read_from_its_own_files(tmp_path: Path) -> None:
    write(tmp_path, n=2, prefix="t10k")
    assert len(load_mnist(tmp_path, part="test")) == 2
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte .* is missing"):
        load_mnist(tmp_path)
    with pytest.raises(ConfigurationError, match="did you mean 'test'"):
        load_mnist(tmp_path, part="tests")


def test_files_that_disagree_or_are_damaged_are_refused(tmp_path: Path) -> None:
    write(tmp_path, labels=2)
    with pytest.raises(DataError, match="3 images, 2 labels"):
        load_mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(struct.pack(">II", 0x0801, 3) + bytes(2))
    with pytest.raises(DataError, match="10 bytes where its header needs 11"):
        load_mnist(tmp_path)
    labels.write_bytes(struct.pack(">II", 0x0801, 3) + bytes([0, 1, 10]))
    with pytest.raises(DataError, match="labels from 0 to 9"):
        load_mnist(tmp_path)
    labels.write_bytes(b"no")
    with pytest.raises(DataError, match="not an IDX file"):
        load_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x0803, 1, 2, 2) + bytes(4))
    labels.write_bytes(struct.pack(">II", 0x0801, 1) + bytes(1))
    with pytest.raises(DataError, match="28 x 28"):
        load_mnist(tmp_path)


def test_images_of_another_type_are_refused() -> None:
    with pytest.raises(DataError, match="uint8"):
        Images("x", np.zeros((1, 2, 2)), np.zeros(1, dtype=np.uint8))  # type: ignore[arg-type]


def test_the_real_files_have_their_published_counts(shared_data: Path) -> None:
    train, test = load_mnist(shared_data / "mnist"), load_mnist(shared_data / "mnist", part="test")
    assert train.images.shape == (60_000, 28, 28)
    assert test.images.shape == (10_000, 28, 28)
    assert np.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
