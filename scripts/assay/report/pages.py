"""cards.html: the evidence cards as a page that needs nothing else, every text escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
article { border: 1px solid #8886; border-radius: 8px; padding: 1rem 1.25rem; margin: 1.25rem 0; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin: 0; }
.value { font-size: 1.6rem; font-weight: 600; margin: .2rem 0; }
.flag { border: 1px solid currentColor; border-radius: 4px; padding: 0 .4em; font-size: .8rem; }
table { border-collapse: collapse; width: 100%; margin-top: .6rem; font-size: .9rem; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-top: 1px solid #8883; vertical-align: top; }
th { width: 16rem; font-weight: 500; } .faint { opacity: .7; font-size: .85rem; }
code { word-break: break-all; }
"""
_LIMIT = 400


def _text(value: Any) -> str:
    """One value as safe text: bounded, printable, escaped."""
    plain = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    plain = "".join(char if char.isprintable() else "?" for char in plain)
    return escape(plain if len(plain) <= _LIMIT else plain[: _LIMIT - 1] + "…")


def _figure(value: float | None) -> str:
    return "no value" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _card(card: Mapping[str, Any]) -> str:
    claim, conditions, evidence = card["claim"], card["conditions"], card["evidence"]
    flag = "publishable" if claim["publishable"] else "not publishable"
    spread = f" · spread {claim['spread_ratio']:.3g}x" if claim["spread_ratio"] and claim["n"] > 1 else ""
    named = {name.replace("_", " "): value for name, value in conditions.items()}
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in named.items())
    why = f"<p class=faint>Flags: {_text(', '.join(claim['reasons']))}</p>" if claim["reasons"] else ""
    left_out = (
        f"<p class=faint>Left out: {_text(', '.join(claim['excluded_rows']))}</p>"
        if claim["excluded_rows"]
        else ""
    )
    return (
        f"<article><h2>{_text(claim['configuration'])} · {_text(claim['point_id'])} · {_text(claim['name'])}</h2>"
        f"<p class=value>{_text(_figure(claim['value']))} {_text(claim['unit'])}</p>"
        f"<p>{_text(claim['statistic'])}{_text(spread)} <span class=flag>{flag}</span></p>{why}{left_out}"
        f"<table>{rows}</table>"
        f"<p class=faint>Rows <code>{_text(', '.join(evidence['row_ids']))}</code><br>"
        f"Runs <code>{_text(', '.join(evidence['run_ids']))}</code></p></article>"
    )


def cards_page(cards: Mapping[str, Any]) -> str:
    """The whole page. No script, no link to anything outside."""
    title = _text(cards.get("title") or cards["campaign"])
    body = (
        "\n".join(_card(card) for card in cards["cards"])
        or "<p>No claim has a value that can be trusted.</p>"
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name=viewport content="width=device-width">'
        f"<title>Evidence cards: {title}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>Evidence cards: {title}</h1>\n"
        f"<p class=faint>Campaign {_text(cards['campaign'])}. Each card is one figure with the conditions under "
        f"which it holds; cards.json has the same.</p>\n{body}\n</body></html>\n"
    )
