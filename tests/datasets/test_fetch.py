"""Downloads, against a file server of this process: whole and checked, or nothing at all."""

from __future__ import annotations

import hashlib
import io
import socket
import stat
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from odp.datasets import DATASETS, fetch, load, load_split
from odp.datasets.fetch import dataset_folder, unzip
from odp.errors import ConfigurationError, DataError, ServiceError, ServiceUnavailable


@dataclass
class FileServer:
    """Serves ``files`` by name; counts requests."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    cut: bool = False
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rsplit("/", 1)[-1]
            state.requests.append(name)
            if name not in state.files:
                self.send_error(503 if name == "ml-latest-small.zip" else 404)
                return
            content = state.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if state.cut else content)

        def log_message(self, *_: object) -> None:
            """Keeps the test output clean."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = FileServer(f"http://127.0.0.1:{httpd.server_port}/files/")
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield state
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def archive(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in files.items():
            file.writestr(name, text)
    return buffer.getvalue()


ML_100K = archive({"ml-100k/u.data": "1\t1\t5\t0\n1\t2\t3\t9\n", "ml-100k/README": "terms"})
GOWALLA = {"train.txt": b"0 1 2\n", "valid.txt": b"0 3\n", "test.txt": b"0 4\n"}


def left_behind(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*")) if cache.exists() else []


def test_an_archive_is_fetched_unpacked_and_then_loaded_by_name(server: FileServer, tmp_path: Path) -> None:
    server.files["ml-100k.zip"] = ML_100K
    folder = fetch("ml-100k", cache=tmp_path / "new", base_url=server.url, sha256=digest(ML_100K), progress=False)
    assert folder == dataset_folder("ml-100k", cache=tmp_path / "new")
    assert sorted(path.name for path in folder.iterdir()) == ["README", "SHA256SUMS", "u.data"]
    assert left_behind(tmp_path / "new") == ["README", "SHA256SUMS", "ml-100k", "u.data"]
    assert load("ml-100k", cache=tmp_path / "new").n_ratings == 2


def test_a_second_fetch_uses_the_cache_and_still_checks_the_digest(server: FileServer, tmp_path: Path) -> None:
    server.files["ml-100k.zip"] = ML_100K
    first = fetch("ml-100k", cache=tmp_path, base_url=server.url, sha256=digest(ML_100K), progress=False)
    assert first == fetch("ml-100k", cache=tmp_path, base_url=server.url, sha256=digest(ML_100K).upper())
    assert server.requests == ["ml-100k.zip"]
    with pytest.raises(DataError, match=r"cached ml-100k.zip has sha256="):
        fetch("ml-100k", cache=tmp_path)


def test_a_folder_that_fetch_did_not_write_is_not_taken_for_a_fetched_one(tmp_path: Path) -> None:
    (tmp_path / "ml-100k").mkdir()
    with pytest.raises(DataError, match="was not written by fetch"):
        fetch("ml-100k", cache=tmp_path)


def test_a_wrong_digest_is_one_line_and_leaves_nothing(server: FileServer, tmp_path: Path) -> None:
    server.files["ml-1m.zip"] = ML_100K
    with pytest.raises(DataError, match=r"has sha256=.* expected a6898adb") as raised:
        fetch("ml-1m", cache=tmp_path, base_url=server.url, progress=False)
    assert digest(ML_100K) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert left_behind(tmp_path) == []


def test_without_a_known_digest_the_one_found_is_named_and_must_be_given(server: FileServer, tmp_path: Path) -> None:
    server.files |= GOWALLA
    with pytest.raises(DataError, match="No digest is known for 'gowalla'") as raised:
        fetch("gowalla", cache=tmp_path, base_url=server.url, progress=False)
    digests = {name: digest(content) for name, content in GOWALLA.items()}
    assert all(f"{name}={found}" in str(raised.value) for name, found in digests.items())
    assert "--sha256" in str(raised.value)
    assert left_behind(tmp_path) == []
    fetch("gowalla", cache=tmp_path, base_url=server.url, sha256=digests, progress=False)
    assert load_split("gowalla", cache=tmp_path).train.n_ratings == 2
    assert fetch("gowalla", cache=tmp_path) == tmp_path / "gowalla"


def test_a_partly_known_set_is_still_refused(server: FileServer, tmp_path: Path) -> None:
    server.files |= GOWALLA
    with pytest.raises(DataError, match=r"found valid\.txt=\w+, test\.txt=\w+:"):
        fetch("gowalla", cache=tmp_path, base_url=server.url, sha256={"train.txt": digest(GOWALLA["train.txt"])})
    assert left_behind(tmp_path) == []


def test_an_unreachable_server_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: a connection is refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServiceUnavailable, match=r"ml-1m\.zip: not reachable .*base_url") as raised:
            fetch("ml-1m", cache=tmp_path, base_url=url, progress=False)
    assert "\n" not in str(raised.value)
    assert left_behind(tmp_path) == []


def test_a_refusal_and_a_failure_of_the_server_are_told_apart(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="the server answered 404") as missing:
        fetch("ml-1m", cache=tmp_path, base_url=server.url, progress=False)
    assert not isinstance(missing.value, ServiceUnavailable)
    with pytest.raises(ServiceUnavailable, match="the server answered 503"):
        fetch("ml-latest-small", cache=tmp_path, base_url=server.url, progress=False)
    assert left_behind(tmp_path) == []


def test_a_connection_that_breaks_off_leaves_nothing(server: FileServer, tmp_path: Path) -> None:
    server.files["ml-100k.zip"], server.cut = ML_100K, True
    with pytest.raises((ServiceUnavailable, DataError)):
        fetch("ml-100k", cache=tmp_path, base_url=server.url, sha256=digest(ML_100K), progress=False)
    assert left_behind(tmp_path) == []


def link_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        member = zipfile.ZipInfo("ml-100k/u.data")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(member, "/etc/hostname")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive({"../escape.txt": "x"}), "would be written outside"),
        (archive({"a/../../escape.txt": "x"}), "would be written outside"),
        (archive({"/tmp/escape.txt": "x"}), "would be written outside"),
        (archive({"..\\escape.txt": "x"}), "would be written outside"),
        (archive({"C:\\escape.txt": "x"}), "would be written outside"),
        (link_archive(), "would be written outside"),
        (b"no zip at all", "not a readable zip"),
        (ML_100K[:-30], "not a readable zip"),
    ],
)
def test_unsafe_and_damaged_archives_are_refused_and_leave_nothing(
    server: FileServer, tmp_path: Path, content: bytes, message: str
) -> None:
    server.files["ml-100k.zip"] = content
    with pytest.raises(DataError, match=message):
        fetch("ml-100k", cache=tmp_path / "cache", base_url=server.url, sha256=digest(content), progress=False)
    assert left_behind(tmp_path) == ["cache"]


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big.zip").write_bytes(archive({"zeros": "0" * 5000}))
    monkeypatch.setattr(sys.modules["odp.datasets.fetch"], "UNPACKED_LIMIT", 4999)
    with pytest.raises(DataError, match="unpacks to more than"):
        unzip(tmp_path / "big.zip", tmp_path)
    assert left_behind(tmp_path) == ["big.zip"]


def test_names_and_digests_that_make_no_sense_are_refused_before_any_download(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'ml-1m'"):
        fetch("ml-1M", cache=tmp_path)
    with pytest.raises(ConfigurationError, match=r"64 hexadecimal digits"):
        fetch("ml-1m", cache=tmp_path, sha256="abc")
    with pytest.raises(ConfigurationError, match=r"mapping from train.txt"):
        fetch("gowalla", cache=tmp_path, sha256="0" * 64)
    with pytest.raises(ConfigurationError, match=r"Unknown key 'trian.txt'.* did you mean 'train.txt'"):
        fetch("gowalla", cache=tmp_path, sha256={"trian.txt": "0" * 64})
    assert left_behind(tmp_path) == []


def test_the_default_folder_is_under_the_platform_s_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = dataset_folder("ml-1m")
    assert folder.name == "ml-1m"
    assert "odp" in folder.parts
    assert set(DATASETS) >= {"ml-1m"}
