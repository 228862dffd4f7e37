"""Folders of runs at a URL: `logging.dir: s3://bucket/runs`. A run writes to a folder on this machine; a process copies
it to the URL, so that training never waits. A run that resumes on another machine first copies its folder back.

<logging.dir>/<name>/<run>-<6 digits>/
    run.json  plan.json  events.jsonl  events.out.tfevents.*  failures/    copies of the local folder
    uploaded.json                                                          the time of the last copy
    owner.json  checkpoints/                                               unless the recipe has a `checkpoint.dir`"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from declarative_train.core.names import EVENTS, RUN
from declarative_train.files.open_files import file_system, format_path
from declarative_train.plan.checkpoint_files import CHECKPOINTS, OWNER

PERIOD_S = 5.0
SHARE = 10  # a file is copied again after at least this many times the duration of its last copy
UPLOADED = "uploaded.json"
_LEFT_OUT = frozenset({CHECKPOINTS, "lock", OWNER, UPLOADED})
_DIGITS = re.compile(r"-[0-9a-f]{6}$")


def place_for(remote: str, name: str, run_dir: Path, checkpoints: str | None) -> str:
    """Return the URL to which the folder of a new run is copied: a new folder in `remote`/`name`. If the run's
    checkpoints are saved in `remote`/`name` too, it is the folder that contains them. `remote`: the URL in
    `logging.dir`. `name`: the recipe's name. `checkpoints`: folder of the run's checkpoints; None: they are in the
    run's own folder."""
    base = f"{remote.rstrip('/')}/{name}/"
    if checkpoints is not None and checkpoints.startswith(base):
        return checkpoints.removesuffix(f"/{CHECKPOINTS}")
    return f"{base}{run_dir.name}-{uuid4().hex[:6]}"


def fetch_run(remote: str, name: str, runs: Path, folder: Path | None = None) -> str | None:
    """Copy a run of the recipe `name` from a URL to this machine. Return a notice, or None if nothing was copied: no
    such run is there, or the local event file is at least as large. Raises the exceptions of the store's client.

    `remote`: URL in the recipe's `logging.dir`. `folder`: the run's local folder; None: copy the newest run of the
    recipe to a folder below `runs`.
    """
    fs, base = file_system(f"{remote.rstrip('/')}/{name}")
    fs.invalidate_cache()
    if not fs.exists(base):
        return None
    names = sorted(str(each).rstrip("/").rsplit("/", 1)[-1] for each in fs.ls(base, detail=False))
    for found in reversed(names):
        local = folder or runs / _DIGITS.sub("", found)
        if local.name != _DIGITS.sub("", found) or not fs.exists(f"{base}/{found}/{EVENTS}"):
            continue
        mine = (local / EVENTS).stat().st_size if (local / EVENTS).exists() else -1
        if mine >= fs.size(f"{base}/{found}/{EVENTS}"):
            return None
        _copy_from(fs, f"{base}/{found}", local)
        if fs.exists(f"{base}/{found}/{OWNER}"):
            fs.pipe_file(f"{base}/{found}/{OWNER}", json.dumps({"folder": str(local.absolute())}).encode())
        return f"the folder of the run was copied from {format_path(remote)}"
    return None


def _copy_from(fs: Any, place: str, local: Path) -> None:
    for path in fs.find(place):
        name = str(path).removeprefix(place).strip("/")
        if name.partition("/")[0] not in _LEFT_OUT:
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(path, str(local / name))


@contextmanager
def local_copies(url: str) -> Iterator[str]:
    """Copy the files that commands read from `url`, a run or a folder of runs, to a temporary folder. Yield its path,
    and remove it at the end of the `with` block."""
    fs, base = file_system(url.rstrip("/"))
    fs.invalidate_cache()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, base.rsplit("/", 1)[-1])
        folder.mkdir()
        for path in fs.find(base):
            name = str(path).removeprefix(base).strip("/")
            if name.rsplit("/", 1)[-1] in (RUN, EVENTS, UPLOADED) or "/failures/" in f"/{name}":
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                fs.get_file(path, str(folder / name))
        yield str(folder)


def is_uploading(folder: Path) -> bool:
    """Return whether a run on another machine still copies its folder to a URL. `folder`: a copy of that folder. Its
    file `uploaded.json` must be recent, and must not say that the run has ended."""
    try:
        found = json.loads((folder / UPLOADED).read_text())
        return not found["has_ended"] and time.time() - float(found["time_unix_s"]) < 12 * PERIOD_S
    except (OSError, ValueError, KeyError, TypeError):
        return False


class Mirror:
    """Copier of a local folder to a URL; it copies only what has changed."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._fs, self._base = file_system(url)
        self._copied: dict[str, tuple[int, int]] = {}
        self._next_s: dict[str, float] = {}

    def copy(self, *, has_ended: bool = False) -> None:
        """Copy new and changed files to the URL, and remove copies of files that no longer exist here. A file that
        takes long to copy is copied less often. `has_ended`: the run has ended; copy all files, and record the end at
        the URL. Raises the exceptions of the store's client."""
        present = dict(self._files())
        for name, stamp in present.items():
            begun_s = time.monotonic()
            if self._copied.get(name) == stamp or (begun_s < self._next_s.get(name, 0.0) and not has_ended):
                continue
            with suppress(FileNotFoundError):  # a temporary file
                self._fs.put_file(str(self._folder / name), f"{self._base}/{name}")
                self._copied[name] = stamp
            self._next_s[name] = time.monotonic() + SHARE * (time.monotonic() - begun_s)
        for name in set(self._copied) - set(present):
            with suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._base}/{name}")
            del self._copied[name]
        about = {"time_unix_s": time.time(), "has_ended": has_ended}
        self._fs.pipe_file(f"{self._base}/{UPLOADED}", json.dumps(about).encode())

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for folder, folders, names in os.walk(self._folder):
            inner = os.path.relpath(folder, self._folder)
            folders[:] = [each for each in folders if inner != "." or each not in _LEFT_OUT]
            for name in names:
                with suppress(OSError):
                    found = os.stat(os.path.join(folder, name))
                    path = os.path.normpath(os.path.join(inner, name))
                    if path not in _LEFT_OUT:
                        yield path, (found.st_mtime_ns, found.st_size)


class Upload:
    """Process that copies a run's folder to a URL, until `finish` is called or this process exits."""

    def __init__(self, folder: Path, url: str) -> None:
        words = [sys.executable, "-P", "-m", __name__]
        # in its own session, because Ctrl-C must not end it before the run's last events are copied
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
        self._send({"folder": str(folder.absolute()), "url": url})

    def finish(self) -> None:
        """Copy what is not copied yet, and wait until this is done."""
        self._send({})
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _send(self, message: dict[str, str]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has failed and printed the reason
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()


def main() -> int:
    """Copy a folder to a URL repeatedly, until standard input has a second line or ends. Return the exit code. The
    first line of standard input is JSON with the keys `folder` and `url`."""
    about, ended = json.loads(sys.stdin.readline()), threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    mirror: Mirror | None = None
    deadline_s: float | None = None
    while True:
        has_ended = ended.wait(PERIOD_S if deadline_s is None else 1.0)
        if has_ended and deadline_s is None:
            deadline_s = time.monotonic() + float(os.environ.get("DTRAIN_STORE_S", 300))
        try:
            mirror = mirror or Mirror(Path(about["folder"]), about["url"])
            mirror.copy(has_ended=has_ended)
        except Exception as error:  # the client of each store has its own exceptions
            if deadline_s is not None and time.monotonic() > deadline_s:
                place, why = format_path(about["url"]), (str(error).strip() or type(error).__name__).splitlines()[0]
                what = f"dtrain: warning: {about['folder']} is not complete at {place}: {why}"
                print(f"{what}; help: copy it there when the store can be reached", file=sys.stderr)
                return 1
            if has_ended:
                time.sleep(1.0)
            continue
        if has_ended:
            return 0


if __name__ == "__main__":
    sys.exit(main())
