"""`ane classify`: was this clip made by Tortoise?"""

import argparse
import json

from ane.bundles import add_model_arguments, open_model
from ane.commands import arguments
from ane.commands.messages import notice, output_console

SAMPLES = 220000        # at 24 kHz: what upstream classifies (tortoise/is_this_from_tortoise.py)
RATE = 24000


def register(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "classify", help="estimate whether a clip was made by Tortoise",
        description="Estimate the probability that Tortoise made a clip, with upstream's classifier. "
                    "It was trained on upstream's own output and does not recognise other systems.")
    parser.add_argument("clip", type=arguments.path, metavar="FILE", help="sound file: wav, flac, mp3 or ogg")
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=classify)


def classify(args: argparse.Namespace) -> int:
    import numpy as np

    from ane.audio import read_clip, resample
    from ane.backends import load_backend

    model = open_model(args.bundle, args.checkpoints)
    model.require("classifier")
    audio, rate = read_clip(args.clip)
    audio = resample(audio, rate, RATE)[:SAMPLES]
    backend = load_backend("torch", model, notice=notice)
    logits = backend.run("classifier", audio=audio[None, None].astype(np.float32))[0]
    probability = float(1 / (1 + np.exp(logits[1] - logits[0])))
    if args.json:
        print(json.dumps({"file": str(args.clip), "probability": probability}))
    else:
        output_console().print(f"{args.clip}: {probability:.1%} likely to have been made by Tortoise")
    return 0
