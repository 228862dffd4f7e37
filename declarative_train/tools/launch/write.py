"""Job files for engines such as Slurm or Kubernetes, written from plans with the templates in this folder."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from declarative_train.plan.codec import save
from declarative_train.plan.plan import Plan
from declarative_train.planner.text.describe import mode_in_words
from declarative_train.tools.launch.needs import Needs

LONGEST_NAME = 50  # for a Kubernetes Job, to whose pods a number and a suffix are added
PORT = 29500


@dataclass(frozen=True, slots=True)
class Engine:
    """System that runs jobs, for which a job file is written. `file`: name of the job file. `submit`: the command that
    submits it. `is_here`: the job sees the disk of this machine, so that it uses the same Python environment. `sweeps`:
    the system can run sweeps. `is_copied`: it copies the working directory to its machines."""

    file: str
    submit: tuple[str, ...]
    is_here: bool
    sweeps: bool
    is_copied: bool = False


ENGINES = {
    "kubernetes": Engine("job.yaml", ("kubectl", "apply", "-f"), is_here=False, sweeps=True),
    "skypilot": Engine("job.yaml", ("sky", "jobs", "launch"), is_here=False, sweeps=False, is_copied=True),
    "slurm": Engine("job.sh", ("sbatch",), is_here=True, sweeps=True),
    "ssh": Engine("job.sh", ("bash",), is_here=True, sweeps=False),
    "trainjob": Engine("job.yaml", ("kubectl", "apply", "-f"), is_here=False, sweeps=True),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the user that are not in a plan. `image`: the container image. `accelerator`: the engine's name for
    the GPU. `hosts`: machines to reach by ssh. `claim`, `mount`: volume of a Kubernetes Job, and the path where it is
    mounted. `at_once`: how many jobs of a sweep run at the same time. `environment`: environment variables of the
    job."""

    image: str = ""
    claim: str = ""
    mount: str = ""
    accelerator: str = ""
    hosts: tuple[str, ...] = ()
    at_once: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Facts about a plan for the template of a job file: its name, the path of its JSON file, and the folder of its
    run."""

    name: str
    plan: str
    run_dir: str


def write_job(to: str, plans: Sequence[Plan], needs: Needs, settings: Settings, folder: Path) -> Path:
    """Write the plans and a job file into a folder. Return the path of the job file. `to`: what runs the job, such as
    `slurm` or `kubernetes`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    engine, folder = ENGINES[to], folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    name = job_name(plans[0].name)
    jobs = []
    for number, plan in enumerate(plans):
        suffix = f"-{number}" if len(plans) > 1 else ""
        path = folder / f"plan{suffix}.json"
        save(plan, path)
        run_dir = Path(plan.logging.dir) / plan.name / f"{folder.name}{suffix}"
        if engine.is_copied:
            path = path.relative_to(Path.cwd())
        else:
            run_dir = run_dir.absolute()
        jobs.append(JobPlan(f"{name}{suffix}", str(path), str(run_dir)))
    path = folder / engine.file
    templates = Environment(
        loader=PackageLoader("declarative_train.tools.launch"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    templates.filters["quote"] = shlex.quote
    program = Path(sys.executable).parent / "dtrain"
    text = templates.get_template(f"{to}{path.suffix}.j2").render(
        name=name,
        summary=f"{mode_in_words(plans[0].layout)}{f', {len(plans)} points of a sweep' if len(plans) > 1 else ''}",
        submit=shlex.join([*engine.submit, str(path)]),
        needs=needs,
        jobs=jobs,
        folder=str(folder),
        directory=str(Path.cwd()),
        program=str(program) if engine.is_here and program.exists() else "dtrain",
        port=PORT,
        image=settings.image,
        claim=settings.claim,
        mount=settings.mount or str(Path.cwd()),
        accelerator=settings.accelerator,
        hosts=settings.hosts,
        at_once=settings.at_once,
        environment=settings.environment,
    )
    path.write_text(text, encoding="utf-8")
    return path


def job_name(name: str) -> str:
    """Return `name` changed to a form that every engine accepts: lower-case letters, digits and hyphens, first a
    letter."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST_NAME].strip("-")
    return text if text[:1].isalpha() else f"run-{text}".strip("-")
