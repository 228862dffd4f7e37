"""Sink for Weights & Biases. In the mode `offline` it writes to the run's folder `wandb/`, from which `wandb sync`
uploads.

A resumed run continues the W&B run whose id is in the file `wandb.json`. `step` is a metric and the x axis of all
others. W&B's own step is not used, because it cannot decrease. The step of a run decreases if it resumes from an
earlier checkpoint."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from declarative_train.run.event import Event, RunEnded, RunStarted
from declarative_train.run.sinks.background import WAIT_S, BackgroundSink, read_run_id, write_run_id
from declarative_train.run.sinks.tensorboard import scalars


class WandbSink(BackgroundSink):
    """Sink that writes to one W&B run. `project`: name of the project; None: the recipe's name."""

    @classmethod
    def from_settings(cls, run_dir: Path, settings: Mapping[str, Any]) -> Self:
        return cls(run_dir, settings.get("project"), settings["mode"])

    def __init__(self, run_dir: Path, project: str | None, mode: Literal["offline", "online"]) -> None:
        self._run_dir, self._project, self._mode = run_dir, project, mode
        self._remote: Any = None
        self._has_ended = False
        super().__init__()

    def _send(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, RunStarted):
                self._start(event)
            step, _, values = scalars(event)
            if values:
                self._remote.log(values | {"step": step})
            if isinstance(event, RunEnded):
                self._has_ended = True
                self._remote.summary["state"] = event.status

    def _finish(self) -> None:
        self._remote.finish(exit_code=0 if self._has_ended else 1)

    def _start(self, event: RunStarted) -> None:
        import wandb

        id_file = self._run_dir / "wandb.json"
        run_id = read_run_id(id_file).get("id") or uuid.uuid4().hex[:12]
        self._remote = wandb.init(
            project=self._project or event.name,
            id=run_id,
            name=self._run_dir.name,
            dir=str(self._run_dir.absolute()),
            mode=self._mode,
            resume="allow",
            settings=wandb.Settings(
                silent=True,
                console="off",  # dtrain prints to the terminal
                disable_git=True,
                disable_code=True,
                init_timeout=WAIT_S,
                finish_timeout=WAIT_S,
                login_timeout=1.0,
            ),
        )
        self._remote.config.update({**event.hyperparameters, "plan": event.plan_text}, allow_val_change=True)
        self._remote.define_metric("step", hidden=True)
        self._remote.define_metric("*", step_metric="step")
        write_run_id(id_file, id=run_id)


def has_key() -> bool:
    """Return whether W&B has an API key. Without one it would ask for it in the terminal."""
    import netrc
    from urllib.parse import urlsplit

    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    files = (os.environ.get("NETRC"), "~/.netrc", "~/_netrc")
    for file in (Path(name).expanduser() for name in files if name):
        try:
            if netrc.netrc(file).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
