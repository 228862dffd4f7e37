"""What `pip install .` brings is enough: no command of the core needs what only the tests or an extra bring."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

SCRIPT = Path(__file__).parent / "core_install" / "whole_way.py"


def needed(roots: list[str]) -> set[str]:
    """The distributions that an install of `roots` brings, without extras."""
    found: set[str] = set()
    left = [Requirement(root) for root in roots]
    while left:
        requirement = left.pop()
        name = requirement.name.lower().replace("_", "-").replace(".", "-")
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        left.extend(Requirement(text) for text in requires(requirement.name) or ())
    return found


def test_nothing_else_is_needed(tmp_path: Path) -> None:
    core = needed(["declarative_train"])
    refused = sorted(
        module
        for module, distributions in packages_distributions().items()
        if module != "declarative_train"
        and not any(name.lower().replace("_", "-").replace(".", "-") in core for name in distributions)
    )
    assert {"pandas", "pytest", "transformers"} <= set(refused)
    assert not {"numpy", "pyarrow", "torch", "yaml"} & set(refused)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *refused], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "the whole way"
