"""Give the training programs the same flags, log, and answers to errors and to Ctrl-C."""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import torch

from ane.system.errors import UserError


class TrainingProgram(argparse.ArgumentParser):
    """The flags that all training programs have. A program adds its own flags.

    Args:
        module: Dotted name after ``python -m``.
        description: Docstring of the module, which ``--help`` prints.
        config: Default of ``--config``: a file, or the folder of a recipe.
        minutes: Help of ``--minutes``.
    """

    def __init__(self, module: str, description: str | None, config: Path, minutes: str):
        super().__init__(
            prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add, kind = self.add_argument, "FILE" if config.suffix else "DIR"
        add("-o", "--output", type=Path, required=True, metavar="DIR", help="folder of the run")
        add("--config", type=Path, default=config, metavar=kind, help="what to train, and how (%(default)s)")
        add("--minutes", type=float, metavar="N", help=minutes)
        add("--threads", type=int, metavar="N", help="number of threads that torch uses (default: torch's choice)")

    def add_wordnet(self) -> None:
        """Add ``--wordnet``, for a program that writes texts."""
        self.add_argument(
            "--wordnet",
            type=Path,
            default=Path("/usr/share/wordnet"),
            metavar="DIR",
            help="folder with WordNet's data files (%(default)s, from Debian's package wordnet-base)",
        )

    def run(self, work: Callable[[argparse.Namespace], object], arguments: list[str] | None) -> int:
        """Read the flags, do the work, and return 0. A UserError or Ctrl-C ends the process with one line."""
        options = self.parse_args(arguments)
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
        if options.threads:
            torch.set_num_threads(options.threads)
        try:
            work(options)
        except UserError as error:
            self.exit(1, f"error: {error}\n")
        except KeyboardInterrupt:
            self.exit(130, "interrupted: the same command continues where this one stopped\n")
        return 0
