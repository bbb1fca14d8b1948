"""Downloads a public data set into the cache and checks it; a failed download leaves nothing behind.

Files are downloaded and unpacked in a temporary folder beside their final place; only when every digest agrees is that
folder renamed, at once. A folder that is there is therefore complete, and a second fetch does not use the network.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from odp import _validate
from odp.datasets._archive import unzip, without_wrapper
from odp.datasets._catalog import DATASETS, DatasetSource
from odp.errors import ConfigurationError, DataError, ServiceError, ServiceUnavailable

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
