"""Change files in place: JSON, checkpoints, and single bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def edit_json(path: Path, change: Callable[[dict], Any]) -> Path:
    """Change the JSON object in a file; returns the file."""
    stated = json.loads(path.read_text(encoding="utf-8"))
    change(stated)
    path.write_text(json.dumps(stated), encoding="utf-8")
    return path


def edit_checkpoint(path: Path, change: Callable[[dict], Any]) -> None:
    """Change the dictionary in a checkpoint."""
    loaded = torch.load(path, weights_only=True)
    change(loaded)
    torch.save(loaded, path)


def flip(path: Path, position: int) -> None:
    """Change the byte at a position, counted from the end if it is negative."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
