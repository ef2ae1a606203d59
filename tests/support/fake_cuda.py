"""CUDA graphs on the CPU: what is captured runs again on the same memory, without any of its Python.

As on a device, an operation of a replay reads and writes the tensors of the capture: whoever keeps an output without
copying it, or feeds an input without copying it into the captured one, gets wrong numbers.
"""

from contextlib import contextmanager, nullcontext

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class FakeGraph(TorchDispatchMode):
    """Stands for ``torch.cuda.CUDAGraph``; while active as a mode it captures."""

    replays = 0

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **kwargs)
        aliases = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not aliases:  # a view stays where it is
            self.operations.append((func, args, kwargs, out))
        return out

    def replay(self):
        type(self).replays += 1
        with torch.no_grad():
            for func, args, kwargs, out in self.operations:
                again = func(*args, **kwargs)
                for place, value in zip(pytree.tree_leaves(out), pytree.tree_leaves(again), strict=True):
                    if isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr():
                        place.copy_(value)


class FakeStream:
    def wait_stream(self, other):
        pass


@contextmanager
def capturing(graph, pool=None, stream=None, capture_error_mode="global"):
    """Stands for ``torch.cuda.graph``."""
    assert pool is not None and stream is not None and capture_error_mode == "thread_local"
    with graph:
        yield


def install(monkeypatch):
    """Put the fakes in the place of what ``libreyolo_core.engine.cuda_graphs`` uses of ``torch.cuda``."""
    fakes = {
        "CUDAGraph": FakeGraph,
        "graph": capturing,
        "graph_pool_handle": lambda: (0, 1),
        "Stream": FakeStream,
        "current_stream": FakeStream,
        "stream": lambda stream: nullcontext(),
        "set_stream": lambda stream: None,
        "synchronize": lambda: None,
        "device": lambda device: nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    FakeGraph.replays = 0
