"""What the suite and the benchmark for a GPU import, and what of it is not installed: machines with a GPU may have
torch and little else, and no network."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

# the project's own dependencies, without torch, and what pydantic, the one that such machines lack, is made of
PACKAGES = (
    "fsspec",
    "jinja2",
    "numpy",
    "pyarrow",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-extensions",
    "typing-inspection",
    "pyyaml",
    "rich",
    "tensorboard",
)
OF_TESTS = ("pillow", "pytest", "pytest-timeout", "pytest-xdist", "safetensors")


def missing(packages: tuple[str, ...] = PACKAGES) -> list[str]:
    return [name for name in packages if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def what_to_do(names: list[str]) -> str:
    """Lines to print. The versions are those of constraints.txt; pydantic and pydantic-core belong together."""
    listed = " ".join(names)
    return (
        f"not installed: {listed}\n"
        "where there is no network, on a machine that has one (pydantic and all it needs: 2.8 MB):\n"
        "    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_17_x86_64 \\\n"
        f"        -c constraints.txt -d wheels {listed}\n"
        "and here, in the copied repository (installed too, so that its packs are found):\n"
        "    python3 -m pip install --no-index --no-deps --no-build-isolation --target site . wheels/*.whl \\\n"
        "        && export PYTHONPATH=.:site"
    )
