"""A real HTTP server with S3's API (moto) in a thread, which can be told to be busy, slow or silent."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@dataclass
class S3Server:
    """The server. Its faults apply to the next requests for objects.

    `bucket`: the bucket that it has. `answers`: an answer for each of the next requests: `503`, `403`, or `silence`. `always`: one for all of them.
    """

    client: Any
    bucket: str
    answers: list[str] = field(default_factory=list)
    always: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """The method and the path of each request for an object."""
    released: threading.Event = field(default_factory=threading.Event)
    """Ends the silence."""

    def objects(self) -> dict[str, bytes]:
        """The objects of the bucket by their keys."""
        listed = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return {
            each["Key"]: self.client.get_object(Bucket=self.bucket, Key=each["Key"])["Body"].read() for each in listed
        }

    def put(self, key: str, body: bytes) -> None:
        """Write an object past the product."""
        self.client.put_object(Bucket=self.bucket, Key=key, Body=body)

    def fault(self, method: str, path: str) -> str:
        """The fault for a request; "" for none."""
        if path.count("/") < 2:
            return ""
        self.requests.append((method, path))
        return self.answers.pop(0) if self.answers else self.always


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        pass


@contextmanager
def s3_server() -> Iterator[tuple[S3Server, dict[str, str]]]:
    """Run the server with a bucket; yields it, and AWS's environment variables that point to it."""
    # All servers of a process have the same buckets.
    behind, s3 = DomainDispatcherApplication(create_backend_app), S3Server(None, f"runs-{uuid.uuid4().hex[:8]}")

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        kind = s3.fault(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        if not kind:
            answer: Iterable[bytes] = behind(environ, start_response)
            return answer
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if kind == "silence":
            s3.released.wait(30)
        status = {"403": "403 Forbidden"}.get(kind, "503 Slow Down")
        start_response(status, [("Content-Type", "application/xml")])
        return [DENIED if kind == "403" else SLOW_DOWN]

    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        s3.client = boto3.client(
            "s3",
            endpoint_url=address,
            aws_access_key_id="a-key",
            aws_secret_access_key="a-secret",
            region_name="us-east-1",
        )
        s3.client.create_bucket(Bucket=s3.bucket)
        yield (
            s3,
            {
                "AWS_ENDPOINT_URL_S3": address,
                "AWS_ACCESS_KEY_ID": "a-key",
                "AWS_SECRET_ACCESS_KEY": "a-secret",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            },
        )
    finally:
        s3.released.set()
        s3.client.close()
        server.shutdown()
        thread.join()
        server.server_close()
