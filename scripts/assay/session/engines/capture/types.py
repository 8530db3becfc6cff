"""Annotations as data: which JSON values a field or flag takes.

A list of entries, any of which may hold: ``"bool"``, ``"int"``, ``"float"``, ``"str"``, ``"null"``,
``"dict"``, ``"any"``, ``{"literal": [...]}``, ``{"enum": [...]}`` (names, in any case), ``{"list": [...]}``,
``{"config": name}`` (keys are in ``configs``).
"""

from __future__ import annotations

import ast
from typing import Any

from assay.session.engines.capture.sources import (
    Module,
    NotStatic,
    Sources,
    bases,
    default_of,
    elements,
    keywords,
    name_of,
)

PLAIN = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "None": "null",
    "dict": "dict",
    "Any": "any",
}
LISTS = ("list", "List", "set", "Set", "tuple", "Tuple", "Sequence", "frozenset")
DICTS = ("dict", "Dict", "Mapping")
MAX_DOC = 110
MAX_DEFAULT = 300
LIMITS = {"ge": "minimum", "gt": "above", "le": "maximum", "lt": "below"}


class Types:
    """Reads annotations; ``configs`` collects the config classes that it meets."""

    def __init__(self, sources: Sources):
        self.sources = sources
        self.configs: dict[str, dict[str, Any]] = {}
        self.places: dict[str, tuple[Module, ast.ClassDef]] = {}

    def read(self, module: Module, node: ast.AST, depth: int = 0) -> list[Any]:
        """The entries of an annotation, each once."""
        if depth > 20:
            return ["any"]
        found: list[Any] = []
        for entry in self._read(module, node, depth + 1):
            if entry not in found:
                found.append(entry)
        return found

    def _read(self, module: Module, node: ast.AST, depth: int) -> list[Any]:
        if isinstance(node, ast.Constant):
            if node.value is None:
                return ["null"]
            if isinstance(node.value, str):
                return self.read(module, ast.parse(node.value, mode="eval").body, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return [*self.read(module, node.left, depth), *self.read(module, node.right, depth)]
        if isinstance(node, ast.Subscript):
            return self._subscript(module, node, depth)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._name(module, node, depth)
        return ["any"]

    def _subscript(self, module: Module, node: ast.Subscript, depth: int) -> list[Any]:
        kind, parts = name_of(node.value), elements(node.slice)
        if kind == "Optional":
            return [*self.read(module, parts[0], depth), "null"]
        if kind == "Union":
            return [entry for part in parts for entry in self.read(module, part, depth)]
        if kind == "Literal":
            return [{"literal": self.sources.value(module, node)}]
        if kind in ("Annotated", "A"):
            return self.read(module, parts[0], depth)
        if kind in LISTS:
            inner = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is ...)]
            return [{"list": [entry for part in inner for entry in self.read(module, part, depth)]}]
        return ["dict"] if kind in DICTS else ["any"]

    def _name(self, module: Module, node: ast.AST, depth: int) -> list[Any]:
        name = name_of(node)
        if name in PLAIN:
            return [PLAIN[name]]
        if name in LISTS:
            return [{"list": ["any"]}]
        try:
            where, target = self.sources.resolve(module, name)
        except NotStatic:
            return ["any"]
        if isinstance(target, ast.ClassDef):
            return [self._class(where, target)]
        return self.read(where, target, depth) if isinstance(target, ast.expr) else ["any"]

    def _class(self, module: Module, node: ast.ClassDef) -> Any:
        ancestors = {name_of(base) for base in node.bases}
        if any(name.endswith("Enum") for name in ancestors):
            members = [
                name_of(part.targets[0])
                for part in node.body
                if isinstance(part, ast.Assign) and not name_of(part.targets[0]).startswith("_")
            ]
            return {"enum": members}
        if "TypedDict" in ancestors or ancestors & set(DICTS):
            return "dict"
        marks = {name_of(mark.func if isinstance(mark, ast.Call) else mark) for mark in node.decorator_list}
        if marks & {"config", "dataclass"} or "BaseModel" in ancestors:
            self.config(module, node)
            return {"config": node.name}
        return "any"

    def config(self, module: Module, node: ast.ClassDef) -> dict[str, Any]:
        """Every field of a config class that may be given, with its entries, limits and default."""
        if node.name not in self.configs:
            self.configs[node.name] = {}
            self.places[node.name] = (module, node)
            fields: dict[str, Any] = {}
            for where, owner in [*reversed(bases(self.sources, module, node)), (module, node)]:
                for place, part in enumerate(owner.body):
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                        following = owner.body[place + 1] if place + 1 < len(owner.body) else None
                        described = self.field(where, part, following)
                        if described is not None:
                            fields[part.target.id] = described
            self.configs[node.name] = fields
        return self.configs[node.name]

    def field(self, module: Module, part: ast.AnnAssign, following: ast.stmt | None) -> dict[str, Any] | None:
        """One field; None when it cannot be given (class variables, ``init=False``)."""
        if (
            name_of(part.annotation.value if isinstance(part.annotation, ast.Subscript) else None)
            == "ClassVar"
        ):
            return None
        described: dict[str, Any] = {"types": self.read(module, part.annotation)}
        call = part.value if isinstance(part.value, ast.Call) else None
        if call is not None and name_of(call.func) in ("Field", "field"):
            words = keywords(call)
            init = words.get("init")
            if isinstance(init, ast.Constant) and init.value is False:
                return None
            for word, limit in LIMITS.items():
                if word in words:
                    try:
                        described[limit] = self.sources.value(module, words[word])
                    except NotStatic as why:
                        described["why"] = f"{word}: {why}"
        if part.value is not None:
            try:
                put_default(
                    described, self.sources.value(module, part.value if call is None else default_of(call))
                )
            except NotStatic as why:
                described["why"] = f"default: {why}"
        text = doc_of(following)
        return described | ({"doc": text} if text else {})


def put_default(described: dict[str, Any], value: Any) -> None:
    """Keep a default that JSON can hold and that is short."""
    if isinstance(value, (list, dict)) and len(str(value)) > MAX_DEFAULT:
        described["why"] = "default: too long to keep"
    elif value is None or isinstance(value, (bool, int, float, str, list, dict)):
        described["default"] = value
    else:
        described["why"] = f"default: {type(value).__name__}"


def doc_of(following: ast.stmt | None) -> str:
    """The first sentence of the string below a field."""
    is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    if not is_text or not isinstance(following.value.value, str):  # type: ignore[union-attr]
        return ""
    return shorten(following.value.value)  # type: ignore[union-attr]


def shorten(text: str) -> str:
    """One line, at most MAX_DOC characters, to the end of a sentence where there is one."""
    line = " ".join(text.split())
    first = line.split(". ")[0].rstrip(".")
    return first if len(first) <= MAX_DOC else first[: MAX_DOC - 1] + "…"


def has(types: list[Any], kind: str) -> bool:
    """Is there an entry of this kind: a plain word, or the key of an object?"""
    return any(entry == kind or (isinstance(entry, dict) and kind in entry) for entry in types)
