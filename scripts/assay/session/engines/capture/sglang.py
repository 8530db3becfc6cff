"""SGLang's server parser: annotated fields of its namespaces, and the calls that are written out."""

from __future__ import annotations

import ast
from typing import Any

from assay.session.engines.capture.arguments import JSON_READERS, NUMBERS, calls, describe, key_of
from assay.session.engines.capture.sources import (
    Module,
    NotStatic,
    Sources,
    elements,
    keywords,
    method_of,
    name_of,
)
from assay.session.engines.capture.types import Types, has, put_default, shorten

SERVER_ARGS = "sglang.srt.server_args"
NAMED_CHOICES = {
    "sampling_backend": ("sglang.srt.arg_groups.choices", "SAMPLING_BACKEND_CHOICES"),
    "reasoning_parser": ("sglang.srt.parser.reasoning_parser_names", "REASONING_PARSER_NAMES"),
    "tool_call_parser": ("sglang.srt.function_call.parser_names", "TOOL_CALL_PARSER_NAMES"),
}


def capture(sources: Sources) -> dict[str, Any]:
    """``{"flags": {...}, "configs": {}}`` of `sglang.launch_server`."""
    types = Types(sources)
    server = sources.must(SERVER_ARGS)
    _, namespaces = sources.resolve(server, "_INPUT_NAMESPACES")
    if not isinstance(namespaces, ast.List):
        raise NotStatic("_INPUT_NAMESPACES is no list")
    flags: dict[str, Any] = {}
    for element in namespaces.elts:
        where, node = sources.class_of(server, name_of(element))
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                found = _field(sources, types, where, part)
                if found is not None:
                    flags[found[0]] = found[1]
    _, owner = sources.class_of(server, "ServerArgs")
    for call in calls(method_of(owner, "add_cli_args")):
        described = describe(sources, server, call)
        if described is not None:
            flags[described[0]] = described[1]
    for key, (module_name, table) in NAMED_CHOICES.items():
        # The parser asks a function for them; it reads these tables.
        module = sources.must(module_name)
        names = sources.value(module, sources.resolve(module, table)[1])
        flags[key] |= {"choices": names if key == "sampling_backend" else ["auto", *names]}
    return {"flags": flags, "configs": types.configs}


def _field(
    sources: Sources, types: Types, module: Module, part: ast.AnnAssign
) -> tuple[str, dict[str, Any]] | None:
    """(key, flag) of `name: A[type, "help" or Arg(...)] = default`; None when it is no flag."""
    note = part.annotation
    if not isinstance(note, ast.Subscript) or name_of(note.value) not in ("A", "Annotated"):
        return None
    kind, *marks = elements(note.slice)
    mark = next((m for m in marks if isinstance(m, ast.Call) and name_of(m.func) == "Arg"), None)
    text = next((m for m in marks if isinstance(m, (ast.Constant, ast.JoinedStr))), None)
    if mark is None and text is None:
        return None
    words = keywords(mark) if mark is not None else {}
    if isinstance(words.get("no_cli"), ast.Constant) and words["no_cli"].value:  # type: ignore[attr-defined]
        return None
    name = name_of(part.target)
    spelling = (
        str(sources.value(module, words["cli_name"]))
        if "cli_name" in words
        else "--" + name.replace("_", "-")
    )
    entries = types.read(module, kind)
    flag: dict[str, Any] = {"flag": spelling, "form": "value", "types": entries}
    if key_of(spelling) != name:
        flag["dest"] = name
    if "aliases" in words:
        flag["aliases"] = sources.value(module, words["aliases"])
    _set_form(flag, words)
    _set_choices(sources, module, flag, words)
    if part.value is not None:
        try:
            put_default(flag, sources.value(module, part.value))
        except NotStatic as why:
            flag["why"] = f"default: {why}"
    help_node = words.get("help", text)
    if isinstance(help_node, ast.Constant):
        flag["doc"] = shorten(str(help_node.value))
    return key_of(spelling), flag


def _set_form(flag: dict[str, Any], words: dict[str, ast.expr]) -> None:
    reader = name_of(words.get("type_parser"))
    if "action" in words:
        if name_of(words["action"]) == "BooleanOptionalAction":
            flag |= {"form": "on_off", "types": [kind for kind in flag["types"] if kind in ("bool", "null")]}
        else:
            flag |= {"form": "list", "why": f"action: {ast.unparse(words['action'])[:80]}"}
    elif reader in JSON_READERS:
        flag["form"] = "json"
    elif reader in NUMBERS or not reader:
        if has(flag["types"], "list"):
            flag["form"] = "list"
        elif "bool" in flag["types"]:
            flag["form"] = "switch"
    else:
        flag["why"] = f"type: {reader}"
        if has(flag["types"], "any") or has(flag["types"], "config"):
            flag |= {"form": "json", "types": ["any"]}


def _set_choices(sources: Sources, module: Module, flag: dict[str, Any], words: dict[str, ast.expr]) -> None:
    literals = [e["literal"] for e in flag["types"] if isinstance(e, dict) and "literal" in e]
    if "choices" in words:
        try:
            flag["choices"] = sources.value(module, words["choices"])
        except NotStatic as why:
            flag |= {"choices": None, "why": f"choices: {why}"}
    elif literals:
        flag["choices"] = [choice for part in literals for choice in part]
