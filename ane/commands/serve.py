"""`ane serve`: a server that speaks for many programs: OpenAI's API, a WebSocket, Wyoming."""

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
# Compiled kernels that oneDNN keeps (ane.cli): texts of all lengths come in turn. With 64 a FastSpeech request took 1.5
# times as long, because most kernels were compiled again; 1024 took no less time than 256.
KERNELS = 256
EXAMPLES = """
examples:
  ane serve                                    speak with the embedded voice, on this machine only
  ane serve --models heart,demo --preload heart
  ane serve --models demo --map-voice alloy=heart --wyoming-port 10200
  ANE_TOKEN=secret ane serve --host 0.0.0.0    for other machines
"""
INSTALL = "ane serve needs more packages: pip install '.[server]'"


def register(commands: argparse._SubParsersAction) -> None:
    from ane.backends import NAMES

    parser = commands.add_parser(
        "serve",
        help="speak for other programs, as OpenAI's API does",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Start a server with OpenAI's speech API, a WebSocket for text that is being written, and the "
        "Wyoming protocol. It ends on Ctrl-C or SIGTERM, when the requests that run have ended.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", type=port, default=8880, metavar="N", help="0: any free one (default: 8880)")
    parser.add_argument("--wyoming-port", type=port, metavar="N", help="also serve Wyoming, for Home Assistant")
    parser.add_argument(
        "--wyoming-host",
        default="",
        metavar="H",
        help="address for Wyoming, which has no token (default: that of --host)",
    )
    parser.add_argument(
        "--models",
        type=names,
        default=(DEFAULT_BUNDLE,),
        metavar="A,B",
        help=f"bundles to speak with; the first is the one for OpenAI's model names (default: {DEFAULT_BUNDLE})",
    )
    parser.add_argument("--transcriber", default="", metavar="NAME", help="Whisper bundle for transcriptions")
    parser.add_argument(
        "--map-voice",
        dest="voices",
        action="append",
        default=[],
        type=voice_mapping,
        metavar="NAME=VOICE",
        help="what a client's voice name means; may be repeated",
    )
    parser.add_argument(
        "--token",
        default=os.environ.get(TOKEN_VARIABLE, ""),
        metavar="T",
        help=f"what clients must send as bearer token (default: ${TOKEN_VARIABLE}, which other users "
        "of the machine do not see)",
    )
    parser.add_argument("--preload", type=names, default=(), metavar="A,B", help="models to load at the start")
    add = rare_group(parser, "what clients may do").add_argument
    add("--add-voices", action="store_true", help="let clients make voices of clips")
    add("--ignore-instructions", action="store_true", help="ignore instructions; without it they are refused")
    add(
        "--cors",
        dest="origins",
        type=names,
        default=(),
        metavar="URL,URL",
        help="origins of web pages that may use the server, such as http://localhost:3000 (default: none)",
    )
    add(
        "--hosts",
        type=host_names,
        default=(),
        metavar="NAME,NAME",
        help="names by which a proxy in front of the server is called, such as tts.example (default: none)",
    )
    add(
        "--base-path",
        default="",
        metavar="PATH",
        help="path under which a proxy serves the server, such as /tts (default: none)",
    )
    add("--log-texts", action="store_true", help="write the texts to the log")
    add = rare_group(parser, "models").add_argument
    add("--backend", default="auto", metavar="NAME", help=f"{', '.join(NAMES)} (default: auto)")
    add("--precision", default="auto", metavar="P", help="of the backend, as of `ane say` (default: auto)")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: the backend's choice)")
    add(
        "--calls",
        type=positive,
        metavar="N",
        help="network calls at a time on the CPU, which share its threads (default: 2)",
    )
    add(
        "--lanes",
        type=positive,
        default=16,
        metavar="N",
        help="candidates sampled at a time, over all requests (default: 16)",
    )
    add(
        "--memory",
        type=gigabytes,
        metavar="GB",
        help="size of loaded bundles at most; the least recently used is released (default: no limit)",
    )
    add("--idle-release", type=seconds, metavar="S", help="release a model that was not used for S seconds")
    add_limits(parser)
    parser.add_argument("--help-all", action=FullHelpAction, help="show all options, by group, and exit")
    parser.set_defaults(handler=serve, kernels=KERNELS)


def add_limits(parser: argparse.ArgumentParser) -> None:
    from ane.server.settings import Limits

    add = rare_group(parser, "limits", "Each is a maximum.").add_argument
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


def host_names(text: str) -> tuple[str, ...]:
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
    """Raises UserError for a value out of range, or a server that anybody could use."""
    from ane.server.guard import is_loopback
    from ane.server.settings import Limits, ServerSettings

    if not is_loopback(args.host) and not args.token:
        raise UserError(f"other machines reach {args.host}: add --token, or set {TOKEN_VARIABLE}")
    limits = {
        name: value * MEBIBYTE if limit.json_schema_extra == {"metavar": "MB"} else value
        for name, limit in Limits.__pydantic_fields__.items()  # type: ignore[attr-defined]
        if (value := getattr(args, name, None)) is not None
    }
    given = {field.name: getattr(args, field.name) for field in fields(ServerSettings) if hasattr(args, field.name)}
    return ServerSettings(
        **given
        | {
            "voices": dict(args.voices),
            "memory": None if args.memory is None else round(args.memory * 1e9),
            "limits": Limits(**limits),
        }
    )


def announce(address: str, settings: "ServerSettings") -> None:
    models = ", ".join(settings.models)
    sys.stdout.write(
        f"listening on {address} (models: {models}); a page to try it: {address}/, the API: {address}/docs\n"
    )
    sys.stdout.flush()
