"""Mistakes of the first hour: what users of Keras, scikit-learn, pandas, timm, ultralytics, fastai and Lightning type
out of habit in a recipe for a table or for pictures. Each gives one diagnostic, at the place of the word, with the word
to write here; the recipe in which it is written has no mistake."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from declarative_train import recipe as recipe_room

TABLE = """\
name: people
data:
  source: {type: csv, path: people.csv}
  fields:
    numbers: {columns: [age, visits], normalize: standard}
    churn: {type: category, column: churn, num_classes: 2}
  split: {validation: 0.2}
model:
  graph:
    hidden: {type: linear, out_features: 16, input: numbers}
    act: {type: relu}
    drop: {type: dropout, p: 0.1}
    net: {type: linear, out_features: 2}
objective:
  loss: {type: cross_entropy, input: net, target: churn}
  metrics: [accuracy]
training:
  epochs: 20
  global_batch_size: 20
  optimizer: {type: adam, lr: 1e-2}
evaluation: {every: 1 epoch}
"""
PICTURES = """\
name: pictures
data:
  source: {type: image_folder, path: pictures}
  fields:
    image: {type: image, column: image, mode: L, size: 8}
    label: {type: category, column: label, num_classes: 3}
  transforms:
    - {type: random_flip}
  split: {validation: 0.2}
model:
  graph:
    conv: {type: conv2d, out_channels: 8, kernel_size: 3, padding: 1, input: image}
    act: {type: relu}
    pool: {type: adaptive_avg_pool2d, output_size: 1}
    flat: {type: flatten}
    net: {type: linear, out_features: 3}
objective:
  loss: {type: cross_entropy, input: net, target: label}
  metrics: [accuracy]
training:
  epochs: 20
  global_batch_size: 20
  optimizer: {type: adam, lr: 1e-2}
evaluation: {every: 1 epoch}
"""


class Mistake(NamedTuple):
    """Text of the base recipe that was meant, what the user typed in its place, the word that the diagnostic marks, a
    part of its help, and the text that follows the help."""

    meant: str
    typed: str
    place: str
    help: str
    repaired: str


def rename_key(meant: str, typed: str, help: str = "") -> Mistake:
    """Return the mistake of one word for another: the repaired text is the one that was meant."""
    return Mistake(
        meant, typed, typed.partition(":")[0].strip("{ "), help or f"its name here is `{_word(meant)}`", meant
    )


def add_key(section: str, typed: str, help: str, repaired: str = "") -> Mistake:
    """Return the mistake of a key too many behind `section`, which is repaired by another text, or by removing it."""
    return Mistake(section, section + typed, typed.strip(" ,\n").partition(":")[0], help, section + repaired)


def _word(meant: str) -> str:
    return meant.partition(":")[0].strip("{ ")


EPOCHS, LR, CSV, SPLIT = "  epochs: 20\n", "lr: 1e-2", "path: people.csv", "{validation: 0.2"
METRICS, STANDARD, CATEGORY = "[accuracy]", "normalize: standard", "{type: category, column: churn"
RULE = "`{metric: validation/loss, mode: min, patience: 5 epochs}`"
EARLY = "  early_stop: {metric: validation/loss, mode: min, patience: 5 epochs}\n"
OF_TABLES = {
    "keras_loss": Mistake(
        "cross_entropy",
        "sparse_categorical_crossentropy",
        "sparse_categorical_crossentropy",
        "`cross_entropy`",
        "cross_entropy",
    ),
    "keras_loss_word": Mistake(
        "{type: cross_entropy, input: net, target: churn}",
        "categorical_crossentropy",
        "categorical_crossentropy",
        "write `{type: cross_entropy,",
        "{type: cross_entropy, input: net, target: churn}",
    ),
    "keras_auc": Mistake(METRICS, "[AUC]", "AUC", "`auroc`", "[auroc]"),
    "keras_sparse_accuracy": Mistake(
        METRICS, "[sparse_categorical_accuracy]", "sparse_categorical_accuracy", "`accuracy`", METRICS
    ),
    "keras_validation_split": add_key(EPOCHS, "  validation_split: 0.2\n", "`data.split: {validation: 0.2}`"),
    "keras_callbacks": add_key(EPOCHS, "  callbacks: [EarlyStopping]\n", "see `training.early_stop`"),
    "keras_rate": rename_key("p: 0.1", "rate: 0.1"),
    "keras_units": rename_key("out_features: 16", "units: 16"),
    "keras_activation": add_key("out_features: 16", ", activation: relu", "an activation is a node of its own"),
    "keras_plateau": Mistake(
        EPOCHS,
        f"{EPOCHS}  lr_schedule: {{type: ReduceLROnPlateau}}\n",
        "ReduceLROnPlateau",
        "`cosine`",
        f"{EPOCHS}  lr_schedule: {{type: cosine}}\n",
    ),
    "keras_shuffle": add_key(EPOCHS, "  shuffle: false\n", "`shuffle` belongs in `data`"),
    "keras_verbose": add_key(EPOCHS, "  verbose: 1\n", "`dtrain run --quiet`"),
    "keras_input_layer": Mistake(
        "    hidden: {", "    start: {type: InputLayer}\n    hidden: {", "InputLayer", "`input: FIELD`", "    hidden: {"
    ),
    "keras_softmax": Mistake(
        "{type: relu}", "{type: Softmax}", "Softmax", "did you mean `softmax`?", "{type: softmax}"
    ),
    "sklearn_test_size": rename_key("validation: 0.2", "test_size: 0.2", "`{test: 0.2}`"),
    "sklearn_random_state": add_key(EPOCHS, "  random_state: 42\n", "`seed`, in the top level"),
    "sklearn_scaler": Mistake(
        STANDARD, "normalize: StandardScaler", "StandardScaler", "did you mean `standard`?", STANDARD
    ),
    "sklearn_min_max": Mistake(
        STANDARD, "normalize: MinMaxScaler", "MinMaxScaler", "did you mean `minmax`?", "normalize: minmax"
    ),
    "sklearn_one_hot": Mistake(
        "type: category",
        "type: OneHotEncoder",
        "OneHotEncoder",
        "a field `category` numbers the values",
        "type: category",
    ),
    "sklearn_sizes": Mistake(
        "{type: linear, out_features: 16,",
        "{type: mlp, hidden_layer_sizes: [16],",
        "hidden_layer_sizes",
        "`hidden`",
        "{type: mlp, hidden: [16],",
    ),
    "sklearn_max_iter": rename_key("epochs: 20", "max_iter: 20"),
    "sklearn_early_stopping": add_key(EPOCHS, "  early_stopping: true\n", RULE, EARLY),
    "sklearn_class_weight": add_key(
        "target: churn", ", class_weight: balanced", "has `class_weights`", ", class_weights: balanced"
    ),
    "sklearn_roc_auc": Mistake(METRICS, "[roc_auc]", "roc_auc", "`auroc`", "[auroc]"),
    "sklearn_f1_macro": Mistake(METRICS, "[f1_macro]", "f1_macro", "its name here is `f1`", "[f1]"),
    "sklearn_balanced": Mistake(
        METRICS, "[balanced_accuracy_score]", "balanced_accuracy_score", "`recall`", "[recall]"
    ),
    "sklearn_learning_rate": rename_key(LR, "learning_rate_init: 1e-2"),
    "sklearn_alpha": add_key(LR, ", alpha: 1e-4", "`weight_decay`", ", weight_decay: 1e-4"),
    "sklearn_stratify": Mistake(
        SPLIT,
        f"{SPLIT}, stratify: churn",
        "stratify",
        "{type: stratified, fraction: 0.2, column: label}",
        "{validation: {type: stratified, fraction: 0.2, column: churn}",
    ),
    "sklearn_median": add_key(STANDARD, ", missing: median", "write `mean`, or the number", ", missing: mean")._replace(
        place="median"
    ),
    "sklearn_folds": Mistake(
        SPLIT, "{n_splits: 5", "n_splits", "`sweep: {type: grid, over: {seed: [0, 1, 2]}}`", SPLIT
    ),
    "pandas_sep": add_key(CSV, ", sep: ';'", "`delimiter`", ", delimiter: ';'"),
    "pandas_na_values": add_key(CSV, ", na_values: ['?']", "`missing_values`", ", missing_values: ['?']"),
    "pandas_read_csv": Mistake("type: csv", "type: read_csv", "read_csv", "`csv`", "type: csv"),
    "pandas_index_col": add_key(CSV, ", index_col: 0", "not needed: remove it"),
    "pandas_parse_dates": Mistake(
        CSV, f"{CSV}, parse_dates: [since]", "parse_dates", "{type: date, column: since}", CSV
    ),
    "pandas_fillna": add_key(STANDARD, ", fillna: 0", "`missing: mean`, or `zero`", ", missing: zero"),
    "pandas_categorical": Mistake("type: category", "type: categorical", "categorical", "`category`", "type: category"),
    "pandas_object": Mistake(
        f"{CATEGORY}, num_classes: 2",
        "{column: churn, dtype: object",
        "object",
        "`type: category`",
        f"{CATEGORY}, num_classes: 2",
    ),
    "pandas_drop": Mistake(
        "columns: [age, visits]",
        'columns: "*", drop: [churn]',
        "drop",
        "`exclude` drops some",
        'columns: "*", exclude: [churn]',
    ),
    "pandas_drop_first": add_key(CATEGORY, ", drop_first: true", "`one_hot: true`"),
    "fastai_one_cycle": Mistake(
        EPOCHS,
        "  fit_one_cycle: 20\n",
        "fit_one_cycle",
        "lr_schedule: {type: one_cycle}",
        f"{EPOCHS}  lr_schedule: {{type: one_cycle}}\n",
    ),
    "fastai_wd": add_key(LR, ", wd: 0.1", "`weight_decay`", ", weight_decay: 0.1"),
    "fastai_bs": rename_key("global_batch_size: 20", "bs: 20"),
    "fastai_cont_names": add_key(
        "  source: {type: csv, path: people.csv}\n", "  cont_names: [age]\n", "a field names its columns"
    ),
    "lightning_max_epochs": rename_key("epochs: 20", "max_epochs: 20"),
    "lightning_accelerator": add_key(EPOCHS, "  accelerator: gpu\n", "`device`, in `layout`"),
    "lightning_strategy": add_key(EPOCHS, "  strategy: ddp\n", "`parallelism`, in the top level"),
    "lightning_clip": add_key(EPOCHS, "  gradient_clip_val: 1.0\n", "`clip_grad_norm`", "  clip_grad_norm: 1.0\n"),
    "lightning_check_val": rename_key("every: 1 epoch", "check_val_every_n_epoch: 1"),
    "lightning_precision": Mistake(
        EPOCHS, f"{EPOCHS}  precision: 16-mixed\n", "16-mixed", "`fp16`", f"{EPOCHS}  precision: fp16\n"
    ),
    "lightning_monitor": add_key("{every: 1 epoch", ", monitor: val_acc", "`checkpoint: {best: {"),
    "lightning_limit": add_key(EPOCHS, "  limit_train_batches: 10\n", "--max-steps 5"),
    "torch_num_workers": add_key("data:\n", "  num_workers: 2\n", "`workers`", "  workers: 2\n"),
}
CHANGED = "  - {type: random_flip}\n"
OF_PICTURES = {
    "keras_filters": rename_key("out_channels: 8", "filters: 8"),
    "keras_strides": add_key("padding: 1", ", strides: 2", "`stride`", ", stride: 2"),
    "keras_pool": Mistake(
        "{type: adaptive_avg_pool2d, output_size: 1}",
        "{type: GlobalAveragePooling2D}",
        "GlobalAveragePooling2D",
        "`global_avg_pool`",
        "{type: global_avg_pool}",
    ),
    "keras_norm": Mistake(
        "{type: relu}", "{type: BatchNormalization}", "BatchNormalization", "`batch_norm`", "{type: batch_norm}"
    ),
    "timm_model_name": Mistake(
        "{type: linear, out_features: 3}",
        "{type: timm, model_name: resnet18}",
        "model_name",
        "`name`",
        "{type: timm, name: resnet18}",
    ),
    "timm_classes": Mistake(
        "{type: linear, out_features: 3}",
        "{type: timm, name: resnet18, out_features: 3}",
        "out_features",
        "`classes`",
        "{type: timm, name: resnet18, classes: 3}",
    ),
    "timm_family": Mistake(
        "{type: relu}",
        "{type: efficientnet_b0}",
        "efficientnet_b0",
        "`{type: timm, name: efficientnet_b0}`",
        "{type: timm, name: efficientnet_b0}",
    ),
    "timm_num_classes": rename_key("out_features: 3", "num_classes: 3"),
    "timm_augment": Mistake(
        "type: random_flip", "type: auto_augment", "auto_augment", "`rand_augment`", "type: rand_augment"
    ),
    "timm_smoothing": add_key(EPOCHS, "  smoothing: 0.1\n", "a key of the loss `cross_entropy`"),
    "timm_mixup": add_key(EPOCHS, "  mixup: 0.2\n", "`data.transforms: [{type: mixup"),
    "timm_warmup": add_key(EPOCHS, "  warmup_epochs: 1\n", "warmup: 5%"),
    "timm_opt": Mistake(
        "optimizer: {type: adam, lr: 1e-2}",
        "opt: {type: adam, lr: 1e-2}",
        "opt",
        "`optimizer`",
        "optimizer: {type: adam, lr: 1e-2}",
    ),
    "timm_sched": add_key(EPOCHS, "  sched: {type: cosine}\n", "`lr_schedule`", "  lr_schedule: {type: cosine}\n"),
    "timm_erasing": add_key(EPOCHS, "  reprob: 0.25\n", "{type: random_erasing, p: 0.25}"),
    "timm_ema": add_key(EPOCHS, "  model_ema: true\n", "`training.ema: {decay: 0.9999}`", "  ema: {decay: 0.9999}\n"),
    "ultralytics_imgsz": add_key(EPOCHS, "  imgsz: 64\n", "column: image, size: 224}"),
    "ultralytics_batch": rename_key("global_batch_size: 20", "batch: 20"),
    "ultralytics_lr0": rename_key(LR, "lr0: 1e-2", "did you mean `lr`?")._replace(help="`lr`"),
    "ultralytics_patience": add_key(EPOCHS, "  patience: 5\n", RULE, EARLY),
    "ultralytics_device": add_key(EPOCHS, "  device: 0\n", "`device` belongs in `layout`"),
    "ultralytics_amp": add_key(EPOCHS, "  amp: true\n", "`precision: bf16`", "  precision: bf16\n"),
    "ultralytics_degrees": add_key(
        f"  {CHANGED}",
        "    - {degrees: 10}\n",
        "{type: random_rotation, degrees: 10}",
        "    - {type: random_rotation, degrees: 10}\n",
    )._replace(place="degrees"),
    "ultralytics_fliplr": Mistake("type: random_flip", "type: fliplr", "fliplr", "`random_flip`", "type: random_flip"),
    "ultralytics_workers": add_key(EPOCHS, "  workers: 4\n", "`workers` belongs in `data`"),
    "ultralytics_model": Mistake(
        PICTURES[PICTURES.index("model:") : PICTURES.index("objective:")],
        "model: yolov8n-cls.pt\n",
        "yolov8n-cls.pt",
        "`model.graph: {net: {type: resnet}}`",
        "model: {graph: {net: {type: resnet, out_features: 3, input: image}}}\n",
    ),
    "fastai_valid_pct": rename_key("validation: 0.2", "valid_pct: 0.2", "`{validation: 0.2}`"),
    "fastai_error_rate": Mistake(METRICS, "[error_rate]", "error_rate", "`accuracy`", METRICS),
    "fastai_transforms": Mistake("  transforms:", "  item_tfms:", "item_tfms", "`transforms`", "  transforms:"),
    "fastai_freeze": add_key(EPOCHS, "  freeze_epochs: 1\n", "`model.parameters: {NAME: {frozen: true}}`"),
}
CASES = [
    *(pytest.param(TABLE, case, id=name) for name, case in OF_TABLES.items()),
    *(pytest.param(PICTURES, case, id=name) for name, case in OF_PICTURES.items()),
]


@pytest.mark.packs
@pytest.mark.parametrize(("base", "case"), CASES)
def test_a_habit_gives_one_diagnostic_whose_fix_works(base: str, case: Mistake) -> None:
    assert base.count(case.meant) == 1
    text = base.replace(case.meant, case.typed)
    (found,) = recipe_room.load("r.yaml", text=text).diagnostics
    line = text.splitlines()[found.span.line - 1]
    marked = line[found.span.column - 1 :]
    assert marked.startswith(case.place), (marked, found.message)
    assert case.help in (found.help or ""), found.help
    assert recipe_room.load("r.yaml", text=base.replace(case.meant, case.repaired)).diagnostics == []


def test_the_mistakes_are_many() -> None:
    assert len(CASES) >= 80
