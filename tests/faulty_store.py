"""`python -m tests.faulty_store PORT FILE`: an S3 server of moto, with the bucket `made` and with faults.

FILE says how requests are answered: normally if it is empty, with an error if it contains `503`, and later if it
contains a number of seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server


def main(port: str, path: str) -> None:
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket("made", "us-east-1")
    answer = DomainDispatcherApplication(create_backend_app)

    def answer_or_fail(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        fault = Path(path).read_text()
        if fault == "503":
            start("503 Slow Down", [("Content-Length", "0")])
            return []
        time.sleep(float(fault or 0))
        found: Iterable[bytes] = answer(request, start)
        return found

    make_server("0.0.0.0", int(port), answer_or_fail, threaded=True).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
