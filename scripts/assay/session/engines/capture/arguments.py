"""`parser.add_argument(...)` calls as flags. A flag:

``{flag, dest?, aliases?, form, types, choices?, default?, minimum?..., doc?, why?}``. ``form`` says how a value is
written: ``value``, ``switch`` (there or not), ``on_off`` (``--x``, ``--no-x``), ``list`` (several words),
``append`` (the flag again for each), ``json``, ``bare_or_value``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from assay.session.engines.capture.sources import Module, NotStatic, Sources, keywords, name_of
from assay.session.engines.capture.types import put_default, shorten

NUMBERS = {"int": "int", "float": "float", "str": "str", "human_readable_int": "int", "nullable_str": "str"}
JSON_READERS = ("loads", "json_list_type")


def calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """The add_argument calls of a function, in order."""
    found = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and name_of(node.func) == "add_argument" and node.args
    ]
    yield from sorted(found, key=lambda call: call.lineno)


def flag_names(call: ast.Call) -> list[str]:
    """The spellings of a flag; a prefix that is put in when it runs is left out."""
    names = []
    for node in call.args:
        if isinstance(node, ast.JoinedStr):
            names.append("".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)))
        elif isinstance(node, ast.Constant):
            names.append(str(node.value))
    return names


def key_of(flag: str) -> str:
    """`max_model_len` of `--max-model-len`: the name in a campaign file."""
    return flag.lstrip("-").replace("-", "_")


def describe(
    sources: Sources, module: Module, call: ast.Call, known: dict[str, Any] | None = None
) -> tuple[str, dict[str, Any]] | None:
    """(key, flag) of one call on top of what is ``known`` of it; None for a positional argument."""
    names = flag_names(call)
    long = [name for name in names if name.startswith("--")]
    if not long:
        return None
    flag: dict[str, Any] = {"flag": long[0], "form": "value", "types": ["str"], **(known or {})}
    if others := [name for name in names if name != long[0]]:
        flag["aliases"] = others
    words = keywords(call)
    _form(flag, words)
    for word, node in words.items():
        try:
            if word == "choices":
                flag["choices"] = sources.value(module, node)
            elif word == "default":
                put_default(flag, sources.value(module, node))
            elif word == "dest":
                flag["dest"] = sources.value(module, node)
            elif word == "help" and "doc" not in flag:
                flag["doc"] = shorten(str(sources.value(module, node)))
        except NotStatic as why:
            if word == "choices":
                flag["choices"] = None
            if word != "help":
                flag["why"] = "; ".join([*([flag["why"]] if "why" in flag else []), f"{word}: {why}"])
    return key_of(long[0]), flag


def _form(flag: dict[str, Any], words: dict[str, ast.expr]) -> None:
    """How a value is written and what it may be, from ``action``, ``type`` and ``nargs``."""
    if "action" in words:
        node = words["action"]
        action = node.value if isinstance(node, ast.Constant) else name_of(node)
        if action == "BooleanOptionalAction":
            flag |= {"form": "on_off", "types": ["bool"]}
        elif action == "store_true" or "StoreTrue" in str(action):
            flag |= {"form": "switch", "types": ["bool"]}
            flag.setdefault("default", False)
        elif action == "append":
            flag |= {"form": "append", "types": [{"list": ["any"]}]}
        else:
            flag["why"] = f"action: {ast.unparse(node)[:80]}"
    if "type" in words:
        reader = name_of(words["type"])
        if reader in NUMBERS:
            flag["types"] = [NUMBERS[reader]]
        elif reader in JSON_READERS:
            flag |= {"form": "json", "types": ["dict", {"list": ["any"]}]}
        else:
            flag |= {"types": ["any"], "why": f"type: {ast.unparse(words['type'])[:80]}"}
    if "nargs" in words:
        nargs = words["nargs"]
        if isinstance(nargs, ast.Constant) and nargs.value in ("+", "*") and flag["form"] == "value":
            flag |= {"form": "list", "types": [{"list": flag["types"]}]}
