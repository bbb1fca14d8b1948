"""A measurement changes with any byte that could run, and with nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from odp.enclave.measurement import image_digest
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
