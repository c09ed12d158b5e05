"""This package as a process that speaks on request: what sentence, stream and scale start, and time.

    python -m benchmarks.speaking --checkpoints DIR --precision bf16 --threads 1 < requests > readings

A request is {"text", "flags", "seed", "stream"}: flags are those of `ane say` that shape speech. Its reading is
{"took", "seconds", "codes", "chunks", "first_audio", "stages"}: seconds of work, of audio, codes sampled in all
candidates, seconds from when the text is known until the first sound, and seconds of each stage. The voice is the
model's own, or random latents where it has none. Networks come when their step does, as in `ane say TEXT`, but for a
stream they are there before its text is, as in `ane say -f -`, and with --ready-for before all. Requests and readings
are JSON, one a line; a line {"ready": ..} comes first.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.process import Process
from benchmarks.upstream import one_count

if TYPE_CHECKING:
    from ane.bundles import Model
    from ane.models.tortoise.settings import Settings
    from ane.models.tortoise.synthesizer import Synthesizer
    from ane.voices import Voice

SENTENCES = (       # 60 to 70 characters each, a chunk: some four to five seconds of speech
    "The train to the old harbour leaves at nine and comes back at noon.",
    "She put the letter into the drawer and never spoke of it again.",
    "A small boat lay on the sand, its sail torn by the winter storms.",
    "Nobody in the village could remember when the bridge was built.",
    "He counted the steps to the tower twice, and lost his way both times.",
    "In the morning the garden was white, and not a bird was singing.",
)


def text_of(chunks: int) -> str:
    """A text that is spoken in so many chunks."""
    return " | ".join(SENTENCES[index % len(SENTENCES)] for index in range(chunks))     # | is a break that is wanted


def add_speaking_options(parser: argparse.ArgumentParser) -> None:
    """What every benchmark takes that starts such a process, beside the model."""
    parser.add_argument("--precision", default="auto", help="of the engine, as of `ane say` (default auto)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: the engine's choice)")
    parser.add_argument("--max-codes", type=int, default=108, help="codes a chunk at most (default 108: 5 s)")


def model_flags(options: argparse.Namespace) -> list[str]:
    """--bundle or --checkpoints again, or nothing for the demo."""
    if options.bundle:
        return ["--bundle", str(options.bundle)]
    return ["--checkpoints", str(options.checkpoints)] if options.checkpoints else []


def model_name(options: argparse.Namespace) -> str:
    """The model for people: the last part of its path."""
    return Path(options.bundle or options.checkpoints or "demo").name


class Speaking(Process):
    """This package in a process of its own. Use as a context manager.

    Args:
        model: --bundle NAME or --checkpoints DIR, or nothing for the demo.
        keep: networks stay loaded from one request to the next.
        side_by_side: of ``ane.models.tortoise.synthesizer.Synthesizer``.
        ready_for: flags of requests that it loads networks for before it is ready; None: networks come with requests.
    """

    name = "the speaking process"

    def __init__(self, model: Sequence[str], precision: str = "auto", threads: int | None = None, keep: bool = False,
                 side_by_side: bool | None = None, ready_for: Sequence[str] | None = None,
                 backend: str = "torch:cpu"):
        """Raises UserError when it does not become ready."""
        command = [sys.executable, "-m", "benchmarks.speaking", *model, "--backend", backend, "--precision", precision]
        command += ["--threads", str(threads)] if threads else []
        command += ["--keep"] if keep else []
        command += [] if side_by_side is None else ["--side-by-side", "yes" if side_by_side else "no"]
        command += [] if ready_for is None else [f"--ready-for={shlex.join(ready_for)}"]
        super().__init__(command, one_count(threads) if threads else {}, "it is this very Python")

    def say(self, text: str, flags: Sequence[str] = (), seed: int = 0, stream: bool = False) -> dict:
        """The reading of a request; see above."""
        return self.ask({"text": text, "flags": list(flags), "seed": seed, "stream": stream})


# In the process of its own

def say(synthesizer: "Synthesizer", voice: "Voice | None", settings: "Settings", request: dict) -> dict:
    if request["stream"]:
        synthesizer.prepare(voice, settings)
        speech = synthesizer.stream(request["text"], voice, seed=request["seed"], settings=settings)
        with closing(speech):
            for _ in speech:
                pass
    else:
        speech = synthesizer.speak(request["text"], voice, seed=request["seed"], settings=settings)
    timeline = speech.timeline
    return {"took": speech.took - timeline.text_ready * request["stream"], "seconds": speech.seconds, "codes": speech.codes,
            "chunks": len(speech.chunks), "first_audio": timeline.first_sound - timeline.text_ready, "stages": speech.spent}


def voice_of(model: "Model") -> "Voice | None":
    """None for the model's own; random latents where there is none."""
    import numpy as np

    from ane.voices import Voice

    if model.voices is not None:
        return None
    rng = np.random.default_rng(0)
    return Voice(*(rng.standard_normal((1, width), dtype=np.float32) for width in model.widths), name="noise")


def parser() -> argparse.ArgumentParser:
    from ane.bundles import add_model_arguments
    from ane.commands.say import add_backend_arguments

    parser = argparse.ArgumentParser(prog="python -m benchmarks.speaking", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add_backend_arguments(parser)
    parser.add_argument("--keep", action="store_true", help="keep networks loaded between requests")
    parser.add_argument("--ready-for", metavar="FLAGS", help="load what requests with these flags need before all")
    parser.add_argument("--side-by-side", choices=("yes", "no"), help="run steps ahead of each other in threads")
    return parser


def settings_of(flags: Sequence[str], lanes: int | None, model: "Model") -> "Settings":
    """What `ane say` makes of the flags."""
    from ane.commands.speech_options import add_settings_arguments, positive, read_settings
    from ane.models.tortoise.settings import default_preset

    parser = argparse.ArgumentParser(prog="request")
    add_settings_arguments(parser)
    parser.add_argument("--lanes", type=positive, default=lanes)
    parser.set_defaults(output=Path("-"), preset=default_preset(model.settings))
    return read_settings(parser.parse_args(flags), model)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    replies, sys.stdout = sys.stdout, sys.stderr        # libraries may print

    from ane.backends import load_backend
    from ane.bundles import open_model
    from ane.models.tortoise.synthesizer import Synthesizer

    model = open_model(options.bundle, options.checkpoints)
    backend = load_backend(options.backend, model, options.precision, options.threads, options.keep or None)
    side_by_side = None if options.side_by_side is None else options.side_by_side == "yes"
    synthesizer, voice = Synthesizer(model, backend, side_by_side), voice_of(model)
    if options.ready_for is not None:
        synthesizer.prepare(voice, settings_of(shlex.split(options.ready_for), options.lanes, model))
    print(json.dumps({"ready": True, "backend": backend.name, "model": model.name}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        settings = settings_of(request["flags"], options.lanes, model)
        print(json.dumps(say(synthesizer, voice, settings, request)), file=replies, flush=True)


if __name__ == "__main__":
    from benchmarks.report import run

    run(main)
