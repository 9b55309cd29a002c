"""What was run on what, as pairs of a name and a text."""

from collections.abc import Mapping
from typing import Any

from reports import glossary, words

Facts = list[tuple[str, str]]

_SITES = {
    "model_built_patterns": "Patterns built by the model",
    "model_built_pairs": "Queries × keys built by the model",
    "not_reached": "Attention that its input does not come to",
    "unread": "In its checkpoint, but not in the model",
}


def of_model(model: Mapping[str, Any]) -> Facts:
    """The model: its name, revision, size, and how its weights were stored."""
    made = [("Model", _text(model.get("name")))]
    if model.get("architecture"):
        made.append(("Architecture", _text(model["architecture"])))
    if model.get("n_layers") and model.get("n_heads"):
        made.append(("Heads", _heads(model)))
    if model.get("quantisation"):
        made.append(("Weights", f"weights quantised as {_text(model['quantisation'])}"))
    if model.get("source"):
        made.append(("From", _text(model["source"])))
    if model.get("revision"):
        made.append(("Revision", _text(model["revision"])))
    if model.get("weights_sha256"):
        made.append(("SHA-256 of the weights", _text(model["weights_sha256"])))
    if isinstance(check := model.get("verify"), Mapping) and check.get("max_error") is not None:
        made.append(("Checked", _checked(check)))
    made += [(title, ", ".join(map(_text, model[name]))) for name, title in _SITES.items() if model.get(name)]
    return [(name, text) for name, text in made if text]


def of_run(provenance: Mapping[str, Any]) -> Facts:
    """One analysis's run: its settings, where it ran, and how long."""
    config = provenance.get("config") or {}
    settings = " · ".join(
        f"{key.replace('_', ' ')} {_value(value)}"
        for key, value in config.items()
        if value not in (None, "") and key != "seed"
    )
    where = " in ".join(_text(provenance.get(key)) for key in ("device", "dtype") if provenance.get(key))
    spent = ", ".join(part for part in (duration(provenance.get("wall_seconds")), _memory(provenance)) if part)
    seed, inputs = provenance.get("seed"), provenance.get("inputs") or {}
    made = [
        *((words.sentence_case(glossary.DATA.get(name, str(name))), _told(given)) for name, given in inputs.items()),
        ("Settings", " · ".join([settings, *([f"seed {seed}"] if seed is not None else [])])),
        ("Run", " · ".join(part for part in (f"on {where}" if where else "", spent) if part)),
    ]
    return [(name, text) for name, text in made if text]


def of_machine(provenance: Mapping[str, Any]) -> Facts:
    """What else one may need to repeat a run: when, on which system, with which versions."""
    threads = provenance.get("threads")
    system = [
        _text(provenance.get("platform")),
        f"Python {_text(provenance['python'])}" if provenance.get("python") else "",
    ]
    versions = (provenance.get("versions") or {}).items()
    made = [
        ("Started", _text(provenance.get("started"))),
        ("System", " · ".join(part for part in [*system, words.count(threads, "thread") if threads else ""] if part)),
        ("Versions", " · ".join(f"{_text(name)} {_text(version)}" for name, version in versions)),
    ]
    return [(name, text) for name, text in made if text]


def duration(seconds: float | None) -> str:
    """``48 s`` or ``3 min 20 s``."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _told(given: Any) -> str:
    """What an input was, where the analysis described it."""
    return _text(given.get("what")).rstrip(".") if isinstance(given, Mapping) else _text(given)


def _checked(check: Mapping[str, Any]) -> str:
    """How far the model under this project's attention is from itself."""
    output, own = _text(check.get("output") or "output"), _text(check.get("compared_with"))
    return (
        f"{output}: at most {words.small(check['max_error'])} away from those with the model's own {own} attention "
        f"(tolerance {words.small(check.get('tolerance'))})"
    )


def _memory(provenance: Mapping[str, Any]) -> str:
    known = [(provenance.get("peak_memory_bytes"), "at most"), (provenance.get("peak_gpu_memory_bytes"), "on the GPU")]
    return ", ".join(f"{where} {size / 1e9:.2f} GB" for size, where in known if size)


def _heads(model: Mapping[str, Any]) -> str:
    layers, heads, shared = model["n_layers"], model["n_heads"], model.get("n_kv_heads")
    grouped = f", {shared} key-value heads a layer" if shared and shared != heads else ""
    return f"{_value(layers)} layers × {_value(heads)} heads{grouped}"


def _text(value: Any) -> str:
    return "" if value is None else words.visible(str(value))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return words.number(value)
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value) or "(without a value)"
    return words.visible(str(value))
