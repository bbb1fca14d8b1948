"""Downloads a public data set into the cache and checks it; a failed download leaves nothing behind.

Files are downloaded and unpacked in a temporary folder beside their final place; only when every digest agrees is that
folder renamed, at once. A folder that is there is therefore complete, and a second fetch does not use the network.

``DATASETS`` names the public data sets: the addresses of their files, their digests, and their licences. The digests of
the archives are those that independent public sources (ml-100k: one) state. Where no digest is stated
anywhere, ``sha256`` is None, and a fetch asks its caller for one. A downloaded zip archive is unpacked without trust in
its directory.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from odp import _validate
from odp.errors import ConfigurationError, DataError, ServiceError, ServiceUnavailable


@dataclass(frozen=True)
class SourceFile:
    """One file to download: its address, and the SHA-256 (hex) of its bytes where that is known."""

    url: str
    sha256: str | None

    @property
    def name(self) -> str:
        """The file's own name: the end of its address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class DatasetSource:
    """A public data set.

    Attributes:
      name: the name to load and fetch it by.
      kind: "ratings" or "images".
      files: what to download; a ``.zip`` is unpacked.
      homepage: the publisher's page.
      licence: the terms in one line; the publisher's page has the full text.
      summary: content in one line.
    """

    name: str
    kind: str
    files: tuple[SourceFile, ...]
    homepage: str
    licence: str
    summary: str


_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_LIGHTGCN = (
    "https://raw.githubusercontent.com/geon0325/LightGCNpp/a18af1e1f65dc4b6a432ce5aeaae5bbe75ac1c2e/data/gowalla"
)

_ALL = (
    DatasetSource(
        name="ml-1m",
        kind="ratings",
        files=(
            SourceFile(
                url=f"{_GROUPLENS}/ml-1m.zip",
                sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
            ),
        ),
        homepage="https://grouplens.org/datasets/movielens/1m/",
        licence="research use with acknowledgement; no redistribution, no commercial use without permission",
        summary="MovieLens-1M: 1,000,209 ratings 1..5 of 3,706 movies by 6,040 users",
    ),
    DatasetSource(
        name="ml-100k",
        kind="ratings",
        files=(
            SourceFile(
                url=f"{_GROUPLENS}/ml-100k.zip",
                sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            ),
        ),
        homepage="https://grouplens.org/datasets/movielens/100k/",
        licence="research use with acknowledgement; no redistribution, no commercial use without permission",
        summary="MovieLens-100K: 100,000 ratings 1..5 of 1,682 movies by 943 users",
    ),
    DatasetSource(
        name="ml-latest-small",
        kind="ratings",
        files=(
            SourceFile(
                url=f"{_GROUPLENS}/ml-latest-small.zip",
                sha256="696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
            ),
        ),
        homepage="https://grouplens.org/datasets/movielens/latest/",
        licence="research use with acknowledgement; may be passed on under the same terms, no commercial use",
        summary="MovieLens latest-small: 100,836 ratings 0.5..5 of 9,724 movies by 610 users",
    ),
    DatasetSource(
        name="jester",
        kind="ratings",
        files=(
            SourceFile(
                "https://eigentaste.berkeley.edu/dataset/archive/jester_dataset_1_1.zip",
                "cb7841756ded125b15f3d95c9f8241224065e96354c132a46ae4214deeab7615",
            ),
        ),
        homepage="https://eigentaste.berkeley.edu/dataset/",
        licence="research use with citation of the Eigentaste paper",
        summary="Jester 1, part 1: 1,810,455 ratings -10..10 of 100 jokes by 24,983 users",
    ),
    DatasetSource(
        name="gowalla",
        kind="ratings",
        files=tuple(SourceFile(f"{_LIGHTGCN}/{part}.txt", None) for part in ("train", "valid", "test")),
        homepage="https://snap.stanford.edu/data/loc-gowalla.html",
        licence="not stated by the source",
        summary="Gowalla check-ins (implicit, LightGCN split): 1,027,370 pairs of 29,858 users and 40,981 places",
    ),
    DatasetSource(
        name="mnist",
        kind="images",
        files=(
            SourceFile(
                url=f"{_MNIST}/train-images-idx3-ubyte.gz",
                sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            SourceFile(
                url=f"{_MNIST}/train-labels-idx1-ubyte.gz",
                sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            SourceFile(
                url=f"{_MNIST}/t10k-images-idx3-ubyte.gz",
                sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            SourceFile(
                url=f"{_MNIST}/t10k-labels-idx1-ubyte.gz",
                sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        homepage="http://yann.lecun.com/exdb/mnist/",
        licence="not stated by the source (commonly cited as CC BY-SA 3.0)",
        summary="MNIST: 60,000 + 10,000 handwritten digits, 28 x 28",
    ),
)

DATASETS = MappingProxyType({source.name: source for source in _ALL})
"""Read-only table from name to :class:`DatasetSource`."""


UNPACKED_LIMIT = 1 << 30
"""Bytes that an archive may unpack to in all, by its own directory; zipfile refuses members that exceed their entry."""


def unzip(archive: Path, target: Path) -> None:
    """Unpacks ``archive`` into ``target``, refusing members that leave it, links, and more than UNPACKED_LIMIT bytes.

    Raises:
      DataError: the archive is damaged, or holds such a member; nothing is written in the latter case.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            if any(_leaves(member) for member in members):
                raise DataError(f"{archive.name}: refused, a member would be written outside its folder")
            if sum(member.file_size for member in members) > UNPACKED_LIMIT:
                raise DataError(f"{archive.name}: refused, it unpacks to more than {UNPACKED_LIMIT} bytes")
            file.extractall(target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        raise DataError(f"{archive.name}: not a readable zip file; fetch it again") from None


def without_wrapper(folder: Path) -> Path:
    """The single folder that an archive wraps its files in, or ``folder`` itself."""
    children = [child for child in folder.iterdir() if child.name != "__MACOSX"]
    return children[0] if len(children) == 1 and children[0].is_dir() else folder


def _leaves(member: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(member.filename.replace("\\", "/"))
    return (
        path.is_absolute() or ".." in path.parts or ":" in member.filename or stat.S_ISLNK(member.external_attr >> 16)
    )


DIGESTS_FILE = "SHA256SUMS"
_TIMEOUT_S = 30.0
_DIGEST = re.compile(r"[0-9a-f]{64}")


def fetch(
    name: str,
    *,
    cache: str | os.PathLike[str] | None = None,
    base_url: str | None = None,
    sha256: str | Mapping[str, str] | None = None,
    progress: bool = True,
) -> Path:
    """Downloads the data set ``name`` unless the cache has it, and returns its folder.

    Args:
      name: a name of ``DATASETS``.
      cache: where data sets are kept; the platform's cache folder by default.
      base_url: take the files, by their own names, from this address instead of the publisher's.
      sha256: digest of the file, or a mapping from file name to digest where there are several. Needed where
        ``DATASETS`` has none; where it has one, this one replaces it.
      progress: report each download on standard error when that is a terminal.

    Raises:
      ConfigurationError: the name is unknown, or ``sha256`` is malformed.
      DataError: a digest is missing or wrong (the message has the one found), or an archive is unsafe or damaged.
      ServiceUnavailable: the server cannot be reached or did not answer in time.
      ServiceError: the server refused the file.
    """
    _validate.one_of(DATASETS, name=name)
    source = DATASETS[name]
    expected = _expected_digests(source, sha256)
    folder = dataset_folder(name, cache=cache)
    if folder.is_dir():
        _check_cached(folder, expected)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-", ignore_cleanup_errors=True) as temporary:
        downloads, ready = Path(temporary, "downloads"), Path(temporary, "ready")
        downloads.mkdir()
        ready.mkdir()
        for file in source.files:
            url = f"{base_url.rstrip('/')}/{file.name}" if base_url else file.url
            _download(url, downloads / file.name, progress=progress)
        digests = {file.name: _digest(downloads / file.name) for file in source.files}
        _check_digests(source, expected, digests)
        for file in source.files:
            if file.name.endswith(".zip"):
                unzip(downloads / file.name, ready)
            else:
                shutil.move(downloads / file.name, ready / file.name)
        ready = without_wrapper(ready)
        sums = "".join(f"{digest}  {file}\n" for file, digest in digests.items())
        (ready / DIGESTS_FILE).write_text(sums, encoding="utf-8")
        try:
            ready.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process has just finished the same fetch
                raise
    return folder


def dataset_folder(name: str, *, cache: str | os.PathLike[str] | None = None) -> Path:
    """Where ``fetch`` puts the data set; the folder exists only once the data set is complete.

    Raises:
      ConfigurationError: no cache was given and the package that knows the platform's is not installed.
    """
    if cache is not None:
        return Path(cache) / name
    return Path(_pooch().os_cache("odp")) / "datasets" / name


def _expected_digests(source: DatasetSource, pinned: str | Mapping[str, str] | None) -> dict[str, str | None]:
    expected = {file.name: file.sha256 for file in source.files}
    if pinned is None:
        return expected
    if isinstance(pinned, str):
        if len(source.files) > 1:
            raise ConfigurationError(
                f"{source.name!r} has several files: pass sha256 as a mapping from {', '.join(expected)} to digests"
            )
        pinned = {source.files[0].name: pinned}
    _validate.known_keys(pinned, expected, where="sha256")
    for file, digest in pinned.items():
        if not _DIGEST.fullmatch(digest.lower()):
            raise ConfigurationError(f"Expected sha256={digest!r} of {file} to be 64 hexadecimal digits")
        expected[file] = digest.lower()
    return expected


def _check_digests(source: DatasetSource, expected: Mapping[str, str | None], digests: Mapping[str, str]) -> None:
    for file, digest in digests.items():
        wanted = expected[file]
        if wanted is not None and not hmac.compare_digest(wanted, digest):
            raise DataError(
                f"{file} of {source.name!r} has sha256={digest}, expected {wanted}: "
                "nothing was kept; try another server"
            )
    unknown = {file: digest for file, digest in digests.items() if expected[file] is None}
    if unknown:
        listed = ", ".join(f"{file}={digest}" for file, digest in unknown.items())
        raise DataError(
            f"No digest is known for {source.name!r}, so nothing was kept; found {listed}: "
            "compare with a source you trust, then pass it as sha256 (--sha256)"
        )


def _check_cached(folder: Path, expected: Mapping[str, str | None]) -> None:
    try:
        lines = (folder / DIGESTS_FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        raise DataError(
            f"{folder}: was not written by fetch ({DIGESTS_FILE} is missing); move it away and fetch again"
        ) from None
    cached = {file: digest for digest, _, file in (line.partition("  ") for line in lines)}
    for file, wanted in expected.items():
        if wanted is not None and cached.get(file) != wanted:
            raise DataError(
                f"{folder}: the cached {file} has sha256={cached.get(file)}, expected {wanted}; "
                "remove the folder to fetch again"
            )


def _download(url: str, target: Path, *, progress: bool) -> None:
    pooch = _pooch()
    import requests

    if progress and sys.stderr.isatty():
        sys.stderr.write(f"Downloading {url}\n")
    try:
        pooch.HTTPDownloader(timeout=_TIMEOUT_S)(url, str(target), None)
    except requests.exceptions.HTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        kind = ServiceUnavailable if isinstance(status, int) and status >= 500 else ServiceError
        raise kind(f"{url}: the server answered {status}; try later, or name another server with base_url") from None
    except requests.exceptions.RequestException as error:
        raise ServiceUnavailable(
            f"{url}: not reachable ({type(error).__name__}); check the network, or name another server with base_url"
        ) from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pooch() -> Any:
    try:
        import pooch
    except ModuleNotFoundError:
        raise ConfigurationError(
            "Package 'pooch' is needed to fetch data sets: pip install pooch, or pass a local path"
        ) from None
    return pooch


__all__ = ["DIGESTS_FILE", "dataset_folder", "fetch"]
