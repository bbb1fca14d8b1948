"""Libraries of an image: what they require, and files that are not what was installed."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from odp.errors import ConfigurationError
from odp.trust.enclave.image.recorded import Recorded

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a library of one module; the path of that module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(name: str, *requires: str, text: str = "value = 1\n", also: str = "", kind: str = "sha256") -> Path:
        module = tmp_path / f"{name}.py"
        module.write_text(text)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}\n")
        digest = base64.urlsafe_b64encode(hashlib.new(kind, text.encode()).digest()).decode().rstrip("=")
        (info / "RECORD").write_text(f"{name}.py,{kind}={digest},9\n{name}-1.0.dist-info/RECORD,,\n{also}")
        return module.resolve()

    return installed


def test_what_a_library_requires_belongs_to_it_and_extras_do_not(install: Install) -> None:
    top = install("top_library", "middle-library>=1; python_version >= '3'", "Extra_Library; extra == 'more'")
    middle = install("middle_library", "not-installed-anywhere; sys_platform == 'plan9'", "top-library")
    extra = install("extra_library")
    recorded = Recorded(("top-library",))
    assert recorded.read(top) == recorded.read(middle) == b"value = 1\n"
    assert (recorded.owner(top), recorded.owner(middle)) == ("top-library 1.0", "middle-library 1.0")
    assert recorded.folders == (str(top.parent),)
    assert recorded.owner(extra) == ""
    with pytest.raises(ConfigurationError, match="no library of an enclave installed it"):
        recorded.read(extra)


def test_r441_a_file_that_was_edited_after_its_installation_is_refused(install: Install) -> None:
    module = install("top_library")
    recorded = Recorded(("top-library",))
    module.write_text("value = 2\n")
    with pytest.raises(ConfigurationError, match=r"top_library\.py is not the file that top-library 1\.0 installed"):
        recorded.read(module)


def test_r441_a_shared_object_below_a_link_is_compared_too_by_the_path_that_a_process_shows(
    install: Install, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "top.libs").symlink_to(elsewhere)
    loaded, extra, other = (elsewhere / name for name in ("libtop.so", "libextra.so", "libtop.txt"))
    for path in (loaded, extra, other):
        path.write_bytes(b"machine code")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"machine code").digest()).decode().rstrip("=")
    install("top_library", also=f"top.libs/libtop.so,sha256={digest},12\n")
    recorded = Recorded(("top-library",))
    assert recorded.holds(loaded)
    assert recorded.read(loaded) == b"machine code"
    loaded.write_bytes(b"other code")
    with pytest.raises(ConfigurationError, match="is not the file that top-library"):
        recorded.read(loaded)
    assert recorded.holds(extra)
    with pytest.raises(ConfigurationError, match="no library of an enclave installed it"):
        recorded.read(extra)
    assert not recorded.holds(tmp_path.parent / "libc.so.6")


def test_a_file_that_is_gone_is_refused(install: Install) -> None:
    module = install("top_library")
    module.unlink()
    with pytest.raises(ConfigurationError, match="no such file"):
        Recorded(("top-library",)).read(module)


def test_what_is_required_and_not_installed_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'no-such-library': it is not installed"):
        Recorded(("no-such-library",))


def test_a_library_without_recorded_hashes_is_refused(install: Install, tmp_path: Path) -> None:
    install("top_library", kind="md5")
    with pytest.raises(ConfigurationError, match="'md5'"):
        Recorded(("top-library",))
    (tmp_path / "top_library-1.0.dist-info" / "RECORD").unlink()
    with pytest.raises(ConfigurationError, match="no RECORD"):
        Recorded(("top-library",))


def test_r441_paths_outside_of_a_librarys_folder_and_files_without_a_hash_are_not_its(
    install: Install, tmp_path: Path
) -> None:
    outside = tmp_path.parent / "top"
    unhashed = tmp_path / "unhashed.py"
    recorded = install("top_library", also=f"../top,sha256=x,1\n{outside},sha256=x,1\nunhashed.py,,\n")
    libraries = Recorded(("top-library",))
    assert libraries.owner(recorded) == "top-library 1.0"
    assert libraries.owner(outside) == libraries.owner(unhashed) == ""


def test_the_libraries_of_this_installation_are_what_was_installed() -> None:
    recorded = Recorded()
    names = {owner.split(" ")[0] for owner, _ in recorded._files.values()}
    assert {"numpy", "cryptography", "dp-accounting", "protobuf", "mpmath"} <= names
    assert not {"grpcio", "sqlalchemy", "matplotlib", "typer"} & names
