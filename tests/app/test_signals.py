"""Signals before a run: one line and their codes, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DIGITS = str(ROOT / "recipes" / "digits_mlp_ddp2.yaml")

# The compiler takes for ever, forks a child as the data readers do, and gets the signal in the middle of it: the child
# is ended by it at once and without a word, the command says one line.
INTERRUPTED_WHILE_COMPILING = """
import os, signal, sys, time
from declarative_train.app.commands import run
from declarative_train.app.main import main

number = int(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background

def compile_for_long(*_):
    ready, tell_ready = os.pipe()
    child = os.fork()
    if child == 0:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.write(tell_ready, b"!")
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    os.kill(child, number)
    print("child:", os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
    os.kill(os.getpid(), number)
    time.sleep(60)

run.compile_or_report = compile_for_long
code = main(["run", sys.argv[2]])
print("handler restored:", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("number", "word", "code"),
    [(signal.SIGTERM, "terminated", 143), (signal.SIGUSR1, "terminated", 138), (signal.SIGINT, "interrupted", 130)],
)
def test_a_signal_before_a_run_is_told_in_one_line(number: signal.Signals, word: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_COMPILING, str(int(number)), DIGITS],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr == f"dtrain: {word}\n"
    assert ended.stdout == f"child: {int(number)}\nhandler restored: True\n"
    assert ended.returncode == code


# code that runs when the signal arrives, such as that which sets up a module in C, raises another error or drops it
TERMINATED_WHILE_IMPORTING = """
import os, signal, sys, time
from declarative_train.app.commands import run
from declarative_train.app.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)

def import_for_long(*_):
    try:
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))
        time.sleep(60)
    except BaseException:
        if sys.argv[1] == "other error":
            raise ImportError("initialization failed")
    time.sleep(60)

run.compile_or_report = import_for_long
sys.exit(main(["run", sys.argv[2]]))
"""


@pytest.mark.parametrize(
    ("fate", "name", "word", "code"),
    [
        ("other error", "SIGTERM", "terminated", 143),
        ("dropped", "SIGTERM", "terminated", 143),
        ("other error", "SIGINT", "interrupted", 130),
    ],
)
def test_a_signal_during_an_import_is_told_in_one_line(fate: str, name: str, word: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TERMINATED_WHILE_IMPORTING, fate, DIGITS, name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr == f"dtrain: {word}\n"
    assert ended.returncode == code
