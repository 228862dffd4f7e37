"""torchvision next to a torch without CUDA, for the tests.

The registry has torchvision for Linux as a CUDA build alone. Beside a CPU build of torch its compiled operators do not
load, and its import ends with "operator torchvision::nms does not exist", also for those (timm, transformers) who use
none of them. Run as a program (`make test` does so), this puts itself where every start of Python finds it; then, where
the operators do not load, an import of torchvision first declares those two that it describes in any case. Where they
load, nothing is done.
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
    """Finds nothing itself: is asked first, and so can act before torchvision is imported."""

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
    """The declarations, to be kept while the process lives; none where torchvision's own operators load."""
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
    """Copy this file into the environment's packages, with the line that imports it at the start."""
    import sysconfig

    packages = Path(sysconfig.get_paths()["purelib"])
    (packages / "_cpu_torchvision.py").write_text(Path(__file__).read_text())
    (packages / "_cpu_torchvision.pth").write_text("import _cpu_torchvision\n")


if __name__ == "__main__":
    install()
else:
    sys.meta_path.insert(0, DeclareOperators())
