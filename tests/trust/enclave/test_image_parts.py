"""The file of an image: what is no image, or another one, is refused in one line that says what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from odp.errors import ConfigurationError
from odp.trust.enclave.image.parts import Blob, Image, ImageFile, open_image, written

BLOBS = (
    Blob("base", "dynamic-loader", "ld.so", b"loader"),
    Blob("base", "extension", "zlib", b"extension"),
    Blob("base", "library", "libc.so.6", b"library"),
    Blob("base", "program", "python", b"program"),
    Blob("base", "start", "start.zip", b"start"),
    Blob("code", "entry", "odp.probe", b""),
    Blob("code", "module", "odp.probe", b"module"),
)
DATA = b"".join(written(BLOBS))
MANIFEST = Image.parse(DATA[: DATA.index(b"\n\n") + 2]).manifest


@contextmanager
def opened(path: Path, data: bytes) -> Iterator[ImageFile]:
    path.write_bytes(data)
    descriptor, file = open_image(path)
    try:
        yield file
    finally:
        os.close(descriptor)


def read_all(path: Path, data: bytes) -> dict[str, bytes]:
    with opened(path, data) as file:
        return {f"{part.kind} {part.name}": file.read(part) for part in file.image.parts}


def line(text: str) -> bytes:
    """The manifest with one line changed, by ``old -> new``."""
    old, new = text.split(" -> ")
    assert MANIFEST.count(old.encode()) == 1
    return MANIFEST.replace(old.encode(), new.encode())


def test_an_image_is_read_as_it_was_written_in_whatever_order(tmp_path: Path) -> None:
    assert b"".join(written(reversed(BLOBS))) == DATA
    assert read_all(tmp_path / "image", DATA) == {f"{blob.kind} {blob.name}": blob.data for blob in BLOBS}


def test_r441_a_flipped_bit_anywhere_is_another_digest_or_refused(tmp_path: Path) -> None:
    for place in range(len(DATA)):
        changed = bytearray(DATA)
        changed[place] ^= 1 << place % 7
        try:
            read_all(tmp_path / "image", bytes(changed))
        except ConfigurationError:
            continue
        else:
            assert place < len(MANIFEST)
            with opened(tmp_path / "image", bytes(changed)) as file:
                assert file.image.digest != Image.parse(MANIFEST).digest


@pytest.mark.parametrize("length", [0, 1, len(MANIFEST) - 1, len(MANIFEST), len(DATA) - 1])
def test_a_cut_image_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(ConfigurationError, match=r"no image of an enclave|its length is not"):
        read_all(tmp_path / "image", DATA[:length])


def test_an_image_with_something_behind_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="its length is not what its manifest lists"):
        read_all(tmp_path / "image", DATA + b"x")


def test_two_swapped_parts_of_one_length_are_refused(tmp_path: Path) -> None:
    blobs = (Blob("base", "library", "a", b"first."), Blob("base", "library", "b", b"second"))
    data = b"".join(written(blobs)).replace(b"first.second", b"secondfirst.")
    with pytest.raises(ConfigurationError, match="its library a is not the one that its manifest lists"):
        read_all(tmp_path / "image", data)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("odp-enclave-image 1 -> odp-enclave-image 2", "no image of an enclave"),
        ("base extension -> base unknown", "line 3 of its manifest is no part"),
        ("base extension -> other extension", "line 3 of its manifest is no part"),
        ("libc.so.6 15 7 -> libc.so.6 15 -7", "line 4 of its manifest is no part"),
        ("libc.so.6 15 7 -> libc.so.6 15 99999999999", "line 4 of its manifest is no part"),
        ("libc.so.6 15 7 -> libc.so.6 15 8", "line 5 of its manifest is out of order"),
        ("libc.so.6 15 7 -> libc.so.6 14 7", "line 4 of its manifest is out of order"),
        ("zlib -> ../zlib", "line 3 of its manifest is no part"),
        ("library libc.so.6 -> dynamic-loader another", "line 4 of its manifest is out of order"),
    ],
)
def test_a_manifest_of_another_form_is_refused_by_its_line(change: str, refusal: str) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        Image.parse(line(change))


@pytest.mark.parametrize("kind", ["module", "package", "extension"])
@pytest.mark.parametrize("component", ["base", "code"])
def test_r441_a_second_part_that_an_import_could_find_is_refused(component: str, kind: str) -> None:
    second = Blob(component, kind, "odp.probe", b"another module")
    match = "out of order" if second[:3] == BLOBS[-1][:3] else r"has a second odp\.probe"
    data = b"".join(written([*BLOBS, second]))
    with pytest.raises(ConfigurationError, match=match):
        Image.parse(data[: data.index(b"\n\n") + 2])


def test_r441_a_second_library_of_one_name_is_refused() -> None:
    data = b"".join(written([*BLOBS, Blob("code", "library", "libc.so.6", b"another")]))
    with pytest.raises(ConfigurationError, match=r"has a second libc\.so\.6"):
        Image.parse(data[: data.index(b"\n\n") + 2])


@pytest.mark.parametrize("kind", ["program", "entry"])
def test_an_image_without_a_part_that_it_needs_says_which(kind: str) -> None:
    data = b"".join(written(blob for blob in BLOBS if blob.kind != kind))
    image = Image.parse(data[: data.index(b"\n\n") + 2])
    with pytest.raises(ConfigurationError, match=f"has 0 parts of kind {kind}, not one"):
        image.only(kind)


def test_an_image_that_claims_more_than_fits_in_memory_is_refused(tmp_path: Path) -> None:
    manifest = re.sub(rb"odp.probe (\d+) 6", rb"odp.probe \1 9999999999", MANIFEST)
    with pytest.raises(ConfigurationError, match="more than an image may have"):
        read_all(tmp_path / "image", manifest)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"odp-enclave-image 1\n" + tail + b"\n\n"))
def test_arbitrary_bytes_are_no_manifest(data: bytes) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Image.parse(data)
    assert "\n" not in str(caught.value)


@given(st.integers(0, len(MANIFEST) - 1), st.binary(max_size=8), st.integers(0, 8))
def test_a_changed_manifest_is_refused_or_has_another_digest(place: int, new: bytes, length: int) -> None:
    changed = MANIFEST[:place] + new + MANIFEST[place + length :]
    try:
        image = Image.parse(changed)
    except ConfigurationError:
        return
    else:
        assert (image.digest == Image.parse(MANIFEST).digest) == (changed == MANIFEST)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "missing"):
        with pytest.raises(ConfigurationError, match=f"cannot read the image .*{name}: "):
            open_image(tmp_path / name)


def test_r440_a_part_that_is_changed_after_the_manifest_was_read_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "image", DATA) as file:
        (tmp_path / "image").write_bytes(DATA.replace(b"library", b"hostile"))
        with pytest.raises(ConfigurationError, match=r"its library libc\.so\.6 is not the one that its manifest lists"):
            file.read(file.image.only("library"))
        (tmp_path / "image").write_bytes(MANIFEST)
        with pytest.raises(ConfigurationError, match=r"its library libc\.so\.6 is not the one that its manifest lists"):
            file.read(file.image.only("library"))


def test_r440_an_image_that_is_replaced_while_it_is_open_is_read_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path / "image", DATA) as file:
        (tmp_path / "other").write_bytes(DATA.replace(b"library", b"hostile"))
        (tmp_path / "other").rename(tmp_path / "image")
        assert file.read(file.image.only("library")) == b"library"
