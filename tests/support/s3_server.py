"""An S3 server on this machine: moto's, in a process of its own, with faults on demand.

Moto looks whether an object is there, and then writes it. Two writers at once may pass that look,
so here each conditional put is alone from the look to the end: of many one wins, as S3 promises.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

BUCKET: Final = "bucket"
ACCESS_KEY: Final = "an-access-key"
SECRET_KEY: Final = "a-secret-key"
LISTED_AT_ONCE: Final = 50
"""Others list a thousand; so even small folders come in several parts."""
_FAULTS: Final = "/-/faults"
_DENIED: Final = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_SLOW_DOWN: Final = b"<Error><Code>SlowDown</Code><Message>reduce your rate</Message></Error>"


class S3Server:
    """The server, with a bucket; to be used by `with`.

    Args:
        answers: Where to tell of each answer, in a line of JSON: method, path, and when it began
            and ended by the clock. By default nowhere.
    """

    def __init__(self, answers: Path = Path(os.devnull)) -> None:
        self._answers = answers

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.support.s3_server", self._answers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(LISTED_AT_ONCE)},
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self._ask("PUT", f"/{BUCKET}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self) -> dict[str, str]:
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.access.key": ACCESS_KEY,
            "fs.s3a.secret.key": SECRET_KEY,
            "fs.s3a.path.style.access": "true",
        }

    def put(self, key: str) -> None:
        """Write an empty object of any name."""
        self._ask("PUT", f"/{BUCKET}/{key}")

    def fault(
        self,
        *,
        denied: int = 0,
        refused: int = 0,
        lost: int = 0,
        slow_s: float = 0,
        of: str = "/",
    ) -> None:
        """Have the next requests fail.

        Args:
            denied: So many are answered by 403, and not done.
            refused: So many are answered by 503, and not done.
            lost: After those, so many are done, and answered by 500.
            slow_s: All wait for so long.
            of: Only those whose path has this in it.
        """
        counts = {"denied": denied, "refused": refused, "lost": lost}
        faults = {**counts, "slow_s": slow_s, "of": of}
        self._ask("POST", _FAULTS, json.dumps(faults))

    def faults_left(self) -> int:
        """How many of them are still to come."""
        told = json.loads(self._ask("GET", _FAULTS))
        return sum(int(told[kind]) for kind in ("denied", "refused", "lost"))

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        signed = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request"
        connection.request(method, path, body, {"Authorization": signed})
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{method} {path}: {answer.status} {said!r}")
        return said


class _Faulty:
    """A WSGI application whose conditional puts are atomic, and whose requests may fail.

    Args:
        application: Moto's.
        answers: Where to tell of each answer.
    """

    def __init__(self, application: Any, answers: TextIO) -> None:
        self._application = application
        self._answers = answers
        self._creating = threading.Lock()
        self._counting = threading.Lock()
        self._faults: dict[str, Any] = {
            "denied": 0,
            "refused": 0,
            "lost": 0,
            "slow_s": 0,
            "of": "/",
        }

    def __call__(self, environ: Mapping[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == _FAULTS:
            if environ["REQUEST_METHOD"] == "POST":
                length = int(environ["CONTENT_LENGTH"])
                self._faults = json.loads(environ["wsgi.input"].read(length))
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._faults).encode()]
        began_s = time.time()
        try:
            return self._answer(environ, start)
        finally:
            asked = f"{path}?{environ['QUERY_STRING']}".rstrip("?")
            told = (environ["REQUEST_METHOD"], asked, began_s, time.time())
            self._answers.write(f"{json.dumps(told)}\n")

    def _answer(self, environ: Mapping[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        fault = self._fault(environ["PATH_INFO"])
        if fault == "denied":
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [_DENIED]
        if fault == "refused":
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [_SLOW_DOWN]
        if fault == "lost":
            self._served(environ, lambda *_: None)
            start("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code><Message>lost</Message></Error>"]
        return self._served(environ, start)

    def _fault(self, path: str) -> str | None:
        if self._faults["of"] not in path:
            return None
        time.sleep(self._faults["slow_s"])
        with self._counting:
            for kind in ("denied", "refused", "lost"):
                if self._faults[kind]:
                    self._faults[kind] -= 1
                    return kind
        return None

    def _served(self, environ: Mapping[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environ or environ["REQUEST_METHOD"] != "PUT":
            answer: Iterable[bytes] = self._application(environ, start)
            return answer
        with self._creating:
            return [*self._application(environ, start)]


def _serve() -> None:
    # Half a second, for the process that serves alone.
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415

    class _Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: object) -> None:
            pass

    backend = DomainDispatcherApplication(create_backend_app)
    with Path(sys.argv[1]).open("w", buffering=1) as answers:
        application = _Faulty(backend, answers)
        server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Silent)
        # Whoever started it may die before it ends it.
        threading.Thread(target=_when_left_alone, args=(server.shutdown,), daemon=True).start()
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()


def _when_left_alone(end: Callable[[], None]) -> None:
    sys.stdin.read()
    end()


if __name__ == "__main__":
    _serve()
