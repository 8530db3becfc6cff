"""Python source inside a wheel: names followed through its modules, and constants evaluated. Nothing runs."""

from __future__ import annotations

import ast
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WRAPPERS = ("list", "sorted", "set", "tuple", "frozenset", "get_args")
MAX_DEPTH = 40
"""Names that lead to names, aliases to aliases: above this depth the source is a circle."""


class NotStatic(Exception):
    """The source computes this when it runs; the message says what stands there."""


@dataclass
class Module:
    """One module: where each top-level name comes from."""

    name: str
    tree: ast.Module
    names: dict[str, ast.expr | ast.ClassDef | ast.FunctionDef | tuple[str, str]] = field(
        default_factory=dict
    )


class Sources:
    """The modules of one wheel, parsed when asked for."""

    def __init__(self, wheel: Path):
        self.archive = zipfile.ZipFile(wheel)
        self.files = set(self.archive.namelist())
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """A module by dotted name; None when it is not in the wheel."""
        if name not in self._modules:
            self._modules[name] = None
            base = name.replace(".", "/")
            for path in (f"{base}.py", f"{base}/__init__.py"):
                if path in self.files:
                    tree = ast.parse(self.archive.read(path).decode())
                    self._modules[name] = Module(name, tree)
                    is_package = path.endswith("__init__.py")
                    _collect(tree.body, self._modules[name], is_package)  # type: ignore[arg-type]
                    break
        return self._modules[name]

    def must(self, name: str) -> Module:
        """As ``module``; NotStatic when it is not in the wheel."""
        found = self.module(name)
        if found is None:
            raise NotStatic(f"no module {name} in the wheel")
        return found

    def resolve(self, module: Module, name: str) -> tuple[Module, ast.AST]:
        """Where a name is defined: (module, expression, class or function). NotStatic when outside."""
        for _ in range(MAX_DEPTH):
            target = module.names.get(name)
            if target is None:
                raise NotStatic(f"{name} is not defined in {module.name}")
            if not isinstance(target, tuple):
                return module, target
            origin, name = target
            found = self.module(origin)
            if found is None:
                raise NotStatic(f"{name} comes from {origin}, outside the wheel")
            if name not in found.names and self.module(f"{origin}.{name}") is not None:
                raise NotStatic(f"{origin}.{name} is a module")
            module = found
        raise NotStatic(f"{name} leads in a circle")

    def class_of(self, module: Module, name: str) -> tuple[Module, ast.ClassDef]:
        """The class a name stands for. NotStatic when it is none."""
        where, node = self.resolve(module, name)
        if not isinstance(node, ast.ClassDef):
            raise NotStatic(f"{name} is no class")
        return where, node

    def value(self, module: Module, node: ast.AST, depth: int = 0) -> Any:
        """The constant that an expression stands for. NotStatic when it is computed."""
        if depth > MAX_DEPTH:
            raise NotStatic("too deep")
        again = depth + 1
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            items: list[Any] = []
            for element in node.elts:
                if isinstance(element, ast.Starred):
                    items += list(self.value(module, element.value, again))
                else:
                    items.append(self.value(module, element, again))
            return items
        if isinstance(node, ast.Dict):
            return {
                self.value(module, key, again): self.value(module, item, again)
                for key, item in zip(node.keys, node.values, strict=True)
                if key is not None
            }
        if isinstance(node, ast.Name):
            where, target = self.resolve(module, node.id)
            return self.value(where, target, again)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            where, owner = self.class_of(module, node.value.id)
            value = attribute_of(self, where, owner, node.attr)
            return self.value(inside(where, owner), value, again)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(module, node.operand, again)
        if isinstance(node, ast.BinOp):
            return self._operation(module, node, again)
        if isinstance(node, ast.Subscript) and name_of(node.value) == "Literal":
            return [
                item for part in elements(node.slice) for item in _as_list(self.value(module, part, again))
            ]
        if isinstance(node, ast.Call) and name_of(node.func) in WRAPPERS:
            found = list(self.value(module, node.args[0], again))
            return sorted(found) if name_of(node.func) in ("set", "frozenset", "sorted") else found
        if isinstance(node, ast.Call) and name_of(node.func) == "Field":
            return self.value(module, default_of(node), again)
        raise NotStatic(f"computed: {ast.unparse(node)[:80]}")

    def _operation(self, module: Module, node: ast.BinOp, depth: int) -> Any:
        left, right = self.value(module, node.left, depth), self.value(module, node.right, depth)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Pow):
            return left**right
        if isinstance(node.op, ast.Div):
            return left / right
        raise NotStatic(f"computed: {ast.unparse(node)[:80]}")


def inside(module: Module, owner: ast.ClassDef) -> Module:
    """The names that an expression in a class body sees: the class's own before the module's."""
    scope = Module(module.name, module.tree)
    _collect(owner.body, scope, False)
    scope.names = module.names | scope.names
    return scope


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _collect(body: list[ast.stmt], module: Module, is_package: bool) -> None:
    """Names of a module's top level, those inside if and try included; the first branch counts."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            module.names.setdefault(node.name, node)
        elif (
            isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ):
            module.names.setdefault(node.targets[0].id, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            module.names.setdefault(node.target.id, node.value)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parts = module.name.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                origin = ".".join([*kept, origin] if origin else kept)
            for alias in node.names:
                module.names.setdefault(alias.asname or alias.name, (origin, alias.name))
        elif isinstance(node, ast.If):
            _collect([*node.body, *node.orelse], module, is_package)
        elif isinstance(node, ast.Try):
            _collect(node.body, module, is_package)


def name_of(node: ast.AST | None) -> str:
    """`A` of `A`, `x` of `pydantic.x`; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def elements(node: ast.AST) -> list[ast.expr]:
    """The parts between the brackets of a subscript."""
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]  # type: ignore[list-item]


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    """Named arguments of a call, without those unpacked by ``**``."""
    return {word.arg: word.value for word in call.keywords if word.arg is not None}


def default_of(call: ast.Call) -> ast.expr:
    """The default inside `Field(...)` or `field(...)`. NotStatic when there is none that stands there."""
    words = keywords(call)
    if "default" in words:
        return words["default"]
    if call.args and not (isinstance(call.args[0], ast.Constant) and call.args[0].value is ...):
        return call.args[0]
    factory = words.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return factory.body
    if name_of(factory) in ("list", "dict"):
        return ast.List([], ast.Load()) if name_of(factory) == "list" else ast.Dict([], [])
    raise NotStatic("made when it runs" if factory is not None else "no default")


def bases(sources: Sources, module: Module, node: ast.ClassDef) -> list[tuple[Module, ast.ClassDef]]:
    """The base classes of a class that are in the wheel, nearest first, itself left out."""
    found: list[tuple[Module, ast.ClassDef]] = []
    for base in node.bases:
        try:
            where, owner = sources.class_of(module, name_of(base))
        except NotStatic:
            continue  # object, Enum and others from outside have no field of ours
        found += [(where, owner), *bases(sources, where, owner)]
    return found


def attribute_of(sources: Sources, module: Module, node: ast.ClassDef, name: str) -> ast.expr:
    """The value of a class attribute. NotStatic when the class has none."""
    for _, owner in [(module, node), *bases(sources, module, node)]:
        for part in owner.body:
            if isinstance(part, ast.AnnAssign) and name_of(part.target) == name and part.value is not None:
                return part.value
            if isinstance(part, ast.Assign) and any(name_of(target) == name for target in part.targets):
                return part.value
    raise NotStatic(f"{node.name} has no {name}")


def method_of(node: ast.ClassDef, name: str) -> ast.FunctionDef:
    """A method of a class. NotStatic when it has none."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == name:
            return part
    raise NotStatic(f"{node.name} has no method {name}")
