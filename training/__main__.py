"""`python -m training -o DIR`: train the embedded voice, from texts to bundle. Run it in a clone of the repository.

It trains training/embedded_voice.toml, or the recipe given with --config: training/fast_voice.toml is the fast embedded
voice's. Interrupt it at any time; the same command
continues from the last checkpoint. Parts that do not depend on each other may run at the same time, in separate
processes: `--parts univnet` beside `--parts autoregressive`. Several processes may share a part:
`torchrun --nproc-per-node 3 -m training --threads 1 --parts autoregressive …`.
To measure the voice: `python -m benchmarks quality --bundle DIR/bundle --run DIR --keep DIR/sound -o
DIR/quality.json`; then `--parts card` writes the scores into the bundle's MODEL.md.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

import torch

from ane.system.errors import UserError
from training.fast_recipe import load_fast_recipe
from training.fast_run import FAST_RUN_PARTS, FastTrainingRun
from training.publish import publish, publish_fast, write_scored_card
from training.recipe import EMBEDDED_VOICE, family_of, load_recipe
from training.run import PARTS, TrainingRun
from training.speech import Flite


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, metavar="DIR", help="folder of the run")
    add("--config", type=Path, default=EMBEDDED_VOICE, metavar="FILE", help="recipe in TOML (%(default)s)")
    add("--parts", metavar="A,B", help=f"what to make (default: all, in order: {','.join(PARTS)}; of the fast voice "
        f"{','.join(FAST_RUN_PARTS)}; then bundle; or card)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(%(default)s)")
    add("--threads", type=int, help="torch threads (default: torch's choice)")
    add("--workers", type=int, default=os.cpu_count(),
        help="processes for speech, codes and candidates (%(default)s)")
    add("--flite", default="flite", help="the flite program (%(default)s)")
    add("--flite-libraries", metavar="DIR", help="folder of its libraries, if it is not installed")
    add("--wordnet", type=Path, default=Path("/usr/share/wordnet"), metavar="DIR",
        help="WordNet's data files (%(default)s; Debian: wordnet-base)")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    try:
        train(options)
    except UserError as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "interrupted; the same command continues from the last checkpoint\n")
    return 0


def train(options: argparse.Namespace) -> None:
    folder, run, known = options.output, open_run(options), PARTS
    if isinstance(run, FastTrainingRun):
        known = FAST_RUN_PARTS
    parts = options.parts.split(",") if options.parts else [*known, "bundle"]
    if unknown := set(parts) - {*known, "bundle", "card"}:
        raise UserError(f"--parts {','.join(sorted(unknown))}: choose from {', '.join(known)}, bundle and card")
    if "RANK" in os.environ:
        run.device = join_processes(parts, run, options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    if isinstance(run, TrainingRun):
        _ = run.earlier_voice       # raises UserError before any work is done
    for part in parts:
        if part == "bundle":
            make_bundle = publish_fast if isinstance(run, FastTrainingRun) else publish
            make_bundle(run, folder / "bundle")
        elif part == "card":
            write_scored_card(run, folder / "bundle")
        else:
            getattr(run, part)


def open_run(options: argparse.Namespace) -> TrainingRun | FastTrainingRun:
    """The run of the recipe's family. Raises UserError when the recipe cannot be read."""
    shared = options.device, options.flite_libraries, options.wordnet, options.workers
    if family_of(options.config) == "fastspeech":
        return FastTrainingRun(options.output, load_fast_recipe(options.config), *shared)
    device, libraries, *rest = shared
    return TrainingRun(options.output, load_recipe(options.config), device, Flite(options.flite, libraries), *rest)


def join_processes(parts: list[str], run: TrainingRun | FastTrainingRun, device: str) -> str:
    """Join the processes that torchrun started. Returns the device of this one."""
    if len(parts) != 1 or parts[0] not in run.shared_parts or not run.has_data:
        raise UserError(f"several processes can share only one of {', '.join(run.shared_parts)}, after the parts "
                        "before it: give that one with --parts")
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device


if __name__ == "__main__":
    sys.exit(main())
