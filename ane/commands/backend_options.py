"""The flags that choose a backend and how it runs, and loading a synthesizer from them."""

import argparse
from typing import Any

from rich.console import Console

from ane.bundles import Model
from ane.bundles.packages import COMPUTE_UNITS
from ane.commands.arguments import positive, rare_group
from ane.commands.messages import LOGGER
from ane.commands.packages import with_packages


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    from ane.backends import NAMES

    parser.add_argument("--backend", default="auto", metavar="NAME",
                        help=f"what runs the networks: {', '.join(NAMES)} (default: auto, the best available)")
    add = rare_group(parser, "backend", "coreml runs a bundle's Core ML packages on a Mac; mil interprets them on\n"
                     "any machine, slowly, to check them; onnx runs its ONNX packages.").add_argument
    add("--precision", default="auto", metavar="P",
        choices=("auto", "fp32", "bf16", "fp16", "8bit", "6bit", "4bit", "int8", "int4"),
        help="for torch: fp32, bf16 or fp16 (default: the type of the stored weights, where the device computes it "
             "fast), or int8 (decoder and diffusion on the CPU: fastest, less exact); for packages: those of Core ML "
             "in fp16, fp32, 8bit, 6bit, 4bit, or of ONNX in fp32, fp16, int8, int4 (default: the bundle's)")
    add("--cache", default="auto", choices=("auto", "io", "state"),
        help="what keeps the kv-cache of Core ML packages: io (the host) or state (Core ML)")
    add("--compute-units", choices=COMPUTE_UNITS,
        help="where Core ML may run all networks (default: what the bundle states for each)")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: all, fewer while other programs are busy)")


def load_synthesizer(args: argparse.Namespace, model: Model, console: Console, keep: bool | None = None) -> Any:
    """Return a synthesizer on the backend that the flags name. ``keep``: see ``load_backend``.

    Raises:
        UserError: the backend or its packages are not available here.
    """
    from ane.backends import load_backend

    if not model.trained and not getattr(args, "json", False):
        LOGGER.warning("%s has random weights: it generates noise, not speech. Give --bundle or --checkpoints for a "
                       "trained model.", model.name)
    model = with_packages(model, args.backend, console)
    backend = load_backend(args.backend, model, args.precision, args.threads, keep, cache=args.cache,
                           compute_units=args.compute_units)
    return model.family.synthesizer(model, backend)
