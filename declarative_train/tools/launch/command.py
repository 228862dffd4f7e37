"""Command `dtrain launch --to ENGINE RECIPE`: write the files with which an engine, such as Slurm or Kubernetes, runs a
recipe or a sweep."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.app.compile import add_recipe_arguments, compile_recipe, report, report_missing
from declarative_train.app.numbers import positive
from declarative_train.app.printing import print_text
from declarative_train.core.duration import parse_duration
from declarative_train.tools.launch.write import ENGINES, Settings, write_job

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

MINUTES = {"minutes": 1, "hours": 60}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)
    parser.add_argument("--to", required=True, choices=ENGINES, help="the engine that runs the job")
    parser.add_argument("--submit", action="store_true", help="also submit the job (sbatch, kubectl, sky, ssh)")
    parser.add_argument("--sweep", action="store_true", help="a job for each point of the recipe's sweep")
    parser.add_argument(
        "--output", metavar="FOLDER", help="folder for the files and the name of the run (default: jobs/NAME-ENGINE)"
    )
    parser.add_argument(
        "--time", type=minutes, metavar="DURATION", help="limit, such as `24 hours` (default: from the estimate)"
    )
    parser.add_argument("--cores", type=positive, metavar="N", help="cores of a rank (default: data.workers + 1)")
    parser.add_argument("--interface", metavar="NAME", help="network interface of gloo and NCCL, the same on all nodes")
    parser.add_argument("--jobs", type=positive, metavar="N", help="most points of a sweep at once, on Slurm")
    parser.add_argument("--image", metavar="IMAGE", help="container image, such as one of the Dockerfile")
    parser.add_argument(
        "--volume", metavar="CLAIM[:PATH]", help="claim of a volume with this folder, and where it is mounted"
    )
    parser.add_argument("--accelerator", metavar="NAME", help="SkyPilot's name of the GPU, such as H100")
    parser.add_argument("--hosts", metavar="A,B", help="machines for ssh; the first is node 0")


def minutes(text: str) -> int:
    try:
        duration = parse_duration(text, tuple(MINUTES))
        return max(1, round(duration.value * MINUTES[duration.unit]))
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"`{text}` is not a time: write `90 minutes` or `24 hours`") from None


def run(args: argparse.Namespace) -> int:
    from declarative_train.tools.launch.needs import needs_of

    if report_missing(args.recipe):
        return 2
    if args.sweep and not ENGINES[args.to].sweeps:
        print(f"dtrain: a sweep cannot be written for {args.to}; help: use slurm or kubernetes", file=sys.stderr)
        return 2
    plans, code = find_plans(args)
    if plans is None:
        return code
    needs = needs_of(plans[0], minutes=args.time, cores=args.cores)
    if (why := find_misuse(args, needs.num_nodes, needs.gpus_per_node)) is not None:
        print(f"dtrain: {why}", file=sys.stderr)
        return 2
    claim, _, mount = (args.volume or "").partition(":")
    folder = Path(args.output or f"jobs/{plans[0].name}-{args.to}").absolute()
    if (why := find_hidden(args.to, folder, Path(mount or Path.cwd()))) is not None:
        print(f"dtrain: {why}", file=sys.stderr)
        return 2
    interfaces = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if args.interface else ()
    settings = Settings(
        image=args.image or "",
        claim=claim,
        mount=mount,
        accelerator=args.accelerator or "",
        hosts=tuple(filter(None, (args.hosts or "").split(","))),
        at_once=args.jobs,
        environment=dict.fromkeys(interfaces, args.interface),
    )
    path = write_job(args.to, plans, needs, settings, folder)
    if needs.minutes is None:
        why = "the job has no time limit, since the plan has no estimate; help: --time, or layout.hardware"
        print(f"dtrain: {why}", file=sys.stderr)
    words = [*ENGINES[args.to].submit, str(path)]
    print_text(f"wrote {path}\nsubmit it with: {shlex.join(words)}")
    return submit(words) if args.submit else 0


def submit(words: Sequence[str]) -> int:
    if shutil.which(words[0]) is None:
        print(f"dtrain: {words[0]} is not installed here; help: submit the file where it is", file=sys.stderr)
        return 3
    return 3 if subprocess.run(words, check=False).returncode else 0


def find_plans(args: argparse.Namespace) -> tuple[list[Plan] | None, int]:
    """Return the plans of a job and the exit code 0. There is one plan, that of the recipe, or with `--sweep` one for
    each point of its sweep. If there are no plans, print the reason and return None and another exit code."""
    from declarative_train.tools.sweep.command import plan_points

    compiled = compile_recipe(args, plugins=True)
    recipe = compiled.loaded.recipe
    if compiled.plan is None or recipe is None:
        report(compiled)
        return None, 1
    if not args.sweep:
        report(compiled)
        return [compiled.plan], 0
    if recipe.sweep is None or recipe.sweep.type == "optuna":
        why = "has no `sweep:` section" if recipe.sweep is None else "chooses each point after others have ended"
        print(f"dtrain: {args.recipe} {why}, so its points cannot be jobs", file=sys.stderr)
        return None, 2
    points, plans = plan_points(args, compiled, recipe)
    return (None, 1) if plans is None else ([plans[point.key] for point in points], 0)


def find_hidden(to: str, folder: Path, mount: Path) -> str | None:
    """Return a message if the engine's machines cannot see a folder that the job needs, else None. `to`: name of the
    engine. `folder`: folder of the job's files. `mount`: path at which the machines' volume is mounted."""
    if to == "kubernetes":
        for each in (Path.cwd(), folder):
            if not each.is_relative_to(mount):
                return f"{each} is not on the volume, which is mounted at {mount}; help: --volume CLAIM:PATH"
    if to == "skypilot" and not folder.is_relative_to(Path.cwd()):
        return f"{folder} is not below this folder, which SkyPilot copies to its machines"
    return None


def find_misuse(args: argparse.Namespace, num_nodes: int, num_gpus: int) -> str | None:
    """Return why the options do not describe a valid job for a plan with this number of nodes and GPUs. Return None if
    they do."""
    num_hosts = len([host for host in (args.hosts or "").split(",") if host])
    if args.to in ("kubernetes", "skypilot", "trainjob") and not args.image:
        return f"{args.to} needs an image; help: build one with the Dockerfile of dtrain and pass --image"
    if args.to == "kubernetes" and not args.volume:
        return "a Job of Kubernetes needs the claim of a volume with this folder; help: --volume CLAIM:PATH"
    if args.to == "skypilot" and num_gpus and not args.accelerator:
        return "SkyPilot needs the name of the GPU; help: --accelerator H100"
    if args.to == "ssh" and num_hosts != num_nodes:
        return f"the plan is for {num_nodes} machines, and --hosts names {num_hosts}"
    return None
