"""Tables that translate keys, types and values of other frameworks to those of recipes, for hints on unknown words.

Over 440 lines because it has only tables and the functions that look words up in them.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from declarative_train.core.diagnostics.diagnostic import Fix
from declarative_train.core.span import Span

KEYS: dict[str, tuple[str, ...]] = {  # another framework's key -> keys here; the first that is allowed is suggested
    "condition": ("when",),
    "if": ("when",),
    "neftune_noise_alpha": ("noise",),
    "src": ("input",),
    "from": ("input",),
    "in": ("input",),
    "accelerator": ("device",),
    "accumulate_grad_batches": ("gradient_accumulation_steps",),
    "accumulation_steps": ("gradient_accumulation_steps",),
    "axis": ("dim",),
    "batch_size": ("global_batch_size",),
    "block_size": ("length", "max_length"),
    "bs": ("global_batch_size",),
    "checkpoint_path": ("weights",),
    "classes": ("num_classes",),
    "clip_grad": ("clip_grad_norm",),
    "clip_norm": ("clip_grad_norm",),
    "clipnorm": ("clip_grad_norm",),
    "col": ("column",),
    "cols": ("columns",),
    "context_length": ("length", "max_length"),
    "d_model": ("width",),
    "data_path": ("path",),
    "dataloader_num_workers": ("workers",),
    "dataset": ("data",),
    "default_root_dir": ("dir",),
    "devices": ("gpus",),
    "dilation_rate": ("dilation",),
    "dropout_p": ("p",),
    "dropout_rate": ("p", "dropout"),
    "early_stopping": ("early_stop",),
    "emb_dim": ("embedding_dim",),
    "embed_dim": ("embedding_dim", "width"),
    "embedding_size": ("embedding_dim",),
    "epsilon": ("eps",),
    "eval_batch_size": ("batch_size",),
    "eval_every": ("every",),
    "file": ("path",),
    "file_path": ("path",),
    "filename": ("path",),
    "filepath": ("path",),
    "filters": ("out_channels",),
    "frac": ("fraction",),
    "freeze": ("frozen",),
    "frequency": ("every",),
    "from_checkpoint": ("weights",),
    "grad_accum_steps": ("gradient_accumulation_steps",),
    "grad_clip": ("clip_grad_norm",),
    "grad_norm_clip": ("clip_grad_norm",),
    "gradient_accumulation": ("gradient_accumulation_steps",),
    "gradient_checkpointing": ("activation_checkpointing",),
    "gradient_clip": ("clip_grad_norm",),
    "gradient_clip_val": ("clip_grad_norm",),
    "gradient_clipping": ("clip_grad_norm",),
    "head_dim": ("head_width",),
    "hidden_dim": ("hidden_size", "width"),
    "hidden_units": ("hidden_size",),
    "hop": ("stride",),
    "initializer": ("init",),
    "input_vocab": ("num_embeddings",),
    "interval": ("every",),
    "is_causal": ("causal",),
    "iterations": ("steps",),
    "keep_prob": ("p",),
    "kernel": ("kernel_size",),
    "kernel_initializer": ("init",),
    "label": ("target",),
    "label_column": ("column",),
    "label_smooth": ("label_smoothing",),
    "labels": ("target",),
    "learning_rate": ("lr",),
    "log_dir": ("dir",),
    "logdir": ("dir",),
    "logits": ("input",),
    "lr_mult": ("lr_scale",),
    "lr_multiplier": ("lr_scale",),
    "lr_scheduler": ("lr_schedule",),
    "max_duration": ("max_time",),
    "max_epochs": ("epochs",),
    "max_grad_norm": ("clip_grad_norm",),
    "max_iters": ("steps",),
    "max_norm": ("clip_grad_norm",),
    "max_steps": ("steps",),
    "max_to_keep": ("keep",),
    "metric_for_best_model": ("metric",),
    "micro_batch_size": ("microbatch_size",),
    "mode": ("policy",),
    "monitor": ("metric",),
    "n_classes": ("num_classes",),
    "n_embd": ("width",),
    "n_embeddings": ("num_embeddings",),
    "n_epochs": ("epochs",),
    "n_gpus": ("gpus",),
    "n_groups": ("num_groups",),
    "n_head": ("heads",),
    "n_heads": ("heads",),
    "n_layer": ("layers",),
    "n_layers": ("layers",),
    "n_workers": ("workers",),
    "nclasses": ("num_classes",),
    "ngpus": ("gpus",),
    "nhead": ("heads",),
    "nnodes": ("nodes",),
    "nproc_per_node": ("gpus_per_node",),
    "num_attention_heads": ("heads",),
    "num_devices": ("gpus",),
    "num_embedding": ("num_embeddings",),
    "num_epochs": ("epochs",),
    "num_gpus": ("gpus",),
    "num_heads": ("heads",),
    "num_hidden_layers": ("layers",),
    "num_key_value_heads": ("kv_heads",),
    "num_kv_heads": ("kv_heads",),
    "num_labels": ("num_classes",),
    "num_machines": ("nodes",),
    "num_microbatches": ("microbatches",),
    "num_nodes": ("nodes",),
    "num_replicas": ("replicate",),
    "num_stages": ("stages",),
    "num_steps": ("steps",),
    "num_train_epochs": ("epochs",),
    "num_train_steps": ("steps",),
    "num_workers": ("workers",),
    "out_dim": ("out_features",),
    "out_size": ("out_features",),
    "output_dim": ("embedding_dim", "out_features"),
    "output_dir": ("dir",),
    "output_size": ("out_features",),
    "paths": ("path",),
    "patience": ("early_stop",),
    "per_device_batch_size": ("microbatch_size",),
    "per_device_eval_batch_size": ("batch_size",),
    "per_device_train_batch_size": ("microbatch_size",),
    "pool_size": ("kernel_size",),
    "pp_size": ("stages",),
    "prediction": ("input",),
    "predictions": ("input",),
    "preds": ("input",),
    "pretrained": ("weights",),
    "prob": ("p",),
    "random_seed": ("seed",),
    "random_state": ("seed",),
    "rate": ("p",),
    "ratio": ("fraction",),
    "rho": ("alpha",),
    "save_dir": ("dir",),
    "save_every": ("every",),
    "save_top_k": ("keep",),
    "save_total_limit": ("keep",),
    "scheduler": ("lr_schedule",),
    "sep": ("delimiter",),
    "selective_ac_option": ("keep",),
    "separator": ("delimiter",),
    "seq_len": ("length",),
    "seq_length": ("length",),
    "sequence_length": ("length",),
    "smoothing": ("label_smoothing",),
    "split_points": ("cut_before",),
    "strategy": ("parallelism",),
    "strides": ("stride",),
    "target_column": ("column",),
    "test_size": ("fraction",),
    "tie_weights": ("tie",),
    "time_limit": ("max_time",),
    "torch_compile": ("compile",),
    "total_epochs": ("epochs",),
    "train_batch_size": ("global_batch_size",),
    "train_micro_batch_size_per_gpu": ("microbatch_size",),
    "units": ("out_features", "hidden_size"),
    "use_bias": ("bias",),
    "usecols": ("columns",),
    "val_fraction": ("fraction",),
    "val_split": ("split",),
    "variables": ("vars",),
    "vocab_size": ("num_embeddings", "vocabulary"),
    "wd": ("weight_decay",),
    "weight_decay_rate": ("weight_decay",),
    "window_size": ("length",),
    "y_pred": ("input",),
    "y_true": ("target",),
    "hidden_layer_sizes": ("hidden",),
    "hidden_sizes": ("hidden",),
    "layer_sizes": ("hidden",),
    "learning_rate_init": ("lr",),
    "lr0": ("lr",),
    "eta": ("lr",),
    "num_classes": ("classes", "out_features"),
    "out_features": ("classes",),
    "handle_unknown": ("unknown",),
    "height": ("size",),
    "width": ("size",),
    "n_outputs": ("out_features",),
    "num_outputs": ("out_features",),
    "opt": ("optimizer",),
    "solver": ("optimizer",),
    "sched": ("lr_schedule",),
    "batch": ("global_batch_size",),
    "model_name": ("name",),
    "max_iter": ("epochs",),
    "n_epoch": ("epochs",),
    "l2": ("weight_decay",),
    "reg_lambda": ("weight_decay",),
    "item_tfms": ("transforms",),
    "batch_tfms": ("transforms",),
    "tfms": ("transforms",),
    "drop_rate": ("dropout", "p"),
    "na_filter": ("missing_values",),
}
OTHERWISE = {  # another framework's key -> (the key here, its value, which has another form)
    "amp": ("precision", "a word: `precision: bf16`"),
    "check_val_every_n_epoch": ("every", "with its unit: `every: 1 epoch`"),
    "drop_last": ("last_batch", "a word: `last_batch: drop`"),
    "alpha": ("weight_decay", "the alpha of scikit-learn"),
    "early_stopping": ("early_stop", "with its rule: `{metric: validation/loss, mode: min, patience: 5 epochs}`"),
    "patience": ("early_stop", "with its rule: `{metric: validation/loss, mode: min, patience: 5 epochs}`"),
    "height": ("size", "height before width: `size: [224, 224]`"),
    "width": ("size", "height before width: `size: [224, 224]`"),
    "eta_min": ("min_factor", "a part of the lr: `min_factor: 0.1`"),
    "eval_steps": ("every", "with its unit: `every: 500 steps`"),
    "every_n_epochs": ("every", "with its unit: `every: 1 epoch`"),
    "every_n_train_steps": ("every", "with its unit: `every: 500 steps`"),
    "log_every_n_steps": ("every", "with its unit: `every: 50 steps`"),
    "logging_steps": ("every", "with its unit: `every: 50 steps`"),
    "mixed_precision": ("precision", "a word: `precision: bf16`"),
    "min_lr": ("min_factor", "a part of the lr: `min_factor: 0.1`"),
    "requires_grad": ("frozen", "the other way round: `frozen: true`"),
    "save_steps": ("every", "with its unit: `every: 500 steps`"),
    "step_size": ("every", "with its unit: `every: 30 epochs`"),
    "trainable": ("frozen", "the other way round: `frozen: true`"),
    "val_check_interval": ("every", "with its unit: `every: 1 epoch`"),
    "warmup_epochs": ("warmup", "with its unit: `warmup: 1 epoch`"),
    "warmup_iters": ("warmup", "with its unit: `warmup: 100 steps`"),
    "warmup_ratio": ("warmup", "with its unit: `warmup: 5%`"),
    "warmup_steps": ("warmup", "with its unit: `warmup: 100 steps`"),
}
ZERO = "`fsdp` shards parameters, gradients and optimizer states, as ZeRO's stage 3"
_TRANSFORMS = "`data.transforms` is a list: `[{type: random_flip}, {type: color_jitter}]`"
_NO_FOLDS = (
    "there is no cross-validation; `sweep: {type: grid, over: {seed: [0, 1, 2]}}` trains on three draws of random sets"
)
NOTES = {  # keys that have no equivalent: what to write instead, or that this is not supported
    "pretrained": "name a published model in the node (`from: FOLDER`), and its weights under `model.weights`",
    "trainer": "its keys are in `training` (how long, which optimizer), `layout` (GPUs) and `parallelism`",
    "class_path": "a model is a graph of nodes, `model.graph`; a class of your own is a layer of a plugin",
    "freeze": "under `model.parameters`: `NAME: {frozen: true}`",
    "pin_memory": "there is no such choice; remove it",
    "persistent_workers": "there is no such choice; remove it",
    "prefetch_factor": "there is no such choice; remove it",
    "collate_fn": "there is no such choice: a sample is made of `fields`, each of a fixed shape",
    "reduction": "a loss is the mean over its valid elements; remove it",
    "from_logits": "every loss here expects logits; remove it",
    "sharding_strategy": "`fsdp` shards parameters, gradients and optimizer states; `replicate` makes it hybrid",
    **dict.fromkeys(("zero", "zero_stage"), ZERO),
    "T_max": "a schedule here lasts as long as the run; remove it",
    "t_max": "a schedule here lasts as long as the run; remove it",
    "total_steps": "a schedule here lasts as long as the run; remove it",
    "validation_data": "sets are under `data.split`: `validation: {source: {...}}`",
    "val": "sets are under `data.split`: `validation: {source: {...}}`",
    "val_data": "sets are under `data.split`: `validation: {source: {...}}`",
    "test_data": "sets are under `data.split`: `test: {source: {...}}`",
    "requires_grad_": "under `model.parameters`: `NAME: {frozen: true}`",
    "activation": "an activation is a node of its own, below this one: `{type: relu}`",
    **dict.fromkeys(("augment", "augmentation", "augmentations", "transform"), _TRANSFORMS),
    "bf16": "write `training.precision: bf16`",
    **dict.fromkeys(("cross_validation", "cv", "folds", "k_fold", "kfold", "n_splits", "num_folds"), _NO_FOLDS),
    "callbacks": "there are no callbacks; see `training.early_stop`, `checkpoint.best`, `evaluation` and `logging`",
    "fp16": "write `training.precision: fp16`",
    "gamma": "the factor of each step belongs to `lr_schedule: {type: step}`",
    "loggers": "`logging: {sinks: {tensorboard: {}, csv: {}, mlflow: {...}, wandb: {...}}}` sets where numbers go",
    "layers": "a model is a `graph`, a mapping from names to nodes, each of which reads the one above: "
    "`graph: {hidden: {type: linear, ...}, act: {type: relu}}`",
    "lora": "under `model.parameters`: `SELECTOR: {adapter: {type: lora, rank: 8}}`",
    "optimizers": "`optimizer` is for all parameters; `model.parameters` sets another one for some of them: "
    "`SELECTOR: {optimizer: {...}}`",
    "parameters": "a loss trains all parameters that its `input` depends on; `model.parameters` sets some differently",
    "params": "write its keys here, without `params`",
    "vocabulary": "the values of the training rows are sorted and numbered; another order is not supported",
    "wandb": "write `logging: {sinks: {wandb: {project: ...}}}`",
}
FROM_THE_INPUT = frozenset({"in_channels", "in_dim", "in_features", "input_dim", "input_size", "normalized_shape"})
VALUES = {  # another framework's value -> values here; the first that is allowed is suggested
    "16": ("fp16",),
    "16-mixed": ("fp16",),
    "32": ("fp32",),
    "32-true": ("fp32",),
    "64-true": ("fp64",),
    "bf16-mixed": ("bf16",),
    "bfloat16": ("bf16",),
    "double": ("float64", "fp64"),
    "float": ("float32", "fp32"),
    "float16": ("fp16",),
    "float32": ("fp32",),
    "float64": ("fp64",),
    "fp16-mixed": ("fp16",),
    "full": ("blocks",),
    "gpu": ("cuda",),
    "half": ("float16", "fp16"),
    "int": ("int64",),
    "long": ("int64",),
    "maximize": ("max",),
    "minimize": ("min",),
    "mixed": ("bf16",),
    "min_max": ("minmax",),
    "standardize": ("standard",),
    "z_score": ("standard",),
    "zscore": ("standard",),
}
# Keys are in lower case, without other characters. Many classes of torch, Keras and scikit-learn need no row.
TYPES = {
    "acc": ("accuracy",),
    "attention": ("self_attention",),
    "auc": ("auroc",),
    "avgpool": ("avg_pool2d",),
    "averagepooling2d": ("avg_pool2d",),
    "batchnorm1d": ("batch_norm",),
    "batchnorm2d": ("batch_norm",),
    "batchnorm3d": ("batch_norm",),
    "batchnormalization": ("batch_norm",),
    "balancedaccuracy": ("recall",),  # the macro average over classes
    "bce": ("bce_with_logits",),
    "binarycrossentropy": ("bce_with_logits",),
    "categorical": ("category",),
    "categoricalaccuracy": ("accuracy",),
    "categoricalcrossentropy": ("cross_entropy",),
    "binaryaccuracy": ("accuracy",),
    "sparsecategoricalaccuracy": ("accuracy",),
    "errorrate": ("accuracy",),  # 1 - accuracy
    "readcsv": ("csv",),
    "readjson": ("jsonl",),
    "readparquet": ("parquet",),
    "readsql": ("sqlite",),
    "readfeather": ("arrow",),
    "ordinal": ("category",),
    "numeric": ("tensor",),
    "continuous": ("tensor",),
    "datetime": ("date",),
    "fliplr": ("random_flip",),
    "autoaugment": ("rand_augment",),
    "conv": ("conv2d",),
    "convtranspose": ("conv_transpose2d",),
    "cosineannealing": ("cosine",),
    "cosinewithwarmup": ("cosine",),
    "dataparallel": ("dp",),
    "ddpspawn": ("ddp",),
    "dense": ("linear",),
    "distributeddataparallel": ("ddp",),
    "fc": ("linear",),
    "fullshard": ("fsdp",),
    "fullyshardeddataparallel": ("fsdp",),
    "gini": ("auroc",),
    "globalaveragepooling2d": ("global_avg_pool",),
    "glorotnormal": ("xavier_normal",),
    "glorotuniform": ("xavier_uniform",),
    "henormal": ("kaiming_normal",),
    "heuniform": ("kaiming_uniform",),
    "json": ("jsonl",),
    "kaiming": ("kaiming_normal",),
    "hammingloss": ("accuracy",),
    "labelrankingaverageprecision": ("lrap",),
    "labelrankingloss": ("ranking_loss",),
    "layernormalization": ("layer_norm",),
    "map": ("average_precision",),
    "matthews": ("mcc",),
    "matthewscorrcoef": ("mcc",),
    "maxpool": ("max_pool2d",),
    "maxpooling2d": ("max_pool2d",),
    "meanaverageprecision": ("average_precision",),
    "meanabsoluteerror": ("mae", "l1"),
    "meanabsolutepercentageerror": ("mape",),
    "negmeanabsoluteerror": ("mae",),
    "negmeansquarederror": ("mse",),
    "negrootmeansquarederror": ("rmse",),
    "rootmeansquarederror": ("rmse",),
    "meansquarederror": ("mse",),
    "mha": ("self_attention",),
    "mla": ("latent_attention",),
    "multiheadattention": ("self_attention",),
    "multisteplr": ("step",),
    "none": ("single",),
    "npz": ("npy",),
    "numpy": ("npy",),
    "pandas": ("csv",),
    "prauc": ("average_precision",),
    "randomhorizontalflip": ("random_flip",),
    "randomverticalflip": ("random_flip",),
    "recallk": ("recall_at_k",),
    "rocauc": ("auroc",),
    "shuffled": ("random",),
    "sparsecategoricalcrossentropy": ("cross_entropy",),
    "swish": ("silu",),
    "truncatednormal": ("trunc_normal",),
    "tsv": ("csv",),
    "webdataset": ("tar",),
    "xavier": ("xavier_normal",),
    "zero": ("fsdp",),
    "zero3": ("fsdp",),
}
_DETECTION = (
    "detectors of any number of objects are not supported: there are no anchors and no non-maximum suppression; "
    "`type: boxes` predicts a fixed number of boxes"
)
NOT_BUILT = {  # types that do not exist: what to do instead
    **{f"resnet{depth}": f"`{{type: resnet, depth: {depth}}}`" for depth in (18, 34, 50, 101, 152)},
    **dict.fromkeys(("detr", "fasterrcnn", "maskrcnn", "retinanet", "ssd"), _DETECTION),
    **dict.fromkeys(("yolo", "yolov5", "yolov8", "yolo11"), _DETECTION),
    **dict.fromkeys(
        ("coco", "cocodetection", "vocdetection", "voc"),
        f"write a row for each picture, with its file and a list of boxes, as jsonl or parquet; {_DETECTION}",
    ),
    **dict.fromkeys(("totensor", "toimage", "piltotensor"), "not needed: pictures become float32 (C, H, W), 0 to 1"),
    **dict.fromkeys(("excel", "xlsx", "xls"), "save the table as CSV UTF-8, or as Parquet, and use that source"),
    "confusionmatrix": "not a number: `dtrain evaluate RUN` prints it, and TensorBoard shows it",
    **dict.fromkeys(
        ("input", "inputlayer", "inputspec"), "a model has no such node: the first node names its field, `input: FIELD`"
    ),
    **dict.fromkeys(
        ("readexcel", "readpickle", "pickle", "pkl"), "save the table with pandas, `to_parquet`, and use that"
    ),
    **dict.fromkeys(("stringlookup", "integerlookup", "categoryencoding"), "a field `category` numbers the values"),
    **dict.fromkeys(("robustscaler", "maxabsscaler"), "`normalize: standard` or `minmax` of a field `tensor`"),
    "simpleimputer": "`missing: mean` of a field `tensor`",
    "feather": "the source `arrow` reads .feather files",
    "transformer": "write its layers as a block, or take a shipped one: `gpt`, `llama`, `vit`",
    "transformerdecoderlayer": "write it as a block of attention, norms and `linear` nodes, as in the shipped `gpt`",
    "transformerencoderlayer": "write it as a block of attention, norms and `linear` nodes, as in the shipped `vit`",
    "cosineannealingwarmrestarts": "schedules with restarts are not built; `cosine` and `one_cycle` are the nearest",
    "qlora": "`{adapter: {type: lora}, storage: nf4}` is QLoRA",
    "huggingface": "write the rows as parquet or jsonl and use that source",
    "sequential": "`model.graph` is a mapping from names to nodes, each of which reads the one above",
    **dict.fromkeys(("grucell", "lstmcell", "rnncell"), "the layers `gru`, `lstm`, `rnn` read whole sequences"),
    **dict.fromkeys(
        ("lamb", "lars"), "not built; `sgd` and `adamw` are the nearest, with `training.lr_schedule.warmup`"
    ),
    **dict.fromkeys(
        ("cosineembeddingloss", "tripletmarginloss"),
        "`info_nce` is the loss of pairs; another one is an expression in the graph and the loss `mean`",
    ),
    "standardscaler": "`normalize: standard` of a field `tensor`",
    "minmaxscaler": "`normalize: minmax` of a field `tensor`",
    **dict.fromkeys(("labelencoder", "onehotencoder", "ordinalencoder"), "a field `category` numbers the values"),
    "plateau": "schedules that watch a metric are not built; `step` or `cosine` lower the lr",
    "reducelronplateau": "schedules that watch a metric are not built; `step` or `cosine` lower the lr",
    "tfrecord": "write the rows as parquet and use that source",
}

EQUAL = frozenset(  # words that differ only in name, so that an automatic replacement is safe
    {
        *("bfloat16", "double", "float16", "float32", "float64", "long"),
        *("16-mixed", "32-true", "64-true", "bf16-mixed", "fp16-mixed"),
        *("accumulate_grad_batches", "embed_dim", "filters", "learning_rate", "max_epochs", "max_grad_norm"),
        *("max_steps", "n_heads", "nhead", "num_heads", "num_epochs", "num_nodes", "num_train_epochs"),
        *("num_workers", "random_seed", "random_state", "units", "variables", "wd"),
        *("batchnorm1d", "batchnorm2d", "dataparallel", "dense", "distributeddataparallel"),
        *("fullyshardeddataparallel", "glorotnormal", "glorotuniform", "kaiming", "xavier"),
    }
)
_ENDS = (
    "",
    "loss",
    "score",
    "lr",
    "layer",
    "optimizer",
    "dataset",
    "macro",
    "micro",
    "weighted",
)  # ends of class names: CrossEntropyLoss, F1Score


_OF_TIMM = re.compile(
    "(efficientnet|convnext|mobilenet|regnet|densenet|vgg|swin|deit|inception|xception|resnext|wideresnet|seresnet|ghostnet"
    "|mixer|beit|nfnet|hrnet|maxvit|coatnet|squeezenet|mnasnet|vit(tiny|small|base|large|huge))"
)


def hint_on_type(name: str, known: Collection[str]) -> str | None:
    """Return a sentence that says what to write instead of the unknown component type `name`; None if there is no hint.
    `known`: the types that exist.
    """
    if "timm" in known and _OF_TIMM.match(letters(name)):
        return f"`{{type: timm, name: {name}}}` is a model of the library timm"
    return NOT_BUILT.get(letters(name))


def translate_type(name: str, known: Collection[str]) -> str | None:
    """Return the component type in `known` that corresponds to `name`, a class of another framework such as
    `nn.CrossEntropyLoss` or `BatchNorm2d`; None if there is none."""
    typed = letters(name.rpartition(".")[2])
    ours = {letters(each): each for each in known}
    for end in _ENDS:
        stem = typed.removesuffix(end)
        if typed.endswith(end) and stem in ours and stem != letters(name):
            return ours[stem]
        found = next((word for word in TYPES.get(stem, ()) if word in known), None)
        if typed.endswith(end) and found is not None:
            return found
    return None


def letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def replace_word(span: Span, name: str, word: str) -> tuple[Fix, ...]:
    """Return the fix that replaces `name`, a key of another framework at `span`, by `word`, dtrain's name for it."""
    return (Fix(span, word, safe=_is_equal(name, word), replaces=name),)


_EQUAL_LETTERS = frozenset(letters(word) for word in EQUAL)


def _is_equal(name: str, word: str) -> bool:
    typed = letters(name.rpartition(".")[2])
    return name == f"torch.{word}" or typed in _EQUAL_LETTERS or typed.removesuffix("loss") == letters(word)


def value_here(word: str, allowed: list[str]) -> str | None:
    last = word.rpartition(".")[2]  # `float32` of `torch.float32`
    if last != word and last in allowed:
        return last
    return next((each for each in VALUES.get(word.lower(), ()) if each in allowed), None)
