"""Errors of an export, which name the node of the recipe that cannot be exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from declarative_train.engine.failures import RunFailure, first_line
from declarative_train.graph.module_names import name_of

Attempt = Callable[[nn.Module, tuple[Any, ...]], object]


class ExportFailure(RunFailure):
    """Error: a format cannot represent the model, or the written file differs from the model after loading."""


@contextmanager
def blame_node(
    module: fx.GraphModule, inputs: tuple[Any, ...], what: str, attempt: Attempt | None = None
) -> Iterator[None]:
    """Convert an exception in the `with` block to an ExportFailure that names a node of the model. To find it,
    `attempt` is called with each node's module and inputs; the first that fails is named. By default, `attempt` runs
    the module. `what`: the end of the message "node ... cannot be ...", such as `computed in float16`."""
    try:
        yield
    except (RunFailure, OSError, MemoryError):
        raise
    except Exception as error:  # torch's exporters raise many kinds of exceptions
        found = _find_culprit(module, inputs, attempt or (lambda part, given: part(*given)))
        reason = first_line(error if found is None else found[1])
        node = "the model" if found is None else f"node `{found[0]}`"
        raise ExportFailure(f"{node} cannot be {what}: {reason[:300]}") from error


def _find_culprit(module: fx.GraphModule, inputs: tuple[Any, ...], attempt: Attempt) -> tuple[str, Exception] | None:
    prefix = ""
    found: tuple[str, Exception] | None = None
    while True:
        watcher = _Watcher(module, attempt)
        with torch.no_grad():
            try:
                watcher.run(*inputs)
            except Exception as error:
                if watcher.failed is None:
                    watcher.failed = (watcher.last, inputs, error)
        if watcher.failed is None:
            return found
        name, inputs, problem = watcher.failed
        path = f"{prefix}{name_of(name)}"
        if path.startswith("network"):
            found = (path.removeprefix("network.") or "network", problem)
        else:
            found = found or (path, problem)
        inner = _submodule(module, name)
        if not isinstance(inner, fx.GraphModule):
            return found
        module, prefix = inner, f"{path}."


def _submodule(module: nn.Module, name: str) -> nn.Module | None:
    try:
        return module.get_submodule(name)
    except AttributeError:
        return None


class _Watcher(fx.Interpreter):
    """Interpreter of an fx graph. Before it runs a module, it calls `attempt` with the module and its inputs. `failed`:
    (name of the module, its inputs, exception) of the first call that failed, or None. `last`: name of the node that
    was run last."""

    def __init__(self, module: fx.GraphModule, attempt: Attempt) -> None:
        super().__init__(module)
        self._attempt = attempt
        self.failed: tuple[str, tuple[Any, ...], Exception] | None = None
        self.last = ""

    def run_node(self, n: fx.Node) -> Any:
        self.last = str(n.target) if n.op == "call_module" else n.name
        return super().run_node(n)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.failed is None:
            try:
                self._attempt(self.fetch_attr(target), args)
            except Exception as error:
                self.failed = (str(target), args, error)
        return super().call_module(target, args, kwargs)
