"""JSON that somebody else wrote is read by one function, which turns text that nests too deeply into a ValueError."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from declarative_train.core.untrusted import parse_json

PACKAGE = Path(__file__).parents[2] / "declarative_train"
OWN = {
    "tools/sweep/command.py", "components/datasets/arrow_cache.py", "files/file_activity.py",
    "files/cache.py", "packs/images/boxes.py", "packs/pretrained/libraries/timm.py",
    "packs/pretrained/libraries/files.py", "files/weight_files.py",
    "packs/pretrained/libraries/transformers.py", "app/commands/status.py", "run/heartbeat.py",
    "run/storage/remote_dir.py",
    "planner/calibration.py", "planner/estimate/kernels.py", "recipe/checks/layout_rules.py",
    "packs/text/cache.py", "data/skipping.py", "app/records/record.py",
    "tools/sweep/sweep.py", "graph/read.py", "packs/export/snippets.py", "run/sinks/background.py",
    "run/sinks/jsonl.py", "run/sinks/mlflow_server.py", "plan/codec.py", "plan/run_fields.py",
    "plan/checkpoint_files.py", "engine/failures.py", "run/processes.py", "engine/step/load_weights.py",
    "files/lock.py", "app/index.py", "packs/text/tokenizer.py",
}  # fmt: skip
"""Files that read only what this package or the library `tokenizers` wrote, or catch RecursionError."""


def test_text_that_nests_too_deeply_is_a_value_error() -> None:
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
    for text in ("[" * 200_000, '{"a":' * 200_000, "{"):
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting"):
            parse_json(text)


def test_every_file_of_the_package_that_parses_json_by_itself_is_listed() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text(encoding="utf-8"))
    }
    assert found <= OWN | {"core/untrusted.py"}
