"""Rules about single keys.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.core.machine import SINK_PACKAGES, extra_for
from declarative_train.core.names import RUN
from declarative_train.core.secrets import masked
from declarative_train.core.span import Span
from declarative_train.files.open_files import is_known, local_path
from declarative_train.recipe.checks.optimizer_rules import list_optimizers
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model.selectors import ParameterRule
from declarative_train.recipe.model.tree import Scope
from declarative_train.recipe.model.walk import all_layers
from declarative_train.source.node import find

Idle = tuple[str, Callable[[Any], bool], str, str]

_UNPADDED = "there is no padding"

IDLE_KEYS: dict[str, tuple[Idle, ...]] = {  # by `type`
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"),
        (
            (
                "padding_mode",
                lambda layer: layer.padding_mode != "zeros" and layer.padding in (0, "valid"),
                _UNPADDED,
                "`padding`",
            ),
        ),
    ),
    **dict.fromkeys(
        ("avg_pool1d", "avg_pool2d", "avg_pool3d"),
        (("count_include_pad", lambda layer: layer.padding == 0, _UNPADDED, "`padding`"),),
    ),
    **dict.fromkeys(
        ("kaiming_normal", "kaiming_uniform"),
        (
            (
                "a",
                lambda init: init.nonlinearity != "leaky_relu",
                "it is the slope of `leaky_relu`",
                "`nonlinearity: leaky_relu`",
            ),
        ),
    ),
    "poisson_nll": (("eps", lambda loss: loss.log_input, "the input is a logarithm already", "`log_input: false`"),),
    "sgd": (("dampening", lambda sgd: sgd.dampening and not sgd.momentum, "there is no momentum", "`momentum`"),),
}

_OF_CLASSES = ("cross_entropy", "nll")


def key_without_effect(draft: Draft) -> Iterator[Diagnostic]:
    """key-without-effect (S009)

    Finds: a key that has no effect because of the value of another key.
    Why:   the setting seems to be active. Often another key was forgotten.
    Bad:
        checkpoint: {keep: 5}
    Good:
        checkpoint: {keep: 5, every: 1 epoch}
    """
    for optimizer, path, at in list_optimizers(draft):
        yield from _check(optimizer, lambda key, path=path, at=at: at if path is None else draft.span((*path, key)))  # type: ignore[misc]
    if draft.scope is not None:
        yield from _check_layers(draft.scope)
    yield from _check_objective(draft)
    yield from _check_parameters(draft)
    yield from _check_precision(draft)
    yield from _check_checkpointing(draft)
    checkpoint = draft.checkpoint
    if checkpoint is not None and checkpoint.every is None and checkpoint.keep > 1:
        reason = "only one checkpoint is written, at the end of the run"
        yield _idle(draft.span("checkpoint.keep"), "keep", reason, "`every: 1 epoch`")
    if checkpoint is not None and not checkpoint.keep and checkpoint.every is not None and _are_in_one_file(draft):
        yield _idle(draft.span("checkpoint.every"), "every", "`keep: 0` writes no checkpoint", "`keep: 1`")
    if checkpoint is not None and not checkpoint.keep and checkpoint.best is not None:
        place = draft.span.key("checkpoint.best")
        yield error("S009", place, "`best` keeps a checkpoint, but `keep: 0` writes none", "set `keep` to 1")


def _are_in_one_file(draft: Draft) -> bool:
    """Return whether `checkpoint.keep` and `checkpoint.every` are in the same file. If not, `keep: 0` may be intended:
    it switches off the checkpoints of the base recipe."""
    return draft.span("checkpoint.keep").path == draft.span("checkpoint.every").path


def _check_precision(draft: Draft) -> Iterator[Diagnostic]:
    """Yield a warning if `matmul: tf32` is set but the run does not compute in fp32."""
    precision = None if draft.training is None else draft.training.precision
    if precision is None or precision.compute == "fp32":
        return
    at = ("training", "precision")
    if precision.matmul == "tf32":
        reason = f"in {precision.compute} hardly any matrix products are in float32"
        yield _idle(draft.span((*at, "matmul")), "matmul", reason, "`compute: fp32`")


def _check_checkpointing(draft: Draft) -> Iterator[Diagnostic]:
    found = None if draft.training is None else draft.training.activation_checkpointing
    if found is None:
        return
    at = ("training", "activation_checkpointing")
    for key, policies in (("every", ("blocks", "selective")), ("keep", ("selective",))):
        if key in found.model_fields_set and found.policy not in policies:
            words = " or ".join(f"`policy: {word}`" for word in policies)
            yield _idle(draft.span((*at, key)), key, f"the policy is `{found.policy}`", words)


def _idle(span: Span, key: str, reason: str, used_with: str = "") -> Diagnostic:
    hint = f"remove it, or add {used_with}" if used_with else "remove it"
    return warning("S009", span, f"`{key}` has no effect: {reason}", hint)


def _check(component: BaseModel, place: Callable[[str], Span]) -> Iterator[Diagnostic]:
    for key, is_idle, reason, used_with in IDLE_KEYS.get(getattr(component, "type", ""), ()):
        if key in component.model_fields_set and is_idle(component):
            yield _idle(place(key), key, reason, used_with)


def _check_layers(scope: Scope) -> Iterator[Diagnostic]:
    """Yield the diagnostics of keys without effect in the layers of `scope`. If `repeat` makes many copies of a layer,
    they are reported once.
    """
    said: set[Span] = set()
    for node in all_layers(scope):
        if node.params:
            continue  # a layer of a shipped block, which sets all keys
        for found in _check(node.layer, lambda key, node=node: node.field_spans.get(key, node.span)):  # type: ignore[misc]
            if found.span not in said:
                said.add(found.span)
                yield found


def _check_objective(draft: Draft) -> Iterator[Diagnostic]:
    if draft.objective is None:
        return
    losses = draft.objective.losses
    for name, term in losses.items():
        path = f"objective.losses.{name}"
        yield from _check(term.component, lambda key, path=path: draft.span(f"{path}.{key}"))  # type: ignore[misc]
        ignored = getattr(term.component, "ignore_index", None)
        field = None if draft.data is None else draft.data.fields.get(term.target or "")
        classes = getattr(field, "num_classes", None)
        if isinstance(classes, int) and getattr(field, "ignore", None) is not None:
            classes += 1  # a mask has one more number, for pixels without a class
        if ignored is not None and isinstance(classes, int) and not 0 <= ignored < classes:
            reason = f"the classes of `{term.target}` are 0 to {classes - 1}, so none is {ignored}"
            yield _idle(draft.span(f"{path}.ignore_index"), "ignore_index", reason)
    for name, metric in draft.objective.metrics.items():
        of = losses.get(metric.of or (next(iter(losses)) if len(losses) == 1 and metric.input is None else ""))
        task = getattr(metric.component, "task", None)
        kind = None if of is None else of.component.type
        key, reason = "threshold", "with several classes the one with the highest score is predicted"
        if task not in (None, "multiclass") or (task is None and kind not in _OF_CLASSES):
            continue
        if key in metric.component.model_fields_set:
            yield _idle(draft.span(f"objective.metrics.{name}.{key}"), key, reason)


def _check_parameters(draft: Draft) -> Iterator[Diagnostic]:
    for rule in draft.rules:
        settings = rule.settings
        if settings.init is not None and not rule.prefix:
            path = ("model", "parameters", rule.selector, "init")
            yield from _check(settings.init, lambda key, path=path: draft.span((*path, key)))  # type: ignore[misc]
        if rule.may_miss or rule.by_index is not None:
            continue
        if settings.frozen and settings.adapter is None:
            yield from _check_rule(
                draft, rule, ("lr_scale", "optimizer", "weight_decay"), "frozen parameters are not updated"
            )
        if settings.tie is not None:
            reason = f"the parameter is tied to `{settings.tie}`, whose settings apply"
            yield from _check_rule(draft, rule, ("init", "lr_scale", "optimizer", "weight_decay"), reason)


def _check_rule(draft: Draft, rule: ParameterRule, keys: Iterable[str], reason: str) -> Iterator[Diagnostic]:
    for key in keys:
        if getattr(rule.settings, key) is not None:
            path = ("model", "parameters", rule.selector, key)
            yield _idle(rule.span if rule.prefix else draft.span(path), key, reason)


def unusable_folder(draft: Draft) -> Iterator[Diagnostic]:
    """unusable-folder (O030)

    Finds: a `logging.dir` or `checkpoint.dir` that cannot be created: a file has the same path, the parent folder is
           not writable, a name in it is too long, or the URL has an unknown scheme.
    Why:   the run would fail at its start.
    Bad:
        logging: {dir: base.yaml/runs}
    Good:
        logging: {dir: runs}
    """
    if draft.logging is not None and (reason := _why_not(draft.logging.dir)) is not None:
        yield error(
            "O030", draft.span("logging.dir"), f"`{masked(draft.logging.dir)}` cannot be used for runs: {reason}"
        )
    folder = None if draft.checkpoint is None else draft.checkpoint.dir
    if folder is not None and (reason := _why_not(folder)) is not None:
        yield error(
            "O030", draft.span("checkpoint.dir"), f"`{masked(folder)}` cannot be used for checkpoints: {reason}"
        )


def _why_not(folder: str) -> str | None:
    local = local_path(folder)
    if local is None:
        scheme = folder.partition("://")[0]
        return None if is_known(folder) else f"unknown file system `{scheme}`; examples are s3, gs, abfs and hf"
    path = Path(local).expanduser().absolute()
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    if not there.is_dir():
        return f"{there} is not a folder"
    if max(len(os.fsencode(part)) for part in path.parts) > os.pathconf(there, "PC_NAME_MAX"):
        return "a name in this path is too long"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"


def checkpoints_among_runs(draft: Draft) -> Iterator[Diagnostic]:
    """checkpoints-among-runs (O032)

    Finds: a `checkpoint.dir` that is the same as `logging.dir`, or is inside the folder of a run or of all runs of
           this recipe.
    Why:   deleting that run would also delete the checkpoints of the others, and the checkpoint folder would look like
           the folder of a run.
    Diff:
        name: digits
    -   checkpoint: {dir: runs/digits/saved}
    +   checkpoint: {dir: saved}
        logging: {dir: runs}
    """
    wanted = None if draft.checkpoint is None else draft.checkpoint.dir
    folder = None if wanted is None else local_path(wanted)
    logged = None if draft.logging is None else local_path(draft.logging.dir)
    if folder is None or logged is None:
        return
    path, runs = Path(folder).absolute(), Path(logged).absolute()
    written = find(draft.tree, ("name",))
    name = str(getattr(written, "value", ""))
    inside = next(
        (each for each in (path, *path.parents) if os.path.isfile(each / RUN)), None
    )  # `Path.is_file` raises if a name is too long
    reason = f"{inside} is the folder of a run" if inside is not None else None
    if reason is None and (path == runs or (name and path.is_relative_to(runs / name))):
        reason = "the runs of this recipe are in that folder"
    if reason is not None:
        message = f"checkpoints cannot be kept in `{wanted}`: {reason}"
        fix = "choose a separate folder, or remove `checkpoint.dir`: each run then has its own"
        yield error("O032", draft.span("checkpoint.dir"), message, fix)


def missing_package(draft: Draft) -> Iterator[Diagnostic]:
    """missing-package (O031)

    Finds: a sink in `logging.sinks`, or a type of sweep, that needs a Python package which is not installed.
    Why:   the run would fail at its start. The package of a sweep is only needed by `dtrain sweep`, so its absence is
           a warning.
    Bad:
        logging: {sinks: {mlflow: {}}}
    Good:
        logging: {sinks: {csv: {}}}
    """
    chosen = [] if draft.logging is None else [name for name, value in draft.logging.sinks if value is not None]
    for name in SINK_PACKAGES:
        install = extra_for(name) if name in chosen else None
        if install is not None:
            place = draft.span.key(f"logging.sinks.{name}")
            yield error("O031", place, f"the sink `{name}` needs the package {name}, which is not installed", install)
    if draft.sweep is not None and draft.sweep.type == "optuna":
        install = extra_for("optuna")
        if install is not None:
            place = draft.span("sweep.type")
            yield warning(
                "O031", place, "a sweep of type `optuna` needs the package optuna, which is not installed", install
            )
