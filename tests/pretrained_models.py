"""`python -m tests.pretrained_models [--check] [--AXIS] [CLASS ...]`: try models of transformers as nodes of recipes.

Each language model, encoder and vision model is created from a tiny config with random weights, and written by
`save_pretrained`. It is read by `from_pretrained` and by a recipe, and both are compared. Then it is trained for one
step, exported, and read again by `from_pretrained`. A language model is also divided over two ranks of `tensor`, of
`expert`, and of `pipeline`.

The results are in docs/transformers-models.md. With CLASS, only these classes are tried. With --tensor, --expert or
--pipeline, only the columns of these axes are made. With --check, the page is compared instead of written.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
import yaml
from transformers.models.auto import modeling_auto as auto

import declarative_train as dt
from declarative_train.components.component import ModelParts
from declarative_train.core.cuts import CutKind, LayerCut
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.packs.export.export import export
from declarative_train.packs.pretrained.libraries.modules.division import UNNAMED
from declarative_train.packs.pretrained.libraries.modules.node import bare
from declarative_train.packs.pretrained.libraries.transformers import Transformers
from tests.thread_ranks import SIZE, compare, compare_parts, use_float64

PAGE = Path(__file__).parent.parent / "docs" / "transformers-models.md"
ROWS, TOKENS, VOCABULARY, SIDE, CLASSES = 16, 16, 64, 64, 3
MOST_PARAMETERS = 20_000_000
LIMIT_S = 120
WORKS = "yes"
DIVIDED_KIND = "Language models"
KINDS: dict[str, CutKind] = {"tensor": "inside", "expert": "experts"}
COLUMNS = ("tensor", "expert", "pipeline")
DIVIDED = """\
The columns `tensor: 2` and `expert: 2` have the share of the parameters that two ranks of the axis divide, by the
library's `base_model_tp_plan` and `base_model_ep_plan`, and why others stay whole: for `tensor` attention, a
feed-forward network or an embedding; for `expert` the whole model. {tensor} and {expert} of {rows} are divided: outputs
and gradients are those of the undivided model, to 1e-9 in float64.

The column `pipeline: 2` has the number of parts between which a pipeline can be cut, by the library's
`base_model_pp_plan`, or why the model stays in one stage. {pipeline} of {rows} have parts: computed one after the
other, they give the same outputs and gradients.\
"""

_SIZES = {
    32: "hidden_size d_model n_embd dim emb_dim embedding_size embed_dim encoder_hidden_size decoder_hidden_size "
    "d_embed hidden_dim attention_hidden_size word_embed_proj_dim projection_dim lru_width decoder_hidden_dim",
    64: "intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim d_inner ffn_hidden_size mlp_dim n_ctx "
    "feed_forward_size intermediate_size_mlp vocab_size max_position_embeddings n_positions max_seq_len seq_length "
    "text_vocab_size block_ff_dim vocab_size_per_layer_input image_size img_size",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers num_blocks "
    "num_decoder_layers num_experts_per_tok num_experts_per_token moe_topk top_k_experts num_hidden_groups moe_k "
    "num_frames",
    4: "num_attention_heads n_head n_heads num_heads num_key_value_heads encoder_attention_heads num_experts "
    "decoder_attention_heads num_local_experts n_routed_experts moe_num_experts num_kv_heads swa_num_attention_heads "
    "swa_num_key_value_heads laurel_rank",
    16: "moe_intermediate_size q_lora_rank kv_lora_rank o_lora_rank expert_ffn_hidden_size n_mels qk_head_dim",
    8: "head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim d_kv patch_size kv_channels sliding_window "
    "global_head_dim attention_head_dim rotary_dim swa_head_dim swa_v_head_dim hidden_size_per_layer_input",
    1: "n_group topk_group first_k_dense_replace",
    0: "num_kv_shared_layers",
}
_FILMS = ("timesformer", "videomae", "videoprism_vision_model", "vivit")
SMALL = {name: size for size, names in _SIZES.items() for name in names.split()}


class Model(NamedTuple):
    """Class of transformers: its kind, its `model_type`, and its name."""

    kind: str
    type: str
    name: str


def models() -> list[Model]:
    """Return all classes of transformers that are tried, kind after kind."""
    found: dict[str, Model] = {}
    heads = {
        "Language models": [auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES],
        "Encoders": [auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES],
        "Vision": [auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_MAPPING_NAMES],
    }
    for kind, mappings in heads.items():
        for mapping in mappings:
            for type_, names in mapping.items():
                for name in [names] if isinstance(names, str) else names:
                    found.setdefault(name, Model(kind, type_, name))
    for name in dir(transformers):  # classes that are not in these tables of the library
        if name.endswith("ForCausalLM") and name not in found and not name.startswith(("Auto", "TF", "Flax")):
            kind: Any = getattr(transformers, name)
            found[name] = Model("Language models", kind.config_class.model_type, name)
    return list(found.values())


def small(kind: Any, defaults: Any) -> dict[str, Any]:
    """Return values for a config that make the model small. `kind`: class of the config. `defaults`: config with
    default values."""
    known = {key: value for key, value in defaults.to_dict().items() if value is not None}
    values: dict[str, Any] = {key: SMALL[key] for key in known if key in SMALL and isinstance(known[key], int)}
    values |= {key: [SIDE, SIDE] for key in known if key in ("image_size", "img_size") and isinstance(known[key], list)}
    for key, value in known.items():
        if key.endswith("_token_id") and isinstance(value, int) and value >= VOCABULARY:
            values[key] = 1
        if "depths" in key and isinstance(value, list | tuple):
            values[key] = [1] * len(value)
        if key in ("hidden_sizes", "embed_dims", "neck_hidden_sizes") and isinstance(value, list | tuple):
            values[key] = [16 * (place + 1) for place in range(len(value))]
        if key in ("num_attention_heads", "num_heads") and isinstance(value, list | tuple):
            values[key] = [1] * len(value)
        if key.endswith("intermediate_size") and isinstance(value, int):
            values.setdefault(key, 64)
        if "drop" in key and isinstance(value, float):
            values[key] = 0.0
    for key in getattr(kind, "sub_configs", {}):
        inner = getattr(defaults, key, None)
        if inner is not None and hasattr(inner, "to_dict"):
            sub_kind: Any = type(inner)
            values[key] = {"model_type": inner.model_type, **small(sub_kind, inner)}
    return values


_WINDOWS = {"patch_size": 4, "window_size": 2}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
OVERRIDES: dict[str, dict[str, Any]] = {
    "ReformerModelWithLMHead": {"is_decoder": True},
    "bamba": _MAMBA,
    "bit": {"num_groups": 4},
    "dbrx": {
        "attn_config": {"rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "donut-swin": _WINDOWS,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 2},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": _MAMBA,
    "hgnet_v2": {"hidden_sizes": [256, 512, 1024, 2048]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "imagegpt": {"vocab_size": VOCABULARY + 1},
    "levit": {"patch_size": 16, "hidden_sizes": [128, 256, 384]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "luke": {"entity_vocab_size": VOCABULARY},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 8},
    "mobilevitv2": {"patch_size": 2},
    "nemotron": {"num_key_value_heads": 4, "head_dim": 8},
    "neomme": {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16},
    "perceiver": {"num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 1, "num_cross_attention_heads": 1},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 4]},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "swin": _WINDOWS,
    "swin2sr": _WINDOWS,
    "swinv2": _WINDOWS,
    "t5gemma": {"is_encoder_decoder": False},
    "textnet": {"hidden_sizes": [64, 64, 128, 256, 512]},
    "vivit": {"tubelet_size": [2, 16, 16]},
    "xmod": {"default_language": "en_XX"},
}
"""Dict from `model_type` or class name to values that its tiny config needs in addition."""


def config_of(model: Model) -> Any:
    """Return a config for a tiny model of this class."""
    kind = transformers.CONFIG_MAPPING[model.type]
    found = getattr(transformers, model.name).config_class
    kind = kind if found is None or issubclass(kind, found) else found
    values = {**small(kind, kind()), **OVERRIDES.get(model.type, {}), **OVERRIDES.get(model.name, {})}
    if model.kind == "Vision":
        values["num_labels"] = CLASSES
    return kind(**values)


class FailureError(Exception):
    """Error: a model does not pass. The message is the reason, in one line."""


@contextlib.contextmanager
def failing(step: str) -> Iterator[None]:
    """Convert any error of the `with` block into a FailureError that names `step`. A block that takes too long is an
    error too."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    except FailureError:
        raise
    except Exception as problem:
        found = [each.message for each in getattr(problem, "diagnostics", ()) if each.is_error]
        said = (found[0] if found else str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise FailureError(f"{step}: {said[:200]}") from problem
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def write_data(folder: Path) -> None:
    random = np.random.default_rng(0)
    ids = random.integers(3, VOCABULARY, (2, ROWS, TOKENS))
    pictures = random.normal(size=(ROWS, 3, SIDE, SIDE)).astype(np.float32)
    made = {"tokens": ids[0], "next": ids[1], "label": random.integers(0, CLASSES, ROWS), "picture": pictures}
    np.savez(folder / "made.npz", **made, film=np.repeat(pictures[:, None], 2, 1))


def recipe(model: Model) -> dict[str, Any]:
    """Return a recipe for a model whose weights are in the folder `begun`."""
    column = "tokens" if model.kind != "Vision" or model.type == "imagegpt" else "picture"
    column = "film" if model.type in _FILMS else column
    is_base = model.name.endswith("Model") and "LMHead" not in model.name
    target = "label" if is_base or model.kind == "Vision" else "next"
    net: dict[str, Any] = {"type": "transformers", "path": "begun"}
    # the input of a vision model is given by name: some models declare another main input
    net |= {"input": "tokens"} if column == "tokens" else {"inputs": {"pixel_values": column}}
    graph: dict[str, Any] = {"net": net}
    loss = "net"
    if is_base:  # a model without a head gets a linear layer after it
        graph |= {"flat": {"type": "flatten"}, "scores": {"type": "linear", "out_features": CLASSES}}
        loss = "scores"
    fields = {column: {"column": column}, target: {"column": target, "dtype": "int64"}}
    if column == "tokens":
        fields["tokens"]["dtype"] = "int64"
    if target == "label":
        fields[target] = {"type": "category", "column": "label", "num_classes": CLASSES}
    return {
        "name": "walk",
        "data": {"source": {"type": "npy", "path": "made.npz"}, "fields": fields},
        "model": {"graph": graph},
        "objective": {"loss": {"type": "cross_entropy", "input": loss, "target": target}},
        "training": {"steps": 1, "global_batch_size": 4, "optimizer": {"type": "sgd", "lr": 0.01}},
        "layout": {"device": "cpu"},
        "logging": {"dir": "runs"},
    }


def read_back(kind: Any, folder: str | Path, step: str) -> dict[str, torch.Tensor]:
    """Return the tensors that transformers reads from a folder. Raises FailureError if a tensor is missing or
    unexpected."""
    with failing(step):
        model, report = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        left = [f"{key} {sorted(map(str, items))[:3]}" for key, items in report.items() if items]
        if left:
            raise FailureError(f"{step}: {', '.join(left)[:200]}")
        state: dict[str, torch.Tensor] = model.state_dict()
    return state


def differing(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that are not identical, bit for bit, in both dicts."""
    names = dict.fromkeys((*theirs, *ours))
    return [name for name in names if not (name in ours and name in theirs and torch.equal(ours[name], theirs[name]))]


def count_parameters(kind: Any, config: Any) -> int:
    """Return the number of parameters of a model; 0 if the model cannot be created on the meta device."""
    try:
        with torch.device("meta"):
            return sum(each.numel() for each in kind(config).parameters())
    except Exception:  # its code needs values of tensors, or creates tensors on another device
        return 0


def walk(model: Model) -> str:
    """Try a model, in the current folder. Return `yes`, or what goes wrong."""
    kind: Any = getattr(transformers, model.name)
    try:
        with failing("transformers cannot make it from a tiny config"):
            config = config_of(model)
            if (count := count_parameters(kind, config)) > MOST_PARAMETERS:
                raise FailureError(f"not tried: no tiny config ({count / 1e6:.0f} M parameters)")
            torch.manual_seed(0)
            begun = kind(config)
            with torch.no_grad():
                for parameter in begun.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.02)
            begun.save_pretrained("begun")
        theirs = read_back(kind, "begun", "transformers does not read what it wrote")
        Path("recipe.yaml").write_text(yaml.safe_dump(recipe(model), sort_keys=False))
        with failing("refused"):
            plan = dt.load("recipe.yaml").plan()
            ours = plan.module().get_submodule("net").state_dict()
        if wrong := differing(ours, theirs):
            raise FailureError(f"start values differ: {', '.join(wrong[:3])}")
        with failing("a step"):
            run = plan.run(quiet=True)
        with failing("export"):
            folder = export(run.trained(), "huggingface", Path("back")).folder
        back = read_back(kind, folder, "the export")
        if wrong := differing(run.module().get_submodule("net").state_dict(), back):
            raise FailureError(f"the export differs: {', '.join(wrong[:3])}")
        trained = [name for name in theirs if not torch.equal(theirs[name], back[name])]
        if not trained:
            raise FailureError("a step changed nothing")
    except FailureError as problem:
        return str(problem)
    return WORKS


def walk_apart(model: Model) -> str:
    """Try a model in a temporary folder, without output on stderr."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        os.chdir(folder)
        try:
            write_data(Path(folder))
            return walk(model)
        finally:
            os.chdir(before)


def divide(model: Model, axis: str) -> str:
    """Divide a model over two ranks of `axis`, and return a cell of the table. It has the share of the parameters that
    are divided, and the reasons for others; for a pipeline, the number of parts; or what goes wrong."""
    try:
        with failing("transformers cannot make it from a tiny config"):
            config = config_of(model)
            if count_parameters(getattr(transformers, model.name), config) > MOST_PARAMETERS:
                raise FailureError("not tried: no tiny config")
        data = {"type": "transformers", "config": json.loads(config.to_json_string()), "architecture": model.name}
        layer, inputs = Transformers.from_data(data), {"main": TensorSpec((TOKENS,), "int64", num_values=VOCABULARY)}
        with failing("refused"):
            module = bare(layer, inputs)
            cut = layer.cut(KINDS[axis], inputs, SIZE) if axis in KINDS else layer.split(inputs)
        is_narrow = model.name in IN_FLOAT32
        if isinstance(cut, ModelParts):
            try_in_both(is_narrow, False, partial(compare_parts, layer, inputs))
            return f"{len(cut.outputs)} parts{', compared in float32' * is_narrow}"
        if not isinstance(cut, LayerCut):
            reason = cut or f"transformers has no expert plan for a `{model.name}`"
            return f"{'one stage' if axis == 'pipeline' else 'whole'}: {reason}"
        has_experts = any(part.kind in ("hidden", "experts") for part in cut.parts.values())
        try_in_both(is_narrow, has_experts, partial(compare, layer, inputs, kind=KINDS[axis]))
    except FailureError as problem:
        return str(problem)
    named = dict(module.named_parameters())
    share = sum(item.numel() for name, item in named.items() if name in cut.parameters) / sum(
        item.numel() for item in named.values()
    )
    reasons = dict.fromkeys(_WITHOUT_NUMBERS.sub("*", part.reason) for part in cut.parts.values() if part.reason)
    reasons.pop(UNNAMED, None)
    return "; ".join([f"{share:.0%}{', compared in float32' * is_narrow}", *reasons])


def try_in_both(is_narrow: bool, has_experts: bool, compared: Callable[[torch.Tensor, torch.dtype], float]) -> None:
    """Raise FailureError if the difference that `compared` returns is too large.

    It is called in float64. `has_experts`: also in float32, because float64 has no grouped matrix product. `is_narrow`:
    only in float32.
    """
    tokens = torch.randint(3, VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    tried = [*[(torch.float64, 1e-9)] * (not is_narrow), *[(torch.float32, 1e-3)] * (is_narrow or has_experts)]
    for dtype, most in tried:
        with failing(f"in {dtype}"), use_float64():
            if (difference := compared(tokens, dtype)) > most:
                raise FailureError(f"differs by {difference:.0e} in {dtype}")


IN_FLOAT32 = ("Inkling2ForCausalLM", "KimiLinearForCausalLM")
"""Classes whose code does not compute in float64, or takes minutes to."""
_WITHOUT_NUMBERS = re.compile(r"(?<=\.)\d+(?=\.)")


def divide_apart(model: Model, axis: str) -> str:
    """Divide a model like `divide`, without output on stderr."""
    with contextlib.redirect_stderr(io.StringIO()):
        return divide(model, axis).replace("|", "/")


def divide_all(models: Sequence[Model], axis: str) -> Iterator[tuple[Model, str]]:
    """Yield (model, result of `divide`) for all models, computed by two processes."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=silence) as pool:
        yield from zip(models, pool.map(divide_apart, models, [axis] * len(models)), strict=True)


def silence() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


def page(results: dict[Model, str], divided: dict[str, dict[str, str]]) -> str:
    """Return the text of the page. `results`: dict from model to its result. `divided`: dict from axis to a dict from
    class to cell."""
    passed = sum(each == WORKS for each in results.values())
    lines = [
        "# Models of transformers",
        "",
        f"Language models, encoders and vision models of transformers {transformers.__version__}, each as a node",
        "`{type: transformers, path: FOLDER}` ([any other model](pretrained.md#any-other-model)). A model is made from",
        "a tiny random config and written by `save_pretrained`. It passes if the start values are to the bit those",
        "that `from_pretrained` loads, a step trains it, and `from_pretrained` reads the export with the trained",
        "values and without a missing or unexpected name.",
        "",
        f"{passed} of {len(results)} pass; the others have the reason, which may be the tiny config. Made by",
        "`python -m tests.pretrained_models`.",
    ]
    for kind in dict.fromkeys(each.kind for each in results):
        rows = sorted((each for each in results if each.kind == kind), key=lambda each: each.name.lower())
        if kind != DIVIDED_KIND:
            lines += ["", f"## {kind}", "", "| class | `model_type` | passes |", "|---|---|---|"]
            lines += [f"| {each.name} | {each.type} | {results[each]} |" for each in rows]
            continue
        shares = {axis: sum(cells[each.name][0].isdigit() for each in rows) for axis, cells in divided.items()}
        lines += ["", f"## {kind}", "", *DIVIDED.format(rows=len(rows), **shares).splitlines(), ""]
        lines += [f"| class | `model_type` | passes |{''.join(f' `{axis}: 2` |' for axis in divided)}"]
        lines += [f"|---|---|---|{'---|' * len(divided)}"]
        for each in rows:
            cells = [each.name, each.type, results[each], *(found[each.name] for found in divided.values())]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def rows_of(text: str) -> dict[str, str]:
    """Return a dict from class to its result on the page `text`."""
    return {name: cells[0] for name, cells in _cells(text)}


def divisions_of(text: str) -> dict[str, dict[str, str]]:
    """Return the columns of the axes on the page `text`: a dict from axis to a dict from class to cell."""
    rows = [(name, cells[1:]) for name, cells in _cells(text) if len(cells) > 1]
    return {axis: {name: cells[at] for name, cells in rows if at < len(cells)} for at, axis in enumerate(COLUMNS)}


def _cells(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| class"):
            name, _, *cells = line.strip("| ").split(" | ")
            yield name, cells


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pretrained_models")
    parser.add_argument("names", nargs="*", metavar="CLASS")
    parser.add_argument("--check", action="store_true")
    for axis in COLUMNS:
        parser.add_argument(f"--{axis}", dest="axes", action="append_const", const=axis)
    given = parser.parse_args(arguments)
    silence()
    chosen = [model for model in models() if not given.names or model.name in given.names]
    walked: dict[Model, str] = {}
    for model in chosen if not given.axes else ():
        walked[model] = walk_apart(model).replace("|", "/")
        print(f"{model.name}: {walked[model]}", flush=True)
    before = PAGE.read_text() if PAGE.exists() else ""
    known, divided = rows_of(before), divisions_of(before)
    for axis in given.axes or COLUMNS:
        for model, result in divide_all([each for each in chosen if each.kind == DIVIDED_KIND], axis):
            divided[axis][model.name] = result
            print(f"{model.name}, {axis} 2: {result}", flush=True)
    results = {each: walked.get(each, known.get(each.name, "not tried")) for each in models()}
    untried = {each.name: "not tried" for each in results}
    text = page(results, {axis: untried | found for axis, found in divided.items()})
    if given.check and text != before:
        print(f"{PAGE.name} differs from what is found: run `python -m tests.pretrained_models`")
        return 1
    if not given.check:
        PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
