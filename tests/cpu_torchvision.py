"""torchvision with a torch without CUDA, for the tests.

The registry has torchvision for Linux only as a CUDA build. With a CPU build of torch, its compiled operators cannot be
loaded, and its import fails with "operator torchvision::nms does not exist". This also stops libraries that use none of
these operators (timm, transformers).

Run as a program (`make test` does so), this file copies itself into the environment, so that every Python process
imports it. If the operators of torchvision cannot be loaded, an import of torchvision then first declares the two
operators that it needs. Otherwise nothing is done.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

DECLARED = ("nms", "qnms")
KEPT: list[object] = []


class DeclareOperators(importlib.abc.MetaPathFinder):
    """Import hook that declares the operators of torchvision before torchvision is imported. It finds no module
    itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            found = importlib.machinery.PathFinder.find_spec(name)
            if found is not None and found.origin is not None:
                KEPT.extend(declare(Path(found.origin).parent))
        return None


def declare(folder: Path) -> list[object]:
    """Declare the operators, if those in `folder`, the package torchvision, cannot be loaded. Return the declarations,
    which must be referenced as long as the process lives."""
    import torch

    for library in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            declared = torch.library.Library("torchvision", "DEF")
            for operator in DECLARED:
                declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            return [declared]
    return []


def install() -> None:
    """Copy this file into the packages of the environment, with a `.pth` file that imports it when Python starts."""
    import sysconfig

    packages = Path(sysconfig.get_paths()["purelib"])
    (packages / "_cpu_torchvision.py").write_text(Path(__file__).read_text())
    (packages / "_cpu_torchvision.pth").write_text("import _cpu_torchvision\n")


if __name__ == "__main__":
    install()
else:
    sys.meta_path.insert(0, DeclareOperators())
