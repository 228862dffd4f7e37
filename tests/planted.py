"""Planted bugs: edits of the package, made one at a time, that the quick tests must notice.

python -m tests.planted [NUMBER...]     all bugs, or those with these numbers

Each bug is planted in a copy of the tree, where its tests are run. A bug that no test notices needs a new test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 300
COPIED = ("declarative_train", "tests", "recipes", "schemas", "docs", "pyproject.toml", "README.md")


@dataclass(frozen=True)
class Bug:
    """Edit that makes a bug. In `file` (below declarative_train/), `old` occurs once and is replaced by `new`. `test`
    (below tests/) must fail then."""

    name: str
    file: str
    old: str
    new: str
    test: str


BUGS = (
    Bug(
        "epochs of a source of a mixture in one order",
        "data/mixture.py",
        "self._keys[source], epoch), indices",
        "self._keys[source], 0), indices",
        "data/test_mixture.py::test_a_source_gives_all_of_its_samples_before_one_comes_again",
    ),
    Bug(
        "windows of a block-shuffled set mixed alike in every epoch",
        "data/shuffle.py",
        'key_of("window", seed, epoch)',
        'key_of("window", seed, 0)',
        "data/test_shuffle.py::test_every_sample_once_in_each_epoch",
    ),
    Bug(
        "all windows of an epoch mixed by one key",
        "data/shuffle.py",
        "key_of(self._key, number)",
        "key_of(self._key, 0)",
        "data/test_shuffle.py::test_every_sample_once_in_each_epoch",
    ),
    Bug(
        "shares of mixup and cutmix: the same in every epoch",
        "data/mixup.py",
        'key_of("transform", self.seed, batch.epoch, number)',
        'key_of("transform", self.seed, 0, number)',
        "packs/images/test_pairs.py::test_every_epoch_draws_which_samples_are_mixed_and_by_which_shares",
    ),
    Bug(
        "samples that are mixed: the same in every epoch",
        "data/mixup.py",
        'key_of("pairs", self.seed, batch.epoch)',
        'key_of("pairs", self.seed, 0)',
        "packs/images/test_pairs.py::test_every_epoch_draws_which_samples_are_mixed_and_by_which_shares",
    ),
    Bug(
        "the last of an odd number of samples mixed with padding",
        "data/mixup.py",
        "np.where((rows ^ 1) < batch.num_rows, rows ^ 1, rows)",
        "np.where((rows ^ 1) < size, rows ^ 1, rows)",
        "packs/images/test_pairs.py::test_the_last_of_an_odd_number_and_padding_stay",
    ),
    Bug(
        "chunked loss: the bias gradient is that of the last chunk",
        "components/losses/modules/chunked.py",
        "dbias_C += dscores.sum(0)",
        "dbias_C = dscores.sum(0)",
        "engine/test_chunked_loss.py::test_loss_and_gradients_are_those_of_the_whole_one",
    ),
    Bug(
        "chunked loss: no mask in the backward",
        "components/losses/modules/chunked.py",
        "items = ctx.term(scores, target_N[rows], _of(mask_N, rows))",
        "items = ctx.term(scores, target_N[rows], None)",
        "engine/test_chunked_loss.py::test_a_masked_item_may_be_anything",
    ),
    Bug(
        "nf4: rounded down",
        "components/layers/modules/packed.py",
        "(levels[1:] + levels[:-1]) / 2",
        "levels[1:]",
        "components/test_packed.py::test_what_is_left_is_near_and_stays_what_it_is",
    ),
    Bug(
        "dora: a gradient through the length",
        "packs/pretrained/adapters/modules/lora.py",
        "with torch.no_grad(), torch.autocast(input.device.type, enabled=False):",
        "with torch.autocast(input.device.type, enabled=False):",
        "packs/pretrained/test_adapters.py::test_outputs_gradients_and_the_merged_weights_are_those_of_peft",
    ),
    Bug(
        "ema: moves in a skipped step",
        "engine/step/ema.py",
        "(finite * (1 - decay)).to(",
        "torch.full((), 1 - decay).to(",
        "engine/test_ema.py::test_a_skipped_step_moves_nothing",
    ),
    Bug(
        "ema: gathered parameters kept after the exchange",
        "engine/step/ema.py",
        "        forget_gathered(self._model)\n",
        "",
        "engine/test_ema.py::test_shards_that_a_forward_has_gathered_are_not_those_that_are_evaluated",
    ),
    Bug(
        "ema: not exchanged back after an evaluation",
        "run/evaluate.py",
        "            self._average.exchange()\n        engine.set_training(True)",
        "            pass\n        engine.set_training(True)",
        "engine/test_ema.py::test_evaluating_it_changes_nothing_of_the_training",
    ),
    Bug(
        "ema: not loaded by a resume",
        "run/checkpoint.py",
        "            wanted |= averages if has_averages else {}\n",
        "",
        "engine/test_ema.py::test_a_run_goes_on",
    ),
    Bug(
        "fp16: the clip factor replaces the unscaling",
        "engine/step/update.py",
        "factor = clip if factor is None else factor * clip",
        "factor = clip",
        "engine/test_engine_single.py::test_fp16_clips_what_was_unscaled",
    ),
    Bug(
        "lr schedule one step late",
        "run/step_schedule.py",
        "self._schedule.factor(step - 1, self._num_steps",
        "self._schedule.factor(step, self._num_steps",
        "run/test_execute.py::test_lr_follows_the_schedule",
    ),
    Bug(
        "dropout: ranks draw alike",
        "engine/step/randomness.py",
        "self._key = mix(seed, *key)",
        "self._key = mix(seed)",
        "engine/test_draws.py::test_no_mask_is_drawn_twice",
    ),
    Bug(
        "dropout: chunks draw alike",
        "engine/step/randomness.py",
        "generator.manual_seed(mix(self._key, step, chunk, part, number))",
        "generator.manual_seed(mix(self._key, step, 0, part, number))",
        "engine/test_draws.py::test_no_mask_is_drawn_twice",
    ),
    Bug(
        "dropout: stages of a rank draw alike",
        "engine/step/randomness.py",
        "generator.manual_seed(mix(self._key, step, chunk, part, number))",
        "generator.manual_seed(mix(self._key, step, chunk, 0, number))",
        "engine/test_draws.py::test_no_mask_is_drawn_twice",
    ),
    Bug(
        "checkpoint: tensors not forced to the disk",
        "engine/checkpoints/format.py",
        'sync_files="://" not in path',
        "sync_files=False",
        "run/test_checkpoint.py::test_all_is_on_the_disk_before_a_checkpoint_exists",
    ),
    Bug(
        "checkpoint: the folder not forced after the rename",
        "engine/checkpoints/store.py",
        "        _sync_folder(self._local(self.root))\n",
        "",
        "run/test_checkpoint.py::test_all_is_on_the_disk_before_a_checkpoint_exists",
    ),
    Bug(
        "checkpoint: small files not forced to the disk",
        "engine/checkpoints/store.py",
        "                os.fsync(stream.fileno())\n",
        "                pass\n",
        "run/test_checkpoint.py::test_all_is_on_the_disk_before_a_checkpoint_exists",
    ),
    Bug(
        "background save: the thread writes tensors that training changes",
        "run/checkpoint.py",
        "snapshot = replace(snapshot, tensors=self._buffers)",
        "pass",
        "run/test_background_saves.py::test_what_is_written_beside_training_is_to_the_bit_what_it_stopped_for",
    ),
    Bug(
        "background save: views in place of copies",
        "run/checkpoint.py",
        'source.to("cpu", non_blocking=True, copy=True)',
        'source.to("cpu", non_blocking=True)',
        "run/test_background_saves.py::test_what_is_written_beside_training_is_to_the_bit_what_it_stopped_for",
    ),
    Bug(
        "TensorBoard: a resume purges one step too many",
        "run/sinks/tensorboard.py",
        "step=event.first_step + 1, session_log=restart",
        "step=event.first_step, session_log=restart",
        "run/sinks/test_tensorboard.py::test_a_resumed_run_continues_its_curves",
    ),
    Bug(
        "shared by stages: the sum never comes back",
        "engine/axes/cross_stage_ties.py",
        "            distributed.recv(tensor, first, group=self._group)\n            return",
        "            distributed.recv(tensor.clone(), first, group=self._group)\n            return",
        "engine/test_parity_graphs.py::test_stages_that_share_a_parameter_add_up_its_gradients_and_count_it_once_in_the_norm",
    ),
    Bug(
        "shared by stages: counted twice in the norm",
        "engine/axes/cross_stage_ties.py",
        "return [gradient for gradient in gradients if id(gradient) not in elsewhere]",
        "return list(gradients)",
        "engine/test_parity_graphs.py::test_stages_that_share_a_parameter_add_up_its_gradients_and_count_it_once_in_the_norm",
    ),
    Bug(
        "boxes: a vertical flip mirrors by the width",
        "packs/images/transforms/turns.py",
        "-1.0, float(size[0])), size)]",
        "-1.0, float(size[1])), size)]",
        "packs/images/test_boxes.py::test_boxes_move_as_torchvisions",
    ),
    Bug(
        "boxes: min_visibility ignored",
        "packs/images/boxes.py",
        "is_kept = boxes.visible >= max(self.min_visibility, _LEAST)",
        "is_kept = boxes.visible >= _LEAST",
        "packs/images/test_boxes.py::test_classes_stand_beside_and_are_dropped_with_their_boxes",
    ),
    Bug(
        "packing: positions run on through a sample",
        "packs/text/layout.py",
        "        places -= np.repeat(firsts, sizes)\n",
        "        places %= length\n",
        "packs/text/test_tokens.py::test_pieces_are_laid_out_as_one_would_write_them_one_by_one",
    ),
    Bug(
        "packing: the first token of a piece is trained",
        "packs/text/layout.py",
        "        made[firsts[sizes > 0]] = False\n",
        "",
        "packs/text/test_tokens.py::test_pieces_are_laid_out_as_one_would_write_them_one_by_one",
    ),
    Bug(
        "skip: the previous sample in place of the next good one",
        "data/skipping.py",
        "found[bad] = (found[bad] + 1) % len(rows)",
        "found[bad] = (found[bad] - 1) % len(rows)",
        "data/test_skipping.py::test_a_broken_picture_is_stood_in_for_alike_on_every_layout",
    ),
    Bug(
        "iou: the union counts the intersection twice",
        "components/metrics/modules/items.py",
        "predicted + actual - correct",
        "predicted + actual",
        "components/test_metrics_equal_torchmetrics.py::TestEqual::test_the_whole_set_at_once",
    ),
    Bug(
        "class weights: num_classes in place of the classes present",
        "components/losses/classes.py",
        "num_items / (num_present * int(count))",
        "num_items / (len(tally) * int(count))",
        "components/test_losses_check.py::TestClasses::test_balanced",
    ),
    Bug(
        "cache: a changed date of a file is not seen",
        "files/cache.py",
        "return [found.st_size, str(found.st_mtime_ns)]",
        "return [found.st_size, '0']",
        "data/test_cache.py::test_footers_are_read_once",
    ),
    Bug(
        "run lock: shared in place of exclusive",
        "files/lock.py",
        '"LOCK_SH" if shared else "LOCK_EX"',
        '"LOCK_SH"',
        "run/test_run_dir.py::test_one_process_holds_a_run",
    ),
    Bug(
        "soft targets: those of masked items not cleared",
        "components/losses/modules/classes.py",
        "torch.where(keep_classes if self.soft else keep, y, 0)",
        "y",
        "components/test_losses_equal_torch.py::test_what_is_masked_does_not_matter_be_it_nan_or_no_class",
    ),
    Bug(
        "fp16: the loss scale never grows",
        "engine/step/scale.py",
        "growth = torch.where(grows, 2.0, 1.0)",
        "growth = torch.where(grows, 1.0, 1.0)",
        "engine/test_half_precision.py::test_the_scale_moves_as_that_of_torch",
    ),
    Bug(
        "early stop: an equal value counts as better",
        "run/run_state.py",
        '(value > than if mode == "max" else value < than)',
        '(value >= than if mode == "max" else value <= than)',
        "run/test_execute.py::test_early_stop",
    ),
    Bug(
        "sweep: the worst point first",
        "tools/sweep/sweep.py",
        "return math.isnan(value), -value if self.higher_is_better else value",
        "return math.isnan(value), value",
        "tools/experiments/test_sweep.py::test_the_best_point_comes_first_and_those_without_a_value_last",
    ),
)


def main(words: list[str]) -> int:
    chosen = [int(word) for word in words] or list(range(len(BUGS)))
    with tempfile.TemporaryDirectory(prefix="planted") as name:
        tree = Path(name)
        copy_tree(tree)
        output = run_tests(tree, sorted({BUGS[number].test for number in chosen}))
        if output is not None:
            print(f"the tests fail without a bug:\n{output}")
            return 2
        survivors = [number for number in chosen if not is_caught(tree, number)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} caught; survivors: {survivors or 'none'}")
    return bool(survivors)


def copy_tree(tree: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)


def is_caught(tree: Path, number: int) -> bool:
    """Plant a bug, run its tests, remove the bug, and print one line. Return whether a test failed."""
    bug, begun = BUGS[number], time.perf_counter()
    path = tree / "declarative_train" / bug.file
    honest = path.read_text("utf-8")
    write_source(path, honest.replace(bug.old, bug.new))
    output = run_tests(tree, [bug.test])
    write_source(path, honest)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output or "", re.M)
    word = "survived" if output is None else "caught" if failed else "unclear"
    seconds = time.perf_counter() - begun
    print(f"{number:>2}  {word:<8}  {seconds:4.0f} s  {bug.name}  {failed[1] if failed else ''}", flush=True)
    return failed is not None


def write_source(path: Path, text: str) -> None:
    """Write a module, and remove its bytecode. Python would use that of a file with the same size and the same time in
    seconds."""
    path.write_text(text, "utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def run_tests(tree: Path, tests: Sequence[str]) -> str | None:
    """Run the quick tests among `tests`. Return their output, or None if all of them pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-m", "not long and not matrix and not gpu", *(f"tests/{test}" for test in tests)]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(tree)}
    limit_s = TIMEOUT_S * len(tests)
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"the tests take more than {limit_s} s"
    return None if done.returncode == 0 else done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
