"""Reading .pth files without running code in them, in memory that grows with the file alone."""

import mmap
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ane.bundles.entries import SHOWN, summarise_keys
from ane.bundles.weights import shape_text
from ane.system.errors import UserError
from ane.system.files import zip_directory

ZIP_MAGIC = b"PK\x03\x04"       # torch.save since 1.6
PICKLE_MAGIC = b"\x80"          # torch.save before that
MAX_ENTRIES = 100_000           # tensors of a file; Tortoise's decoder has 400
MAX_SHARED = 8                  # by which tensors that share memory may exceed it: weights are tied in pairs
SMALL = 64 << 20                # bytes that they may claim in any case: masks are stored as one number, repeated
ZEROS = re.compile(rb"c(?:builtins|__builtin__)\nbytearray\n")      # allowed by torch; allocates what is stated
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
        if zipped:
            _check_zip(path)
        else:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _check_zeros(path, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")     # advice about protocols and storages that the user cannot act on
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
        _check_shapes(path, content)
        return content
    except pickle.UnpicklingError as error:
        raise UserError(_refusal(path, str(error))) from error
    except UserError:
        raise
    except Exception as error:      # a damaged file can raise any exception
        raise UserError(f"{path} cannot be read as a PyTorch checkpoint: it is truncated or damaged; "
                        "get the file again") from error


def unknown_checkpoint(path: Path) -> UserError:
    """The error for a file that no model recognises, with what it holds. Raises UserError when it is damaged."""
    content = load_pickle(path)
    if isinstance(content, Mapping) and "optimizers" in content:
        return UserError(f"{path} is the state of a trainer, whose weights are in another file: give that, such as the "
                         "N_gpt.pth that it wrote")
    found = summarise_keys(map(str, content), SHOWN) if isinstance(content, Mapping) else type(content).__name__
    return UserError(f"{path} is a checkpoint of no model that this version knows: it holds {found or 'nothing'}; "
                     "FastSpeech's has word_emb.weight, Whisper's dims and model_state_dict; for Tortoise give the "
                     "directory of its .pth files, or a file with a whole network, such as a fine-tuned decoder, with "
                     "base=NAME for the others")


def _check_zip(path: Path) -> None:
    """Raise UserError for an archive that would be larger in memory than on disk: torch.save compresses nothing."""
    with path.open("rb") as file:
        entries, size = zip_directory(file)
    if entries > MAX_ENTRIES or size > path.stat().st_size:
        raise UserError(f"{path} states {entries} entries, more than a PyTorch checkpoint has; get the file again")
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts) or (
                sum(part.file_size for part in parts) > path.stat().st_size):
            raise UserError(f"{path} is compressed, which no PyTorch checkpoint is: unpack it if it is an archive of "
                            "one, or get the file again")
        for part in parts:
            if part.filename.endswith(".pkl"):
                _check_zeros(path, archive.read(part))


def _check_zeros(path: Path, data: bytes | mmap.mmap) -> None:
    if ZEROS.search(data):
        raise UserError(_refusal(path, "GLOBAL builtins.bytearray"))


def _check_shapes(path: Path, content: Any) -> None:
    """Raise UserError when tensors claim more than is stored for them: a copy of one would fill the memory."""
    claimed, stored = 0, dict[int, int]()
    for name, tensor in _tensors_in(content):
        if tensor.layout == torch.strided and tensor.device.type == "cpu":      # whoever uses another one refuses it
            storage = tensor.untyped_storage()
            stored[storage.data_ptr()] = storage.nbytes()
            claimed += tensor.numel() * tensor.element_size()
            if claimed > max(SMALL, MAX_SHARED * sum(stored.values())):
                raise UserError(f"{path}: {name} claims the shape {shape_text(tuple(tensor.shape))}, more than is "
                                "stored for it; the file is damaged")


def _tensors_in(content: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested containers, with its key. What is contained twice is looked at once."""
    waiting, seen = [("it", content)], set[int]()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping | list | tuple | set) and id(value) not in seen:
            seen.add(id(value))
            waiting += ([(str(key)[:200], item) for key, item in value.items()] if isinstance(value, Mapping)
                        else [(f"{name}[{number}]", item) for number, item in enumerate(value)])


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
