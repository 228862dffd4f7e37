"""`make pictures`: new screenshots for docs/images, of TensorBoard with a few runs and of the terminal.

It needs Chromium and tmux. Look at each screenshot: nothing checks whether it shows the right thing.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from declarative_train.app.api.compiling import lint_recipe
from declarative_train.app.commands.tensorboard import page_with_losses_first
from declarative_train.core.diagnostics.render import render

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
DTRAIN = [sys.executable, "-m", "declarative_train"]
COLOURS = 128  # keeps a page of text below 200 kB
LOADED_MS = 40_000  # milliseconds of the page's virtual clock
SWEEP = """\
extends: {base}
name: lr_sweep
training: {{epochs: 3}}
sweep:
  type: grid
  metric: validation/accuracy
  over:
    training.optimizer.lr: [0.003, 0.01, 0.03]
    vars.hidden: [32, 128]
"""


def main() -> int:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None or shutil.which("tmux") is None:
        print("pictures: Chromium and tmux are needed", file=sys.stderr)
        return 2
    shoot = partial(screenshot, browser)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "recipes").symlink_to(ROOT / "recipes")
        terminal(here, shoot)
        mistake_and_plan(here, shoot)
        runs(here)
        tensorboard(here, shoot)
    for path in sorted(IMAGES.glob("*.png")):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1000:.0f} kB")
    return 0


Shoot = Callable[..., None]


def screenshot(browser: str, url: str, path: Path, width: int, height: int) -> None:
    """Save the page at `url` after it has loaded."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        command += [f"--virtual-time-budget={LOADED_MS}", f"--screenshot={path}", url]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def crop(path: Path, width: int) -> None:
    """Cut the image at `path` to its left `width` pixels."""
    with Image.open(path) as image:
        left = image.crop((0, 0, width, image.height))
    left.save(path, optimize=True)


def dtrain(here: Path, *words: str) -> None:
    subprocess.run([*DTRAIN, *words], cwd=here, check=True, capture_output=True, timeout=300)


def runs(here: Path) -> None:
    """Make the runs that TensorBoard shows."""
    for lr in ("0.003", "0.001"):
        dtrain(here, "run", "recipes/digits_mlp.yaml", "--set", f"training.optimizer.lr={lr}")
    dtrain(here, "run", "recipes/digits_images.yaml", "--set", "training.epochs=3", "--set", "logging.dir=pictures")
    dtrain(here, "run", "recipes/compare_modes.yaml", "--set", "training.epochs=1", "--set", "logging.dir=graph")
    (here / "sweep.yaml").write_text(SWEEP.format(base="recipes/digits_mlp.yaml"))
    dtrain(here, "sweep", "sweep.yaml", "--set", "logging.dir=sweeps")


def tensorboard(here: Path, shoot: Shoot) -> None:
    with board(here, "runs/digits_mlp") as port:
        shoot(page_with_losses_first("127.0.0.1", port), IMAGES / "tensorboard.png", 1280, 600)
        crop(IMAGES / "tensorboard.png", 1028)  # TensorBoard's settings are at the right
    with board(here, "graph/compare_modes") as port:
        shoot(f"http://127.0.0.1:{port}/#graphs", IMAGES / "tensorboard-graph.png", 1040, 540)
        crop(IMAGES / "tensorboard-graph.png", 700)  # a small map is at the right
    with board(here, str(next((here / "sweeps" / "lr_sweep" / "sweeps").iterdir()))) as port:
        shoot(f"http://127.0.0.1:{port}/#hparams", IMAGES / "tensorboard-hparams.png", 1280, 470)
    with board(here, "pictures/digits_images") as port:
        shoot(f"http://127.0.0.1:{port}/#images", IMAGES / "tensorboard-images.png", 1280, 640)


@contextmanager
def board(here: Path, folder: str) -> Iterator[int]:
    """Start TensorBoard for `folder`, and yield its port when it has read the runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [*DTRAIN, "tensorboard", folder, "--port", str(port)]
    process = subprocess.Popen(command, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/data/runs"), 60)
        yield port
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return len(answer.read()) > 4  # `[]` while it has not read anything
    except OSError:
        return False


def terminal(here: Path, shoot: Shoot) -> None:
    """Save a screenshot of a running command in a terminal (tmux)."""
    words = "run recipes/digits_mlp_ddp2.yaml --set layout.device=cpu"
    tmux = ["tmux", "-L", f"dtrain-pictures-{os.getpid()}"]
    shell = f"export PS1='$ ' PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}; exec bash --norc"
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "116", "-y", "24", "-c", str(here), shell], check=True, timeout=20
    )

    def pane(*options: str) -> str:
        command = [*tmux, "capture-pane", "-p", *options]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout

    try:
        wait_for(lambda: pane().startswith("$"), 20)
        subprocess.run([*tmux, "send-keys", f"dtrain {words}", "Enter"], check=True, timeout=20)
        wait_for(lambda: re.search(r"epoch 1\d/30", pane()) is not None, 120)
        seen = pane("-e")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, timeout=20)
    shoot_text(here, shoot, seen, "terminal.png")


def mistake_and_plan(here: Path, shoot: Shoot) -> None:
    """Save two screenshots: a mistake that lint reports, and the part of a plan with its ranks and their schedule."""
    recipe = (ROOT / "recipes" / "digits_mlp.yaml").read_text()
    (here / "digits.yaml").write_text(
        recipe.replace("out_features: 10", "out_feature: 10").replace("path: ", "path: recipes/")
    )
    words = ["lint", "digits.yaml"]
    linted = lint_recipe(str(here / "digits.yaml"))
    printed = render(linted.diagnostics, linted.texts, format="full", color=True).replace(f"{here}/", "")
    shoot_text(here, shoot, f"$ dtrain {' '.join(words)}\n{printed}", "mistake.png")
    words = ["plan", "recipes/large_model_pipeline.yaml"]
    done = subprocess.run([*DTRAIN, *words], cwd=here, capture_output=True, text=True, timeout=200)
    lines = done.stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("layout"))
    last = next(number for number, line in enumerate(lines) if line.startswith("files"))
    shoot_text(here, shoot, "\n".join([f"$ dtrain {' '.join(words)}", "...", *lines[first:last]]), "plan.png")


def shoot_text(here: Path, shoot: Shoot, seen: str, name: str) -> None:
    """Save a screenshot of text with terminal colours. `seen`: the text, with escape sequences."""
    console = Console(record=True, width=116, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    console.print(Text.from_ansi(seen.rstrip()))
    page = console.export_html(theme=MONOKAI, inline_styles=True)
    style = (
        "<style>body{background:#0c0c0c !important;color:#d9d9d9 !important;margin:12px;font-size:15px}</style></head>"
    )
    (here / "terminal.html").write_text(page.replace("</head>", style))
    lines = seen.rstrip().count("\n") + 1
    shoot((here / "terminal.html").as_uri(), IMAGES / name, 1100, 36 + 20 * lines)


def wait_for(happened: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing to take a picture of after {timeout_s:g} s")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
