"""Read official PyTorch checkpoints: load .pth files safely, match tensor names, fold weight norm and check tensors.

Loading a file runs none of the code in it, and takes memory that grows only with the size of the file.
"""

import difflib
import mmap
import pickle
import re
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ane.system.errors import UserError, system_errors
from ane.system.file_gate import check_regular, open_regular
from ane.system.files import zip_directory

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SHOWN = 6  # largest number of different names in a message
Entries = Mapping[str, torch.Tensor]  # the state dict in a checkpoint


# names of adapters in PEFT, loralib, kohya's scripts and LyCORIS
ADAPTER = re.compile(r"(^|[._ -])(lora|dora|lokr|loha|hada|ia3|oft|boft|vera|adapter)s?([._ -]|$)", re.IGNORECASE)
MERGE = "merge them into the model first (PEFT: merge_and_unload())"  # advice in messages


def is_adapter(key: str) -> bool:
    """Return whether the name of an entry or a file says that it belongs to an adapter, such as a LoRA."""
    return bool(ADAPTER.search(key))


def is_random_state(tensor: torch.Tensor) -> bool:
    """Return whether a tensor may be the state of a random generator, which torch saves as a row of bytes."""
    return tensor.dtype == torch.uint8 and tensor.ndim == 1


def shape_text(shape: tuple[int, ...]) -> str:
    """Format a shape as text: (1024, 80, 1) → "1024×80×1". The shape of a scalar becomes "a single number"."""
    return "×".join(map(str, shape)) or "a single number"


def pattern(key: str) -> str:
    """Replace the layer numbers in a key by N: gpt.h.3.ln_1.weight → gpt.h.N.ln_1.weight."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "N", key)


def summarise_keys(keys: Iterable[str], most: int = sys.maxsize) -> str:
    """Join keys that differ only in numbers.

    List at most ``most`` names: "30 × gpt.h.N.attn.bias, text_head.weight".
    """
    counts = Counter(pattern(key) for key in keys)
    names = [f"{count} × {name}" if count > 1 else name for name, count in counts.items()]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def nearest_surplus(key: str, entries: Iterable[str], needed: Iterable[str]) -> str:
    """Name the keys that are similar to a missing key and that nothing needs: "the file has …". Or return "".

    Args:
        key: The missing key.
        entries: Keys of the file.
        needed: Keys that the networks of the file need, without weight norm. The numbers of layers do not matter.
    """
    known = {pattern(used) for used in needed}
    surplus = {name: entry for entry in entries if pattern(name := folded_key(entry)) not in known}
    near = difflib.get_close_matches(key, surplus, n=3, cutoff=0.75)
    return f"the file has {' and '.join(surplus[name] for name in near)}, which no network needs" if near else ""


def sources(key: str, entries: Entries) -> tuple[str, ...] | None:
    """Return the names of the entries from which to compute the tensor ``key``, or ``None`` if entries are missing.

    Without weight norm, there is one entry, ``key`` itself. With weight norm, the two entries are a gain and a
    direction. torch.nn.utils.weight_norm calls them X.weight_g and X.weight_v, as in the official files.
    torch.nn.utils.parametrizations.weight_norm calls them X.parametrizations.weight.original0 and original1.
    """
    if key in entries:
        return (key,)
    if key.endswith(".weight"):
        parametrized = f"{key.removesuffix('weight')}parametrizations.weight.original"
        for pair in ((f"{key}_g", f"{key}_v"), (f"{parametrized}0", f"{parametrized}1")):
            if all(part in entries for part in pair):
                return pair
    return None


def match_entries(
    shapes: Mapping[str, tuple[int, ...]],
    entries: Entries,
    path: Path,
    why_missing: Callable[[str], str],
    why_misshapen: Callable[[], str],
    prefix: str = "",
) -> dict[str, tuple[str, ...]]:
    """Find the entries of a file from which to compute each tensor of a network (see ``sources``).

    Args:
        shapes: Shapes in the network's state dict, by key.
        entries: Entries of the file.
        path: Path of the file, for messages.
        why_missing: Function that takes the first missing key and returns the end of the message about it.
        why_misshapen: Function that returns the end of the message about a wrong shape.
        prefix: Prefix of the network's keys in the file.

    Returns:
        The names of the entries, by the network's key.

    Raises:
        UserError: An entry is missing, is not a float tensor, or has another shape than the network needs.
    """
    matches = {key: sources(prefix + key, entries) for key in shapes}
    missing = [prefix + key for key, source in matches.items() if source is None]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(f"{path}: key {missing[0]} is missing{more}: {why_missing(missing[0])}")
    for key, source in matches.items():
        shape = shapes[key]
        gain = (shape[:1] + (1,) * (len(shape) - 1),) if len(source) == 2 else ()
        for part, wanted in zip(source, (*gain, shape), strict=True):
            check_entry(part, entries[part], wanted, path, why_misshapen)
    return matches


def assemble(source: tuple[str, ...], entries: Entries) -> torch.Tensor:
    """Make a tensor from the entries that ``sources`` found. Fold weight norm, and convert float64 to float32."""
    if len(source) == 2:
        return fold_weight_norm(*(entries[part] for part in source))
    tensor = entries[source[0]].detach()
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def fold_weight_norm(gain: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Compute the weight w = g · v / ‖v‖ (Salimans and Kingma 2016, arXiv 1602.07868).

    Here g is the gain, v is the direction, and the norm is over all dimensions except the first.
    """
    v = direction.detach().float()
    norm = torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), keepdim=True)
    result = v * (gain.detach().float() / norm)
    return result if direction.dtype == torch.float64 else result.to(direction.dtype)


def folded_key(key: str) -> str:
    """Return the key that a tensor has once weight norm is folded: X.weight_g → X.weight."""
    return re.sub(r"(weight_[gv]|parametrizations\.weight\.original[01])$", "weight", key)


def check_entry(key: str, entry: Any, shape: tuple[int, ...], path: Path, why: Callable[[], str]) -> None:
    """Raise UserError unless an entry is a plain tensor of floats with this shape.

    ``why`` returns the end of the message about a wrong shape.
    """
    if not isinstance(entry, torch.Tensor) or entry.layout != torch.strided or entry.dtype not in FLOATS:
        kind = entry.dtype if isinstance(entry, torch.Tensor) else type(entry).__name__
        raise UserError(f"{path}: {key} is {kind} instead of a plain tensor of floats: is the file a quantised copy?")
    if entry.numel() * entry.element_size() > entry.untyped_storage().nbytes():  # a copy would fill the memory
        raise UserError(
            f"{path}: {key} claims the shape {shape_text(tuple(entry.shape))}, more than is stored for it: "
            "the file is damaged"
        )
    if tuple(entry.shape) != shape:
        raise UserError(
            f"{path}: {key} has shape {shape_text(tuple(entry.shape))}, but the network has {shape_text(shape)}: "
            f"{why()}"
        )


ZIP_MAGIC = b"PK\x03\x04"  # start of files from torch.save since torch 1.6
PICKLE_MAGIC = b"\x80"  # start of files from older versions
MAX_ENTRIES = 100_000  # largest number of tensors in a file (Tortoise's decoder has 400)
MAX_SHARED = 8  # tensors may have at most 8 times as many bytes as the file stores, because some share memory
SMALL = 64 << 20  # tensors may always have this many bytes, because a mask may be stored as one repeated number
ZEROS = re.compile(
    rb"c(?:builtins|__builtin__)\nbytearray\n"
)  # torch would run this code, which allocates as much memory as the file says
OTHER_FILES = {
    b"version https://git-lfs": "is a Git LFS pointer, not the file itself: run `git lfs pull`, or download the file",
    b"<": "is a web page, not a checkpoint: the download reached an error or login page, so download it again",
}


def load_pickle(path: Path | str) -> Any:
    """Load a file that ``torch.save`` wrote.

    The tensors are on the CPU, memory-mapped if the file's format allows this. The function creates only tensors and
    plain containers (``weights_only=True``). If a file refers to other objects, the function rejects the file before
    any code of these objects runs.

    Raises:
        UserError: There is no such file, or the file is not a checkpoint, is truncated, or contains code.
    """
    path = Path(path)
    with system_errors(f"cannot read {path}"), open_regular(path) as file:
        head = file.read(64)
    if not head:
        raise UserError(f"{path} is empty: get the file again")
    for start, fault in OTHER_FILES.items():
        if head.lstrip().startswith(start):
            raise UserError(f"{path} {fault}")
    if not head.startswith((ZIP_MAGIC, PICKLE_MAGIC)):
        raise UserError(f"{path} is not a PyTorch checkpoint")
    zipped = head.startswith(ZIP_MAGIC)
    try:
        if zipped:
            _check_zip(path)
        else:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _check_zeros(path, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hides warnings that do not help the user
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
        _check_shapes(path, content)
        return content
    except pickle.UnpicklingError as error:
        raise UserError(_refusal(path, str(error))) from error
    except UserError:
        raise
    except Exception as error:  # a damaged file can raise any exception
        raise UserError(
            f"{path} cannot be read as a PyTorch checkpoint, because it is truncated or damaged: get the file again"
        ) from error


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file, memory-mapped. Raises UserError if the file is truncated or damaged."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt", device="cpu") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as safetensors ({error}), so it is truncated or damaged: get the file again"
        ) from error


def _check_zip(path: Path) -> None:
    """Raise UserError if an archive is compressed or claims more content than the file has.

    PyTorch never writes such checkpoints.
    """
    with path.open("rb") as file:
        entries, size = zip_directory(file)
    if entries > MAX_ENTRIES or size > path.stat().st_size:
        raise UserError(f"{path} claims {entries} entries, more than a PyTorch checkpoint has: get the file again")
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts) or (
            sum(part.file_size for part in parts) > path.stat().st_size
        ):
            raise UserError(
                f"{path} is compressed, unlike a PyTorch checkpoint: unpack it if it is an archive with one, or get "
                "the file again"
            )
        for part in parts:
            if part.filename.endswith(".pkl"):
                _check_zeros(path, archive.read(part))


def _check_zeros(path: Path, data: bytes | mmap.mmap) -> None:
    if ZEROS.search(data):
        raise UserError(_refusal(path, "GLOBAL builtins.bytearray"))


def _check_shapes(path: Path, content: Any) -> None:
    """Raise UserError if the file stores too few numbers for the shapes of its tensors.

    A copy of such a tensor would have many more numbers, and could fill the memory.
    """
    claimed, stored = 0, dict[int, int]()
    for name, tensor in tensors_in(content):
        if tensor.layout == torch.strided and tensor.device.type == "cpu":  # callers reject all other tensors
            storage = tensor.untyped_storage()
            stored[storage.data_ptr()] = storage.nbytes()
            claimed += tensor.numel() * tensor.element_size()
            if claimed > max(SMALL, MAX_SHARED * sum(stored.values())):
                raise UserError(
                    f"{path}: {name} claims the shape {shape_text(tuple(tensor.shape))}, more than is "
                    "stored for it: the file is damaged"
                )


def tensors_in(content: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Find all tensors in nested containers. Yield a name such as optimizer.state.0.exp_avg, and the tensor.

    A container that occurs twice is searched only once.
    """
    waiting, seen = [("it", content)], set[int]()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping | list | tuple | set) and id(value) not in seen:
            seen.add(id(value))
            start = "" if value is content else f"{name}."
            named = (
                [(f"{start}{key}", item) for key, item in value.items()]
                if isinstance(value, Mapping)
                else [(f"{name}[{number}]", item) for number, item in enumerate(value)]
            )
            waiting += [(key[-200:], item) for key, item in named]


def _refusal(path: Path, message: str) -> str:
    """Return a one-line message for a file that torch refuses to load.

    Torch's own message would tell users how to run the code in the file.
    """
    code = re.search(r"GLOBAL (\S+)", message)
    if code:
        return (
            f"{path} refused, because it contains code ({code[1]}) in place of weights: "
            "do not load it elsewhere either unless you trust its author"
        )
    return f"{path} is not a PyTorch checkpoint, or is damaged: get the file again"
