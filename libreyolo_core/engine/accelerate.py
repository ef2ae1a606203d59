"""What stands for a training step's region, or for all of the step, as ``cuda_graph`` and ``compile`` ask."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from libreyolo_core.engine.capture import Captured, CapturedStep, choose_backend
from libreyolo_core.engine.compiling import Compiled
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.family import Task


def accelerate(
    step: TrainStep,
    sheet: Task,
    device: torch.device,
    *,
    cuda_graph: bool | str,
    compile: bool | str,
    seed: Callable[[], Tensor],
) -> tuple[Compiled | None, Captured | CapturedStep | None]:
    """Put what the arguments ask for in the place of a step's parts, and return it.

    Args:
        step: of one rank.
        cuda_graph, compile: the training arguments of these names.
        seed: the gradient of the total loss that the backward of the coming step begins with, float32 [].
    """
    compiled: Compiled | None = None
    if compile:
        name = "default" if compile is True else str(compile)
        # Both would capture the same CUDA graphs; the one that also reports shapes and counts does.
        twice = name == "reduce-overhead" and bool(cuda_graph) and device.type == "cuda"
        why_not = ""
        if step.ranks.size > 1 and sheet.ranks.sync_bn:
            # they wait for one another inside the network, and a compiler that fails on one of them would hang the rest
            why_not = "statistics over all ranks are not compiled; sync_bn=false would allow it"
        compiled = step.region = Compiled(step.network, "default" if twice else name, device, why_not=why_not)
        if twice:
            compiled.say("mode=reduce-overhead means CUDA graphs, and so does cuda_graph: that one captures them")
    if not cuda_graph:
        return compiled, None
    backend, why_not = choose_backend(device)
    if step.ranks.size > 1:
        backend, why_not = None, "distributed runs are not captured"
    capture, loss = sheet.capture, sheet.loss
    captured: Captured | CapturedStep
    if cuda_graph == "full" and loss.static:
        captured = step.whole = CapturedStep(step, backend, capture, seed=seed, why_not=why_not)
    else:
        captured = step.region = Captured(step.network, backend, capture, region=compiled, why_not=why_not)
    if cuda_graph == "full" and not loss.static and captured.backend:
        captured.say(
            f"cuda_graph=full needs a loss of static shapes, which {loss.code.rpartition(':')[2]} is not called in its "
            "sheet: the network alone is captured, as with cuda_graph=true"
        )
    if compiled and captured.backend and captured.backend.runs_python:
        captured.say("what is recorded is the network's Python, not what compile made of it")
    return compiled, captured
