"""``ane convert --to gguf`` and ``--to ggml``: write a model as files for programs that use ggml."""

import argparse
from importlib.util import find_spec

from ane.bundles import Model
from ane.commands.messages import message_console, report_console
from ane.commands.progress import status_display
from ane.commands.voices import resolve_for_model
from ane.system.errors import UserError

GGUF_PRECISIONS = ("f16", "f32", "q8_0", "q4_0")


def write_gguf_file(args: argparse.Namespace, model: Model) -> int:
    """Write one GGUF file and print the number of its tensors by type."""
    given = args.precision if args.precision is not None else ["f16"]
    if len(given) != 1:
        raise UserError(f"--precision {','.join(given)}: a GGUF file has one; give {', '.join(GGUF_PRECISIONS)}")
    precision, = given
    if precision not in GGUF_PRECISIONS:
        raise UserError(f"--precision of a GGUF file must be {' or '.join(GGUF_PRECISIONS)}, got {precision}")
    if find_spec("gguf") is None:
        raise UserError("GGUF files are written with the gguf package: pip install 'tortoise-ane[gguf]'")
    from converters.gguf import write_gguf

    with status_display(message_console(args), "writing") as show:
        entries = write_gguf(model, args.output, precision, args.networks, args.overwrite, progress=show)
    types = [entry.type.name.lower() for entry in entries]
    counted = ", ".join(f"{types.count(kind)} {kind}" for kind in dict.fromkeys(sorted(types)))
    size = args.output.stat().st_size / 1e6
    report_console(args).print(f"Wrote {args.output}: {len(entries)} tensors ({counted}), {size:.1f} MB.")
    return 0


def write_ggml_files(args: argparse.Namespace, model: Model) -> int:
    """Write the files that tortoise.cpp reads and print how to start it."""
    from converters.tortoise_cpp import FILES, VOICE, check_size, write_ggml

    for network in FILES:       # before clips are encoded, which takes a while
        check_size(model, network)
    voice = resolve_for_model(args.voice or model.default_voice, model)
    with status_display(message_console(args), "writing") as show:
        paths = write_ggml(model, voice, args.output, args.overwrite, progress=show)
    console = report_console(args)
    for path in paths:
        console.print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    console.print(f"tortoise.cpp looks for them in ../models; start it there with --voice ../models/{VOICE}")
    return 0
