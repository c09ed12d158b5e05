"""Run `ane serve`: a speech server with OpenAI's API, a WebSocket and the Wyoming protocol."""

import argparse
import os
import sys
from dataclasses import fields
from typing import TYPE_CHECKING

from ane.bundles.opening import DEFAULT_BUNDLE
from ane.commands.arguments import FullHelpAction, comma_separated, gigabytes, port, positive, rare_group, seconds
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.server.settings import ServerSettings

TOKEN_VARIABLE = "ANE_TOKEN"
MEBIBYTE = 1 << 20
# Number of compiled kernels that oneDNN keeps (see ane.cli), because requests have many lengths. With 64 kernels, a
# FastSpeech request took 1.5 times as long, because oneDNN compiled most kernels again. 1024 kernels saved no more time
# than 256.
KERNELS = 256
EXAMPLES = """
examples:
  ane serve                                    speak with the embedded voice, for this machine only
  ane serve --models heart,demo --preload heart
  ane serve --models demo --map-voice alloy=heart --wyoming-port 10200
  ANE_TOKEN=secret ane serve --host 0.0.0.0    let other machines use it
"""
INSTALL = "ane serve needs more packages: pip install '.[server]'"


def register(commands: argparse._SubParsersAction) -> None:
    from ane.backends import NAMES

    parser = commands.add_parser(
        "serve",
        help="start a speech server with OpenAI's API",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Start a server with OpenAI's speech API, a WebSocket for text that is still being written, and\n"
        "the Wyoming protocol. On Ctrl-C or SIGTERM, it finishes the requests that are running, then stops.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--port", type=port, default=8880, metavar="N", help="port to listen on, or 0 for any free port (default: 8880)"
    )
    parser.add_argument("--wyoming-port", type=port, metavar="N", help="also serve Wyoming, for Home Assistant")
    parser.add_argument(
        "--wyoming-host",
        default="",
        metavar="H",
        help="address to listen on for Wyoming, which has no token (default: the address of --host)",
    )
    parser.add_argument(
        "--models",
        type=names,
        default=(DEFAULT_BUNDLE,),
        metavar="A,B",
        help="bundles to speak with. If a request names one of OpenAI's models, the first bundle answers "
        f"(default: {DEFAULT_BUNDLE})",
    )
    parser.add_argument(
        "--transcriber", default="", metavar="NAME", help="Whisper bundle that transcribes recordings (default: none)"
    )
    parser.add_argument(
        "--map-voice",
        dest="voices",
        action="append",
        default=[],
        type=voice_mapping,
        metavar="NAME=VOICE",
        help="speak with VOICE when a client asks for NAME. May be given more than once",
    )
    parser.add_argument(
        "--token",
        default=os.environ.get(TOKEN_VARIABLE, ""),
        metavar="T",
        help="bearer token that clients must send. Other users of the machine can see it in the list of processes, but "
        f"not in ${TOKEN_VARIABLE} (default: ${TOKEN_VARIABLE})",
    )
    parser.add_argument("--preload", type=names, default=(), metavar="A,B", help="bundles to load at the start")
    add = rare_group(parser, "rights of clients").add_argument
    add("--add-voices", action="store_true", help="let clients make voices from clips, and delete these voices")
    add("--ignore-instructions", action="store_true", help="ignore 'instructions' in requests (default: an error)")
    add(
        "--cors",
        dest="origins",
        type=lower_names,
        default=(),
        metavar="URL,URL",
        help="origins of web pages that may use the server, such as http://localhost:3000 (default: none)",
    )
    add(
        "--hosts",
        type=lower_names,
        default=(),
        metavar="NAME,NAME",
        help="host names of a proxy in front of the server, such as tts.example (default: none)",
    )
    add(
        "--base-path",
        default="",
        metavar="PATH",
        help="path under which a proxy serves this server, such as /tts (default: none)",
    )
    add("--log-texts", action="store_true", help="write the texts of requests to the log")
    add = rare_group(parser, "models").add_argument
    add(
        "--backend",
        default="auto",
        metavar="NAME",
        help=f"engine that runs the networks: {', '.join(NAMES)} (default: auto, the best available)",
    )
    add(
        "--precision", default="auto", metavar="P", help="number format to compute in, as for `ane say` (default: auto)"
    )
    add("--threads", type=positive, metavar="N", help="CPU threads (default: the backend's choice)")
    add(
        "--calls",
        type=positive,
        metavar="N",
        help="network calls that run at the same time on the CPU and share its threads (default: 2)",
    )
    add(
        "--lanes",
        type=positive,
        default=16,
        metavar="N",
        help="candidates to sample at the same time, over all requests (default: 16)",
    )
    add(
        "--memory",
        type=gigabytes,
        metavar="GB",
        help="maximum GB of loaded bundles. The least recently used bundle is unloaded first (default: no limit)",
    )
    add(
        "--idle-release",
        type=seconds,
        metavar="S",
        help="unload a model that nobody has used for S seconds (default: never)",
    )
    add_limits(parser)
    parser.add_argument("--help-all", action=FullHelpAction, help="show all options, by group, and exit")
    parser.set_defaults(handler=serve, kernels=KERNELS)


def add_limits(parser: argparse.ArgumentParser) -> None:
    from ane.server.settings import Limits

    add = rare_group(parser, "limits", "Maximums that the server enforces.").add_argument
    for name, limit in Limits.__pydantic_fields__.items():  # type: ignore[attr-defined]
        if limit.description:
            unit = limit.json_schema_extra["metavar"]
            shown = limit.default / MEBIBYTE if unit == "MB" else limit.default
            add(
                f"--{name.replace('_', '-')}",
                type=positive if limit.annotation is int else seconds,
                metavar=unit,
                help=f"{limit.description} (default: {shown:g})",
            )


def names(text: str) -> tuple[str, ...]:
    return tuple(comma_separated(text))


def lower_names(text: str) -> tuple[str, ...]:
    return tuple(name.lower() for name in comma_separated(text))


def voice_mapping(text: str) -> tuple[str, str]:
    name, sign, voice = text.partition("=")
    if not (name and sign and voice):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VOICE")
    return name, voice


def serve(args: argparse.Namespace) -> int:
    try:
        from ane.server.lifecycle import run_server
        from ane.server.served_models import check_models
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("ane"):
            raise
        raise UserError(INSTALL) from missing
    settings = read_server_settings(args)
    check_models(settings)
    run_server(settings, lambda address: announce(address, settings))
    return 0


def read_server_settings(args: argparse.Namespace) -> "ServerSettings":
    """Make the server's settings from the flags.

    Raises:
        UserError: A value is out of range, or other machines could use the server without a token.
    """
    from ane.server.guard import is_loopback
    from ane.server.settings import Limits, ServerSettings

    if not is_loopback(args.host) and not args.token:
        raise UserError(f"other machines can reach {args.host}: add --token, or set {TOKEN_VARIABLE}")
    limits = {
        name: value * MEBIBYTE if limit.json_schema_extra == {"metavar": "MB"} else value
        for name, limit in Limits.__pydantic_fields__.items()  # type: ignore[attr-defined]
        if (value := getattr(args, name, None)) is not None
    }
    flags = {field.name: getattr(args, field.name) for field in fields(ServerSettings) if hasattr(args, field.name)}
    return ServerSettings(
        **flags
        | {
            "voices": dict(args.voices),
            "memory": None if args.memory is None else round(args.memory * 1e9),
            "limits": Limits(**limits),
        }
    )


def announce(address: str, settings: "ServerSettings") -> None:
    models = ", ".join(settings.models)
    path = address + settings.base_path
    sys.stdout.write(
        f"listening on {address} (models: {models}). Try it at {path}/. The API is described at {path}/docs\n"
    )
    sys.stdout.flush()
