"""The summaries as tables of text, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.sizes import GIGA, METHODS
from benchmarks.summary import Record, Target

__all__ = [
    "Text",
    "agreement_text",
    "attention_text",
    "divergence_text",
    "forward_text",
    "machine_text",
    "markdown",
    "show",
    "target_text",
]


@dataclass(frozen=True)
class Text:
    """A table of text. ``note``: what a reader needs to know beside it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    n_words: int = 1
    """How many of the first columns hold words, which are set to the left."""


def forward_text(summary: Sequence[Record], left_out: Sequence[Mapping[str, Any]]) -> Text:
    """One row per length and method, those that were left out with their reason."""
    rows: list[tuple[int, int, list[str]]] = []
    order = list(METHODS)
    for row in summary:
        numbers = []
        for name, value in (("time", "seconds"), ("cpu", "cpu_seconds"), ("memory", "peak_gb"), ("added", "added_gb")):
            numbers += [f"{row[value]:.2f}", *(_times(row[f"{name}_to_{other}"]) for other in ("plain", "interp"))]
        rows.append((row["length"], order.index(row["method"]), [*numbers, ""]))
    for part in left_out:
        rows.append((part["length"], order.index(part["method"]), ["–"] * 12 + [part["reason"]]))
    names = list(METHODS.values())
    over = ("÷ plain", "÷ interp")
    return Text(
        "One forward pass of one sequence",
        ["tokens", "method", *(head for what in ("s", "CPU s", "peak GB", "added GB") for head in (what, *over)), ""],
        [[f"{length:,}", names[method].title, *cells] for length, method, cells in sorted(rows, key=lambda r: r[:2])],
        "Medians over the rounds; ratios are taken within a round. Peak: VmHWM of the whole process, weights and the "
        "logits of all positions included; added: of it, what the forward pass added to the loaded model. "
        + "; ".join(f"{method.title}: {method.words}" for method in METHODS.values())
        + ".",
        n_words=2,
    )


def attention_text(summary: Sequence[Record]) -> Text:
    """One row per shape and length."""
    rows = [
        [f"{row['n_heads']} / {row['n_kv_heads']}", f"{row['length']:,}"]
        + [f"{row[way] * 1e3:,.1f}" for way in ("sdpa", "attend", "basic")]
        + [_times(row[f"{way}_to_sdpa"]) for way in ("attend", "basic")]
        for row in summary
    ]
    columns = ["heads / kv heads", "tokens", "SDPA ms", "attend ms", "with probes ms", "attend ÷ SDPA", "probes ÷ SDPA"]
    return Text("Attention alone", columns, rows, "Causal, d_head 64, float32; PyTorch's scaled_dot_product_attention.")


def divergence_text(summary: Sequence[Record]) -> Text:
    """One row per length."""
    rows = [
        [f"{row['length']:,}", f"{row['n_heads'] * (row['n_heads'] - 1) // 2:,}"]
        + [f"{row[way]:.2f}" for way in ("forward", "divergences", "without_first")]
        + [_times(row[f"{way}_to_forward"]) for way in ("divergences", "without_first")]
        for row in summary
    ]
    columns = [
        "tokens",
        "pairs of heads",
        "forward s",
        "JSD s",
        "without first s",
        "JSD ÷ forward",
        "without ÷ forward",
    ]
    note = "Jensen–Shannon divergence of every pair of heads on every row; again without the first position."
    return Text("Every pair of heads", columns, rows, note)


def agreement_text(agreement: Sequence[Record]) -> Text:
    """The differences between the methods' answers."""
    rows = [
        [
            f"{row['length']:,}",
            METHODS[row["method"]].title,
            *(_small(row[k]) for k in ("logits", "bounded", "relative")),
        ]
        for row in sorted(agreement, key=lambda row: (row["length"], list(METHODS).index(row["method"])))
        if row["method"] != "plain"
    ]
    return Text(
        "Do they give the same answer?",
        ["tokens", "method", "logits", "weights and masses", "entropy, distance (relative)"],
        rows,
        "Largest difference over all heads and layers: logits from plain transformers', statistics from those of "
        "transformers eager.",
        n_words=2,
    )


def target_text(targets: Sequence[Target]) -> Text:
    """Each target with its verdict."""
    verdict = {True: "met", False: "MISSED", None: "not measured"}
    rows = [
        [
            target.what,
            f"{target.sense} {target.limit:g} {target.unit}",
            "–" if target.measured is None else f"{target.measured:.2f} {target.unit}",
            verdict[target.met],
            target.note,
        ]
        for target in targets
    ]
    return Text("Targets", ["", "promised", "measured", "", ""], rows)


def machine_text(machine: Mapping[str, Any], run: Mapping[str, Any]) -> Text:
    """What it was measured on."""
    versions = machine["versions"]
    rows = [
        ["processor", f"{machine['cpu']}, {machine['cores']} cores; threads of PyTorch: {run['threads']}"],
        ["memory", f"{machine['memory_bytes'] / GIGA:.0f} GB"],
        ["system", f"{machine['system']}, Python {machine['python']}"],
        ["versions", ", ".join(f"{name} {version}" for name, version in versions.items())],
        ["load average", f"{run['load_before']:.2f} before, {run['load_after']:.2f} after"],
        ["model", f"{run['model']}, float32, random tokens, seed {run['seed']}"],
        ["measured", f"{run['started']}, {run['wall_seconds'] / 60:.0f} min"],
    ]
    return Text("Machine", ["", ""], rows, n_words=2)


def show(text: Text, console: Console) -> None:
    """Print a table."""
    table = Table(title=text.title, title_justify="left", caption=text.note or None, caption_justify="left")
    for place, column in enumerate(text.columns):
        words = place < text.n_words or not column
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    for before, row in zip([None, *text.rows], text.rows, strict=False):
        if before is not None and text.n_words == 2 and "tokens" in text.columns and before[0] != row[0]:
            table.add_section()
        table.add_row(*row)
    console.print(table)


def markdown(texts: Sequence[Text], title: str, figure: str) -> str:
    """All tables as a Markdown page."""
    parts = [f"# {title}", f"![{title}]({figure})"]
    for text in texts:
        align = ["---" if i < text.n_words or not column else "---:" for i, column in enumerate(text.columns)]
        lines = [_line(text.columns), _line(align), *map(_line, text.rows)]
        parts += [f"## {text.title}", "\n".join(lines), *([text.note] if text.note else [])]
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def _small(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"
