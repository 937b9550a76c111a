"""matplotlib's SVG -> the same drawing in half the bytes: it stands in the page and once more in a file.

Groups that only carry a name, names that nothing refers to, paths without a colour and turns by nothing go; other names
become numbers; coordinates keep two decimals, a hundredth of a point; a font that all texts share is told once, and so
is a style that comes again, by a class.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping

_TAG = re.compile(r"<(/?)([\w:]+)([^<>]*?)(/?)>")  # texts and attributes hold neither < nor >
_ATTRIBUTE = re.compile(r'\s+([\w:-]+)="([^"]*)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^")]+)')
_DECIMALS = re.compile(r"-?\d+\.\d{3,}")
_FAMILY = re.compile(r"font-family: ([^;]+); ")
_STYLE = re.compile(r' style="([^"]*)"')
_NUMBERS = ("d", "x", "y", "width", "height", "transform")
_INVISIBLE = "fill:none"  # and no stroke


def compact(svg: str) -> str:
    """The same drawing; texts and colours stay as they are."""
    names: dict[str, str] = {}  # that something refers to
    for tag in _TAG.finditer(svg):
        for _, name in _REFERENCE.findall(tag[3]):
            names.setdefault(name, str(len(names)))
    families = {name for tag in _TAG.finditer(svg) for name in _FAMILY.findall(tag[3])}
    shared = families.pop() if len(families) == 1 else ""
    is_kept: list[bool] = []  # of the groups that are open

    def smaller(tag: re.Match[str]) -> str:
        closes, name, text, is_empty = tag.groups()
        if closes:
            return tag[0] if name != "g" or is_kept.pop() else ""
        text = _REFERENCE.sub(lambda found: found[1] + names[found[2]], text)
        attributes = {key: _value(key, value, shared) for key, value in _ATTRIBUTE.findall(text)}
        own = names.get(attributes.pop("id", ""))
        attributes = {"id": own, **attributes} if own else attributes
        if attributes.get("transform", "").startswith("rotate(-0 "):
            del attributes["transform"]
        has_no_use = _has_no_use(name, attributes, bool(is_empty))
        if name == "g" and not is_empty:
            is_kept.append(not has_no_use)
        written = "".join(f' {key}="{value}"' for key, value in attributes.items())
        return "" if has_no_use else f"<{name}{written}{is_empty}>"

    svg = _TAG.sub(smaller, svg)
    assert not is_kept, "matplotlib closes its groups"
    if shared:
        svg = svg.replace("</style>", f"text{{font-family: {shared}}}</style>", 1)
    return re.sub(r"\n\s+", "\n", _with_classes(svg))


def _with_classes(svg: str) -> str:
    """Styles that come again as classes. Their names follow from what they say: a page holds several drawings."""
    counts = Counter(value for tag in _TAG.finditer(svg) for value in _STYLE.findall(tag[0]))
    classes = {style: f"s{hashlib.sha256(style.encode()).hexdigest()[:7]}" for style, n in counts.items() if n > 1}

    def named(found: re.Match[str]) -> str:
        return f' class="{classes[found[1]]}"' if found[1] in classes else found[0]

    svg = _TAG.sub(lambda tag: _STYLE.sub(named, tag[0]), svg)
    rules = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    return svg.replace("</style>", f"{rules}</style>", 1)


def _has_no_use(name: str, attributes: Mapping[str, str], is_empty: bool) -> bool:
    if name == "g":
        return is_empty or not attributes
    return name == "path" and "id" not in attributes and attributes.get("style") == _INVISIBLE


def _value(name: str, value: str, shared: str) -> str:
    if name == "style":
        value = value.replace(f"font-family: {shared}; ", "").replace("stroke-dashoffset: 0; ", "")
        return re.sub(r"([:;]) ", r"\1", value)
    if name not in _NUMBERS:
        return value
    value = _DECIMALS.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)
    return re.sub(r"\s+(?=[A-Za-z])|\s+$|(?<=[A-Za-z])\s+", "", value) if name == "d" else value
