"""Modules as a tree of names: parameters, buffers, children. Nothing is differentiated."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn import functional
from torch.tensors import Tensor

__all__ = ["Module", "ModuleList", "Parameter", "functional"]


class Parameter(Tensor):
    """A tensor that a module names."""

    def __init__(self, tensor: Tensor, requires_grad: bool = True) -> None:
        super().__init__(tensor.a)


class Module:
    """Children and parameters are what was set as attributes, in that order."""

    def __init__(self) -> None:
        self._children: dict[str, Module] = {}
        self._parameters: dict[str, Parameter] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            self._children[name] = value
        elif isinstance(value, Parameter):
            self._parameters[name] = value
        object.__setattr__(self, name, value)

    def __call__(self, *arguments: Any) -> Any:
        return self.forward(*arguments)  # type: ignore[attr-defined]

    def register_parameter(self, name: str, value: Parameter) -> None:
        setattr(self, name, value)

    def add_module(self, name: str, value: "Module") -> None:
        setattr(self, name, value)

    def register_buffer(self, name: str, value: Tensor, persistent: bool = True) -> None:
        setattr(self, name, value)

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        yield from self._children.items()

    def children(self) -> Iterator["Module"]:
        yield from self._children.values()

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, "Module"]]:
        yield prefix, self
        for name, child in self._children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator["Module"]:
        yield from (module for _, module in self.named_modules())

    def get_submodule(self, path: str) -> "Module":
        return dict(self.named_modules())[path]

    def named_parameters(self, remove_duplicate: bool = True) -> Iterator[tuple[str, Parameter]]:
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, value in module._parameters.items():
                if not remove_duplicate or id(value) not in seen:
                    seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value

    def parameters(self) -> Iterator[Parameter]:
        yield from (value for _, value in self.named_parameters())


class ModuleList(Module):
    """Modules named by their numbers."""

    def __init__(self, modules: Iterable[Module]) -> None:
        super().__init__()
        for number, module in enumerate(modules):
            setattr(self, str(number), module)

    def __iter__(self) -> Iterator[Module]:
        return self.children()
