"""The training loop of every part: it resumes from checkpoints, records a curve and draws it.

Under torchrun several processes share a part: each takes other batches, and gradients are averaged.
"""

import io
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from ane.system.errors import UserError
from ane.system.files import replacing

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 120.0
LOG_STEPS = 50

# (index, generator of that index) → losses by name; the gradient is that of "loss"
Loss = Callable[[int, torch.Generator], dict[str, Tensor]]
# changes the initial weights of a part, before its first step
Initialise = Callable[[nn.Module], None]


@dataclass(frozen=True)
class PartSchedule:
    """Steps, learning rate and AdamW's settings of one part.

    Attributes:
        steps: where each run of the training ends, ascending. A run resumes at the step that the one before reached.
        rate: the learning rate after ``warmup`` steps; then a half cosine falls to 0 at the end of the
            current run, as in one run of that many steps.
        decay: weight decay. clip: maximum norm of the gradient.
    """

    steps: tuple[int, ...]
    rate: float
    warmup: int = 100
    betas: tuple[float, float] = (0.9, 0.98)
    decay: float = 0.01
    clip: float = 1.0
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        end = next((end for end in self.steps if step < end), self.steps[-1])
        progress = (step - self.warmup) / max(1, end - self.warmup)
        return self.rate * float(0.5 * (1 + torch.cos(torch.tensor(progress * torch.pi))))


class Trainer:
    """Trains a module in a folder that holds its checkpoint and its curve.

    Step n draws from a generator seeded with n, so a resumed run equals an uninterrupted one if the schedule and the
    number of processes are the same.
    """

    def __init__(self, folder: Path, module: nn.Module, schedule: PartSchedule, device: str,
                 initialise: Initialise | None = None):
        self.folder, self.module, self.schedule, self.device = folder, module.to(device), schedule, device
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, schedule.rate, schedule.betas, weight_decay=schedule.decay)
        self.step, self.seconds, self.curve = 0, 0.0, []
        shared = distributed.is_available() and distributed.is_initialized()
        self.rank, self.processes = (distributed.get_rank(), distributed.get_world_size()) if shared else (0, 1)
        folder.mkdir(parents=True, exist_ok=True)
        if self.checkpoint.exists():
            self.resume()
        elif initialise is not None:
            initialise(module)

    def resume(self) -> None:
        """Load the checkpoint.

        Raises:
            UserError: it holds other parameters than the module has.
        """
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        try:
            self.module.load_state_dict(state["module"])
        except RuntimeError as error:
            raise UserError(f"{self.checkpoint} holds other parameters than this version trains: give --output a new "
                            "folder") from error
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def finished(self) -> bool:
        return self.step >= self.schedule.steps[-1]

    def run(self, loss: Loss, validate: Callable[[], dict[str, float]] | None = None) -> None:
        """Train to the last step. ``validate`` is called at every checkpoint; its results are added to the curve.

        ``loss`` gets an index that is different for every step and process.
        """
        saved = time.monotonic()
        while not self.finished:
            losses = self.train_step(loss)
            if self.rank:
                continue
            if self.step % LOG_STEPS == 0 or self.finished:
                self.record({name: float(value.detach()) for name, value in losses.items()})
            if time.monotonic() - saved > CHECKPOINT_SECONDS or self.finished:
                if validate is not None:
                    self.module.eval()
                    with torch.no_grad():
                        self.record(validate())
                    self.module.train()
                self.save()
                saved = time.monotonic()
        if self.processes > 1:
            distributed.barrier()       # all processes go on once the checkpoint is written

    def train_step(self, loss: Loss) -> dict[str, Tensor]:
        started = time.monotonic()
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.rate_at(self.step)
        index = self.step * self.processes + self.rank
        losses = loss(index, torch.Generator().manual_seed(self.schedule.seed * 1_000_003 + index))
        self.optimiser.zero_grad(set_to_none=True)
        losses["loss"].backward()
        self.average_gradients()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.schedule.clip)
        if torch.isfinite(norm):        # skip a batch whose gradient overflowed
            self.optimiser.step()
        self.step += 1
        self.seconds += time.monotonic() - started
        return losses

    def average_gradients(self) -> None:
        """Replace the gradients of each process by the mean over all processes."""
        if self.processes > 1:
            flat = nn.utils.parameters_to_vector([
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for parameter in self.parameters])
            distributed.all_reduce(flat)
            flat /= self.processes
            for parameter in self.parameters:
                parameter.grad, flat = flat[:parameter.numel()].view_as(parameter), flat[parameter.numel():]

    def record(self, values: dict[str, float]) -> None:
        self.curve.append({"step": self.step, "seconds": round(self.seconds, 1), **values})
        text = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        log.info("%s: step %d of %d  %.0f s  %s", self.folder.name, self.step, self.schedule.steps[-1], self.seconds,
                 text)

    def save(self) -> None:
        with replacing(self.checkpoint) as target:
            torch.save({"module": self.module.state_dict(), "optimiser": self.optimiser.state_dict(),
                        "step": self.step, "seconds": self.seconds, "curve": self.curve}, target)
        with replacing(self.folder / "curve.json") as target:
            target.write_text(json.dumps(self.curve))
        draw_curves({self.folder.name: self.curve}, self.folder / "curve.png", dpi=200)


def state_bytes(module: nn.Module) -> bytes:
    """The module's state, to pass to another process: a tensor passed as such would keep a file open."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    return file.getvalue()


def load_state_bytes(module: nn.Module, state: bytes) -> None:
    module.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))


def draw_curves(curves: Mapping[str, Sequence[Mapping[str, float]]], path: Path, **options: Any) -> None:
    """Plot every value of the parts' curves against the step, a panel for each part; ``options`` of ``savefig``."""
    from matplotlib.figure import Figure

    columns = min(len(curves), 3)
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(4 * columns, 2.4 * rows), layout="constrained")
    for number, (part, curve) in enumerate(curves.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        for name in sorted({name for point in curve for name in point} - {"step", "seconds"}):
            points = [(point["step"], point[name]) for point in curve if name in point]
            axes.plot(*zip(*points, strict=True), label=name, linewidth=0.8)
        axes.set_title(part, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        if curve:
            axes.legend(fontsize=6)
    with replacing(path) as target:
        figure.savefig(target, **options)
