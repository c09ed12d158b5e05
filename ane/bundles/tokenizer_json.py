"""Read a tokenizer.json of Hugging Face ``tokenizers``."""

import json
from pathlib import Path

from ane.system.errors import UserError, system_errors
from ane.system.file_gate import read_regular
from ane.system.files import MAX_JSON


def read_tokenizer(path: Path) -> str:
    """Read the JSON of a tokenizer as text. Drop settings for padding and truncation, which could ask for any length.

    Raises:
        UserError: The file is not a tokenizer.json, or has a Precompiled normaliser. If its tables are damaged, the
            library ends the process.
    """
    try:
        with system_errors(f"cannot read {path}"):
            text = read_regular(path, MAX_JSON).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 (byte {error.start}): import or copy it again") from error
    try:
        content = json.loads(text)
        known = isinstance(content["model"]["vocab"], dict)
    except (KeyError, TypeError, ValueError, RecursionError):
        known = False
    if not known:
        raise UserError(f"{path} is not a tokenizer.json of Hugging Face tokenizers (no model.vocab in it)")
    if '"Precompiled"' in json.dumps(content.get("normalizer")):
        raise UserError(
            f"{path} has a Precompiled normaliser, which no model of this version uses: take the tokenizer.json "
            "that came with the model"
        )
    lengths = {"padding": None, "truncation": None}
    return text if content == content | lengths else json.dumps(content | lengths)
