"""Rules about the layout: GPUs, nodes, hardware, workers.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Related, error, warning
from declarative_train.core.diagnostics.suggest import did_you_mean, suggest_fix
from declarative_train.core.machine import num_cores
from declarative_train.recipe.draft import Draft


def dp_across_nodes(draft: Draft) -> Iterator[Diagnostic]:
    """dp-across-nodes (P002)

    Finds: the mode `dp` on several nodes.
    Why:   `dp` is one process, which can only use the GPUs of one machine.
    Diff:
    -   parallelism: dp
    +   parallelism: ddp
        layout: {nodes: 2, gpus_per_node: 2}
    """
    if draft.parallelism is None or draft.layout is None:
        return
    if draft.parallelism.scatters and draft.layout.num_nodes > 1:
        message = f"dp uses one process and cannot run on {draft.layout.num_nodes} nodes"
        related = (Related(draft.span("parallelism"), "dp is set here"),)
        yield error("P002", draft.span("layout.nodes"), message, "set parallelism to ddp", related)


def idle_gpus(draft: Draft) -> Iterator[Diagnostic]:
    """idle-gpus (P003)

    Finds: the mode `single` with more than one GPU.
    Why:   `single` is one process on one GPU, so the other GPUs would be idle.
    Diff:
        parallelism: single
    -   layout: {gpus: 2}
    +   layout: {gpus: 1}
    """
    layout = draft.layout
    if draft.parallelism is None or draft.parallelism.mode != "single" or layout is None or layout.num_gpus == 1:
        return
    key = "layout.gpus" if layout.gpus is not None else "layout.gpus_per_node"
    asked = draft.is_written("parallelism")
    related = (Related(draft.span("parallelism"), "single is set here"),) if asked else ()
    found = "single" if asked else "parallelism is not set: single"
    message = f"{found} uses 1 of {layout.num_gpus} GPUs"
    yield error("P003", draft.span(key), message, "set parallelism to ddp or fsdp, or layout.gpus to 1", related)


def half_a_layout(draft: Draft) -> Iterator[Diagnostic]:
    """half-a-layout (P004)

    Finds: `layout.nodes` without the number of GPUs of each node.
    Why:   the number of ranks would be unknown.
    Bad:
        layout: {nodes: 2}
    Good:
        layout: {nodes: 2, gpus_per_node: 1}
    """
    layout = draft.layout
    if layout is not None and layout.nodes is not None and layout.gpus_per_node is None and layout.gpus is None:
        message = f"`layout` sets {format_count(layout.num_nodes, 'node')}, but not the number of GPUs of each"
        yield error("P004", draft.span.key("layout.nodes"), message, "add `gpus_per_node: 8`", rests_on="all files")


def repeated_gpu(draft: Draft) -> Iterator[Diagnostic]:
    """repeated-gpu (P005)

    Finds: a GPU that is listed twice.
    Why:   two ranks on one device share its memory and time, and NCCL does not support it.
    Bad:
        layout: {gpus: [0, 0]}
    Good:
        layout: {gpus: [0, 1]}
    """
    layout = draft.layout
    if layout is None or not isinstance(layout.gpus, tuple):
        return
    for position, gpu in enumerate(layout.gpus):
        first = layout.gpus.index(gpu)
        if first < position:
            related = (Related(draft.span(("layout", "gpus", first)), "first here"),)
            yield error("P005", draft.span(("layout", "gpus", position)), f"GPU {gpu} is listed twice", None, related)


def gpu_numbers_on_cpu(draft: Draft) -> Iterator[Diagnostic]:
    """gpu-numbers-on-cpu (P011)

    Finds: a list of GPU numbers in `layout.gpus` with `device: cpu` or `device: mps`.
    Why:   these devices have no numbers. Only the length of the list is used.
    Bad:
        layout: {gpus: [0, 3], device: cpu}
    Good:
        layout: {gpus: 2, device: cpu}
    """
    layout = draft.layout
    if layout is not None and layout.device in ("cpu", "mps") and isinstance(layout.gpus, tuple):
        span, number = draft.span("layout.gpus"), len(layout.gpus)
        message = f"GPU numbers have no effect on {'the CPU' if layout.device == 'cpu' else layout.device}"
        yield warning("P011", span, message, f"write `gpus: {number}`", fixes=(Fix(span, str(number), safe=False),))


def mps_is_one_device(draft: Draft) -> Iterator[Diagnostic]:
    """mps-is-one-device (P019)

    Finds: `device: mps` with another mode than `single`.
    Why:   an Apple machine has one GPU, and neither gloo nor NCCL can send its tensors between ranks.
    Bad:
        parallelism: ddp
        layout: {gpus: 2, device: mps}
    Good:
        parallelism: single
        layout: {gpus: 1, device: mps}
    """
    layout, parallelism = draft.layout, draft.parallelism
    if layout is None or layout.device != "mps" or (parallelism is not None and parallelism.mode == "single"):
        return
    mode = "this mode" if parallelism is None else parallelism.mode
    message = f"{mode} cannot run on mps: it is one device, and no backend sends its tensors between ranks"
    related = (Related(draft.span("parallelism"), "this mode is set here"),)
    fix = "set parallelism to single and layout.gpus to 1, or layout.device to cpu"
    yield error("P019", draft.span("layout.device"), message, fix, related)


def mps_computes_in_fp32(draft: Draft) -> Iterator[Diagnostic]:
    """mps-computes-in-fp32 (P020)

    Finds: `device: mps` with the precision fp64, bf16 or fp16, or with a field of dtype float64.
    Why:   Apple's GPUs have no float64, and dtrain is not tested with bf16 and fp16 there.
    Diff:
    -   training: {precision: fp64}
    +   training: {precision: fp32}
        parallelism: single
        layout: {gpus: 1, device: mps}
    """
    if draft.layout is None or draft.layout.device != "mps":
        return
    related = (Related(draft.span("layout.device"), "mps is set here"),)
    precision = "fp32" if draft.training is None else draft.training.precision.compute
    if precision != "fp32":
        reason = "Apple's GPUs have no float64" if precision == "fp64" else f"{precision} is not tested there"
        fix = "set training.precision to fp32, or layout.device to cpu"
        yield error("P020", draft.span("training.precision"), f"no {precision} on mps: {reason}", fix, related)
    for name, field in {} if draft.data is None else draft.data.fields.items():
        if getattr(field, "dtype", None) == "float64":
            message = f"field `{name}` is float64, which Apple's GPUs do not have"
            yield error("P020", draft.span(("data", "fields", name, "dtype")), message, "set it to float32", related)


def too_many_workers(draft: Draft) -> Iterator[Diagnostic]:
    """too-many-workers (P014)

    Finds: more processes that load data (`data.workers`, in each rank) than the machine has CPU cores.
    Why:   processes that share a core slow down each other and the training. Only checked for a run on one machine.
    Diff:
    -   data: {workers: 4096}
    +   data: {workers: 0}
        parallelism: ddp
        layout: {gpus: 2}
    """
    data, parallelism, layout = draft.data, draft.parallelism, draft.layout
    if data is None or parallelism is None or layout is None or layout.num_nodes > 1:
        return  # the cores of a cluster's nodes are unknown here
    ranks = 1 if parallelism.in_one_process else layout.num_gpus
    cores = num_cores()
    if data.workers * ranks > cores:
        workers, processes = format_count(data.workers, "loader worker"), format_count(data.workers * ranks, "process")
        each = f"{format_count(ranks, 'rank')} with {workers} each" if ranks > 1 else workers
        message = f"{each}: {processes}, and this machine has {format_count(cores, 'core')}"
        related = (Related(draft.span("layout"), format_count(ranks, "rank")),) if ranks > 1 else ()
        yield warning("P014", draft.span("data.workers"), message, f"set data.workers to {cores // ranks}", related)


def unknown_hardware(draft: Draft) -> Iterator[Diagnostic]:
    """unknown-hardware (P015)

    Finds: a `layout.hardware` that is not in the table of devices (`dtrain list hardware`).
    Why:   without the device's speed and memory no time can be estimated, and `parallelism: auto` cannot choose a
           mode.
    Bad:
        layout: {gpus: 1, hardware: h100-smx}
    Good:
        layout: {gpus: 1, hardware: h100-sxm}
    """
    layout = draft.layout
    if layout is None or layout.hardware is None:
        return
    from declarative_train.components.hardware import HARDWARE  # only few recipes set it

    if layout.hardware in HARDWARE:
        return
    name = layout.hardware
    like = [known for known in HARDWARE if known.startswith(name.lower().replace("_", "-"))]
    message = f"unknown device `{name}`"
    hint = f"known: {', '.join(like)}" if len(like) > 1 else did_you_mean(name, HARDWARE)
    fixes = () if len(like) > 1 else suggest_fix(draft.span("layout.hardware"), name, HARDWARE, closed=True)
    yield error("P015", draft.span("layout.hardware"), message, hint, fixes=fixes)


def hardware_elsewhere(draft: Draft) -> Iterator[Diagnostic]:
    """hardware-elsewhere (P016)

    Finds: a `layout.hardware` that is not of the kind that `layout.device` sets: a GPU for `cpu`, the CPU for a GPU,
           or any hardware for `mps`.
    Why:   the estimates would be for a device that this run does not use.
    Bad:
        layout: {gpus: 1, device: cpu, hardware: h100-sxm}
    Good:
        layout: {gpus: 1, device: auto, hardware: h100-sxm}
    """
    layout = draft.layout
    if layout is None or layout.hardware is None or layout.device == "auto":
        return
    from declarative_train.components.hardware import HARDWARE  # only few recipes set it

    if layout.hardware in HARDWARE and (
        layout.device == "mps" or (layout.hardware == "cpu") != (layout.device == "cpu")
    ):
        message = f"the estimates are for {layout.hardware}, but the run is on {layout.device}"
        hint = "remove layout.hardware, or set layout.device to auto"
        related = (Related(draft.span("layout.device"), f"{layout.device} is set here"),)
        yield warning("P016", draft.span("layout.hardware"), message, hint, related)


def unreadable_calibration(draft: Draft) -> Iterator[Diagnostic]:
    """unreadable-calibration (P026)

    Finds: a file in `layout.calibration` that does not exist, or that `dtrain calibrate` did not write.
    Why:   the time estimates use the speeds measured in that file.
    Bad:
        layout: {gpus: 2, calibration: node.yaml}
    Good:
        layout: {gpus: 2, hardware: h100-sxm}
    """
    if draft.layout is None or draft.layout.calibration is None:
        return
    try:
        found = json.loads(Path(draft.layout.calibration).read_text("utf-8"))
        problem = "" if {"hardware", "figures", "constants"} <= set(found) else "is not a calibration"
    except (TypeError, ValueError, RecursionError):
        problem = "is not a calibration"
    except OSError as reason:
        problem = f"cannot be read: {reason.strerror}"
    if problem:
        message = f"{Path(draft.layout.calibration).name} {problem}"
        yield error("P026", draft.span("layout.calibration"), message, "write one with `dtrain calibrate -o FILE`")
