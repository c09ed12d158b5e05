"""Checks of network config values that are read from bundle.json or a config.json."""

import math
from typing import Any

from ane.bundles.family import Config
from ane.models.tortoise.diffusion import PREDICTIONS
from ane.system.errors import UserError

# Width that attention splits evenly among heads, and number of heads; the shapes of the state dict do not depend on it.
HEADS = {
    "autoregressive": ("model_dim", "heads"),
    "conditioning_encoder": ("model_dim", "heads"),
    "diffusion": ("model_channels", "num_heads"),
    "contextual_embedder": ("model_channels", "num_heads"),
    "cvvp": ("model_dim", "transformer_heads"),
    "classifier": ("embedding_dim", "num_attn_heads"),
}

# Config values that are ids: of text tokens, and of codes.
TEXT_TOKENS = ("start_text_token", "stop_text_token")
CODES = ("start_mel_token", "stop_mel_token", "calm_token", "tail_tokens")


def check_value(name: str, value: Any, official: Any, where: str) -> None:
    """Raise UserError unless the JSON ``value`` has the type of the ``official`` value.

    Counts are positive integers, ids integers (``check_config`` checks their range), lists represent tuples.
    ``where`` begins the message.
    """
    if name == "alignment_heads":        # ``check_config`` knows which there are
        if not isinstance(value, list | tuple) or not all(_same_kind(triple, (0, 0, 0), None) and len(triple) == 3
                                                          for triple in value):
            raise UserError(f"{where}: {name} must be a list of [layer, head, delay], not {_as_json(value)}")
        return
    minimum = None if name in (*TEXT_TOKENS, *CODES) else 1
    if not _same_kind(value, official, minimum):
        raise UserError(f"{where}: {name} must be like {_as_json(official)}, not {_as_json(value)}")


def check_config(network: str, config: Config, where: str) -> None:
    """Raise UserError for values of the right type that do not describe a network.

    Heads that do not divide their width, ids beyond their table, an unknown prediction.
    """
    if network in HEADS:
        width, heads = (getattr(config, name) for name in HEADS[network])
        if width % heads:
            raise UserError(f"{where}: {HEADS[network][0]} {width} cannot be split among {heads} {HEADS[network][1]}")
    if network == "autoregressive":
        _check_ids(config, TEXT_TOKENS, config.number_text_tokens, where)
        _check_ids(config, CODES, config.number_mel_codes - 1, where)
        for layer, head, _ in config.alignment_heads:
            if not (0 <= layer < config.layers and 0 <= head < config.heads):
                raise UserError(f"{where}: alignment_heads names head {head} of layer {layer}, which the decoder lacks")
    if network == "diffusion" and config.prediction not in PREDICTIONS:
        raise UserError(f"{where}: prediction {config.prediction!r} is none of {', '.join(PREDICTIONS)}")


def _check_ids(config: Config, names: tuple[str, ...], highest: int, where: str) -> None:
    for name in names:
        value = getattr(config, name)
        for token in value if isinstance(value, tuple) else (value,):
            if not 0 <= token <= highest:
                raise UserError(f"{where}: {name} {_as_json(value)} is beyond the decoder's table: 0 to {highest}")


def _same_kind(value: Any, official: Any, minimum: int | None) -> bool:
    if isinstance(official, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(official, bool)
    if isinstance(official, int):
        return isinstance(value, int) and (minimum is None or value >= minimum)
    if isinstance(official, float):
        return isinstance(value, int | float) and math.isfinite(value)
    if isinstance(official, tuple | list):
        return (isinstance(value, tuple | list) and len(value) > 0
                and all(_same_kind(item, official[0], minimum) for item in value))
    return official is None or isinstance(value, type(official))


def _as_json(value: Any) -> str:
    return repr(list(value)) if isinstance(value, tuple) else repr(value)
