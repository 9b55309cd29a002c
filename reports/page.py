"""A run folder → its figures, and one self-contained HTML page. Imports nothing that computes."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from interp.errors import RunFolderError
from interp.results import Result, RunFolder, write_file
from reports import embed, facts, glossary, style, svg, words
from reports.chapters import Chapter, Plate
from reports.chapters.declared import find_chapter
from reports.figures.heads import MAP
from reports.prose import formula, prose

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("tables.js", "views.js", "text.js", "card.js", "maps.js", "start.js")
SCALE = 1.15  # figures are larger on the page than on paper, so that their smallest text is read with ease
INLINE = 600_000  # bytes of SVG; larger figures are shown as PNG
_CONTENT = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Drawn:
    """A figure as the page holds it: its markup or its picture, and the maps in it that answer the pointer."""

    plate: Plate
    id: str
    markup: Markup
    files: tuple[str, str]
    maps: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Part:
    """One analysis's part of the page; ``beside``: the figures that stand with a finding, by their names."""

    analysis: str
    chapter: Chapter
    result: Result
    opening: Drawn | None
    beside: Mapping[str, Drawn]
    drawn: tuple[Drawn, ...]
    tables: tuple[embed.Embedded, ...]

    @property
    def command(self) -> str:
        """What makes this analysis again by itself, or else what made it."""
        made = self.result.provenance
        return str(made.get("rerun") or made.get("command") or f"interp run {self.analysis}")


def write(run_folder: Path | str) -> Path:
    """Draw every finished analysis of a run folder and write its page.

    Figures go to ``RUN/ANALYSIS/figures/NAME.svg`` and ``.png``; the page, ``RUN/index.html``, appears whole.

    Raises:
        RunFolderError: it is no run folder, or no analysis in it is finished.
    """
    run = RunFolder(run_folder)
    if not (analyses := run.analyses()):
        raise RunFolderError(
            f"{run.path} has no finished analysis to draw; `interp report MODEL --out {run.path}` makes one"
        )
    results = {analysis: run.load(analysis) for analysis in analyses}
    chapters = {name: find_chapter(name).chapter(result, run) for name, result in results.items()}
    room, parts = embed.ROOM, []
    for analysis in sorted(analyses, key=lambda name: (chapters[name].place, name)):
        part = _part(run, results[analysis], chapters[analysis], room)
        room -= sum(len(table.blob) for table in part.tables)
        parts.append(part)
    write_file(run.page, render(run, parts))
    return run.page


def render(run: RunFolder, parts: list[Part]) -> str:
    """The page as HTML; the first part opens it."""
    known = _known_heads(parts)
    about = _about(parts, known)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "prose": prose(lambda layer, head: (layer, head) in known, about["stacks"]),
        "formula": formula,
        "visible": words.visible,
        "sentence_case": words.sentence_case,
        "rows": rows_link,
    }
    script = "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return environment.get_template("page.html").render(
        run=run,
        name=words.visible(str(run.model.get("name") or "a model")),
        parts=parts,
        first=parts[0],
        model_facts=facts.of_model(run.model),
        run_facts={part.analysis: facts.of_run(part.result.provenance) for part in parts},
        machine_facts={part.analysis: facts.of_machine(part.result.provenance) for part in parts},
        raw={part.analysis: json.dumps(dict(part.result.provenance), indent=2, default=str) for part in parts},
        about=about,
        css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def rows_link(analysis: str, rows: Any) -> str:
    """The fragment that shows rows of a table: ``rows/ANALYSIS/TABLE?column=value``; Jinja escapes it."""
    where = {key: str(value).lower() if isinstance(value, bool) else value for key, value in rows.where.items()}
    return f"#rows/{analysis}/{rows.table}" + (f"?{urlencode(where)}" if where else "")


def _part(run: RunFolder, result: Result, chapter: Chapter, room: int) -> Part:
    analysis = result.analysis
    folder = run.figures(analysis)
    plates = [*([chapter.opening] if chapter.opening else []), *chapter.plates]
    scales = [1.0 if plate is chapter.opening else SCALE for plate in plates]  # an opening has to fit the first screen
    drawn = [_draw(plate, analysis, folder, scale) for plate, scale in zip(plates, scales, strict=True)]
    kept = {name for one in drawn for name in one.files}
    for path in folder.iterdir():  # figures of an earlier drawing
        if path.suffix in _CONTENT and path.name not in kept:
            path.unlink()
    opening = drawn.pop(0) if chapter.opening else None
    wanted = {finding.plate for finding in chapter.findings}
    beside = {one.plate.name: one for one in drawn if one.plate.name in wanted}
    apart = tuple(one for one in drawn if one.plate.name not in wanted)
    tables = embed.embed(analysis, result.tables, chapter.tables, room)
    return Part(analysis, chapter, result, opening, beside, apart, tuple(tables))


def _draw(plate: Plate, analysis: str, folder: Path, scale: float) -> Drawn:
    with style.paper():
        figure = plate.draw()
        vector, raster = style.render(figure)
    files = (f"{plate.name}.svg", f"{plate.name}.png")
    for name, content in zip(files, (vector, raster), strict=True):
        write_file(folder / name, content)
    identity = words.slug(f"{analysis} {plate.name}")
    if len(vector) <= INLINE:
        markup = Markup(svg.inline(vector, identity, plate.title, scale))
    else:
        width = round(figure.get_figwidth() * 96 * scale)
        markup = Markup('<img alt="{}" width="{}" src="data:image/png;base64,{}">').format(
            plate.title, width, base64.b64encode(raster).decode()
        )
    return Drawn(plate, identity, markup, files, tuple(_maps(figure)))


def _maps(figure: Figure) -> list[dict[str, Any]]:
    """Where in a figure its layer x head maps are, in percent of its size, and what they show."""
    made = []
    for ax in figure.axes:
        gid = ax.get_gid() or ""
        if not gid.startswith(f"{MAP}/"):
            continue
        _, metric, data, stack = gid.split("/", 3)
        layers, heads = np.asarray(ax.images[0].get_array()).shape
        box = ax.get_position()
        made.append(
            {"left": 100 * box.x0, "top": 100 * (1 - box.y1), "width": 100 * box.width, "height": 100 * box.height,
             "layers": layers, "heads": heads, "metric": metric, "data": data, "stack": stack}
        )  # fmt: skip
    return made


def _known_heads(parts: list[Part]) -> set[tuple[int, int]]:
    """All heads that any table speaks of."""
    known: set[tuple[int, int]] = set()
    for part in parts:
        for table in part.result.tables.values():
            if {"layer", "head"} <= set(table.columns):
                table = table.dropna(subset=["layer", "head"])  # rows about a layer or the whole model name no head
                known |= set(zip(table["layer"].astype(int), table["head"].astype(int), strict=True))
    return known


def _values_of(column: str, parts: list[Part]) -> set[str]:
    """What a column holds, in all tables that have it."""
    tables = [table for part in parts for table in part.result.tables.values() if column in table]
    return {str(value) for table in tables for value in table[column].unique()}


def _about(parts: list[Part], known: set[tuple[int, int]]) -> Mapping[str, Any]:
    """What the script has to know, as JSON."""
    sites, metrics = (_values_of(column, parts) for column in ("site", "metric"))
    return {
        "layers": max((layer for layer, _ in known), default=-1) + 1,
        "heads": max((head for _, head in known), default=-1) + 1,
        "stacks": sorted({words.stack_name(site) for site in sites}),
        "stackOf": {site: words.stack_name(site) for site in sorted(sites)},
        "metrics": {metric: glossary.short_metric(metric) for metric in (*glossary.METRICS, *sorted(metrics))},
        "units": glossary.UNITS,
        "data": glossary.DATA,
        "kinds": glossary.KINDS,
        "analyses": [
            {"name": part.analysis, "title": part.chapter.title, "tables": [table.about for table in part.tables]}
            for part in parts
        ],
    }
