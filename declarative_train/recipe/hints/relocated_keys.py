"""Hints for keys of other tools that have another form, or are in another section, in a recipe."""

from __future__ import annotations

from declarative_train.recipe.hints.aliases import NOTES, ZERO

_EVALUATED = "`evaluation: {every: 500 steps}` sets how often, with a unit: `1 epoch`"
_SAVED = "`checkpoint: {every: 500 steps}` sets how often, with a unit: `1 epoch`"
_LOGGED = "`logging: {every: 50 steps}` sets how often, with a unit"
_WARMED = "`training.lr_schedule: {type: cosine, warmup: 5%}`; also `100 steps` or `1 epoch`"
_RESUMED = "`dtrain run RECIPE --resume` continues a run; `model.weights: RUN` starts from its weights"
_TRIED = "`dtrain run RECIPE --max-steps 5` stops early; `dtrain lint` and `dtrain plan` try a recipe without training"
_FIELD = "the inputs of a model are fields: `data.fields: {NAME: {column: ...}}`; a loss names its `input` and `target`"
_PADDED = "texts are padded to the `length` of their field; `FIELD.mask` is false in padding"
_LENGTH = "`data.window: {length: 1024}` sets the number of rows, such as tokens, of a sample"
_SIZES = "the sizes of a model are keys of its nodes, under `model.graph`"
_MODE = "`parallelism` sets how ranks share the work: `ddp`, `fsdp`, `pipeline` or `auto`"
_A_WORD = "a word has no other keys: `parallelism: fsdp`; sizes belong to axes: `parallelism: {data: {shard: 4}}`"
_DEVICES = "`layout: {gpus: 4}`, or `{nodes: 2, gpus_per_node: 8}`"
_EXPERTS = "`parallelism: {expert: 2}` divides the experts of layers `moe` over 2 ranks"
_POSITIONS = "`parallelism: {context: 2}` divides the positions of a sequence over 2 ranks"
_LAYERS = "`parallelism: {tensor: 2}` divides each layer over 2 ranks"
_WEIGHTS = "`model.weights: PATH` starts from a file or a run, `{NODE: PATH}` below one node"
_LOSS = "`objective: {loss: {type: ..., input: NODE, target: FIELD}}`"
_BASES = "`extends: base.yaml` builds on another recipe; `--with FILE` merges one over it"
_NOTES = "`meta:` contains notes of any kind, which are not checked"
_SWEPT = "`sweep: {type: random, over: {training.optimizer.lr: {low: 1e-4, high: 1e-1, log: true}}, trials: 20}`"
_CLUSTER = "`layout` sets the numbers of nodes and GPUs; a job script starts the ranks (docs/launching.md)"
_SMOOTHED = "`label_smoothing` is a key of the loss `cross_entropy`"
_BALANCED = "the loss `cross_entropy` has `class_weights`, `bce_with_logits` has `pos_weight`; either may be `balanced`"
_NO_OFFLOAD = "there is no offloading to the CPU; `fsdp` and `activation_checkpointing` save memory"
_QUANTISED = "`model.parameters: {SELECTOR: {frozen: true, storage: nf4}}` stores frozen weights in nf4, int8 or bf16"
_ROWS = "`source` defines the rows; `split` takes sets from them, and the rest is for training"
_SOURCE = "`source: {type: csv, path: ...}` defines the rows"
_PREPARED = (
    "a field prepares its numbers: `data.fields: {NAME: {column: ..., normalize: standard}}`; a transform changes "
    "images"
)
_WHOLE = "a model is a `graph` of nodes; one node may be a whole model: `model.graph: {net: {type: resnet}}`"
_WIRED = "a node refers to its fields by `input: FIELD`; losses refer to nodes of the graph"
_STAGES = "`{pipeline: {stages: 4, microbatches: 8}}`"
_SHARED_OUT = (
    "the GPUs of `layout` are divided: `{data: {replicate: 2}}` makes whole copies, `{data: {shard: 2}}` shards"
)
_PART = "`max: 1000 samples` evaluates a part of each set"
_SINKS = "`logging: {sinks: {tensorboard: {}, csv: {}, wandb: {}, mlflow: {}}}` sets where numbers go"
_PICTURE_SIZE = "a field of images has a size: `data.fields: {NAME: {type: image, column: image, size: 224}}`"
_COLUMNS = "a field names its columns: `data.fields: {NAME: {columns: [age, visits]}}`; others are not read"
_BEST = "`checkpoint: {best: {metric: validation/accuracy, mode: max}}` keeps the best weights"
_STOPPED = "`training.early_stop: {metric: validation/loss, mode: min, patience: 5 epochs}`"
_ONE_CYCLE = "`training: {epochs: 5, lr_schedule: {type: one_cycle}}`"
_STRATIFIED = "`data.split: {validation: {type: stratified, fraction: 0.2, column: label}}`"
_CHANGED = {  # keys for changes of pictures
    **dict.fromkeys(("mixup", "mixup_alpha"), "`data.transforms: [{type: mixup, labels: [FIELD]}]`"),
    **dict.fromkeys(("cutmix", "cutmix_alpha"), "`data.transforms: [{type: cutmix, labels: [FIELD]}]`"),
    **dict.fromkeys(
        ("degrees", "rotation", "rotation_range"), "`data.transforms: [{type: random_rotation, degrees: 10}]`"
    ),
    **dict.fromkeys(("fliplr", "hflip", "horizontal_flip", "flip"), "`data.transforms: [{type: random_flip}]`"),
    **dict.fromkeys(
        ("flipud", "vflip", "vertical_flip"), "`data.transforms: [{type: random_flip, direction: vertical}]`"
    ),
    **dict.fromkeys(("aa", "auto_augment", "autoaugment"), "`data.transforms: [{type: rand_augment}]`"),
    **dict.fromkeys(("reprob", "erasing", "random_erase"), "`data.transforms: [{type: random_erasing, p: 0.25}]`"),
    **dict.fromkeys(
        ("hsv_h", "hsv_s", "hsv_v", "color_jitter", "brightness", "contrast", "brightness_range"),
        "`data.transforms: [{type: color_jitter, strength: 0.4}]`",
    ),
    **dict.fromkeys(
        ("translate", "width_shift_range", "height_shift_range"),
        "`data.transforms: [{type: random_crop, size: 32, padding: 4}]` shifts a picture",
    ),
    **dict.fromkeys(("zoom_range", "crop_pct"), "`data.transforms: [{type: random_resized_crop, size: 224}]`"),
    **dict.fromkeys(
        ("mosaic", "copy_paste", "perspective", "shear"),
        "there is no such transform; `dtrain list transforms` shows all",
    ),
    **dict.fromkeys(("rescale", "rescaling"), "not needed: pictures become float32 (C, H, W), 0 to 1"),
}

ANYWHERE = {
    **_CHANGED,
    **dict.fromkeys(("imgsz", "img_size", "image_size", "target_size", "resize"), _PICTURE_SIZE),
    **dict.fromkeys(
        ("cont_names", "cat_names", "num_cols", "cat_cols", "numeric_features", "procs", "usecols"), _COLUMNS
    ),
    **dict.fromkeys(("n_iter_no_change", "early_stopping_rounds", "early_stopping_patience"), _STOPPED),
    **dict.fromkeys(("fit_one_cycle", "one_cycle", "max_lr"), _ONE_CYCLE),
    **dict.fromkeys(("save_best_only", "load_best_model_at_end", "restore_best_weights"), _BEST),
    **dict.fromkeys(("freeze_epochs", "unfreeze"), "`model.parameters: {NAME: {frozen: true}}` for the whole run"),
    **dict.fromkeys(
        ("verbose", "show_progress"), "`dtrain run --quiet` shows less; `logging: {every: 50 steps}` sets how often"
    ),
    **dict.fromkeys(("tol", "warm_start"), "there is no such choice; `training.early_stop` ends a run"),
    **dict.fromkeys(
        ("validation_split", "test_size", "valid_split", "valid_pct", "val_size", "valid_size"),
        "`data.split: {validation: 0.2}`",
    ),
    "model_ema": "`training.ema: {decay: 0.9999}`",
    "smoothing": _SMOOTHED,
    "stratify": _STRATIFIED,
    "n_jobs": "`data: {workers: 4}` reads with four processes per rank",
    **dict.fromkeys(("eval_steps", "evaluation_strategy", "eval_strategy", "eval_every"), _EVALUATED),
    **dict.fromkeys(("check_val_every_n_epoch", "val_check_interval"), _EVALUATED),
    **dict.fromkeys(("save_steps", "save_strategy", "save_every_n_epochs", "checkpoint_every"), _SAVED),
    **dict.fromkeys(("logging_steps", "log_every_n_steps", "log_interval", "log_every"), _LOGGED),
    **dict.fromkeys(("warmup_steps", "warmup_ratio", "warmup_epochs", "warmup_iters", "num_warmup_steps"), _WARMED),
    **dict.fromkeys(("resume", "resume_from_checkpoint", "resume_from", "ckpt_path"), _RESUMED),
    **dict.fromkeys(("fast_dev_run", "limit_train_batches", "overfit_batches"), _TRIED),
    **dict.fromkeys(("tp", "tensor_parallel", "tensor_parallel_size", "tp_size"), _LAYERS),
    **dict.fromkeys(("pipeline_parallel", "pp"), "`parallelism: {pipeline: {stages: 4, microbatches: 8}}`"),
    **dict.fromkeys(("cp", "context_parallel", "cp_size"), _POSITIONS),
    **dict.fromkeys(("ep", "expert_parallel", "ep_size"), _EXPERTS),
    **dict.fromkeys(("deepspeed", "ddp", "fsdp"), _MODE),
    **dict.fromkeys(("criterion", "loss_fn", "loss_function"), _LOSS),
    **dict.fromkeys(("label_smoothing", "label_smoothing_factor"), _SMOOTHED),
    **dict.fromkeys(("class_weights", "class_weight"), _BALANCED),
    **dict.fromkeys(("report_to", "logger"), _SINKS),
    **dict.fromkeys(("init_from", "from_pretrained", "weights_path"), _WEIGHTS),
    **dict.fromkeys(("adapter", "peft"), "`model.parameters: {SELECTOR: {adapter: {type: lora, rank: 8}}}`"),
    **dict.fromkeys(("quantization", "quantization_config", "load_in_4bit", "load_in_8bit", "qlora"), _QUANTISED),
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len", "sequence_len"), _LENGTH),
    **dict.fromkeys(("cpu_offload", "offload"), _NO_OFFLOAD),
    "find_unused_parameters": "parameters that no loss reaches are found before a run; remove it",
    "ema_decay": "`training.ema: {decay: 0.9999}`",
    "swa": "`training.ema: {decay: 0.999}` averages the weights; an unweighted average is not available",
    "sync_batchnorm": "`over: 32 samples` on a `batch_norm` sets the number of samples, on any number of GPUs",
    "min_lr": "`training.lr_schedule: {type: cosine, min_factor: 0.1}`: a part of the lr",
    "tf32": "`training.precision: {matmul: tf32}`",
    "autocast": "`training.precision: bf16`",
    "grad_accum": "its name here is `gradient_accumulation_steps`, in `training`",
    "train_on_inputs": "a `mask` of the loss selects the tokens that count",
    **dict.fromkeys(("random_split", "train_test_split"), "`data.split: {validation: 0.2, test: 0.1}`"),
    **dict.fromkeys(("rope", "rotary_embedding"), "`rotary: {base: 10000}` of the layer `self_attention`"),
    **dict.fromkeys(
        ("flash_attention", "attn_implementation"), "the layer `self_attention` uses torch's fused kernels"
    ),
    **dict.fromkeys(("attention_mask", "pad_token"), _PADDED),
    "onnx": "`dtrain export RUN --to onnx`",
    **dict.fromkeys(("torchscript", "jit"), "`dtrain export RUN --to torch-export`: torch's format after TorchScript"),
    **dict.fromkeys(("gpu_memory", "vram"), "`dtrain fits` and `dtrain plan` predict the memory of each GPU"),
    "profiler": "each logged step has its time and the time that it waited for data (docs/run-folder.md)",
    "torchrun": "`dtrain run` starts the ranks of a machine itself; for several machines see docs/launching.md",
    "seed_everything": "`seed: 0` belongs at the top level",
    "dataloader": "its keys are in `data`: `shuffle`, `workers`, `last_batch`",
}
_NORMALIZED = "`data.transforms` does it: `- {type: normalize, fields: [image], mean: [0.5], std: [0.25]}`"
IN_SECTIONS: dict[str, dict[str, str]] = {  # name of the section in messages -> {key: hint}
    "the recipe": {
        **dict.fromkeys(("include", "base", "_base_", "defaults", "imports", "config", "hydra"), _BASES),
        **dict.fromkeys(("tags", "notes", "description"), _NOTES),
        **dict.fromkeys(("resources", "cluster", "slurm", "environment"), _CLUSTER),
        **dict.fromkeys(("search", "tune", "hyperparameters"), _SWEPT),
        "version": "`language: 1` is the language of a recipe, `requires: dtrain>=0.1` the program that reads it",
        "experiment_name": "`name` is the name of a run's folder",
        "run_name": "`name` is the name of a run's folder",
        "train": "the training is described by `training`, its data by `data`",
    },
    "`training`": {
        "dropout": "dropout is a node of the model: `{type: dropout, p: 0.1}`",
    },
    "`data`": {
        **dict.fromkeys(("train", "train_data"), _ROWS),
        **dict.fromkeys(("input", "inputs", "target", "label", "labels", "target_column", "label_column"), _FIELD),
        **dict.fromkeys(("feature_columns", "x", "y"), _FIELD),
        **dict.fromkeys(("file", "files", "root", "format"), _SOURCE),
        **dict.fromkeys(("normalize", "mean", "std", "scale"), _PREPARED),
        "sample_packing": "`window: {length: 1024}` cuts a text into samples without padding",
        "shuffle_buffer": "its name here is `shuffle_window`: samples that are shuffled together in memory",
        "streaming": "rows are read when they are needed: remove it",
        "cache": "rows are read when they are needed: remove it",
    },
    "`data.split`": {  # written instead of names of sets
        **dict.fromkeys(("test_size", "test_split"), "`{test: 0.2}`: a name of the set, and its share"),
        **dict.fromkeys(
            ("valid_pct", "val_size", "valid_size", "val_split", "validation_split", "fraction"),
            "`{validation: 0.2}`: a name of the set, and its share",
        ),
        **dict.fromkeys(
            ("train_size", "train_split"), "the rest is for training; name the others: `{validation: 0.2}`"
        ),
        **dict.fromkeys(("random_state", "seed"), "`seed` at the top level draws the sets"),
        **dict.fromkeys(("stratify", "stratified", "column"), _STRATIFIED),
        **dict.fromkeys(("n_splits", "folds", "cv"), NOTES["cv"]),
        "shuffle": "the rows of a set are drawn at random; `{type: last, fraction: 0.2}` takes the last ones",
        "type": "a type belongs to a set: `{validation: {type: stratified, fraction: 0.2, column: label}}`",
    },
    "`transform`": _CHANGED,  # without a `type`
    "`csv`": {
        **dict.fromkeys(
            ("parse_dates", "date_format", "dayfirst"), "`data.fields: {NAME: {type: date, column: since}}`"
        ),
        **dict.fromkeys(
            ("index_col", "skip_blank_lines", "low_memory", "engine", "quotechar"), "not needed: remove it"
        ),
        **dict.fromkeys(
            ("dtype", "converters"), "a field has the dtype: `data.fields: {NAME: {column: age, dtype: float32}}`"
        ),
        **dict.fromkeys(
            ("header", "names"), "`columns: [age, visits]` names the columns of a file without a first line of names"
        ),
        **dict.fromkeys(("nrows", "skiprows"), "all rows are read; `split` takes sets of them"),
        **dict.fromkeys(
            ("chunksize", "iterator", "compression"), "files are read in pieces, and unpacked by their names: remove it"
        ),
        "thousands": "remove the separators in the file, such as with pandas: `read_csv(FILE, thousands=...)`",
    },
    "`tensor`": {
        **dict.fromkeys(("fillna", "fill_value", "impute", "imputer"), "`missing: mean`, or `zero`, or a number"),
        **dict.fromkeys(("scaler", "scaling", "standardize"), "`normalize: standard`, or `minmax`"),
        **dict.fromkeys(
            ("drop", "drop_columns"), 'columns that no field names are not read; `exclude` drops some of `columns: "*"`'
        ),
        "clip": "expressions of the model clip: `small: clamp(numbers, -3, 3)`",
    },
    "`category`": {
        **dict.fromkeys(
            ("drop_first", "dummy_na", "sparse"), "classes are numbers here, and `one_hot: true` makes vectors"
        ),
    },
    "`image`": dict.fromkeys(("normalize", "mean", "std"), _NORMALIZED),
    "`model`": {
        **dict.fromkeys(("name", "architecture", "backbone"), _WHOLE),
        **dict.fromkeys(("num_classes", "hidden_size", "num_layers", "dropout", "input_shape"), _SIZES),
        **dict.fromkeys(("inputs", "outputs"), _WIRED),
        **dict.fromkeys(("init", "initializer"), "`parameters: {SELECTOR: {init: {type: normal, std: 0.02}}}`"),
        "dtype": "`training.precision` sets the precision of a run",
    },
    "`parallelism`": {
        **dict.fromkeys(("auto", "ddp", "fsdp", "single"), _A_WORD),
        **dict.fromkeys(("pp", "pipeline_parallel_size", "num_stages"), _STAGES),
        **dict.fromkeys(("dp_size", "data_parallel_size", "dp"), _SHARED_OUT),
        "micro_batches": "a pipeline has `microbatches`",
    },
    "`layout`": {
        **dict.fromkeys(("machines", "ranks", "world_size", "device_count", "cuda", "gpu"), _DEVICES),
        "memory": "`hardware: h100-sxm` is for a plan's estimates; `dtrain plan` shows the memory of a step",
    },
    "`checkpoint`": {
        "save_last": "the last checkpoint is always kept: remove it",
        "best_metric": "`best: {metric: validation/accuracy, mode: max}`",
        "mode": "`best: {metric: validation/accuracy, mode: max}`",
        "async": "how a checkpoint is written cannot be chosen: remove it",
    },
    "`logging`": {
        "every_n_steps": _LOGGED,
        "level": "`dtrain run --quiet` shows less",
    },
    "`evaluation`": {
        **dict.fromkeys(("num_samples", "limit", "limit_val_batches"), _PART),
        "val_sets": "its name here is `sets`",
        "monitor": f"{_BEST}; `training.early_stop` ends a run",
    },
    "`objective`": {
        **dict.fromkeys(("weight", "target", "label", "input"), f"it is a key of a loss: {_LOSS}"),
        "metric": "`metrics: [accuracy]`",
    },
}

MODES = {  # modes of parallelism; keys in lower case, without other characters
    **dict.fromkeys(("deepspeed", "zero1", "zero2"), ZERO),
    **dict.fromkeys(("megatron", "tensor", "tensorparallel", "tp"), _LAYERS),
    **dict.fromkeys(("hsdp", "hybridshard"), "`parallelism: {data: {replicate: 2, shard: all}}`: copies of shards"),
    "horovod": "`ddp` averages gradients over ranks that each have the whole model",
}


def hint_for(key: str, where: str) -> str | None:
    """Return the hint for the unknown key `key`; None if there is none. `where`: the mapping that has the key, as
    messages name it."""
    return IN_SECTIONS.get(where, {}).get(key) or ANYWHERE.get(key)
