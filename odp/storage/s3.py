"""Objects in a bucket of Amazon S3, or of another store that speaks its protocol (extra ``s3``).

Where the store is, and who this is, comes from the places that the AWS tools read: ``AWS_ENDPOINT_URL``,
``AWS_REGION``, ``AWS_ACCESS_KEY_ID`` and so on, and the files under ``~/.aws``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from odp._system.extras import require
from odp.errors import ConfigurationError, StateError
from odp.transport.statuses import one_line

#: Bytes that are sent at once; an object that is larger goes in parts of this size.
PART_BYTES = 8 * 2**20
_PLACE = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]{1,512}))?")
_GONE = frozenset({"NoSuchKey", "404", "NotFound"})
_CONNECT_SECONDS, _READ_SECONDS, _ATTEMPTS = 5, 30, 5
_DELETED_AT_ONCE = 1000


class S3Objects:
    """Objects by key at ``place``, ``s3://bucket/prefix``, of one program. Thread-safe.

    All methods raise StateError where the store cannot be used.

    Raises:
      ConfigurationError: ``place`` is malformed, or the extra is not installed.
      StateError: the bucket cannot be reached, or is not ours to use.
    """

    def __init__(self, place: str) -> None:
        if (matched := _PLACE.fullmatch(place)) is None:
            raise ConfigurationError(f"Expected s3://bucket or s3://bucket/prefix (got {place[:200]!r})")
        require("boto3", to="keep objects in S3")
        import boto3
        from botocore.config import Config

        self.place = place
        self._bucket = matched[1]
        self._prefix = f"{matched[2].strip('/')}/" if matched[2] else ""
        patience = {"max_attempts": _ATTEMPTS, "mode": "standard"}
        config = Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries=patience)
        with self._errors():
            self._client: Any = boto3.client("s3", config=config)
            self._client.head_bucket(Bucket=self._bucket)

    def put(self, key: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Stores an object, durably; replaces one. Where ``pieces`` raises, nothing is stored, and that is raised."""
        at = {"Bucket": self._bucket, "Key": self._prefix + key}
        parts = _parts(pieces)
        first = next(parts)
        if (second := next(parts, None)) is None:
            with self._errors():
                self._client.put_object(Body=first, **at)
            return
        with self._errors():
            upload = self._client.create_multipart_upload(**at)["UploadId"]
        try:
            sent = []
            for number, part in enumerate(_chained(first, second, parts), 1):
                with self._errors():
                    reply = self._client.upload_part(Body=part, PartNumber=number, UploadId=upload, **at)
                sent.append({"PartNumber": number, "ETag": reply["ETag"]})
            with self._errors():
                self._client.complete_multipart_upload(UploadId=upload, MultipartUpload={"Parts": sent}, **at)
        except BaseException:
            # What cannot be removed now goes by a rule of the bucket for uploads that were not completed.
            with contextlib.suppress(StateError), self._errors():
                self._client.abort_multipart_upload(UploadId=upload, **at)
            raise

    def read(self, key: str, *, start: int = 0, length: int | None = None, size: int = 2**20) -> Iterator[bytes]:
        """Opens an object at once, then gives ``length`` bytes from ``start`` on (default: all) in pieces of ``size``.

        Raises FileNotFoundError (at once) where there is none.
        """
        at = {"Bucket": self._bucket, "Key": self._prefix + key}
        with self._errors():
            total = int(self._client.head_object(**at)["ContentLength"])
            end = total if length is None else min(total, start + length)
            if start >= end:
                return iter(())
            body = self._client.get_object(Range=f"bytes={start}-{end - 1}", **at)["Body"]
        return self._pieces(body, end - start, size)

    def keys(self, prefix: str) -> list[str]:
        """All keys with this beginning, ascending."""
        keys: list[str] = []
        with self._errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            for page in pages:
                keys += [entry["Key"].removeprefix(self._prefix) for entry in page.get("Contents", ())]
        return sorted(keys)

    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects; those that do not exist are ignored."""
        doomed = [{"Key": self._prefix + key} for key in keys]
        for first in range(0, len(doomed), _DELETED_AT_ONCE):
            some = {"Objects": doomed[first : first + _DELETED_AT_ONCE], "Quiet": True}
            with self._errors():
                failed = self._client.delete_objects(Bucket=self._bucket, Delete=some).get("Errors", ())
            if failed:
                raise StateError(f"object store {self.place}: cannot delete ({one_line(str(failed[0].get('Code')))})")

    def _pieces(self, body: Any, length: int, size: int) -> Iterator[bytes]:
        with contextlib.closing(body):
            while length > 0:
                with self._errors():
                    piece: bytes = body.read(min(size, length))
                if not piece:
                    raise StateError(f"object store {self.place}: an object ended early; try again")
                length -= len(piece)
                yield piece

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _GONE and error.operation_name != "HeadBucket":
                raise FileNotFoundError(f"object store {self.place}: no such object") from error
            raise StateError(
                f"object store {self.place}: refused ({one_line(code)}); check the bucket, its region and the account"
            ) from error
        except (BotoCoreError, HTTPClientError) as error:
            raise StateError(
                f"object store {self.place} cannot be used ({type(error).__name__}: {one_line(str(error))}); check "
                "AWS_ENDPOINT_URL, the credentials and the network"
            ) from error


def _parts(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The bytes of ``pieces`` in parts of ``PART_BYTES``, the last one shorter; at least one."""
    held = bytearray()
    some = False
    for piece in pieces:
        view = memoryview(piece)
        while view:
            free = PART_BYTES - len(held)
            held += view[:free]
            view = view[free:]
            if len(held) == PART_BYTES:
                yield bytes(held)
                some = True
                held.clear()
    if held or not some:
        yield bytes(held)


def _chained(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest
