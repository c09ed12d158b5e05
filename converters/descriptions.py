"""Describe all inputs, outputs and states of packages, and the rows that their host looks up."""

import csv
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

# A line has a value's axes in order, and its meaning. An axis name stands for one length throughout a function, "+"
# joins parts in their order on the axis, and a number is a fixed length.
VALUES = Path(__file__).with_name("values.tsv")

# network → where to find the rows of its embeddings, which no package contains
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
    """Return the axes and the meaning of an input, output or state, such as ``keys_3``, or "" without a description.

    Args:
        target: Format of the package: "coreml" or "onnx".
        kind: Kind of the function, as in ``converters.function_table.Function``.
        name: Name of the input, output or state.
    """
    axes, meaning = descriptions().get((target, kind, re.sub(r"_\d+$", "", name)), ("", ""))
    return f"({axes}) {meaning}" if axes else ""


@cache
def descriptions() -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return axes and meaning by format, kind of function and name."""
    with VALUES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {
        (row["format"], kind, row["name"]): (row["axes"], row["meaning"])
        for row in rows
        for kind in row["kinds of functions"].split()
    }


def notes(target: str, network: str, kinds: Iterable[str]) -> dict[str, str]:
    """Return the entries of a package's metadata that explain its network and its kinds of functions."""
    axes = {kind: descriptions().get((target, kind, "mask"), ("", ""))[0] for kind in kinds}
    entries = {
        "mask": ". ".join(f"Axes of the mask of {kind}: {order}" for kind, order in axes.items() if "+" in order),
        "embeddings": EMBEDDINGS.get(network, ""),
    }
    return {key: text for key, text in entries.items() if text}
