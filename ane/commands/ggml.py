"""``ane convert --to gguf`` and ``--to ggml``: a model in the files of programs that stand on ggml."""

import argparse
from importlib.util import find_spec

from rich.console import Console

from ane.bundles import Model
from ane.commands.voices import resolved
from ane.system.errors import UserError

GGUF_PRECISIONS = ("f16", "f32", "q8_0", "q4_0")


def make_gguf(args: argparse.Namespace, model: Model) -> int:
    """Write one GGUF file and say how many tensors of which type are in it."""
    given = args.precision if args.precision is not None else ["f16"]
    if len(given) != 1:
        raise UserError(f"--precision {','.join(given)}: a GGUF file has one; give {', '.join(GGUF_PRECISIONS)}")
    precision, = given
    if precision not in GGUF_PRECISIONS:
        raise UserError(f"--precision {precision}: of a GGUF file it is {' or '.join(GGUF_PRECISIONS)}")
    if find_spec("gguf") is None:
        raise UserError("GGUF files are written with the gguf package: pip install 'tortoise-ane[gguf]'")
    from converters.ggml.gguf import write_gguf

    console = Console(highlight=False, markup=False)
    with console.status("writing") as status:
        entries = write_gguf(model, args.output, precision, args.networks, args.force, progress=status.update)
    types = [entry.type.name.lower() for entry in entries]
    counted = ", ".join(f"{types.count(kind)} {kind}" for kind in dict.fromkeys(sorted(types)))
    size = args.output.stat().st_size / 1e6
    console.print(f"Wrote {args.output}: {len(entries)} tensors ({counted}), {size:.1f} MB.", soft_wrap=True)
    return 0


def make_ggml(args: argparse.Namespace, model: Model) -> int:
    """Write the files that tortoise.cpp reads and say how it is started."""
    from converters.ggml.tortoise_cpp import FILES, VOICE, check_size, write_ggml

    for network in FILES:       # before a voice is made of clips, which takes a while
        check_size(model, network)
    console = Console(highlight=False, markup=False)
    voice = resolved(args.voice or model.default_voice, model)
    with console.status("writing") as status:
        paths = write_ggml(model, voice, args.output, args.force, progress=status.update)
    for path in paths:
        console.print(f"{path}  {path.stat().st_size / 1e6:.1f} MB", soft_wrap=True)
    console.print(f"tortoise.cpp looks for them in ../models; start it there with --voice ../models/{VOICE}",
                  soft_wrap=True)
    return 0
