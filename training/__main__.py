"""Train the small Tortoise that the package contains, from texts to bundle: `python -m training -o DIR` in a clone.

You can interrupt the training at any time. The same command continues from the last checkpoint in DIR.
training/README.md says how the weights in the package were made, and how to train them further.
"""

import argparse
import os
import sys
from pathlib import Path

import torch

from ane.system.errors import UserError
from training.program import TrainingProgram
from training.publish import publish, write_scored_card, write_weights
from training.recipe import CONFIG, load_recipe
from training.run import PARTS, TrainingRun

OUTPUTS = {"bundle": publish, "card": write_scored_card, "weights": write_weights}


def main(arguments: list[str] | None = None) -> int:
    minutes = "train each part of --parts for at most N minutes, and do not train any other part"
    program = TrainingProgram("training", __doc__, CONFIG, minutes)
    add = program.add_argument
    add(
        "--parts",
        metavar="A,B",
        help=f"parts of the training to run (default, in order: {','.join(PARTS)},bundle). Two more parts need all of "
        "these: card writes the bundle's MODEL.md, and weights writes files for --start",
    )
    add("--start", type=Path, metavar="DIR", help="folder of weights from which a part without a checkpoint starts")
    add(
        "--tiny",
        type=int,
        metavar="STEPS",
        help="try the recipe: train each part for this number of steps, on short clips of tones instead of speech",
    )
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device of torch (%(default)s)")
    add("--workers", type=int, default=os.cpu_count(), help="number of processes that make speech (%(default)s)")
    program.add_wordnet()
    return program.run(train, arguments)


def train(options: argparse.Namespace) -> None:
    recipe = load_recipe(options.config)
    if options.tiny:
        recipe = recipe.tiny(options.tiny)
    parts = options.parts.split(",") if options.parts else [*PARTS, "bundle"]
    if options.minutes is not None:  # parts that --parts does not name are not trained further
        schedules = {
            name: part.model_copy(update={"minutes": options.minutes if name in parts else 0})
            for name, part in recipe.parts.items()
        }
        recipe = recipe.model_copy(update={"parts": schedules})
    if unknown := set(parts) - {*PARTS, *OUTPUTS}:
        raise UserError(f"--parts {','.join(sorted(unknown))}: choose from {', '.join([*PARTS, *OUTPUTS])}")
    if options.start and not options.start.is_dir():
        raise UserError(f"--start {options.start}: there is no such folder")
    run = TrainingRun(options.output, recipe, options.device, options.wordnet, options.workers, options.start)
    for part in parts:
        if part in OUTPUTS:
            OUTPUTS[part](run)
        else:
            getattr(run, part)


if __name__ == "__main__":
    sys.exit(main())
