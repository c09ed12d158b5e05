"""Reading .pth files without running code in them."""

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from ane.system.errors import UserError

ZIP_MAGIC = b"PK\x03\x04"       # torch.save since 1.6
PICKLE_MAGIC = b"\x80"          # torch.save before that
OTHER_FILES = {
    b"version https://git-lfs": "is a Git LFS pointer, not the file itself: run `git lfs pull`, or download the file",
    b"<": "is a web page, not a checkpoint: the download went to an error or login page; download it again",
}


def load_pickle(path: Path | str) -> Any:
    """Load what ``torch.save`` wrote, tensors on the CPU, memory-mapped when the file's format allows it.

    Only tensors and plain containers are created (``weights_only=True``): a file that refers to anything else is
    refused before that code can run.

    Raises:
        UserError: no such file, not a checkpoint, truncated, or refused because it contains code.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    _check_format(path, head)
    zipped = head.startswith(ZIP_MAGIC)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")     # advice about protocols and storages that the user cannot act on
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise UserError(_refusal(path, str(error))) from error
    except Exception as error:      # a damaged file can raise any exception
        raise UserError(f"{path} cannot be read as a PyTorch checkpoint: it is truncated or damaged; "
                        "get the file again") from error


def _check_format(path: Path, head: bytes) -> None:
    if not head:
        raise UserError(f"{path} is empty; get the file again")
    for start, fault in OTHER_FILES.items():
        if head.lstrip().startswith(start):
            raise UserError(f"{path} {fault}")
    if not head.startswith((ZIP_MAGIC, PICKLE_MAGIC)):
        raise UserError(f"{path} is not a PyTorch checkpoint")


def _refusal(path: Path, message: str) -> str:
    """One line in place of torch's advice on how to run the code anyway."""
    code = re.search(r"GLOBAL (\S+)", message)
    if code:
        return (f"{path} refused: contains code ({code[1]}) in place of weights; "
                "do not load it elsewhere either unless you trust its author")
    return f"{path} is not a PyTorch checkpoint (or is a damaged one); get the file again"
