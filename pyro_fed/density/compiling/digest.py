"""A digest of everything that a Python function depends on: code, closure, defaults, and globals, recursively.

Functions with equal digests compute the same values, so that a trace of one is valid for the other. Content whose
values cannot be determined has no digest (`UnknownContent`):

    values          by content: numbers, texts, tensors, arrays, containers, instances with their attributes
    code            by instructions and constants, including those of its globals and its closure
    libraries       modules of `TRUSTED`, and their definitions, by name: they do not change in a process
    other content   unknown: other modules, code that writes globals, reads files, or has a state hidden from Python

A digest describes the present state; the objects may change later.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import struct
import sys
import types
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Top-level modules whose functions depend on their arguments alone.
TRUSTED = frozenset(
    (
        *("abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum", "functools"),
        *("itertools", "math", "numbers", "numpy", "operator", "opt_einsum", "pyro", "pyro_fed", "re", "scipy"),
        *("statistics", "string", "torch", "types", "typing", "typing_extensions", "warnings"),
    )
)
#: Functions of trusted modules that depend on more than their arguments.
REFUSED = frozenset(
    (
        *("open", "input", "eval", "exec", "compile", "globals", "locals", "vars", "dir", "__import__", "breakpoint"),
        *("load", "fromfile", "memmap", "random", "rand", "randn", "randint", "seed", "get_param_store"),
    )
)
#: Largest numbers of objects and of bytes in a digest; beyond, a new trace is cheaper.
MAX_OBJECTS, MAX_BYTES = 20_000, 64_000_000
#: Types whose values are determined by their `repr`.
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, slice)
TORCH_PLAIN = (torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout)
#: Instructions that change globals, or read globals that the code does not name.
GLOBAL_CHANGES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_STAR"})
#: Instructions that read an attribute of a module or another object by name.
ATTRIBUTE_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"})


class UnknownContent(Exception):
    """Content whose values cannot be determined."""


def digest(*parts: Any) -> bytes | None:
    """A digest of functions, modules, tensors, settings or containers of these; None if their content is unknown."""
    try:
        return Walk().digest_of(parts)
    except (UnknownContent, RecursionError):
        return None


class Walk:
    """A walk over objects that visits each object once."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=32)
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []  # visited objects, so that their ids are not reused
        self.bytes = 0

    def digest_of(self, value: Any) -> bytes:
        """The digest of a value."""
        self.feed(value)
        return self.hash.digest()

    def say(self, *texts: str | bytes | int) -> None:
        """Add texts, each preceded by its length, so that different sequences have different bytes."""
        for text in texts:
            raw = text if isinstance(text, bytes) else str(text).encode()
            self.hash.update(struct.pack("<q", len(raw)))
            self.hash.update(raw)
            self.bytes += len(raw)
        if self.bytes > MAX_BYTES:
            raise UnknownContent("too much content")

    def feed(self, value: Any) -> None:
        """Add a value and everything that it depends on."""
        if (isinstance(value, PLAIN) and type(value) in PLAIN) or isinstance(value, TORCH_PLAIN):
            self.say(type(value).__name__, repr(value))
            return
        if id(value) in self.seen:
            self.say("seen", self.seen[id(value)])
            return
        self.seen[id(value)] = len(self.seen)
        self.alive.append(value)
        if len(self.seen) > MAX_OBJECTS:
            raise UnknownContent("too many objects")
        self._feed_new(value)

    def _feed_new(self, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            self._array(np.asarray(value))
        elif type(value) in (list, tuple):
            self._items(type(value).__name__, value)
        elif type(value) in (dict, OrderedDict, types.MappingProxyType):
            self._items(type(value).__name__, [part for pair in value.items() for part in pair])
        elif type(value) in (set, frozenset):
            self._items(type(value).__name__, sorted(value, key=lambda one: (type(one).__name__, repr(one))))
        elif isinstance(value, Enum):
            self._items("enum", (type(value), value.name))
        elif isinstance(value, types.MethodType):
            self._items("method", (value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self._items("partial", (value.func, value.args, value.keywords, vars(value)))
        elif isinstance(value, staticmethod | classmethod):
            self._items(type(value).__name__, (value.__func__,))
        elif isinstance(value, property):
            self._items("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
            self._builtin(value)
        else:
            self._instance(value)

    def _items(self, kind: str, items: Iterable[Any]) -> None:
        items = list(items)
        self.say(kind, len(items))
        for item in items:
            self.feed(item)

    def _tensor(self, value: Tensor) -> None:
        if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
            raise UnknownContent("a tensor without plain content")
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise UnknownContent("a tensor under a transform")
        self.feed(type(value))
        self.say(str(value.dtype), str(value.device), repr(tuple(value.shape)), repr(value.stride()))
        self.say(int(value.requires_grad))
        self.bytes += value.numel() * value.element_size()
        if self.bytes > MAX_BYTES:
            raise UnknownContent("too much content")
        plain = value.detach().cpu().contiguous().as_strided((value.numel(),), (1,))  # an expanded 1 has a stride of 0
        self.say(plain.view(torch.uint8).numpy().tobytes())
        if type(value) not in (Tensor, torch.nn.Parameter) or vars(value):
            self._items("of tensor", [part for pair in sorted(vars(value).items()) for part in pair])

    def _array(self, value: np.ndarray) -> None:
        if value.dtype.hasobject:
            raise UnknownContent("an array of objects")
        self.say("array", str(value.dtype), repr(value.shape), repr(value.strides), value.tobytes())

    def _function(self, value: types.FunctionType) -> None:
        if _is_named(value):
            self.say("library", value.__module__, value.__qualname__)
            return
        self.say("function", value.__name__)
        self.feed(value.__code__)
        self.feed(value.__defaults__)
        self.feed(value.__kwdefaults__)
        if set(vars(value)) - {"__wrapped__"}:
            self.feed(vars(value))
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not yet filled
                self.say("empty")
            else:
                self.feed(content)
        self._globals(value.__code__, value.__globals__)

    def _globals(self, code: types.CodeType, scope: Mapping[str, Any]) -> None:
        """Add the globals that a code object, and code objects inside it, read from their module."""
        steps = list(dis.get_instructions(code))
        for place, step in enumerate(steps):
            if step.opname in GLOBAL_CHANGES:
                raise UnknownContent(f"{step.opname} {step.argval}")
            if step.opname == "IMPORT_NAME" and not _is_library_module(str(step.argval)):
                raise UnknownContent(f"it imports {step.argval}")
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                self._read(str(step.argval), scope, steps[place + 1 :])
            if step.opname in ATTRIBUTE_READS and step.argval in REFUSED:
                raise UnknownContent(f"it calls {step.argval}")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._globals(constant, scope)

    def _read(self, name: str, scope: Mapping[str, Any], after: list[dis.Instruction]) -> None:
        """Add a global by name, or an attribute of a user's module."""
        if name in REFUSED and name not in scope:
            raise UnknownContent(f"it calls {name}")
        if name not in scope:
            builtins = scope.get("__builtins__", {})
            builtin_values = builtins if isinstance(builtins, dict) else vars(builtins)
            self.say("builtin", name)
            if name in builtin_values and builtin_values[name] is not vars(sys.modules["builtins"]).get(name):
                raise UnknownContent(f"another {name}")
            return
        value = scope[name]
        self.say("global", name)
        for step in after:
            if not isinstance(value, types.ModuleType) or _is_library_module(value.__name__):
                break
            if step.opname not in ("LOAD_ATTR", "LOAD_METHOD") or step.argval not in vars(value):
                raise UnknownContent(f"module {value.__name__}")
            value = vars(value)[step.argval]
            self.say("attribute", str(step.argval))
        self.feed(value)

    def _code(self, value: types.CodeType) -> None:
        self.say("code", value.co_code, value.co_argcount, value.co_kwonlyargcount, value.co_posonlyargcount)
        self.say(value.co_flags, value.co_exceptiontable)
        for part in (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars, value.co_consts):
            self.feed(part)

    def _module(self, value: types.ModuleType) -> None:
        if not _is_library_module(value.__name__):
            raise UnknownContent(f"module {value.__name__}")
        self.say("module", value.__name__)

    def _builtin(self, value: Any) -> None:
        owner = getattr(value, "__self__", None)
        name = getattr(value, "__qualname__", value.__name__)
        module = getattr(value, "__module__", None)
        if value.__name__ in REFUSED or (module is not None and not _is_library_module(module)):
            raise UnknownContent(f"it calls {name}")
        self.say("builtin", getattr(value, "__module__", None) or "", name)
        if owner is None or isinstance(owner, types.ModuleType):
            of = getattr(value, "__objclass__", None)
            if of is not None:
                self.feed(of)
            elif module is None:
                raise UnknownContent(f"it calls {name}")
            return
        if isinstance(owner, type) and _is_library_module(owner.__module__):
            self.say(owner.__module__, owner.__qualname__)
            return
        self.feed(owner)

    def _class(self, value: type) -> None:
        if _is_named(value) or value.__module__ == "builtins":
            self.say("class", value.__module__, value.__qualname__)
            return
        if not value.__flags__ & PYTHON_CLASS:
            raise UnknownContent(f"class {value.__qualname__} is not written in Python")
        self._items("bases", value.__mro__[1:])
        self.feed(type(value))
        attributes = {name: part for name, part in vars(value).items() if name not in UNREAD_ATTRIBUTES}
        self._items(f"class {value.__qualname__}", [part for pair in sorted(attributes.items()) for part in pair])

    def _instance(self, value: Any) -> None:
        kind = type(value)
        if not _is_library_module(kind.__module__) and any(
            name in vars(one) for one in kind.__mro__[:-1] for name in PICKLING
        ):
            raise UnknownContent(f"{kind.__name__} says itself what its state is")
        try:
            state = object.__reduce_ex__(value, 4)
        except TypeError as error:  # it has a state that Python does not see
            raise UnknownContent(str(error)) from None
        if not isinstance(state, tuple) or getattr(state[0], "__module__", "") != "copyreg":
            raise UnknownContent(f"a {kind.__name__}")
        arguments, attributes, *lists = state[1:]
        self.feed(kind)
        self._items("made of", arguments[1:])
        self.feed(attributes)
        for entries in lists:
            self.feed(list(entries) if entries is not None else None)


#: Attributes of a class that do not affect its behaviour.
UNREAD_ATTRIBUTES = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl", "__firstlineno__"}
)
#: The flag of classes that a class statement has made (and of some others).
PYTHON_CLASS = 1 << 9
#: Methods by which a class defines its pickled state.
PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")


def _is_library_module(module: str | None) -> bool:
    """Whether a module belongs to a trusted library."""
    name = module or ""
    return name.partition(".")[0] in TRUSTED and not name.startswith(("numpy.random", "torch.random"))


def _is_named(value: Any) -> bool:
    """Whether a trusted module contains this function or class under its qualified name."""
    if not _is_library_module(value.__module__) or value.__name__ in REFUSED:
        return False
    value_by_name: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        value_by_name = getattr(value_by_name, part, None)
    return value_by_name is value
