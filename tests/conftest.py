"""Order, marks and selection of the tests; and trained runs that several packages use. Libraries are imported when the
first test needs them: most tests need no torch."""

from __future__ import annotations

import gc
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# these tests are in a copy without packs, which test_core_alone.py made
IS_ALONE = find_spec("declarative_train.packs") is None
OF_PACKS = re.compile(r"\b(declarative_train|tests)\.(packs|tools|gpu)\b")  # tests.gpu uses texts, which need a pack
AT_TOP = re.compile(r"^(?:from|import) (?:declarative_train|tests)\.(?:packs|tools|gpu)\b", re.M)
IMPORTED = re.compile(r"^from (tests[.\w]*) import ([\w, ]+)", re.M)
ROOT = Path(__file__).parent.parent
MEMORY = Path("/dev/shm")
ROOM_BYTES = 6 * 2**30
# files that take ten seconds and more; they are begun first, so that no worker has to finish one alone at the end
LONGEST = (
    "run/test_nodes.py",
    "run/test_launch.py",
    "tools/test_first_recipe.py",
    "silent/test_silent.py",
    "planner/test_architectures.py",
    "planner/test_vtrain.py",
    "run/test_faults.py",
    "run/test_resume_tensor.py",
    "test_recipes.py",
    "test_parity.py",
    "run/test_resume.py",
    "engine/test_parity_graphs.py",
    "test_planner.py",
    "run/test_torchrun.py",
    "engine/test_parity.py",
    "run/test_resume_layouts.py",
    "test_rules.py",
    "packs/export/test_export.py",
    "test_fuzz.py",
    "engine/test_pretend_gpu.py",
    "planner/test_footprint.py",
    "engine/test_plugins.py",
    "engine/test_half_precision.py",
    "components/test_layers_all.py",
    "test_cases.py",
    "run/test_execute.py",
    "test_gpu_suite.py",
    "engine/test_selective.py",
    "run/test_background_saves.py",
    "editor/test_language_server.py",
    "test_language.py",
    "engine/test_engine_single.py",
)

# Tests that take five seconds and more, and whose subject has a quicker test too. They are marked `slow`: `make test`
# leaves them out, .ci/run runs them. Each entry is the beginning of the name of one or more tests.
SLOW = (
    "engine/test_precision.py::test_the_plan_counts_what_is_sent_and_bf16_takes_no_more_memory",
    "graph/test_lower.py::test_small_models_do_not_import_dynamo_and_large_ones_are_not_allocated",
    "inference/test_evaluate.py::test_of_a_model_that_was_trained_in_shards",
    "inference/test_predict.py::test_a_rank_that_is_started_anew_opens_the_files_itself",
    "packs/export/test_export.py::test_the_snippet_runs_as_it_stands[torch-export-wine]",
    "packs/pretrained/test_dora.py::test_every_mode_trains_the_same[fsdp 2]",
    "packs/pretrained/test_published_axes.py::",
    "packs/test_external.py::test_its_recipe_trains",
    "planner/test_footprint.py::test_three_and_four_blocks_tell_of_twelve[fsdp-2-blocks-1]",
    "run/test_background_saves.py::test_what_is_written_beside_training_is_to_the_bit_what_it_stopped_for[single]",
    "run/test_faults.py::test_a_fault_is_reported_as_the_page_shows",
    "run/test_faults.py::test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been",
    "run/test_nodes.py::test_a_stopped_rank_is_named_with_what_the_others_wait_for[1]",
    "run/test_resume.py::test_to_the_bit_after_a_signal[pipeline 2]",
    "run/test_resume.py::test_to_the_bit_on_the_same_layout[fsdp 2]",
    "run/test_resume_tensor.py::test_every_layout_resumes_it",
    "run/test_block_shuffled_runs.py::test_ranks_see_what_one_process_sees_and_go_on_elsewhere",
    "run/test_scale.py::test_counts_of_four_ranks",
    "run/test_torchrun.py::test_a_run_goes_on",
    "silent/test_silent.py::test_ranks_report_together[ddp]",
    "test_core_install.py::",
    "test_planner.py::test_the_plan_is_what_happens[llama, 1f1b 2 x fsdp 2, bf16, blocks]",
    "test_planner.py::test_the_plan_is_what_happens[llama, zbv 2, bf16, blocks]",
    "test_stranger.py::test_by_commands",
    "tools/test_fits.py::test_what_does_not_fit_says_so_and_what_would",
)


def pytest_configure() -> None:
    """Put the folders of tests into memory, if there is room. Each checkpoint is written through to its disk, for which
    tests of several ranks would wait."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore the files that import a pack, directly or through another file of the tests, if the packs are missing."""
    is_test = IS_ALONE and collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if not is_test:
        return None
    return True if OF_PACKS.search(collection_path.read_text("utf-8")) or imports_pack(collection_path) else None


@cache
def imports_pack(path: Path) -> bool:
    text = path.read_text("utf-8")
    names = [f"{name}.{each.strip()}" for name, more in IMPORTED.findall(text) for each in (more or "").split(",")]
    files = [ROOT.joinpath(*name.split(".")[:count]).with_suffix(".py") for name in names for count in (-1, None)]
    return AT_TOP.search(text) is not None or any(imports_pack(file) for file in files if file.is_file())


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import another part of the test files first in each worker. On a fresh checkout, each file is then compiled by
    one worker and read by the others, instead of being compiled by all workers."""
    worker: dict[str, Any] = getattr(session.config, "workerinput", {})
    if not worker or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    size = len(files) // worker["workercount"]
    begin = size * int(worker["workerid"].removeprefix("gw"))
    for path in files[begin : begin + size]:
        with suppress(Exception, pytest.skip.Exception):  # the collection of tests reports the error
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Freeze the objects of collection, so that the garbage collector and forked ranks do not examine them."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if IS_ALONE and (left_out := [item for item in items if item.get_closest_marker("packs")]):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    found = {start: [item for item in items if item.nodeid.removeprefix("tests/").startswith(start)] for start in SLOW}
    for item in (item for matching in found.values() for item in matching):
        item.add_marker("slow")
    is_whole = config.args == config.getini("testpaths") and not config.option.keyword and not IS_ALONE
    if is_whole and (gone := [start for start, matching in found.items() if not matching]):
        raise pytest.UsageError(f"no test begins with {gone[0]!r} of SLOW")
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cache folder for this session alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def own_environment() -> None:
    """Forget the environment variables that recipes of other tests used: their values would be masked in this test's
    output."""
    from declarative_train.core.secrets import used_variables

    used_variables.__init__()  # type: ignore[misc]


@pytest.fixture(scope="session")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a trained run: a classifier of three wines, from three numbers and a word."""
    from tests.inference.made_runs import WINE, WINE_COLUMNS, trained, wine_rows, write_csv

    folder = tmp_path_factory.mktemp("wine")
    write_csv(folder / "wine.csv", WINE_COLUMNS, wine_rows())
    return trained(folder, WINE)


@pytest.fixture(scope="session")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a trained run with two outputs: a price in its own unit, and whether the house was sold."""
    from tests.inference.made_runs import HOUSE_COLUMNS, HOUSES, house_rows, trained, write_csv

    folder = tmp_path_factory.mktemp("houses")
    write_csv(folder / "houses.csv", HOUSE_COLUMNS, house_rows())
    return trained(folder, HOUSES)
