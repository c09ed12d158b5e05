"""One training loop for every part: it resumes, keeps a curve, and draws it.

Under torchrun several processes share a part: each takes batches of its own, and gradients are averaged.
"""

import io
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from ane.system.errors import UserError
from ane.system.files import replacing

log = logging.getLogger(__name__)

SAVED_EVERY = 120.0     # seconds
SHOWN_EVERY = 50        # steps

# (index, generator of that index) → losses by name; the one called "loss" is descended
Loss = Callable[[int, torch.Generator], dict[str, Tensor]]
# gives a part what an earlier one has learned, before its first step
Begin = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Plan:
    """How long and how fast a part learns.

    Attributes:
        steps: how many; the rate falls from ``rate`` to 0 along a half cosine after ``warmup`` steps.
    """

    steps: int
    rate: float
    warmup: int = 100
    betas: tuple[float, float] = (0.9, 0.98)
    decay: float = 0.01
    clip: float = 1.0
    seed: int = 0


class Training:
    """A part in training: module, optimiser and curve, kept in a folder.

    Step n draws from a generator seeded by n, so that a run resumed with the same steps and processes is the
    run that was never stopped.
    """

    def __init__(self, folder: Path, module: nn.Module, plan: Plan, device: str, begin: Begin | None = None):
        self.folder, self.module, self.plan, self.device = folder, module.to(device), plan, device
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, plan.rate, plan.betas, weight_decay=plan.decay)
        self.step, self.seconds, self.curve = 0, 0.0, []
        together = distributed.is_available() and distributed.is_initialized()
        self.rank, self.world = (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)
        folder.mkdir(parents=True, exist_ok=True)
        if begin is not None and not self.checkpoint.exists():
            begin(module)
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, map_location=device, weights_only=True)
            try:
                module.load_state_dict(state["module"])
            except RuntimeError as error:
                raise UserError(f"{self.checkpoint} was made by another recipe: give --out a new folder") from error
            self.optimiser.load_state_dict(state["optimiser"])
            self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def finished(self) -> bool:
        return self.step >= self.plan.steps

    def run(self, loss: Loss, validate: Callable[[], dict[str, float]] | None = None) -> None:
        """Train to the last step. ``validate`` is called at every checkpoint, its figures join the curve.

        ``loss`` is given an index of its own for every step and process.
        """
        saved = time.monotonic()
        while not self.finished:
            started = time.monotonic()
            for group in self.optimiser.param_groups:
                group["lr"] = rate_at(self.step, self.plan)
            index = self.step * self.world + self.rank
            losses = loss(index, torch.Generator().manual_seed(self.plan.seed * 1_000_003 + index))
            self.optimiser.zero_grad(set_to_none=True)
            losses["loss"].backward()
            self.average()
            norm = nn.utils.clip_grad_norm_(self.parameters, self.plan.clip)
            if torch.isfinite(norm):        # one broken batch must not end hours of work
                self.optimiser.step()
            self.step += 1
            self.seconds += time.monotonic() - started
            if self.rank:
                continue
            if self.step % SHOWN_EVERY == 0 or self.finished:
                self.note({name: float(value.detach()) for name, value in losses.items()})
            if time.monotonic() - saved > SAVED_EVERY or self.finished:
                if validate is not None:
                    self.module.eval()
                    with torch.no_grad():
                        self.note(validate())
                    self.module.train()
                self.save()
                saved = time.monotonic()
        if self.world > 1:
            distributed.barrier()       # the checkpoint is there, for all

    def average(self) -> None:
        """Gradients of all processes → their mean, in each."""
        if self.world > 1:
            flat = nn.utils.parameters_to_vector([
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for parameter in self.parameters])
            distributed.all_reduce(flat)
            flat /= self.world
            for parameter in self.parameters:
                parameter.grad, flat = flat[:parameter.numel()].view_as(parameter), flat[parameter.numel():]

    def note(self, figures: dict[str, float]) -> None:
        self.curve.append({"step": self.step, "seconds": round(self.seconds, 1), **figures})
        shown = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        log.info("%s: step %d of %d  %.0f s  %s", self.folder.name, self.step, self.plan.steps, self.seconds, shown)

    def save(self) -> None:
        with replacing(self.checkpoint) as target:
            torch.save({"module": self.module.state_dict(), "optimiser": self.optimiser.state_dict(),
                        "step": self.step, "seconds": self.seconds, "curve": self.curve}, target)
        with replacing(self.folder / "curve.json") as target:
            target.write_text(json.dumps(self.curve))
        draw(self.curve, self.folder / "curve.png", self.folder.name)


def sent(module: nn.Module) -> bytes:
    """The module's state for another process: bytes, since a tensor sent to a process holds a file open."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    return file.getvalue()


def received(state: bytes, module: nn.Module) -> None:
    """Give a module in another process the state that was ``sent``."""
    module.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))


def rate_at(step: int, plan: Plan) -> float:
    if step < plan.warmup:
        return plan.rate * (step + 1) / plan.warmup
    share = (step - plan.warmup) / max(1, plan.steps - plan.warmup)
    return plan.rate * float(0.5 * (1 + torch.cos(torch.tensor(share * torch.pi))))


def draw(curve: Sequence[dict[str, float]], path: Path, title: str) -> None:
    """The curve as a picture, one line a figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name in sorted({name for point in curve for name in point} - {"step", "seconds"}):
        points = [(point["step"], point[name]) for point in curve if name in point]
        axes.plot(*zip(*points, strict=True), label=name, linewidth=1)
    axes.set(xlabel="step", title=title)
    axes.grid(alpha=0.3)
    if curve:
        axes.legend()
    with replacing(path) as target:
        figure.savefig(target, dpi=80)
