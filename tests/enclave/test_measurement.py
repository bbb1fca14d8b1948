"""A measurement changes with any byte that could run, and with nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from odp.enclave.measurement import (
    COMPONENTS,
    Measurement,
    image_digest,
    interpreter_digest,
    measure,
    measure_all,
    packages_of,
)
from odp.errors import ConfigurationError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "measured_package"
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "code.py").write_text("bound = 1\n")
    (folder / "part" / "table.json").write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def digest() -> str:
    return image_digest(["measured_package"])


def test_the_digest_is_sha_384_in_hex_and_stable(package: Path) -> None:
    first = digest()
    assert first.startswith("sha384:")
    assert len(bytes.fromhex(first.removeprefix("sha384:"))) == 48
    assert digest() == first


def test_one_changed_byte_changes_the_digest_and_changing_it_back_restores_it(package: Path) -> None:
    first = digest()
    (package / "code.py").write_text("bound = 2\n")
    assert digest() != first
    (package / "code.py").write_text("bound = 1\n")
    assert digest() == first


def test_a_changed_data_file_changes_the_digest(package: Path) -> None:
    first = digest()
    (package / "part" / "table.json").write_text("[]")
    assert digest() != first


def test_a_new_file_a_removed_file_and_a_renamed_file_change_the_digest(package: Path) -> None:
    seen = [digest()]
    (package / "new.py").write_text("")
    seen.append(digest())
    (package / "new.py").rename(package / "part" / "new.py")
    seen.append(digest())
    (package / "part" / "new.py").unlink()
    (package / "code.py").unlink()
    seen.append(digest())
    assert len(set(seen)) == 4


def test_bytes_moved_from_one_file_to_the_next_change_the_digest(package: Path) -> None:
    (package / "a.py").write_text("xy")
    (package / "b.py").write_text("")
    first = digest()
    (package / "a.py").write_text("x")
    (package / "b.py").write_text("y")
    assert digest() != first


def test_compiled_caches_do_not_count(package: Path) -> None:
    first = digest()
    for folder in (package, package / "part"):
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "code.cpython-311.pyc").write_bytes(b"\x00")
    assert digest() == first


def test_a_compiled_module_that_python_would_import_without_source_counts(package: Path) -> None:
    first = digest()
    (package / "hidden.pyc").write_bytes(b"\x00")
    assert digest() != first


def test_the_digest_is_the_same_wherever_the_package_lies(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digest()
    shutil.copytree(package, tmp_path / "elsewhere" / "measured_package")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert digest() == first


def test_the_order_in_which_packages_are_named_does_not_matter_but_their_set_does(
    package: Path, tmp_path: Path
) -> None:
    shutil.copytree(package, tmp_path / "second_package")
    both = image_digest(["measured_package", "second_package"])
    assert image_digest(["second_package", "measured_package"]) == both
    assert both != digest()
    assert image_digest(["second_package"]) != digest()


def test_a_link_is_refused_because_what_it_points_to_may_change(package: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (package / "linked").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigurationError, match="it is a link"):
        digest()


def test_what_cannot_be_measured_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "only_a_folder").mkdir()
    (tmp_path / "only_a_file.py").write_text("")
    for name in ("no_such_package", "only_a_folder", "only_a_file", "no_such.part", ""):
        with pytest.raises(ConfigurationError, match="Cannot measure"):
            image_digest([name])
    without_names: tuple[Sequence[str], ...] = ([], "odp")
    for packages in without_names:
        with pytest.raises(ConfigurationError, match="at least one package"):
            image_digest(packages)


# Interpreter, libraries and entry: each alone changes the whole.


def test_a_measurement_has_one_digest_over_all_of_its_components() -> None:
    found = measure("odp.enclave.evidence")
    assert tuple(found.components) == COMPONENTS
    assert found == measure("odp.enclave.evidence")
    assert found.components["code"] == image_digest(["odp"])
    digests = {found.digest}
    for name in COMPONENTS:
        other = Measurement({**found.components, name: "sha384:" + "0" * 96}, found.dependencies)
        digests.add(other.digest)
    assert len(digests) == 1 + len(COMPONENTS)


def test_entry_and_packages_are_measured_and_what_is_shared_is_the_same() -> None:
    found = measure_all({"odp.one": ("odp",), "odp.two": ("odp",), "distributor.x": packages_of("distributor.x")})
    one, two, other = found.values()
    assert packages_of("distributor.x") == ("distributor", "odp")
    assert {name for name in COMPONENTS if one.components[name] != two.components[name]} == {"entry"}
    assert {name for name in COMPONENTS if one.components[name] != other.components[name]} == {"entry", "code"}


@pytest.fixture
def interpreter(tmp_path: Path) -> tuple[Path, Path]:
    """A binary, and a standard library with parts that count and parts that do not."""
    binary, library = tmp_path / "python", tmp_path / "lib"
    binary.write_bytes(b"ELF")
    for name in ("os.py", "json/decoder.py", "lib-dynload/_x.so", "test/test_os.py", "site-packages/a.py",
                 "json/__pycache__/decoder.pyc", "json/test/inner.py"):  # fmt: skip
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text("1")
    return binary, library


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("os.py", True),
        ("json/decoder.py", True),
        ("lib-dynload/_x.so", True),
        ("json/test/inner.py", True),
        ("added.py", True),
        ("test/test_os.py", False),
        ("site-packages/a.py", False),
        ("json/__pycache__/decoder.pyc", False),
    ],
)
def test_the_standard_library_counts_as_far_as_it_can_be_imported(
    interpreter: tuple[Path, Path], changed: str, counts: bool
) -> None:
    binary, library = interpreter
    first = interpreter_digest([binary], library)
    (library / changed).write_text("2")
    assert (interpreter_digest([binary], library) != first) == counts


def test_binary_and_version_of_the_interpreter_count(interpreter: tuple[Path, Path]) -> None:
    binary, library = interpreter
    first = interpreter_digest([binary], library, "3.11.1")
    assert interpreter_digest([binary], library, "3.11.1") == first
    assert interpreter_digest([binary], library, "3.11.2") != first
    assert interpreter_digest([binary, binary], library, "3.11.1") != first
    binary.write_bytes(b"FLE")
    assert interpreter_digest([binary], library, "3.11.1") != first
