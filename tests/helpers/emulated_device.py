"""A second device on a machine that has none: tensors there refuse what tensors on a GPU refuse.

Inside `emulated_device()` the device "meta" can be named like "cuda". What lies there is computed on the CPU, but

    an operation on tensors of both devices is an error, except on single numbers that lie on the CPU
    no generator of the CPU draws there
    least squares whose columns depend on each other are not solved
    `.numpy()` and NumPy's functions refuse

so that a tensor made without a device, or noise that is not moved, is an error as it would be on a GPU.
"""

import functools
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_fed.federation import arguments
from pyro_fed.runtime.executors.base import Executor
from pyro_fed.runtime.executors.local import Vectorised

#: What the device is called: one that this build of torch can name and has no kernels for.
DEVICE = torch.device("meta")
CPU = torch.device("cpu")
#: What executors compute there.
COMPUTING = [(Executor, name) for name in ("start", "step", "ask", "rows_of")] + [(Vectorised, "_together")]
#: Operations that may read from both devices, or from a device of their own accord.
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
#: Operations whose indices may lie on the CPU, as on a GPU.
INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}
#: As they are while a model runs, in which others stand in their places.
MAKERS = (torch.tensor, torch.as_tensor)


class There(torch.Tensor):
    """A tensor on the emulated device, and the one on the CPU that holds its numbers."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
            requires_grad=False,
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"There({self.inner!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def compute(func, args, kwargs):
    """An operation, on the device that its tensors lie on, or that it is told to make one on."""
    tensors = _tensors((args, kwargs), [])
    there = any(isinstance(leaf, There) for leaf in tensors)
    asked = kwargs.get("device")
    if asked is not None:
        there_after = torch.device(asked).type == DEVICE.type
        kwargs = {**kwargs, "device": CPU}
    else:
        there_after = there
    if not there and not there_after:
        return func(*args, **kwargs)
    if func in COPIES:
        there_after = there_after if func is not torch.ops.aten.copy_.default else isinstance(args[0], There)
    elif there:
        _refuse_mixed(func, args, tensors)
    if there and func is torch.ops.aten.linalg_lstsq.default and kwargs.get("driver") != "gels":
        raise RuntimeError(f"{func}: a GPU has no driver but gels")
    if kwargs.get("generator") is not None or torch.Tag.nondeterministic_seeded in func.tags:
        raise RuntimeError(f"{func}: random numbers on {DEVICE}, where no generator of this run is")
    inner_args, inner_kwargs = _each((args, kwargs), There, lambda leaf: leaf.inner)
    out = func(*inner_args, **inner_kwargs)
    if not there_after:
        return out if func is not torch.ops.aten._to_copy.default else out.clone()
    if torch.Tag.inplace_view in func.tags and there:
        with no_dispatch():
            func(*args, **kwargs)  # the outer tensor's own shape
    held = {id(leaf.inner): leaf for leaf in tensors if isinstance(leaf, There)}  # in place: the tensor that it was
    return _each(out, torch.Tensor, lambda leaf: held[id(leaf)] if id(leaf) in held else There(leaf))


def _tensors(value, found):
    """The tensors in an operation's arguments, which are of lists, tuples and dictionaries, added to a list."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for part in value:
            _tensors(part, found)
    elif isinstance(value, dict):
        for part in value.values():
            _tensors(part, found)
    return found


def _each(value, kind, change):
    """An operation's arguments or results with each leaf of a kind changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):
        parts = [_each(part, kind, change) for part in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return {name: _each(part, kind, change) for name, part in value.items()} if isinstance(value, dict) else value


def _refuse_mixed(func, args, tensors):
    alone = [leaf for leaf in tensors if not isinstance(leaf, There)]
    if func in INDEXED:
        indices = {id(leaf) for leaf in args[1] if leaf is not None}
        alone = [leaf for leaf in alone if id(leaf) not in indices]
    for leaf in alone:
        if leaf.dim() > 0:
            shapes = [(str(one.device), tuple(one.shape)) for one in tensors]
            raise RuntimeError(f"{func}: expected all tensors on the same device, found {shapes}")


class _Named(TorchDispatchMode):
    """Makes what is made on the device by name."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():  # what follows is no call of the program's
            return compute(func, args, kwargs or {})


class _FromPython(TorchFunctionMode):
    """Numbers from Python and to Python, which torch copies by pointer, past all modes."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.tolist and isinstance(args[0], There):
            return args[0].inner.tolist()
        if func is torch.Tensor.__setitem__ and args[0].device == DEVICE and isinstance(args[2], (int, float)):
            args = (*args[:2], MAKERS[0](args[2], dtype=args[0].dtype).to(DEVICE))
        if func is torch.Tensor.new_tensor:
            kwargs = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
            func, args = MAKERS[0], args[1:]
        if func in MAKERS and not isinstance(args[0], torch.Tensor):
            device = kwargs.pop("device", None)
            with torch.utils._python_dispatch._disable_current_modes():
                made = func(*args, **kwargs)
            return made if device is None else made.to(device)
        return func(*args, **kwargs)


def in_modes(method):
    @functools.wraps(method)
    def call(*args, **kwargs):
        with _FromPython(), _Named():
            return method(*args, **kwargs)

    return call


@contextmanager
def emulated_device():
    """The device is there for what an executor does, where alone a run computes on it; it is yielded."""
    with ExitStack() as stack:
        for kind, name in COMPUTING:
            stack.enter_context(patch.object(kind, name, in_modes(getattr(kind, name))))
        stack.enter_context(patch.object(arguments, "read_back", lambda value: value))  # outside an executor's steps
        yield DEVICE
