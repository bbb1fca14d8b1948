"""A real S3 server in this process (moto), with an empty bucket; the AWS variables of the environment name it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

BUCKET = "odp-models"


@contextmanager
def bucket() -> Iterator[str]:
    """``s3://bucket``. Skips the test where boto3 or moto are missing."""
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'odp-platform[s3]'")
    server_module = pytest.importorskip("moto.server", reason="moto is not installed")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    given = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}"
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        server.stop()
