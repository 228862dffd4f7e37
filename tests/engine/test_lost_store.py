"""An object store that answers with 503, or that cannot be reached any more during a run: training goes on meanwhile,
or there is one message and the checkpoint to go on from."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from declarative_train.run.event import CheckpointSaved, Notice
from tests.engine.launched import finish, saved, start, wait_for_steps, wait_until_logged
from tests.engine.made_recipes import DIGITS, merged, write_data
from tests.engine.runs import newest

pytestmark = pytest.mark.long
ENDLESS = {
    "parallelism": "fsdp",
    "layout": {"gpus": 2},
    "training": {"epochs": None, "steps": 1_000_000},
    "evaluation": None,
    "checkpoint": {"every": "20 steps", "best": None, "dir": "s3://made/kept"},
}


class Store:
    """moto's S3 on one port. Its buckets outlive it, as they are in this process."""

    def __init__(self, kind: Any, port: int = 0) -> None:
        self._kind = kind
        self.port = port
        self._server: Any = None

    def start(self) -> None:
        self._server = self._kind(ip_address="127.0.0.1", port=self.port)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    import fsspec

    write_data(tmp_path)
    found = Store(moto.ThreadedMotoServer)
    found.start()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{found.port}",
        "AWS_MAX_ATTEMPTS": "1",
        "FSSPEC_S3": '{"config_kwargs": {"retries": {"max_attempts": 0}}}',
    }.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3", skip_instance_cache=True).mkdirs("made", exist_ok=True)
    yield found
    found.stop()


class Refusing(BaseHTTPRequestHandler):
    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(503)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = refuse  # noqa: N815 (names of http.server)

    def log_message(self, *given: Any) -> None:
        pass


@contextmanager
def refusing(port: int) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", port), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_store_that_refuses_and_is_away_for_a_while_loses_nothing(tmp_path: Path, store: Store) -> None:
    process = start(saved(tmp_path, merged(DIGITS, ENDLESS)), "slow")
    try:
        wait_for_steps(tmp_path, 20, CheckpointSaved)
        store.stop()
        with refusing(store.port):
            wait_until_logged(tmp_path, lambda event: isinstance(event, Notice) and "tried again" in event.message)
        last = len(newest(tmp_path)[1])
    finally:
        store.start()
    later = lambda event: isinstance(event, CheckpointSaved) and event in newest(tmp_path)[1][last:]  # noqa: E731
    wait_until_logged(tmp_path, later)
    process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert (code, "Traceback" in errors) == (75, False)


def test_a_store_that_goes_away_is_one_message(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_STORE_S", "3")
    process = start(saved(tmp_path, merged(DIGITS, ENDLESS)), "slow")
    try:
        wait_for_steps(tmp_path, 20, CheckpointSaved)
        store.stop()
        code, errors = finish(process)
    finally:
        store.start()
    assert code == 3
    assert "Traceback" not in errors
    failure, hint = errors.splitlines()[-2:]
    assert failure.startswith("dtrain: the run failed: ")
    assert f"127.0.0.1:{store.port}" in failure
    place = r"s3://made/kept/made/\S+/checkpoints"
    assert re.fullmatch(
        rf"  continue from step \d+, as soon as {place} can be reached: the same command with --resume \S+", hint
    )
