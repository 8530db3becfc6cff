"""vLLM's `serve` parser: flags made from the fields of config classes, and those written out."""

from __future__ import annotations

import ast
from typing import Any

from assay.session.engines.capture.arguments import calls, describe, key_of
from assay.session.engines.capture.sources import Module, NotStatic, Sources, method_of, name_of
from assay.session.engines.capture.types import Types, has

ENGINE_ARGS = "vllm.engine.arg_utils"
FRONTEND_ARGS = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args")
PARSER_NAMES = {
    "tool_call_parser": ("vllm.tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning_parser": ("vllm.reasoning", "_REASONING_PARSERS_TO_REGISTER"),
}
KEPT = ("minimum", "above", "maximum", "below", "default", "doc", "why")


def capture(sources: Sources) -> dict[str, Any]:
    """``{"flags": {...}, "configs": {...}}`` of `vllm serve`."""
    types = Types(sources)
    engine = sources.must(ENGINE_ARGS)
    frontend = next(module for name in FRONTEND_ARGS if (module := sources.module(name)) is not None)
    flags = _frontend(sources, types, frontend)
    for owner in ("EngineArgs", "AsyncEngineArgs"):
        _, node = sources.class_of(engine, owner)
        flags |= _from_calls(sources, types, engine, method_of(node, "add_cli_args"))
    _, maker = sources.resolve(frontend, "make_arg_parser")
    assert isinstance(maker, ast.FunctionDef)
    for call in calls(maker):
        found = describe(sources, frontend, call)
        if found is not None:
            flags[found[0]] = found[1]
    for key, (module_name, table) in PARSER_NAMES.items():
        _parser_names(sources, flags, key, module_name, table)
    return {"flags": flags, "configs": _reachable(flags, types.configs)}


def _reachable(flags: dict[str, Any], configs: dict[str, Any]) -> dict[str, Any]:
    """The config classes that a flag's value may hold, itself or inside another."""
    kept: dict[str, Any] = {}
    found = [
        name for flag in flags.values() if flag["form"] == "json" for name in _config_names(flag["types"])
    ]
    while found:
        name = found.pop()
        if name not in kept:
            kept[name] = configs[name]
            found += [inner for field in configs[name].values() for inner in _config_names(field["types"])]
    return kept


def _config_names(entries: list[Any]) -> list[str]:
    names = [entry["config"] for entry in entries if isinstance(entry, dict) and "config" in entry]
    lists = [entry["list"] for entry in entries if isinstance(entry, dict) and "list" in entry]
    return names + [name for inner in lists for name in _config_names(inner)]


def _parser_names(sources: Sources, flags: dict[str, Any], key: str, module_name: str, table: str) -> None:
    """Choices that vLLM checks after parsing: the names its own registry holds."""
    try:
        module = sources.must(module_name)
        where, node = sources.resolve(module, table)
        if not isinstance(node, ast.Dict):
            raise NotStatic(f"{table} is no table")
        flags[key]["choices"] = sorted(
            str(sources.value(where, name)) for name in node.keys if name is not None
        )
        flags[key]["open"] = True
    except NotStatic as why:
        flags[key] |= {"choices": None, "why": f"choices: {why}"}


def flag_of(name: str, field: dict[str, Any]) -> dict[str, Any]:
    """A flag as vLLM makes it from a field's type: the order of these rules is its own."""
    types: list[Any] = field["types"]
    literals = [entry["literal"] for entry in types if isinstance(entry, dict) and "literal" in entry]
    flag: dict[str, Any] = {"form": "value", "types": types} | {k: field[k] for k in KEPT if k in field}
    if has(types, "config"):
        flag["form"] = "json"
    elif (
        {"bool", "str", "null"}
        == {entry for entry in types if isinstance(entry, str)}
        == set(map(str, types))
    ):
        flag["form"] = "bare_or_value"
    elif has(types, "bool"):
        flag |= {"form": "on_off", "types": [kind for kind in types if kind in ("bool", "null")]}
    elif literals:
        flag["choices"] = [choice for part in literals for choice in part]
        flag["open"] = "str" in types
    elif has(types, "list"):
        flag["form"] = "list"
    elif name == "max_model_len":
        flag["types"] = ["int", {"literal": ["auto"]}]
    elif has(types, "dict") and not has(types, "int") and not has(types, "float"):
        flag["form"] = "json"
    return flag


def _from_calls(sources: Sources, types: Types, module: Module, method: ast.FunctionDef) -> dict[str, Any]:
    """Flags of a method whose calls unpack `get_kwargs(SomeConfig)["field"]`."""
    owners: dict[str, str] = {}
    for node in ast.walk(method):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Call, ast.Subscript)):
            call = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if isinstance(call, ast.Call) and name_of(call.func) == "get_kwargs":
                owner = name_of(call.args[0])
                if isinstance(node.value, ast.Subscript):
                    owner += "." + str(sources.value(module, node.value.slice))
                owners[name_of(node.targets[0])] = owner
            elif isinstance(node.value, ast.Subscript) and name_of(call) in owners:
                owner = owners[name_of(call)]
                owners[name_of(node.targets[0])] = f"{owner}.{sources.value(module, node.value.slice)}"
    removed = _removed_choices(sources, module, method)
    flags: dict[str, Any] = {}
    for call in calls(method):
        known: dict[str, Any] = {}
        for word in call.keywords:
            if word.arg is None:
                known |= _unpacked(sources, types, module, owners, word.value)
                field = ast.unparse(word.value)
                if "choices" in known and field in removed:
                    known["choices"] = [choice for choice in known["choices"] if choice not in removed[field]]
                    known["types"] = ["str"]
        found = describe(sources, module, call, known)
        if found is not None:
            flags[found[0]] = found[1]
    return flags


def _removed_choices(sources: Sources, module: Module, method: ast.FunctionDef) -> dict[str, list[Any]]:
    """Choices that the parser takes away again: `kwargs["field"]["choices"].remove(X)`, by `kwargs['field']`."""
    removed: dict[str, list[Any]] = {}
    for node in ast.walk(method):
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "remove"
        ):
            continue
        table = node.func.value
        if (
            isinstance(table, ast.Subscript)
            and isinstance(table.slice, ast.Constant)
            and table.slice.value == "choices"
        ):
            removed.setdefault(ast.unparse(table.value), []).append(sources.value(module, node.args[0]))
    return removed


def _unpacked(
    sources: Sources, types: Types, module: Module, owners: dict[str, str], node: ast.expr
) -> dict[str, Any]:
    """What `**kwargs["field"]` or `**{**kwargs["field"], "default": None}` says of a flag."""
    if isinstance(node, ast.Dict):
        known: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                known |= _unpacked(sources, types, module, owners, value)
            elif sources.value(module, key) == "default":
                known["default"] = sources.value(module, value)
        return known
    if isinstance(node, ast.Name):
        owner, _, field = owners.get(node.id, "").partition(".")
    elif isinstance(node, ast.Subscript):
        owner, field = owners.get(name_of(node.value), ""), str(sources.value(module, node.slice))
    else:
        return {"types": ["any"], "why": f"unpacks {ast.unparse(node)[:60]}"}
    try:
        where, cls = sources.class_of(module, owner)
    except NotStatic as why:
        return {"types": ["any"], "why": str(why)}
    described = types.config(where, cls).get(field)
    if described is None:
        return {"types": ["any"], "why": f"{owner} has no field {field}"}
    return flag_of(field, described)


def _frontend(sources: Sources, types: Types, module: Module) -> dict[str, Any]:
    """The HTTP server's flags: one for each field of FrontendArgs, some with a reader of their own."""
    where, node = sources.class_of(module, "FrontendArgs")
    holder = Types(sources)
    fields = holder.config(where, node)
    types.configs |= {name: value for name, value in holder.configs.items() if name != "FrontendArgs"}
    flags: dict[str, Any] = {}
    for name, field in fields.items():
        flags[key_of(name)] = {"flag": "--" + name.replace("_", "-"), **flag_of(name, field)}
    for name in ("allowed_origins", "allowed_methods", "allowed_headers"):
        if name in flags:
            flags[name] |= {"form": "json"}
    if "middleware" in flags:
        flags["middleware"]["form"] = "append"
    return flags
