"""An object store that cannot be reached any more during a run: one message, and the checkpoint to go on from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from declarative_train.run.event import CheckpointSaved
from tests.engine.launched import finish, saved, start, wait_for_steps
from tests.engine.made_recipes import DIGITS, merged, write_data


@pytest.mark.long
def test_a_store_that_goes_away_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    import fsspec

    write_data(tmp_path)
    bucket = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    bucket.start()
    endpoint = "http://{}:{}".format(*bucket.get_host_and_port())
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_MAX_ATTEMPTS": "1",
        "FSSPEC_S3": '{"config_kwargs": {"retries": {"max_attempts": 0}}}',
    }.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3", skip_instance_cache=True).mkdirs("made", exist_ok=True)
    endless = {
        "parallelism": "fsdp",
        "layout": {"gpus": 2},
        "training": {"epochs": None, "steps": 1_000_000},
        "evaluation": None,
        "checkpoint": {"every": "20 steps", "best": None, "dir": "s3://made/kept"},
    }
    process = start(saved(tmp_path, merged(DIGITS, endless)), "slow")
    try:
        wait_for_steps(tmp_path, 20, CheckpointSaved)
    finally:
        bucket.stop()
    code, errors = finish(process)
    assert code == 3
    assert "Traceback" not in errors
    failure, hint = errors.splitlines()[-2:]
    assert failure.startswith("dtrain: the run failed: ")
    assert endpoint in failure
    place = r"s3://made/kept/made/\S+/checkpoints"
    assert re.fullmatch(
        rf"  continue from step \d+, as soon as {place} can be reached: the same command with --resume \S+", hint
    )
