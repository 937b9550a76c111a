"""matplotlib's SVG -> the same drawing in a third of the bytes: it stands in the page and once more in a file.

Groups that only carry a name, names that nothing refers to, paths without a colour, turns by nothing and clips of what
lies inside go; other names become numbers; coordinates keep one decimal, a tenth of a point, those inside of a mark
two; marks of one shape share it; a font that all texts share is told once, and so is a style that comes again, by a
class.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_TAG = re.compile(r"<(/?)([\w:]+)([^<>]*?)(/?)>")  # texts and attributes hold neither < nor >
_ATTRIBUTE = re.compile(r'\s+([\w:-]+)="([^"]*)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^")]+)')
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_STEP = re.compile(r"([A-Za-z])([^A-Za-z]*)")  # of a path
_FAMILY = re.compile(r"font-family: ([^;]+); ")
_STYLE = re.compile(r' style="([^"]*)"')
_CLASS = re.compile(r' class="([^"]*)"')
_SHEET = re.compile(r"<defs>\s*<style[^<>]*>(.*?)</style>\s*</defs>\n?")
_RULE = re.compile(r"([^{}]+)\{([^}]*)\}")
_CLIP = re.compile(r'<clipPath id="(\w+)">\s*<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"/>\s*</clipPath>')
_CLIPPED = re.compile(r'(<path d="([^"]*)") clip-path="url\(#(\w+)\)"')
_CLIPPED_MARKS = re.compile(r'<g clip-path="url\(#(\w+)\)">((?:\s*<use [^<>]*/>)+)\s*</g>')
_MARK = re.compile(r'<defs>\s*<path id="(\w+)" d="([^"]*)"(?: style="([^"]*)")?/>\s*</defs>')
_USE = re.compile(r'<use xlink:href="#(\w+)" x="(\S+)" y="(\S+)"(?: style="([^"]*)")?/>')
_MARKS = re.compile(r"<g( [^<>]*)?>((?:\s*<use [^<>]*/>)+)\s*</g>")
_EMPTY = re.compile(r"<defs>\s*</defs>")
_NUMBERS = ("x", "y", "width", "height")
_INVISIBLE = "fill:none"  # and no stroke
_JOINS = (
    "*{stroke-linejoin: round; stroke-linecap: butt}",
    "svg{stroke-linejoin:round}",
)  # butt is the default


def compact(svg: str) -> str:
    """The same drawing; texts and colours stay as they are."""
    svg = _with_shared_marks(_without_clips(svg.replace(*_JOINS)))
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
        attributes = dict(_ATTRIBUTE.findall(text))
        own = names.get(attributes.pop("id", ""))
        attributes = {key: _value(key, value, shared, is_mark=own is not None) for key, value in attributes.items()}
        attributes = {"id": own, **attributes} if own else attributes
        if attributes.get("transform", "").startswith("rotate(0 "):
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


def with_shared_styles(svgs: Sequence[str]) -> tuple[list[str], str]:
    """Compact drawings for one page, and its rules for all of them: a class means the same in every drawing."""
    sheets = [dict(_RULE.findall("".join(_SHEET.findall(svg)))) for svg in svgs]
    counts = Counter(style for svg in svgs for style in _styles_in(svg))
    for sheet in sheets:
        counts.update({style: 2 for name, style in sheet.items() if name.startswith(".")})
    classes = _classes(counts)
    shared = []
    for svg, sheet in zip(svgs, sheets, strict=True):
        own = {name[1:]: classes[style] for name, style in sheet.items() if name.startswith(".")}
        shared.append(_restyled(_SHEET.sub("", svg, count=1), classes, own))
    others = dict.fromkeys(f"{name}{{{says}}}" for sheet in sheets for name, says in sheet.items() if name[0] != ".")
    return shared, "".join(others) + _rules(classes)


def _with_classes(svg: str) -> str:
    """Styles that come again as classes."""
    classes = _classes(Counter(_styles_in(svg)))
    return _restyled(svg, classes, {}).replace("</style>", f"{_rules(classes)}</style>", 1)


def _styles_in(svg: str) -> Iterable[str]:
    return (style for tag in _TAG.finditer(svg) for style in _STYLE.findall(tag[0]))


def _classes(counts: Mapping[str, int]) -> dict[str, str]:
    """Style -> class, for each that comes again."""
    often = [style for style, count in counts.items() if count > 1]
    return {style: f"s{place}" for place, style in enumerate(often)}


def _restyled(svg: str, classes: Mapping[str, str], renamed: Mapping[str, str]) -> str:
    """With classes in place of the styles that have one, and those that are there already by their new names."""

    def tag(found: re.Match[str]) -> str:
        text = _CLASS.sub(lambda own: f' class="{renamed[own[1]]}"', found[0])
        return _STYLE.sub(lambda own: f' class="{classes[own[1]]}"' if own[1] in classes else own[0], text)

    return _TAG.sub(tag, svg)


def _rules(classes: Mapping[str, str]) -> str:
    return "".join(f".{name}{{{style}}}" for style, name in classes.items())


def _without_clips(svg: str) -> str:
    """A clip stays where it hides something; a mark on the edge shows whole, and a line along it in its full width."""
    boxes = {name: tuple(map(float, box)) for name, *box in _CLIP.findall(svg)}

    def is_inside(clip: str, numbers: Sequence[str]) -> bool:
        left, top, width, height = boxes[clip]
        return all(
            left - 0.01 <= float(x) <= left + width + 0.01 and top - 0.01 <= float(y) <= top + height + 0.01
            for x, y in zip(numbers[::2], numbers[1::2], strict=True)
        )

    def path(found: re.Match[str]) -> str:
        return found[1] if is_inside(found[3], _NUMBER.findall(found[2])) else found[0]

    def marks(found: re.Match[str]) -> str:
        places = [number for _, x, y, _ in _USE.findall(found[2]) for number in (x, y)]
        return f"<g>{found[2]}</g>" if is_inside(found[1], places) else found[0]

    svg = _CLIPPED_MARKS.sub(marks, _CLIPPED.sub(path, svg))
    svg = _CLIP.sub(lambda clip: clip[0] if f"url(#{clip[1]})" in svg else "", svg)
    return _EMPTY.sub("", svg)


def _with_shared_marks(svg: str) -> str:
    """A mark's shape stands there once, whatever colours it is used in: each use has them."""
    uses: dict[str, list[str]] = {}
    for name, _, _, style in _USE.findall(svg):
        uses.setdefault(name, []).append(style)
    kept: dict[tuple[str, str], str] = {}  # shape and what style is left -> name
    same: dict[str, str] = {}

    def mark(found: re.Match[str]) -> str:
        name, shape, style = found.groups(default="")
        is_said = not style or all(set(style.split("; ")) <= set(use.split("; ")) for use in uses.get(name, ()))
        style = "" if is_said else f' style="{style}"'
        same[name] = kept.setdefault((shape, style), name)
        return f'<defs><path id="{name}" d="{shape}"{style}/></defs>' if same[name] == name else ""

    svg = _MARK.sub(mark, svg)
    svg = _USE.sub(lambda use: use[0].replace(f"#{use[1]}", f"#{same.get(use[1], use[1])}", 1), svg)
    return _MARKS.sub(_with_one_style, svg)


def _with_one_style(group: re.Match[str]) -> str:
    """Marks of one series have their colours from the group that they are in."""
    styles = {style for *_, style in _USE.findall(group[2])}
    if len(styles) > 1 or group[2].count("<use") == 1:
        return group[0]
    return f'<g{group[1] or ""} style="{styles.pop()}">{_STYLE.sub("", group[2])}\n</g>'


def _has_no_use(name: str, attributes: Mapping[str, str], is_empty: bool) -> bool:
    if name == "g":
        return is_empty or not attributes
    return name == "path" and "id" not in attributes and attributes.get("style") == _INVISIBLE


def _value(name: str, value: str, shared: str, is_mark: bool) -> str:
    if name == "style":
        value = value.replace(f"font-family: {shared}; ", "").replace("stroke-dashoffset: 0; ", "")
        return re.sub(r"([:;]) ", r"\1", value)
    if name == "d":
        return _path(value, 2 if is_mark else 1)
    if name == "transform":
        return _NUMBER.sub(lambda number: _rounded(number[0], 2), value)
    return _rounded(value, 1) if name in _NUMBERS and _NUMBER.fullmatch(value) else value


def _rounded(number: str, digits: int) -> str:
    text = f"{float(number):.{digits}f}".rstrip("0").rstrip(".") if "." in number else number
    return "0" if text == "-0" else text


def _path(text: str, digits: int) -> str:
    """Steps of a path, a level or an upright one by the one number that it changes."""
    steps, x, y = [], "", ""
    for letter, rest in _STEP.findall(text):
        numbers = [_rounded(number, digits) for number in _NUMBER.findall(rest)]
        step = f"{letter}{' '.join(numbers)}"
        if letter == "L" and numbers[1] == y:
            step = f"H{numbers[0]}"
        elif letter == "L" and numbers[0] == x:
            step = f"V{numbers[1]}"
        steps.append(step)
        x, y = numbers[-2:] or ("", "")
    return "".join(steps)
