"""SVG files of figures, made fit to stand inside a page beside others."""

import re
from xml.etree import ElementTree

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_HREF = f"{{{XLINK}}}href"
_URL = re.compile(r"url\(#([^)]+)\)")

ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


def inline(svg: bytes, name: str, label: str, scale: float = 1.0) -> str:
    """An SVG element for a page: its ids start with ``name``, it has no style sheet of its own, and says what it is.

    It is ``scale`` times as large as on paper. matplotlib numbers its groups from 1 in every figure, and its style
    sheet would style the whole page.
    """
    root = ElementTree.fromstring(svg)
    _drop(root, "metadata")
    for defs in root.findall(f"{{{SVG}}}defs"):
        _drop(defs, "style")
    defined = {element.get("id") for element in root.iter() if element.get("id")}
    used = set()
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key == _HREF and value[1:] in defined:
                element.set(key, f"#{name}-{value[1:]}")
                used.add(value[1:])
            elif found := _URL.search(value):
                element.set(key, _URL.sub(rf"url(#{name}-\1)", value))
                used.add(found[1])
    for element in root.iter():
        identity = element.attrib.pop("id", None)
        if identity in used:
            element.set("id", f"{name}-{identity}")
    width = float(root.attrib.pop("width").removesuffix("pt")) * 4 / 3 * scale
    root.attrib.pop("height")
    root.set("width", f"{width:.0f}")
    root.set("role", "group" if root.find(f".//{{{SVG}}}a") is not None else "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _drop(parent: ElementTree.Element, tag: str) -> None:
    for element in parent.findall(f"{{{SVG}}}{tag}"):
        parent.remove(element)
