"""What other tools call things: hints on what is not here must not be about what is."""

from __future__ import annotations

import re

import pytest

from declarative_train import recipe as recipe_room
from declarative_train.components.datasets import DATASETS
from declarative_train.components.fields import FIELDS
from declarative_train.components.layers import LAYERS
from declarative_train.components.losses import LOSSES
from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.components.metrics import METRICS
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.recipe.hints.aliases import NOT_BUILT, NOTES, letters
from declarative_train.recipe.hints.relocated_keys import ANYWHERE, IN_SECTIONS
from tests.alone import mark_packs

WORDS = {  # of other tools, by the section in which they are looked for
    "training": """
        max_epochs num_epochs n_epochs num_train_epochs max_steps num_steps iterations max_iters batch_size
        train_batch_size per_device_train_batch_size micro_batch_size train_micro_batch_size_per_gpu
        accumulate_grad_batches gradient_accumulation grad_accum grad_accum_steps learning_rate lr weight_decay
        wd momentum betas optimizers scheduler lr_scheduler warmup warmup_steps warmup_ratio warmup_epochs
        min_lr max_grad_norm gradient_clip_val gradient_clipping clip_grad grad_clip clip_norm mixed_precision
        amp fp16 bf16 tf32 autocast torch_compile gradient_checkpointing early_stopping patience callbacks seed
        random_seed resume resume_from_checkpoint ckpt_path save_steps save_strategy eval_steps
        evaluation_strategy logging_steps log_every_n_steps check_val_every_n_epoch val_check_interval
        num_workers dataloader_num_workers report_to loss criterion metrics loss_fn label_smoothing
        label_smoothing_factor ema_decay swa devices accelerator strategy num_gpus ddp fsdp deepspeed
        sync_batchnorm limit_train_batches overfit_batches fast_dev_run dropout freeze lora train_on_inputs
        opt solver sched lr0 max_iter n_iter_no_change early_stopping_rounds tol warm_start verbose n_jobs
        max_lr fit_one_cycle one_cycle freeze_epochs unfreeze save_best_only load_best_model_at_end
        restore_best_weights smoothing model_ema batch bs imgsz img_size target_size mixup cutmix mixup_alpha
        cutmix_alpha degrees rotation_range fliplr hflip horizontal_flip flipud vflip aa auto_augment reprob
        erasing hsv_h hsv_s hsv_v color_jitter brightness_range translate width_shift_range zoom_range
        crop_pct mosaic perspective shear rescale stratify validation_split valid_pct test_size
    """,
    "data": """
        dataset train train_data val val_data validation_data test_data path file files name val_split
        validation_split test_size batch_size shuffle_buffer num_workers pin_memory drop_last prefetch_factor
        item_tfms batch_tfms tfms cont_names cat_names num_cols cat_cols numeric_features procs val_size valid_pct
        persistent_workers collate_fn transform augmentation augmentations features feature_columns inputs input
        target label labels target_column label_column columns usecols tokenizer max_length max_seq_length
        seq_length sequence_len sample_packing normalize mean std image_size root sampler weights streaming
        cache format
    """,
    "model": """
        layers nodes name architecture backbone type class_path pretrained checkpoint weights_path init_from
        from_pretrained freeze lora adapter peft quantization quantization_config load_in_4bit load_in_8bit qlora
        num_classes hidden_size num_layers dropout
        activation input_shape inputs outputs loss compile dtype init initializer
    """,
    "": """
        trainer train dataset dataloader optimizer loss metrics callbacks epochs batch_size device gpus
        seed_everything experiment project logger wandb version hydra defaults include base _base_ imports
        config strategy precision output_dir tags notes description run_name experiment_name environment
        resources cluster slurm hyperparameters search tune
    """,
    "parallelism": """
        strategy zero_stage sharding_strategy tp tensor_parallel tensor_parallel_size pp pipeline_parallel_size
        dp_size data_parallel_size cp context_parallel ep expert_parallel num_stages micro_batches devices nodes
        cpu_offload offload find_unused_parameters ddp fsdp auto single zero
    """,
    "layout": """
        devices num_gpus gpu cuda num_nodes nnodes nproc_per_node accelerator machines ranks world_size
        device_count memory
    """,
    "checkpoint": """
        save_top_k save_last monitor save_steps save_every_n_epochs save_total_limit every_n_train_steps
        filename resume_from max_to_keep mode best_metric async
    """,
    "logging": """
        wandb tensorboard mlflow log_dir logdir project every_n_steps interval logger report_to level
    """,
    "evaluation": """
        every_n_epochs eval_steps interval metrics num_samples limit val_sets strategy steps monitor
    """,
    "objective": """
        criterion loss_fn metric weight name label target class_weights
    """,
}
IN_COMPONENTS = (
    "`category`",
    "`csv`",
    "`data.split`",
    "`image`",
    "`tensor`",
    "`transform`",
)  # in test_first_mistakes.py
PLACED = [hint for name, section in IN_SECTIONS.items() if name not in IN_COMPONENTS for hint in section.values()]
ALL_HINTS = (*NOTES.values(), *ANYWHERE.values(), *PLACED)
TABLES = (DATASETS, FIELDS, LAYERS, LOSSES, LR_SCHEDULES, METRICS, OPTIMIZERS, TRANSFORMS)


OF_PACKS = pytest.mark.packs


def hint_on(section: str, word: str) -> str:
    """What is said of a key that is not there."""
    inside = f"data: {{replicate: all}}, {word}" if section == "parallelism" else word
    text = f"{section}: {{{inside}: 3}}" if section else f"{word}: 3"
    found = recipe_room.load("r.yaml", text=f"fragment: true\n{text}\n").diagnostics
    (said,) = [item for item in found if item.code == "S001" and f"`{word}`" in item.message]
    return said.help or ""


@pytest.mark.parametrize("section", [pytest.param(each, marks=OF_PACKS if each == "data" else ()) for each in WORDS])
def test_a_word_of_another_tool_is_answered_with_what_to_write(section: str) -> None:
    hints = {word: hint_on(section, word) for word in WORDS[section].split()}
    assert not [word for word, hint in hints.items() if not hint or hint.startswith(("known", "did you mean"))]


def test_the_words_are_many_and_no_hint_is_for_nobody() -> None:
    """150 words were gathered for the review of the language."""
    assert sum(len(words.split()) for words in WORDS.values()) > 250
    said = {hint_on(section, word) for section, words in WORDS.items() for word in words.split()}
    assert not set(PLACED) - said


_SNIPPET = re.compile(
    r"`((?:training|evaluation|checkpoint|logging|model|data|objective|layout|sweep)(?:\.[.\w]+)?: [^`]+)`"
)
STANDS_FOR = {"SELECTOR": "a", "NODE": "a", "FIELD": "a", "NAME": "a", "PATH": "a.npz", "RUN": "runs/a", "{...}": "{}"}
STANDS_FOR |= {"type: ...": "type: mse", "column: ...": "column: a", "path: ...": "path: a"}
OF_KEYS = ("S001", "S003", "S004", "S005", "R002")


@pytest.mark.parametrize(
    "snippet", mark_packs(sorted({text for hint in ALL_HINTS for text in _SNIPPET.findall(hint)}), str)
)
def test_what_a_hint_says_to_write_can_be_written(snippet: str) -> None:
    path, _, value = snippet.partition(": ")
    for word, stands in STANDS_FOR.items():
        value = value.replace(word, stands)
    for part in reversed(path.split(".")):
        value = f"{{{part}: {value}}}"
    found = recipe_room.load("r.yaml", text="{fragment: true, " + value[1:]).diagnostics
    assert not [item for item in found if item.code in OF_KEYS or item.code.startswith("Y")]


def test_what_is_built_is_not_called_not_built() -> None:
    built = {letters(name) for table in TABLES for name in table}
    assert sorted(built & set(NOT_BUILT)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("data: {source: {type: ImageFolder, path: x}}", "did you mean `image_folder`?", marks=OF_PACKS),
        pytest.param("data: {source: {type: webdataset, path: x}}", "its name here is `tar`", marks=OF_PACKS),
        ("model: {lora: {rank: 8}}", "adapter: {type: lora"),
        ("model: {parameters: {a: {adapter: {type: qlora}}}}", "storage: nf4"),
        ("data: {augmentation: [flip]}", "`data.transforms`"),
        ("kfold: 5", "there is no cross-validation; `sweep:"),
        ("training: {epochs: .inf}", "stop it by `early_stop` or `max_time`"),
        ("training: {steps: .inf}", "stop it by `early_stop` or `max_time`"),
        ("training: {epochs: -1}", "stop it by `early_stop` or `max_time`"),
        ("layout: {gpus: -1}", "write the number: `gpus: 2`"),
        ("layout: {nodes: -1, gpus_per_node: 8}", "write the number, `nodes: 4`"),
        ("parallelism: zero3", "its name here is `fsdp`"),
        ("parallelism: zero2", "as ZeRO's stage 3"),
        ("parallelism: full_shard", "its name here is `fsdp`"),
        ("parallelism: hybrid_shard", "{data: {replicate: 2, shard: all}}"),
        ("parallelism: {fsdp: {}}", "a word has no other keys: `parallelism: fsdp`"),
        ("parallelism: {ddp: 4}", "a word has no other keys: `parallelism: fsdp`"),
        ("parallelism: {zero: 3}", "as ZeRO's stage 3"),
        ("parallelism: tensor", "`parallelism: {tensor: 2}` divides each layer"),
    ],
)
def test_words_of_other_tools_lead_to_what_is_here(text: str, said: str) -> None:
    found = recipe_room.load("r.yaml", text=f"fragment: true\n{text}\n").diagnostics
    assert any(said in (item.help or "") for item in found), [(item.message, item.help) for item in found]


def test_the_sweep_of_the_hint_on_cross_validation_is_one() -> None:
    _, text, _ = NOTES["kfold"].split("`")
    assert recipe_room.load("r.yaml", text=f"fragment: true\n{text}\n").diagnostics == []
