"""The libraries of an enclave: their closure, their files, and how they may differ from what was installed."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from odp.enclave.dependencies import hash_dependencies
from odp.errors import ConfigurationError

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a library of one module; the path of that module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(
        name: str, *requires: str, version: str = "1.0", text: str = "value = 1\n", also: str = "", kind: str = "sha256"
    ) -> Path:
        module = tmp_path / f"{name}.py"
        module.write_text(text)
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}\n")
        digest = base64.urlsafe_b64encode(hashlib.new(kind, text.encode()).digest()).decode().rstrip("=")
        (info / "RECORD").write_text(f"{name}.py,{kind}={digest},9\n{name}-{version}.dist-info/RECORD,,\n{also}")
        return module

    return installed


def digest(*names: str) -> str:
    return hash_dependencies(names, ()).digest.hex()


def test_what_a_library_requires_belongs_to_it_and_extras_do_not(install: Install) -> None:
    top = install("top_library", "middle-library>=1; python_version >= '3'", "Extra_Library; extra == 'more'")
    middle = install("middle_library", "not-installed-anywhere; sys_platform == 'plan9'", "top-library")
    install("extra_library")
    found = hash_dependencies(("top-library",), ())
    assert set(found.versions) == {"top-library", "middle-library"}
    assert set(found.files) == {str(top.resolve()), str(middle.resolve())}
    assert found.folders == (str(top.parent.resolve()),)


def test_an_optional_library_counts_where_it_is_installed(install: Install) -> None:
    install("top_library")
    without = hash_dependencies(("top-library",), ("other-library",))
    install("other_library")
    with_it = hash_dependencies(("top-library",), ("other-library",))
    assert without.digest != with_it.digest
    assert set(with_it.versions) - set(without.versions) == {"other-library"}


def test_another_version_content_or_name_is_another_digest(install: Install, tmp_path: Path) -> None:
    install("top_library")
    seen = [digest("top-library"), digest("top-library")]
    assert seen[0] == seen[1]
    install("top_library", text="value = 2\n")
    seen.append(digest("top-library"))
    install("top_library", text="value = 2\n", version="1.1")
    for file in (tmp_path / "top_library-1.0.dist-info").iterdir():
        file.unlink()
    (tmp_path / "top_library-1.0.dist-info").rmdir()
    seen.append(digest("top-library"))
    assert len(set(seen)) == 3


def test_a_file_that_was_edited_after_its_installation_is_refused(install: Install) -> None:
    module = install("top_library")
    module.write_text("value = 2\n")
    with pytest.raises(ConfigurationError, match=r"top_library\.py is not the file that top-library 1\.0 installed"):
        digest("top-library")


def test_a_file_that_is_gone_is_refused(install: Install) -> None:
    install("top_library").unlink()
    with pytest.raises(ConfigurationError, match="no such file"):
        digest("top-library")


def test_what_is_required_and_not_installed_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'no-such-library': it is not installed"):
        digest("no-such-library")


def test_a_library_without_recorded_hashes_is_refused(install: Install, tmp_path: Path) -> None:
    install("top_library", kind="md5")
    with pytest.raises(ConfigurationError, match="'md5'"):
        digest("top-library")
    (tmp_path / "top_library-1.0.dist-info" / "RECORD").unlink()
    with pytest.raises(ConfigurationError, match="no RECORD"):
        digest("top-library")


def test_caches_scripts_and_files_without_a_hash_are_not_part_of_it(install: Install, tmp_path: Path) -> None:
    install("top_library")
    first = hash_dependencies(("top-library",), ())
    more = "__pycache__/top_library.pyc,sha256=x,1\n../bin/top,sha256=x,1\n/etc/top,sha256=x,1\nunhashed.py,,\n"
    install("top_library", also=more)
    assert hash_dependencies(("top-library",), ()) == first


def test_the_libraries_of_this_installation_are_what_was_installed() -> None:
    found = hash_dependencies()
    assert {"numpy", "scipy", "cryptography", "dp-accounting", "protobuf", "mpmath"} <= set(found.versions)
    assert not {"grpcio", "sqlalchemy", "matplotlib", "typer"} & set(found.versions)
    assert len(found.digest) == 48
