"""The image of an entry module: what belongs to it, and the same bytes wherever and however it is built."""

from __future__ import annotations

import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import odp
from odp.errors import ConfigurationError
from odp.trust.enclave.image import building
from odp.trust.enclave.image.building import Builder, compiled
from odp.trust.enclave.image.parts import COMPONENTS, Blob, Image, written
from odp.trust.enclave.image.recorded import Recorded

if sys.platform != "linux":
    pytest.skip("images of enclaves are built on Linux", allow_module_level=True)

ENTRY = "small_enclave.entry"
CHECKOUT = Path(odp.__file__).parents[1]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of an entry module that imports the standard library alone."""
    folder = tmp_path / "small_enclave"
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "entry.py").write_text("import base64\nfrom small_enclave import code\n")
    (folder / "code.py").write_text("bound = 1\n")
    (folder / "unused.py").write_text("")
    (folder / "part" / "table.json").write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def image() -> Image:
    data = b"".join(written(Builder(ENTRY, ["small_enclave"]).blobs()))
    return Image.parse(data[: data.index(b"\n\n") + 2])


def names(built: Image, *kinds: str) -> set[str]:
    return {part.name for part in built.of_kind(*kinds)}


def test_an_image_has_what_its_entry_imports_and_nothing_else(package: Path) -> None:
    built = image()
    assert built.entry == ENTRY
    modules = names(built, "module", "package")
    assert {"small_enclave", "small_enclave.code", ENTRY, "base64"} <= modules
    assert not {"small_enclave.unused", "odp", "numpy", "site"} & modules
    assert {"libc.so.6", "libm.so.6"} <= names(built, "library")
    own = {part.name for part in built.parts if part.component == "code" and part.kind != "entry"}
    assert own == {"small_enclave", "small_enclave.code", ENTRY}


def test_one_changed_byte_changes_the_digest_and_changing_it_back_restores_it(package: Path) -> None:
    first = image()
    (package / "code.py").write_text("bound = 2\n")
    second = image()
    assert second.digest != first.digest
    assert {name for name in COMPONENTS if second.components[name] != first.components[name]} == {"code"}
    (package / "code.py").write_text("bound = 1\n")
    assert image().digest == first.digest


def test_what_no_enclave_loads_is_not_measured(package: Path) -> None:
    first = image().digest
    (package / "new.py").write_text("")
    (package / "part" / "table.json").write_text("[]")
    (package / "code.pyc").write_bytes(b"\x00")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "code.cpython-311.pyc").write_bytes(b"\x00")
    assert image().digest == first


def test_r441_a_cache_beside_a_source_is_not_read(package: Path) -> None:
    first = image().digest
    source = package / "code.py"
    source.write_text("bound = 9\n")
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.write_text("bound = 1\n")
    assert image().digest == first


def test_r441_a_module_of_another_place_is_refused(package: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("bound = 3\n")
    (package / "code.py").unlink()
    (package / "code.py").symlink_to(outside)
    with pytest.raises(ConfigurationError, match=r"code\.py: it lies outside of .*small_enclave"):
        image()


@pytest.mark.parametrize("name", ["no_such_package", "only_a_folder", "only_a_file", "no_such.part", ""])
def test_what_is_no_package_is_refused_by_name(package: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "only_a_folder").mkdir()
    (tmp_path / "only_a_file.py").write_text("")
    with pytest.raises(ConfigurationError, match="Cannot build an image with"):
        Builder(ENTRY, ["small_enclave", name])


def test_an_entry_that_cannot_be_imported_is_refused_in_one_line(package: Path) -> None:
    (package / "entry.py").write_text("import no_such_module\n")
    with pytest.raises(ConfigurationError, match="No module named 'no_such_module'") as caught:
        image()
    assert "\n" not in str(caught.value)


def test_r441_a_library_that_changes_between_its_import_and_its_copy_is_refused(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "entry.py").write_text("import numpy\n")
    builder = Builder(ENTRY, ["small_enclave"])
    read = Path.read_bytes
    hostile = next(path for path in builder.files if path.suffix == ".so" and "site-packages" in path.parts)
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"x" * (path == hostile))
    with pytest.raises(ConfigurationError, match=r"is not the file that .* installed: install it again"):
        list(builder.blobs())


# The same bytes.


BUILD = """
import sys, hashlib
{before}
from pathlib import Path
from odp.trust.enclave.image.built import write
write("odp.trust.enclave.platform_process", ["odp"], Path(sys.argv[1]))
"""
WARMED = "import numpy, scipy.stats, json, decimal; kept = [sys.intern(f'name{n}') for n in range(1000)]"


def build(path: Path, *, before: str = "", code: Path = CHECKOUT, options: str = "", **environment: str) -> bytes:
    subprocess.run(
        [sys.executable, "-c", f"import os; {options}\n" + BUILD.format(before=before), str(path / "image")],
        check=True, cwd=path, env={**os.environ, "PYTHONPATH": str(code), **environment},
    )  # fmt: skip
    return (path / "image").read_bytes()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build(tmp_path_factory.mktemp("reference"))


@pytest.mark.slow
def test_r441_another_seed_of_hashes_locale_umask_folder_and_a_warmed_builder_build_the_same_bytes(
    reference: bytes, tmp_path: Path
) -> None:
    other = build(
        tmp_path, before=WARMED, options="os.umask(0o077)", PYTHONHASHSEED="7", LC_ALL="tr_TR.UTF-8",
        LANG="tr_TR.UTF-8", PYTHONOPTIMIZE="2", TZ="Asia/Tokyo", PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    assert hashlib.sha256(other).digest() == hashlib.sha256(reference).digest()


@pytest.mark.slow
def test_r441_a_checkout_elsewhere_builds_the_same_bytes(reference: bytes, tmp_path: Path) -> None:
    elsewhere = tmp_path / "another place" / "with a longer name"
    shutil.copytree(CHECKOUT / "odp", elsewhere / "odp", ignore=shutil.ignore_patterns("__pycache__"))
    other = build(tmp_path, code=elsewhere)
    assert hashlib.sha256(other).digest() == hashlib.sha256(reference).digest()
    assert str(CHECKOUT).encode() not in reference


def test_code_of_a_module_does_not_depend_on_where_it_lies_nor_on_what_was_compiled_before() -> None:
    source = b"def f(): return 'name', (1.5, 'other')\n"
    first = compiled(source, "a/b.py")
    kept = [sys.intern("name"), sys.intern("other")]
    assert compiled(source, "a/b.py") == first
    assert compiled(source, "a/c.py") != first
    assert kept


def test_where_only_the_order_of_parts_differs_the_bytes_are_the_same() -> None:
    blobs = [Blob("base", "module", name, name.encode()) for name in "cab"]
    assert b"".join(written(blobs)) == b"".join(written(reversed(blobs)))


def test_libraries_are_read_from_where_they_were_installed_alone(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "entry.py").write_text("import numpy\n")
    read: list[Path] = []
    genuine = Recorded.read
    plain = building._bytes

    def recorded(self: Recorded, path: Path) -> bytes:
        read.append(path)
        return genuine(self, path)

    def unrecorded(path: Path) -> bytes:
        assert "site-packages" not in path.parts, f"{path} was not compared with what was installed"
        return plain(path)

    monkeypatch.setattr(Recorded, "read", recorded)
    monkeypatch.setattr(building, "_bytes", unrecorded)
    list(Builder(ENTRY, ["small_enclave"]).blobs())
    assert any(path.suffix == ".so" for path in read)
