"""`dtrain lint` as people, editors and CI call it: formats, selection, fixes, standard input, folders, exit codes."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from declarative_train.app.catalogue import catalogue
from declarative_train.core.diagnostics.fixes import unified_diff
from tests.linted import CASES, codes, dtrain, found_in, write

WRONG = """\
extends: base.yaml
# a story that stays
meta:   {house: 010,   owner : "me" }   # spaces stay
seed: 003
training:
  epoch: 4
"""
MENDED = WRONG.replace("010", "10").replace("003", "3").replace("epoch:", "epochs:")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a valid base, and a recipe with two warnings and an error."""
    data = (CASES / "data" / "digits.csv").read_bytes()
    write(tmp_path, {"base.yaml": (CASES / "base.yaml").read_text(), "data/digits.csv": data, "wrong.yaml": WRONG})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_exit_codes() -> None:
    assert dtrain("lint", "base.yaml").code == 0
    assert dtrain("lint", "wrong.yaml").code == 1
    assert dtrain("lint", "wrong.yaml", "--ignore", "S").code == 0  # warnings alone
    assert dtrain("lint", "nowhere.yaml").code == 2
    assert dtrain("lint").code == 2
    assert dtrain("lint", "base.yaml", "--format", "html").code == 2
    assert dtrain("lint", "base.yaml", "--select", "Z9").code == 2


def test_a_missing_path_offers_the_nearest() -> None:
    output = dtrain("lint", "wrogn.yaml")
    assert "there is no file or folder `wrogn.yaml`; did you mean `wrong.yaml`?" in output.err
    assert output.out == ""


def test_concise_is_one_line_each_in_the_order_of_the_text() -> None:
    lines = dtrain("lint", "wrong.yaml", "--format", "concise").out.splitlines()
    form = re.compile(r"wrong\.yaml:(\d+):(\d+): (error|warning|needs verification)\[[A-Z]\d{3}\] \S.*")
    places = [tuple(map(int, match.group(1, 2))) for line in lines if (match := form.fullmatch(line))]
    assert places == [(3, 17), (4, 7), (6, 3)]


def test_full_shows_the_line_a_caret_and_a_way_out() -> None:
    out = dtrain("lint", "wrong.yaml").out
    assert "6 |   epoch: 4\n  |   ^^^^^\nhelp: did you mean `epochs`?" in out
    assert out.endswith("1 file: 2 warnings, 1 error\n")
    assert "\x1b" not in out  # no colours where nobody looks


def test_json_has_a_version_and_counts() -> None:
    document = json.loads(dtrain("lint", "wrong.yaml", "--format", "json").out)
    assert document["version"] == 1
    assert document["counts"] == {"error": 1, "warning": 2, "needs verification": 0}
    keys = {
        "code",
        "severity",
        "message",
        "help",
        "path",
        "line",
        "column",
        "end_line",
        "end_column",
        "related",
        "fixes",
    }
    assert all(set(item) == keys for item in document["diagnostics"])
    assert json.loads(dtrain("lint", "base.yaml", "--format", "json").out)["diagnostics"] == []


def test_github_commands() -> None:
    lines = dtrain("lint", "wrong.yaml", "--format", "github").out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["::warning", "::warning", "::error"]
    assert lines[2].startswith("::error title=dtrain S001,file=wrong.yaml,line=6,col=3,endColumn=8::")
    assert "%0Ahelp: did you mean" in lines[2]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("--select", "S"), {"S001"}),
        (("--select", "Y021"), {"Y021"}),
        (("--select", "S,Y"), {"S001", "Y021"}),
        (("--ignore", "Y"), {"S001"}),
        (("--select", "Y", "--ignore", "Y021"), set()),
    ],
)
def test_selection_by_prefix(options: tuple[str, ...], left: set[str]) -> None:
    assert codes(found_in("wrong.yaml", *options)) == left


def test_comments_that_accept_a_warning(folder: Path) -> None:
    write(folder, {"a.yaml": "extends: base.yaml\nseed: 003  # dtrain: ignore[Y021]\n"})
    assert found_in("a.yaml") == []
    write(folder, {"a.yaml": "extends: base.yaml\n# dtrain: ignore[Y021]\nseed: 003\n"})
    assert found_in("a.yaml") == []
    write(folder, {"a.yaml": "# dtrain: ignore-file[Y021]\nextends: base.yaml\nseed: 003\nmeta: {house: 010}\n"})
    assert found_in("a.yaml") == []
    write(folder, {"a.yaml": "extends: base.yaml\nseed: 3  # dtrain: ignore[Y021]\n"})
    assert codes(found_in("a.yaml")) == {"I001"}
    write(folder, {"a.yaml": "extends: base.yaml\nseed: 3  # dtrain: ignore[R105]\n"})
    assert codes(found_in("a.yaml")) == {"I001"}
    assert codes(found_in("a.yaml", "--static")) == set()  # which does not look for it
    write(folder, {"a.yaml": "extends: base.yaml\nsead: 7  # dtrain: ignore[S001]\n"})
    assert codes(found_in("a.yaml")) == {"S001", "I002"}


def test_fix_leaves_every_other_byte(folder: Path) -> None:
    output = dtrain("lint", "wrong.yaml", "--fix", "--format", "concise")
    assert (folder / "wrong.yaml").read_text() == MENDED
    assert "fixed 3" in output.err
    assert (output.code, output.out) == (0, "")


def test_fix_keeps_line_ends_and_a_missing_last_newline(folder: Path) -> None:
    text = "extends: base.yaml\r\nseed: 003\t# caf\u00e9 \U0001f642\r\nmeta: {house: 010}"
    write(folder, {"crlf.yaml": text})
    dtrain("lint", "crlf.yaml", "--fix")
    assert (folder / "crlf.yaml").read_bytes() == text.replace("003", "3").replace("010", "10").encode()


def test_what_cannot_be_mended_is_still_wrong(folder: Path) -> None:
    write(folder, {"a.yaml": "extends: base.yaml\nseed: 003\ntraining: {steps: no}\n"})
    output = dtrain("lint", "a.yaml", "--fix", "--format", "concise")
    assert (output.code, "fixed 1" in output.err) == (1, True)
    assert "S003" in output.out
    assert "Y021" not in output.out


MISSPELT = """\
extends: base.yaml
data:
  fields:
    digit: {column: labels}             # a column
vars: {width: 32}
model:
  graph:
    hidden: {type: "liner", out_features: "{{ vars.widht }}"}   # a layer, a variable
    act: {type: relu, input: hiden}     # a node
objective:
  loss: {type: cross_entropi, input: logits, target: digits}    # a loss, a field
  metrics: [acuracy]                    # a metric
training:
  precison: fp32                        # a key
  lr_schedule: {type: cosin}            # a schedule
"""
SAFELY = {
    "liner": "linear",
    "entropi,": "entropy,",
    "acuracy": "accuracy",
    "precison": "precision",
    "cosin}": "cosine}",
}
GUESSED = {"labels": "label", "widht": "width", "hiden": "hidden", "digits": "digit"}


def test_misspelt_words_of_the_language_are_mended_and_names_guessed(folder: Path) -> None:
    write(folder, {"a.yaml": MISSPELT})
    dtrain("lint", "a.yaml", "--fix")
    mended = MISSPELT
    for wrong, right in SAFELY.items():
        mended = mended.replace(wrong, right)
    assert (folder / "a.yaml").read_text() == mended
    output = dtrain("lint", "a.yaml", "--unsafe-fixes", "--format", "concise")
    for wrong, right in GUESSED.items():
        mended = mended.replace(wrong, right)
    assert (folder / "a.yaml").read_text() == mended
    assert (output.code, output.out) == (0, "")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("training: {learning_rate: 0.1}", None),  # belongs elsewhere
        ("training: {optimizer: {type: adam, learning_rate: 0.1}}", "training: {optimizer: {type: adam, lr: 0.1}}"),
        ("training: {num_epochs: 2}", "training: {epochs: 2}"),
        ("parallelism: DistributedDataParallel", "parallelism: ddp"),
        ("training: {batch_size: 20}", None),  # there, it is that of one device
        ("training: {precision: bfloat16}", "training: {precision: bf16}"),
        ("training: {precision: 16}", None),
        ("model: {graph: {act: torch.relu(hidden)}}", "model: {graph: {act: relu(hidden)}}"),
        ("model: {graph: {act: sigmiod(hidden)}}", "model: {graph: {act: sigmoid(hidden)}}"),
        ("model: {graph: {act: hidden.relu()}}", None),
    ],
)
def test_words_of_other_frameworks_that_mean_the_same(folder: Path, wrong: str, right: str | None) -> None:
    text = f"extends: base.yaml\n{wrong}  # as ever\n"
    write(folder, {"a.yaml": text})
    dtrain("lint", "a.yaml", "--fix")
    assert (folder / "a.yaml").read_text() == (text if right is None else text.replace(wrong, right))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("training: {compile: off}", "training: {compile: false}"),
        ("data: {shuffle: 'Yes'}", "data: {shuffle: true}"),
        ('training: {epochs: "2"}', "training: {epochs: 2}"),
        ("training: {optimizer: {lr: '1e-3'}}", "training: {optimizer: {lr: 1e-3}}"),
        ("name: 12", 'name: "12"'),
        ("training: {epochs: no}", None),
        ('training: {epochs: "two"}', None),
    ],
)
def test_words_of_yaml_1_1_and_quotes(folder: Path, wrong: str, right: str | None) -> None:
    text = f"extends: base.yaml\n{wrong}  # as ever\n"
    write(folder, {"a.yaml": text})
    output = dtrain("lint", "a.yaml", "--static", "--fix")
    assert (folder / "a.yaml").read_text() == (text if right is None else text.replace(wrong, right))
    assert (output.code == 0) == (right is not None)


def test_an_edit_that_does_not_help_is_taken_back(folder: Path) -> None:
    text = "extends: base.yaml\nmeta:\n  a: {b: #1}\n    c: 2\n"  # another comma in every pass
    write(folder, {"a.yaml": text})
    output = dtrain("lint", "a.yaml", "--unsafe-fixes")
    assert output.code == 1
    assert (folder / "a.yaml").read_text() == text


def test_unsafe_fixes_are_asked_for(folder: Path) -> None:
    text = "extends: base.yaml\nmeta: {a: 1 b: 2}\n"
    write(folder, {"comma.yaml": text})
    dtrain("lint", "comma.yaml", "--fix")
    assert (folder / "comma.yaml").read_text() == text
    dtrain("lint", "comma.yaml", "--fix", "--unsafe-fixes")
    assert (folder / "comma.yaml").read_text() == "extends: base.yaml\nmeta: {a: 1, b: 2}\n"


TRIED = {
    "meta: {a: [1, 2}": "meta: {a: [1, 2]}",
    "training: {epochs: [3]}": "training: {epochs: 3}",
    "training: {epochs: 3 times}": "training: {epochs: 3}",
    "training: {optimizer: [{type: adam}, {lr: 1e-3}]}": "training: {optimizer: {type: adam, lr: 1e-3}}",
    "training: {verbose: true, epochs: 3}": "training: {epochs: 3}",
    "seed: 1\nseed: 1": "seed: 1",
    "training:\n  epochs: 3\n   global_batch_size: 8": "training:\n  epochs: 3\n  global_batch_size: 8",
}


@pytest.mark.parametrize("wrong", TRIED)
def test_a_fix_is_found_by_trying(folder: Path, wrong: str) -> None:
    """JSON has it, `--fix` does not apply it, `--unsafe-fixes` does."""
    text, right = f"extends: base.yaml\n{wrong}\n", f"extends: base.yaml\n{TRIED[wrong]}\n"
    write(folder, {"a.yaml": text})
    found = dtrain("lint", "a.yaml", "--static", "--format", "json").diagnostics
    assert any(not fix["safe"] for each in found for fix in each["fixes"])  # type: ignore[attr-defined]
    dtrain("lint", "a.yaml", "--static", "--fix")
    assert (folder / "a.yaml").read_text() == text
    dtrain("lint", "a.yaml", "--static", "--unsafe-fixes")
    assert (folder / "a.yaml").read_text() == right


def test_an_edit_that_hides_one_mistake_and_makes_another_is_no_fix(folder: Path) -> None:
    write(folder, {"a.yaml": "extends: base.yaml\nmodel: {graph: {hidden: {input: [nothing, nowhere]}}}\n"})
    for each in dtrain("lint", "a.yaml", "--static", "--format", "json").diagnostics:
        assert all(fix["replacement"] not in ("nothing", "nowhere") for fix in each["fixes"])  # type: ignore[attr-defined]


def test_diff_changes_nothing(folder: Path) -> None:
    output = dtrain("lint", "wrong.yaml", "--diff")
    assert (folder / "wrong.yaml").read_text() == WRONG
    assert "--- a/wrong.yaml\n+++ b/wrong.yaml\n" in output.out
    changed = [line for line in output.out.splitlines() if re.match(r"[+-][^+-]", line)]
    assert changed == [
        '-meta:   {house: 010,   owner : "me" }   # spaces stay',
        "-seed: 003",
        '+meta:   {house: 10,   owner : "me" }   # spaces stay',
        "+seed: 3",
        "-  epoch: 4",
        "+  epochs: 4",
    ]
    assert output.code == 1


def test_diff_shows_what_fix_would_make_of_the_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what only shows once something else is mended, in a base as in the recipe."""
    texts = {
        "a.yaml": "extends: base2.yaml\ntrainig:\n  epoch: 4\n",
        "base2.yaml": "extends: base.yaml\nfragment: true\nmeta: {a: 1 b: 2 c: 3}\n",  # a comma in every pass
    }
    write(folder, texts)
    output = dtrain("lint", "a.yaml", "--diff", "--unsafe-fixes")
    assert {name: (folder / name).read_text() for name in texts} == texts
    monkeypatch.setattr(sys, "stdin", io.StringIO(texts["a.yaml"]))
    assert "+++ b/<stdin>\n" in dtrain("lint", "-", "--diff").out
    dtrain("lint", "a.yaml", "--fix", "--unsafe-fixes")
    after = {name: (folder / name).read_text() for name in texts}
    assert after["a.yaml"] == "extends: base2.yaml\ntraining:\n  epochs: 4\n"
    assert "meta: {a: 1, b: 2, c: 3}\n" in after["base2.yaml"]
    assert output.out == "".join(unified_diff(name, text, after[name]) for name, text in texts.items())


def test_a_file_that_is_no_utf_8_is_not_mended(folder: Path) -> None:
    """What could not be decoded would be lost."""
    data = b"extends: base.yaml\n# caf\xe9\ntrainig: {epochs: 4}\n"
    (folder / "latin.yaml").write_bytes(data)
    for option in ("--fix", "--diff"):
        output = dtrain("lint", "latin.yaml", option)
        assert output.code == 1
        assert "+training" not in output.out
    assert (folder / "latin.yaml").read_bytes() == data


def test_statistics_count_by_code() -> None:
    lines = dtrain("lint", "wrong.yaml", "--format", "concise", "--statistics").out.splitlines()
    assert [line.split() for line in lines[-2:]] == [["2", "Y021"], ["1", "S001"]]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(WRONG))
    output = dtrain("lint", "-", "--format", "concise")
    assert output.code == 1
    assert "<stdin>:6:3: error[S001]" in output.out


def test_folders_and_many_files_in_one_process(folder: Path) -> None:
    write(folder, {"sub/one.yml": "extends: ../base.yaml\n", "sub/.hidden/two.yaml": "x: [", "sub/notes.txt": "x: ["})
    assert dtrain("lint", "sub").out == "1 file: nothing wrong\n"
    assert dtrain("lint", ".").out.endswith("3 files: 2 warnings, 1 error\n")
    (folder / "empty").mkdir()
    assert dtrain("lint", "empty").code == 2


def test_a_mistake_in_a_shared_base_is_told_once(folder: Path) -> None:
    write(folder, {"shared.yaml": "extends: base.yaml\nsead: 1\n"})
    write(folder, {f"{name}.yaml": "extends: shared.yaml\n" for name in ("one", "two")})
    output = dtrain("lint", "one.yaml", "two.yaml", "--format", "concise")
    assert output.out.count("S001") == 1


def test_set_and_with_are_places_too(folder: Path) -> None:
    write(folder, {"more.yaml": "fragment: true\ntraining: {epoch: 3}\n"})
    out = dtrain("lint", "base.yaml", "--set", "training.epoch=3", "--format", "concise").out
    assert re.match(r"--set training\.epoch=3:1:\d+: error\[S001\]", out)
    assert dtrain("lint", "base.yaml", "--with", "more.yaml", "--format", "concise").out.startswith("more.yaml:2:12")


def test_static_lint_looks_at_no_data(folder: Path) -> None:
    (folder / "data" / "digits.csv").unlink()
    assert found_in("base.yaml", "--static") == []
    assert codes(found_in("base.yaml")) == {"D001"}


def test_static_lint_imports_no_torch() -> None:
    program = "import sys; from declarative_train.app.main import main; main(['lint', 'wrong.yaml', '--static']); " \
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("code", ["S001", "s001", "unknown-key"])
def test_every_page_can_be_asked_for(code: str) -> None:
    output = dtrain("explain", code)
    assert output.code == 0
    assert catalogue()["S001"].finds[:20] in output.out


def test_folders_hold_yaml_that_is_no_recipe(folder: Path) -> None:
    foreign = "services:\n  web: {image: nginx}\n"
    wrong = "extends: {up}base.yaml\nseed: {{a: 1}}\n"
    (folder / "more" / "venv" / "lib").mkdir(parents=True)
    (folder / "more" / "node_modules").mkdir()
    write(
        folder,
        {
            "more/docker-compose.yaml": foreign,
            "more/workflow.yml": "on: push\njobs: {}\n",
            "more/venv/pyvenv.cfg": "",
            "more/venv/lib/a.yaml": wrong.format(up=""),
            "more/node_modules/a.yaml": wrong.format(up=""),
            "more/mine.yaml": wrong.format(up="../"),
            "more/switch.yaml": "fragment: true\ntraining: {epochs: 3}\n",
        },
    )
    found = dtrain("lint", "more")
    assert found.code == 1
    assert "mine.yaml" in found.out
    assert not any(name in found.out for name in ("docker", "workflow", "venv", "node_modules"))
    assert found.out.splitlines()[-1].startswith("2 files: 1 error")
    assert "2 other YAML files skipped" in found.out.splitlines()[-1]
    named = dtrain("lint", "more/docker-compose.yaml")
    assert named.code == 1
    assert "`services`" in named.out
    (folder / "none").mkdir()
    write(folder, {"none/docker-compose.yaml": foreign})
    empty = dtrain("lint", "none")
    assert empty.code == 2
    assert "no recipe below none (1 other YAML file skipped" in empty.err
