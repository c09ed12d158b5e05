"""Describe the inputs, outputs and states of packages, and the embeddings that a package's host must look up.

The host is the program that calls the package.
"""

import csv
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

# Every line of this table describes an input, output or state: its axes in order, and its meaning. An axis name stands
# for the same length throughout a function. A number is a fixed length. "a + b" means a positions, followed by b more.
VALUES = Path(__file__).with_name("values.tsv")

# network → where a host finds the rows of the network's embedding tables, which no package contains
EMBEDDINGS = {
    "autoregressive": "Rows of parameters in the bundle's weights/autoregressive.safetensors. The columns of a prefix "
    "are the voice's latent, text_embedding.weight[token] + text_pos_embedding.emb.weight[i] for the start token, "
    "the tokens and the stop token, and mel_embedding.weight[start code] + mel_pos_embedding.emb.weight[0]. The "
    "column of code i, counted from 0, is mel_embedding.weight[code] + mel_pos_embedding.emb.weight[i + 1].",
    "decoder": "Rows of parameters in the bundle's weights/decoder.safetensors: token_embedding.weight[token] + "
    "positional_embedding[i].",
    "clvp": "Rows of the parameters text_emb.weight and speech_emb.weight in the bundle's weights/clvp.safetensors.",
    "hibari": "Rows of the parameters pn.text.emb.weight and m.text.emb.weight, side by side, in the bundle's "
    "weights/hibari.safetensors.",
    "fastspeech": "Rows of the parameter word_emb.weight in the bundle's weights/fastspeech.safetensors.",
}


def describe(target: str, kind: str, name: str) -> str:
    """Return the axes and the meaning of an input, output or state, or "" if the table does not describe it.

    Args:
        target: Format of the package: "coreml" or "onnx".
        kind: Kind of the function, as in ``converters.function_table.Function``.
        name: Name of the input, output or state, such as "keys_3" for layer 3.
    """
    axes, meaning = descriptions().get((target, kind, re.sub(r"_\d+$", "", name)), ("", ""))
    return f"({axes}) {meaning}" if axes else ""


@cache
def descriptions() -> dict[tuple[str, str, str], tuple[str, str]]:
    """Read the table of descriptions: pairs (axes, meaning) by (format, kind of function, name)."""
    with VALUES.open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {
        (row["format"], kind, row["name"]): (row["axes"], row["meaning"])
        for row in rows
        for kind in row["kinds of functions"].split()
    }


def notes(target: str, network: str, kinds: Iterable[str]) -> dict[str, str]:
    """Return texts that explain a package's masks and embeddings, by the keys for the package's metadata."""
    axes = {kind: descriptions().get((target, kind, "mask"), ("", ""))[0] for kind in kinds}
    entries = {
        "mask": ". ".join(f"Axes of the mask of {kind}: {order}" for kind, order in axes.items() if "+" in order),
        "embeddings": EMBEDDINGS.get(network, ""),
    }
    return {key: text for key, text in entries.items() if text}
