"""Run the training loop that all parts share: resume from checkpoints, average weights, and record losses.

A part is a network, or a network with modules that only training needs. The losses over time are the part's curve.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ane.system.errors import UserError
from ane.system.files import replacing

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 120.0  # seconds between checkpoints
LOG_STEPS = 50  # number of steps between points of the curve
CURVE_POINTS = 100  # ``export`` keeps about this many points of the curve

# takes the index of a step and the step's generator, and returns losses by name. The step descends the loss "loss"
Loss = Callable[[int, torch.Generator], dict[str, Tensor]]
Positive = Annotated[float, Field(gt=0)]


class PartSchedule(BaseModel):
    """Steps, learning rate and AdamW's settings of one part, from the part's file in training/config.

    Attributes:
        steps: Steps at which the runs of this part end, in ascending order. Each run continues where the run before it
            ended.
        rate: Highest learning rate, which is reached after ``warmup`` steps. From there it falls along a half cosine,
            and is 0 at the end of the current run.
        batch: Size of a batch. It counts positions for the decoder, frames for the denoiser, and crops or clips for
            other parts.
        warmup: Number of steps in which the learning rate rises.
        betas: Betas of AdamW.
        decay: Weight decay of AdamW.
        clip: Largest norm of the gradient.
        seed: Seed of the random choices.
        average: Decay of the running mean of the weights. Later parts and the bundle use this mean. 0 means that they
            use the last weights.
        minutes: A call stops after this many minutes, even before the last step. ``None`` means no limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: tuple[int, ...]
    rate: Positive
    batch: Annotated[int, Field(gt=0)]
    warmup: int = 100
    betas: tuple[float, float] = (0.9, 0.98)
    decay: float = 0.01
    clip: Positive = 1.0
    seed: int = 0
    average: Annotated[float, Field(ge=0, lt=1)] = 0.999
    minutes: float | None = None

    @field_validator("steps")
    @classmethod
    def ascending(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if not steps or steps[0] < 1 or list(steps) != sorted(set(steps)):
            raise ValueError("the numbers of steps must be positive and ascending")
        return steps

    def rate_at(self, step: int, began: int = 0) -> float:
        """Return the learning rate of a step. Steps count from 0.

        The rate rises in the ``warmup`` steps after ``began``, which is the step at which the optimiser was new.
        """
        warm = min(1.0, (step - began + 1) / self.warmup) if self.warmup else 1.0
        end = next((end for end in self.steps if step < end), self.steps[-1])
        progress = max(0, step - self.warmup) / max(1, end - self.warmup)
        return self.rate * warm * float(0.5 * (1 + torch.cos(torch.tensor(progress * torch.pi))))


@dataclass(frozen=True)
class TrainedPart:
    """Where and how one part is trained.

    Attributes:
        folder: Folder of the part's checkpoint and curve.
        schedule: Schedule of the part.
        device: Torch device.
        start: File that ``export`` wrote. If the part has no checkpoint, it starts from the weights in this file. The
            file need not exist.
    """

    folder: Path
    schedule: PartSchedule
    device: str
    start: Path


class Trainer:
    """A trainer of a module. It stores the module's checkpoint and curve in the part's folder.

    Step n draws its random numbers from a generator with the seed n. So a run that was interrupted and resumed gives
    the same weights as a run that was not.
    """

    def __init__(self, module: nn.Module, part: TrainedPart):
        self.folder, self.schedule, self.device = part.folder, part.schedule, part.device
        self.module = module.to(part.device)
        self.trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.parameters = list(self.trained.values())
        self.optimiser = torch.optim.AdamW(
            self.parameters, self.schedule.rate, self.schedule.betas, weight_decay=self.schedule.decay
        )
        self.step, self.began, self.seconds, self.curve = 0, 0, 0.0, []
        self.out_of_time = self.schedule.minutes == 0
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.checkpoint.exists() and part.start.exists():
            self.start_from(part.start)
        self.average = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        if self.checkpoint.exists():
            self.resume()

    def resume(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        self.load(state["module"], self.checkpoint)
        self.optimiser.load_state_dict(state["optimiser"])
        self.average, self.began = state["average"], state.get("began", 0)
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]

    def load(self, weights: Mapping[str, Tensor], path: Path) -> None:
        try:
            self.module.load_state_dict(weights)
        except RuntimeError as error:
            raise UserError(
                f"{path} holds other parameters than this version trains: give --output a new folder"
            ) from error

    def start_from(self, path: Path) -> None:
        """Load the weights, the step and the curve from a file that ``export`` wrote."""
        with safe_open(path, "pt") as file:
            self.load({name: file.get_tensor(name).float() for name in file.keys()}, path)  # noqa: SIM118
            facts = json.loads(file.metadata()["training"])
        self.step = self.began = facts["step"]
        self.seconds, self.curve = facts["seconds"], facts["curve"]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def finished(self) -> bool:
        return self.step >= self.schedule.steps[-1] or self.out_of_time

    def run(self, loss: Loss, validate: Callable[[], dict[str, float]] | None = None) -> None:
        """Train until the last step, or until the time limit.

        Args:
            loss: Function that returns the losses of a step.
            validate: Function that is called at every checkpoint. Its results are added to the curve.
        """
        started = saved = time.monotonic()
        while not self.finished:
            losses = self.train_step(loss)
            limit = self.schedule.minutes
            self.out_of_time = limit is not None and time.monotonic() - started > 60 * limit
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

    def train_step(self, loss: Loss) -> dict[str, Tensor]:
        started = time.monotonic()
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.rate_at(self.step, self.began)
        losses = loss(self.step, torch.Generator().manual_seed(self.schedule.seed * 1_000_003 + self.step))
        self.optimiser.zero_grad(set_to_none=True)
        losses["loss"].backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.schedule.clip)
        if torch.isfinite(norm):  # otherwise the gradient overflowed, and the batch is skipped
            self.optimiser.step()
        self.step += 1
        decay = min(self.schedule.average, self.step / (self.step + 9))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), self.parameters, 1 - decay)
        self.seconds += time.monotonic() - started
        return losses

    def result(self) -> nn.Module:
        """Set the module's weights to their running mean, and return the module in evaluation mode."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, list(self.average.values()))
        return self.module.eval()

    def record(self, values: dict[str, float]) -> None:
        self.curve.append({"step": self.step, "seconds": round(self.seconds, 1), **values})
        text = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        log.info(
            "%s: step %d of %d  %.0f s  %s", self.folder.name, self.step, self.schedule.steps[-1], self.seconds, text
        )

    def save(self) -> None:
        state = {name: getattr(self, name) for name in ("average", "step", "began", "seconds", "curve")}
        with replacing(self.checkpoint) as target:
            torch.save({"module": self.module.state_dict(), "optimiser": self.optimiser.state_dict(), **state}, target)
        with replacing(self.folder / "curve.json") as target:
            target.write_text(json.dumps(self.curve))


def fast_autocast(device: str | torch.device) -> torch.autocast:
    """Return a context manager in which torch computes in bfloat16, or in float32 on a CPU without AVX-512 bf16.

    x86 CPUs without it emulate bfloat16, which takes 5 to 9 times as long. Arm's CPUs have not been measured.
    """
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind != "cpu" or torch.cpu._is_avx512_bf16_supported())


def export(checkpoint: Path, path: Path) -> None:
    """Write the averaged weights of a checkpoint in half precision, with its step and curve, to a safetensors file."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    weights = {**state["module"], **state["average"]}
    curve = state["curve"][:: max(1, len(state["curve"]) // CURVE_POINTS)]
    facts = {"step": state["step"], "seconds": state["seconds"], "curve": curve}
    with replacing(path) as target:
        save_file(
            {name: tensor.half().contiguous() for name, tensor in weights.items()},
            target,
            {"training": json.dumps(facts)},
        )
