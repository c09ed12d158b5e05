"""`python -m training --out DIR`: make the embedded voice, from text to bundle.

Stop it when you like; the same command goes on from the last checkpoint. Parts that do not need each other may run at
the same time, in processes of their own: `--parts univnet` beside `--parts autoregressive`. Several processes may
share a part: `torchrun --nproc-per-node 3 -m training --threads 1 --parts autoregressive …`.
`--begin-as BUNDLE` begins with the networks of an earlier voice, where they fit.
Then measure it, `python -m benchmarks.quality --bundle DIR/bundle --run DIR --keep DIR/sound -o DIR/quality.json`, and
let `--parts card` write the scores into the bundle's MODEL.md.
"""

import argparse
import dataclasses
import logging
import os
import sys
from pathlib import Path

import torch

from ane.bundles import open_model
from ane.system.errors import UserError
from training.inherited import check_fits
from training.parts import PARTS, SHARED, Work
from training.publish import publish, write_scored_card
from training.quantiser import DONE
from training.recipe import Recipe
from training.speech import Flite


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    recipe = Recipe()
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the run")
    parser.add_argument("--hours", type=float, default=recipe.hours, help="hours of speech to learn from (%(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(%(default)s)")
    parser.add_argument("--begin-as", metavar="BUNDLE", help="begin with the networks of this earlier voice")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's choice)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that synthesise (%(default)s)")
    parser.add_argument("--parts", default=",".join((*PARTS, "bundle")), metavar="A,B",
                        help="which to make: %(default)s")
    parser.add_argument("--steps", action="append", default=[], metavar="PART=N", help="train a part for N steps")
    parser.add_argument("--precision", default="fp16", choices=("fp32", "fp16", "bf16"),
                        help="of the bundle (%(default)s; others go to DIR/bundle-PRECISION)")
    parser.add_argument("--flite", default="flite", help="the flite program (%(default)s)")
    parser.add_argument("--flite-libraries", metavar="DIR", help="where its libraries lie, if not installed")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), metavar="DIR",
                        help="WordNet's data files (%(default)s; Debian: wordnet-base)")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    try:
        run(options, recipe)
    except UserError as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped; the same command goes on from the last checkpoint\n")
    return 0


def run(options: argparse.Namespace, recipe: Recipe) -> None:
    plans = dict(recipe.plans)
    for entry in options.steps:
        part, _, steps = entry.partition("=")
        if part not in plans or not steps.isdigit():
            raise UserError(f"--steps {entry}: write PART=N, PART one of {', '.join(plans)}")
        plans[part] = dataclasses.replace(plans[part], steps=int(steps))
    parts = options.parts.split(",")
    if unknown := set(parts) - {*PARTS, "bundle", "card"}:
        raise UserError(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}, bundle and card")
    earlier = open_model(bundle=options.begin_as) if options.begin_as else None
    if earlier is not None:
        check_fits(earlier, recipe.voices)
    device = options.device
    if "RANK" in os.environ:
        if len(parts) != 1 or parts[0] not in SHARED or not (options.out / "codes" / DONE).exists():
            raise UserError(f"several processes can share one of {', '.join(SHARED)}, once the parts before it are "
                            "made: give that one with --parts")
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        device = f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device
    if options.threads:
        torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    work = Work(options.out, dataclasses.replace(recipe, hours=options.hours, plans=plans), device,
                Flite(options.flite, options.flite_libraries), options.wordnet, options.workers,
                earlier)
    for part in parts:
        if part == "bundle":
            publish(work, work.out / ("bundle" if options.precision == "fp16" else f"bundle-{options.precision}"),
                    options.precision)
        elif part == "card":
            write_scored_card(work, work.out / "bundle")
        else:
            getattr(work, part)


if __name__ == "__main__":
    sys.exit(main())
