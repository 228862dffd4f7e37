"""Models of the library transformers as a layer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from declarative_train.components.component import ModelParts, Port, ShapeError
from declarative_train.components.matrix_products import Product, Use
from declarative_train.core.cuts import CutKind, LayerCut
from declarative_train.packs.pretrained.libraries import model_name
from declarative_train.packs.pretrained.libraries.files import Files, reject_leftovers, several, tensors_in
from declarative_train.packs.pretrained.libraries.layer import Inputs, LibraryLayer
from declarative_train.packs.pretrained.libraries.problem import LibraryError

if TYPE_CHECKING:
    import torch
    from torch import nn

MAIN = "main"
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")  # keys of a config: number of layers
_MAINS = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
_OTHERS = (
    *("attention_mask", "token_type_ids", "position_ids", "pixel_mask", "pixel_attention_mask", "bool_masked_pos"),
    *("decoder_input_ids", "decoder_attention_mask", "decoder_inputs_embeds", "bbox", "past_values"),
    *("past_observed_mask", "past_time_features", "future_values", "future_time_features"),
)
_IDS = ("input_ids", "decoder_input_ids", "token_type_ids", "position_ids")
_FIRST = ("logits", "last_hidden_state", "prediction_logits", "start_logits", "pooler_output")


class Transformers(LibraryLayer):
    """A model of the library transformers (`pip install 'declarative_train[transformers]'`). A pipeline cuts it
    between its layers if the library has a plan for its class.

    `input` is the model's main input (`input_ids`, `pixel_values`, ...); the other inputs have the names of the
    arguments of its `forward`. Parameters have the library's names. Those that start at random are initialised by the
    library, with random numbers that depend on `seed` and the node's name.
    """

    library: ClassVar[str] = "transformers"
    ports: ClassVar[tuple[Port, ...]] = (Port(MAIN), *(Port(name, optional=True) for name in (*_MAINS, *_OTHERS)))

    type: Literal["transformers"] = "transformers"
    path: Annotated[str, Field(min_length=1)] | None = None
    """The folder of a published model, relative to the recipe, or a hub id (`org/name`) in the cache of
    huggingface-hub. Nothing is downloaded."""
    config: dict[str, Any] = {}
    """Keys that override those of its config.json; without `path` the whole config, with its `model_type`."""
    architecture: Annotated[str, Field(min_length=1)] | None = None
    """The class, such as `BertForSequenceClassification` or `AutoModelForTokenClassification`; by default the first of
    the config's `architectures`."""
    classes: Annotated[int, Field(ge=1)] | None = None
    """Outputs of a classification head: the config's `num_labels`. If the files have another number, the head starts at
    random."""
    output: Annotated[str, Field(min_length=1)] | None = None
    """The output of the model that is used, such as `last_hidden_state`; by default `logits`, or the first one if there
    are none."""
    attn_implementation: Annotated[str, Field(min_length=1)] | None = None
    """`eager`, `sdpa`, or another one of the library; by default the library's choice."""
    pretrained: bool | None = None
    """Start from the weights of `path`, which is the default if there is a `path`. Each rank reads the rows that it
    holds. Parameters that the files lack start at random."""

    _part: str | None = PrivateAttr(default=None)
    """The part of the model that the node computes (`take_part`)."""

    @classmethod
    def ports_for(cls, named: Sequence[str]) -> tuple[Port, ...]:
        first = next((name for name in named if name in _MAINS), None)
        if first is None or MAIN in named:
            return cls.ports
        others = (Port(port.name, optional=True) for port in cls.ports if port.name != first)
        return (Port(first), *others)

    def check_inputs(self, inputs: Inputs) -> ShapeError | None:
        from declarative_train.packs.pretrained.libraries.modules.node import bare

        module: Any = bare(self, inputs)
        main, known = module.main_input_name, _arguments(type(module))
        if MAIN in inputs and main in inputs:
            return ShapeError(
                f"`{MAIN}` is the argument `{main}` of the model, which has another value here", port=main
            )
        for port, spec in inputs.items():
            name = main if port == MAIN else port
            if name not in known:
                takes = ", ".join(each for each in (*_MAINS, *_OTHERS) if each in known)
                return ShapeError(
                    f"a `{type(module).__name__}` has no input `{name}`", port=port, help=f"it takes {takes}"
                )
            if name in _IDS and spec.is_floating:
                return ShapeError(f"`{name}` takes whole numbers, and `{port}` is {spec}", port=port)
            vocabulary = getattr(module.config.get_text_config(), "vocab_size", None)
            if name.endswith("input_ids") and vocabulary is not None and (spec.num_values or 0) > vocabulary:
                message = (
                    f"`{port}` has ids up to {(spec.num_values or 0) - 1}, and the model's vocabulary is {vocabulary}"
                )
                return ShapeError(
                    message, port=port, help=f"`config: {{vocab_size: {spec.num_values}}}` makes it larger"
                )
        files = self.files(module)
        if files is not None and files.missing:
            message = f"{several(files.missing)}: not in the files of `path`, and start at random"
            if files.unexpected:
                message += f"; the files have {several(files.unexpected)}, which the model does not have"
            return ShapeError(
                message, field="path", help="to start all of them at random: `pretrained: false`", is_warning=True
            )
        return None

    @property
    def is_causal(self) -> bool:
        """True if the output at a position does not depend on later positions, and so not on padding at the end. Only
        valid if `check` found no error."""
        from transformers.models.auto import modeling_auto as known

        kind = str(self.config.get("model_type"))
        hides = kind not in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        return hides and kind in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    def find_text_ports(self) -> tuple[str, tuple[str, ...], str] | None:
        return None if self.is_causal else (model_name(self.as_data()), (MAIN, "input_ids"), "attention_mask")

    @property
    def is_pretrained(self) -> bool:  # type: ignore[override]
        return self.path is not None if self.pretrained is None else self.pretrained

    def shorten(self, copies: int, kept: int) -> Transformers | None:
        counts = [name for name in _COUNTS if self.config.get(name) == copies]
        each = {name: value for name, value in self.config.items() if isinstance(value, list) and len(value) == copies}
        if len(counts) != 1 or any(value.count(value[0]) < copies for value in each.values()):
            return None
        config = {**self.config, counts[0]: kept} | {name: value[:kept] for name, value in each.items()}
        return self.model_copy(update={"config": config, "pretrained": False})

    def make_config(self) -> Any:
        """Return the library's config object with all settings of this node. Raises LibraryError."""
        from transformers import CONFIG_MAPPING

        values = json.loads(json.dumps(self.config), object_hook=_float)
        kind = values.get("model_type")
        if kind is None:
            hint = "`path: FOLDER`, or `config: {model_type: bert}`"
            raise LibraryError("neither a `path` nor a `model_type` in `config` says which model it is", hint)
        if kind not in CONFIG_MAPPING:
            close = get_close_matches(str(kind), list(CONFIG_MAPPING), 1)
            hint = f"did you mean {close[0]}?" if close else "a model that needs code of its own cannot be loaded"
            raise LibraryError(f"the installed transformers has no `model_type` `{kind}`", hint, field="config")
        if values.get("quantization_config") is not None:
            raise LibraryError("its weights are quantized", "use the model without quantization", field="path")
        if self.classes is not None:
            values = {name: item for name, item in values.items() if name not in ("id2label", "label2id")}
            values["num_labels"] = self.classes
        try:
            return CONFIG_MAPPING[kind].from_dict(values)
        except Exception as problem:  # the library may raise anything for a wrong value
            raise LibraryError(f"a config of `{kind}` cannot be created: {_line(problem)}", field="config") from None

    def _class(self, config: Any) -> Any:
        import transformers

        name = self.architecture or next(iter(config.architectures or ()), "AutoModel")
        found = getattr(transformers, name, None)
        if not hasattr(found, "from_pretrained") or not hasattr(
            found, "_from_config" if "Auto" not in name else "from_config"
        ):
            models = [each for each in dir(transformers) if "Model" in each or "For" in each]
            close = get_close_matches(name, models, 1)
            hint = f"did you mean {close[0]}?" if close else "a model that needs code of its own cannot be loaded"
            raise LibraryError(f"the installed transformers has no model `{name}`", hint, field="architecture")
        return found

    def make(self, inputs: Inputs, *, draws: bool) -> nn.Module:
        import torch
        from transformers.initialization import no_init_weights

        config = self.make_config()
        kind = self._class(config)
        config.use_cache = False
        if self.attn_implementation is not None:
            try:
                config._attn_implementation = self.attn_implementation
            except Exception as problem:
                raise LibraryError(_line(problem), field="attn_implementation") from None
        make = kind.from_config if hasattr(kind, "from_config") else kind._from_config
        try:
            if draws:
                made: nn.Module = make(config, dtype=torch.float32)
            else:
                with no_init_weights():
                    made = make(config, dtype=torch.float32)
                of: Any = made
                of.tie_weights()
        except Exception as problem:
            field = "attn_implementation" if self.attn_implementation is not None else "config"
            raise LibraryError(f"`{kind.__name__}` cannot be created: {_line(problem)}", field=field) from None
        return made

    def call(
        self, module: nn.Module, forward: Callable[..., Any], values: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        of: Any = module
        return self.run(forward, values, of.main_input_name, self.output)

    def run(
        self, forward: Callable[..., Any], values: Sequence[torch.Tensor | None], main: str, output: str | None
    ) -> torch.Tensor:
        """Call `forward`, a function of the library, and return its output named `output`; None: the usual output of
        the model. `values`: the inputs in the order of `ports`, None for an input without a value. `main`: name of the
        argument for the node's main input."""
        import torch

        given = {
            main if port.name == MAIN else port.name: value
            for port, value in zip(self.ports, values, strict=True)
            if value is not None
        }
        for name, value in given.items():
            if name.endswith("attention_mask") and value.dtype == torch.bool:
                given[name] = value.long()
        found = forward(**given)
        tensors = {name: item for name, item in found.items() if isinstance(item, torch.Tensor)}
        name = output or next((each for each in _FIRST if each in tensors), next(iter(tensors)))
        if name not in tensors:
            raise ValueError(f"the model gives no `{name}`; it gives {', '.join(tensors)}")
        return tensors[name]

    def save(self, model: nn.Module, inputs: Inputs, folder: str, classes: Sequence[str]) -> None:
        of: Any = model
        config = self.make_config()
        if hasattr(config, "use_cache"):
            of.config.use_cache = config.use_cache
        else:
            del of.config.use_cache  # it was set by `make`
        if "Classification" in type(of).__name__ and len(classes) == of.config.num_labels:
            of.config.id2label = dict(enumerate(classes))
            of.config.label2id = {name: number for number, name in enumerate(classes)}
        with _hide_bars():
            of.save_pretrained(folder)

    def load(self, folder: str, model: nn.Module) -> nn.Module:
        of: Any = model
        with _hide_bars():
            found: nn.Module = type(of).from_pretrained(folder, dtype=of.dtype, local_files_only=True)
        return found

    def files(self, module: nn.Module) -> Files | None:
        if not self.is_pretrained:
            return None
        if self.path is None:
            raise LibraryError("`pretrained` takes a `path`", "`path: FOLDER`", field="pretrained")
        from declarative_train.packs.pretrained.libraries.modules.conversion import files_of

        of: Any = module
        body = f"{of.base_model_prefix}."
        heads = tuple(name for name, _ in module.named_parameters() if not name.startswith(body))
        found = files_of(module, tensors_in(self.path), heads if self.classes is not None else ())
        # if the files are of another class, they have another head, whose tensors the model does not use
        has_other_head = type(of).__name__ not in (of.config.architectures or (type(of).__name__,))
        bodies = (body,) if hasattr(of, of.base_model_prefix) else self.find_units(module)
        if not has_other_head or any(name.startswith(bodies) for name in found.missing):
            hint = "use files of this class; for another head, set `architecture` to a class that has it"
            reject_leftovers(found, type(of).__name__, hint, field="path")
        return found

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        from declarative_train.packs.pretrained.libraries.modules import division

        if kind == "experts":
            return division.find_expert_division(self, inputs, size)
        return division.find_division(self, inputs, size) if kind == "inside" else None

    def split(self, inputs: Inputs) -> ModelParts | str:
        from declarative_train.packs.pretrained.libraries.modules.parts import find_parts

        return find_parts(self, inputs)

    def take_part(self, path: str) -> Transformers:
        part = self.model_copy()
        part._part = path
        return part

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.packs.pretrained.libraries.modules.parts import build_part

        return super().build(inputs) if self._part is None else build_part(self, self._part)

    def products(self, use: Use) -> list[Product]:
        """Return the matrix products of a forward. For a part of a pipeline, they are estimated: the operations of the
        whole model are divided in proportion to the elements of the weights. A part that reads token ids has no
        products, because it only looks up an embedding."""
        if self._part is None:
            return super().products(use)
        from declarative_train.packs.pretrained.libraries.modules.parts import count_operations

        first = next(iter(use.inputs.values()))
        if not first.is_floating:
            return []
        rate, sides = count_operations(self, first.shape[0]), int(any(use.graded.values()) or use.is_inner_graded)
        return [Product(int(rate * prod(each.shape)), sides + each.is_trained) for each in use.matrices]

    def unit_classes(self, module: nn.Module) -> frozenset[str]:
        of: Any = module
        return frozenset(of._no_split_modules or ())


@contextmanager
def _hide_bars() -> Iterator[None]:
    """Turn off the library's progress bars within the `with` block."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    was_drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_drawn:
            logging.enable_progress_bar()


def _float(found: dict[str, Any]) -> Any:
    """Return the float that `found` stands for. In transformers' config.json, infinity is an object such as
    `{"__float__": "Infinity"}`, because JSON has no infinity. Return any other object unchanged."""
    return float(found["__float__"]) if found.keys() == {"__float__"} else found


def _arguments(kind: Any) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)


def _line(problem: Exception) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
