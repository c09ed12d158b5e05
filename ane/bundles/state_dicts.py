"""Find the state dict in the content of a checkpoint. Trainers put it into other dicts, or add a prefix to its keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ane.bundles.torch_checkpoint import (
    MERGE,
    SHOWN,
    is_adapter,
    is_random_state,
    load_pickle,
    read_safetensors,
    summarise_keys,
)
from ane.system.errors import UserError

# names of the entries in which trainers store a state dict
AVERAGED = ("ema", "ema_state_dict", "ema_model", "model_ema", "params_ema")  # exponential moving averages
PLAIN = ("state_dict", "model_state_dict", "model", "module", "net", "network", "params")
NESTED = 3  # number of dicts around a state dict that may be opened
ADAPTED = ".base_layer."  # PEFT adds this to the keys of weights that an adapter changes


class StateDict(NamedTuple):
    """A state dict that was found in a checkpoint.

    Attributes:
        entries: The state dict, without prefixes.
        siblings: The other entries of the dicts around the state dict, such as "optimizer".
        wrappers: The names of the entries that were opened, from the outside.
        notes: A sentence for the user, if the file also has weights that were not chosen.
    """

    entries: dict[str, Any]
    siblings: dict[str, Any]
    wrappers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_state_dict(content: Mapping[Any, Any], path: Path, others: tuple[str, ...] = ()) -> StateDict:
    """Find the state dict in the content of a file. If the file also has averaged weights, the function returns these.

    Args:
        content: The content of the file.
        path: Path of the file, for messages.
        others: Names, in addition to ``AVERAGED`` and ``PLAIN``, of entries that may have the state dict.

    Raises:
        UserError: The file has several state dicts, and the function cannot know which one to use.
    """
    siblings, opened, notes = dict[str, Any](), list[str](), list[str]()
    for _ in range(NESTED):
        found = [name for name in (*AVERAGED, *PLAIN, *others) if _holds_weights(content.get(name), others)]
        if not found:
            break
        chosen, *rest = found
        averaged = [name for name in found if name in AVERAGED]
        if rest and len(averaged) != 1:
            raise UserError(
                f"{path} has several state dicts ({', '.join(found)}): save the state dict that you want with "
                "torch.save(content[NAME], FILE), and give that file"
            )
        if rest:
            notes.append(
                f"{path} has weights in {' and '.join(found)}: this model gets the averaged weights ({chosen}), which "
                f"inference uses. To import {rest[0]} instead, save it with torch.save(content[{rest[0]!r}], FILE), "
                "and import FILE"
            )
        opened.append(chosen)
        siblings |= {str(key): value for key, value in content.items() if key not in found}
        content = content[chosen]
    return StateDict(plain_names(content), siblings, tuple(opened), tuple(notes))


def _holds_weights(value: Any, others: tuple[str, ...], depth: int = NESTED) -> bool:
    """Return whether a value is a dict with weights, either directly or in an entry that ``find_state_dict`` opens."""
    return isinstance(value, Mapping) and (
        any(isinstance(entry, torch.Tensor) and not is_random_state(entry) for entry in value.values())
        or (
            depth > 1
            and any(_holds_weights(value.get(name), others, depth - 1) for name in (*AVERAGED, *PLAIN, *others))
        )
    )


def plain_names(entries: Mapping[Any, Any]) -> dict[str, Any]:
    """Rename entries: remove the prefixes that all keys have, and ``ADAPTED`` from the middle of a key.

    Trainers add prefixes such as "module." (DataParallel), "_orig_mod." (torch.compile) or "model." (Lightning). The
    name of a list of layers, such as "layers.0.", stays. The keys of all networks that this program knows differ in
    their first part, or begin with such a list.
    """
    named = {str(key).replace(ADAPTED, "."): value for key, value in entries.items()}
    while len(named) > 1 and len({key.partition(".")[0] for key in named}) == 1:
        inner = {key.partition(".")[2]: value for key, value in named.items()}
        if "" in inner or all(key[:1].isdigit() for key in inner):
            break
        named = inner
    return named


def unknown_checkpoint(path: Path) -> UserError:
    """Create the error for a file that no family recognises. The error's message lists the content of the file.

    Raises:
        UserError: The file is damaged, or has several state dicts.
    """
    content = read_safetensors(path) if path.suffix == ".safetensors" else load_pickle(path)
    names, place = type(content).__name__, ""
    if isinstance(content, Mapping):
        found = find_state_dict(content, path)
        if content and all(is_adapter(str(key)) for key in content):
            return UserError(
                f"{path} has only the weights of an adapter (LoRA or similar): import its model and add lora={path}, "
                f"or {MERGE} and import the whole model"
            )
        if "optimizers" in content and not found.wrappers:
            return UserError(
                f"{path} is a trainer's state, and its weights are in another file: give that file, such as the "
                "N_gpt.pth that the trainer wrote"
            )
        names = summarise_keys(map(str, found.entries if found.wrappers else content), SHOWN)
        place = "".join(f" in {name}" for name in found.wrappers[::-1])
    return UserError(
        f"{path} is not a checkpoint that this version can read: it holds {names or 'nothing'}{place}. A FastSpeech "
        "checkpoint has word_emb.weight, and a Whisper checkpoint has dims and model_state_dict. For Tortoise, give "
        "the directory with its .pth files, or one whole network such as a fine-tuned decoder, and base=NAME for "
        f"the other networks. The state dict may be in an entry called {', '.join((*PLAIN, *AVERAGED))}, and all its "
        "keys may begin with the same prefix. If it has the keys of other modules too, save the network alone: "
        "torch.save(network.state_dict(), FILE)"
    )
