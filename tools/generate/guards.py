"""What a guard says, as its source has it: `m.quiet()` of `lambda m, e: m.quiet()`, the name of a named function."""

import ast
import inspect
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any


def text(guard: Callable[..., Any] | None) -> str:
    """The guard's condition; "" without one. The same text from every Python: no positions of bytes are used."""
    if guard is None:
        return ""
    code: CodeType = guard.__code__
    if code.co_name != "<lambda>":
        return f"{guard.__name__}()"
    found = [node for node in _lambdas(inspect.getsourcefile(guard) or "") if node.lineno == code.co_firstlineno]
    alike = [node for node in found if _names(node) == set(code.co_names)] or found
    return " or ".join(dict.fromkeys(ast.unparse(node.body) for node in alike))


@cache
def _lambdas(path: str) -> tuple[ast.Lambda, ...]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a module's own source
        tree = ast.parse(file.read())
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Lambda))


def _names(node: ast.Lambda) -> set[str]:
    """Attributes and globals that the body uses, as a code object lists them."""
    arguments = {argument.arg for argument in node.args.args}
    used: set[str] = set()
    for inner in ast.walk(node.body):
        if isinstance(inner, ast.Attribute):
            used.add(inner.attr)
        elif isinstance(inner, ast.Name) and inner.id not in arguments:
            used.add(inner.id)
    return used
