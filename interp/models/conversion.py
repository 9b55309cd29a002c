"""A ``.gguf`` file, converted once to a folder of safetensors that transformers loads in a moment."""

import contextlib
import json
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from interp.errors import UserError
from interp.models.files import file_sha256, read_json, weight_files, weights_sha256
from interp.models.hub import quiet_bars

#: Beside the converted weights: where they come from.
SIDECAR = "converted_from.json"
_DENSE = ("F64", "F32", "F16", "BF16")

log = logging.getLogger(__name__)


class Converted(NamedTuple):
    """A converted file: its folder, the ``.gguf`` file's hash, its quantisation (None where the weights are dense)."""

    folder: Path
    sha256: str
    quantisation: str | None


def convert(file: Path, cache: Path) -> Converted:
    """The folder with a ``.gguf`` file's weights (float32), configuration and tokenizer.

    Made on first use, in ``cache/gguf/<sha256 of the file>``: into a temporary folder beside it, which is then renamed,
    so that an interrupted conversion leaves nothing and two at once do not disturb each other. Later uses check the
    converted weights against the hash kept beside them.

    Raises:
        UserError: the file is damaged, is of an architecture that transformers does not read, the packages ``gguf`` and
            ``accelerate`` are missing, the disk is full, or the converted weights are not those that were written.
    """
    sha256 = file_sha256(file, cache)
    folder = cache / "gguf" / sha256
    if not folder.is_dir():
        quantisation = _quantisation(file)
        _publish(file, folder, {"file": file.name, "sha256": sha256, "quantisation": quantisation})
    made_from = read_json(folder / SIDECAR)
    if weights_sha256(weight_files(folder), cache) != made_from.get("weights_sha256"):
        raise UserError(
            f"the weights in {folder} are not those that were converted from {file.name} (their SHA-256 differs from "
            f"{SIDECAR}): delete that folder, and it is made anew"
        )
    return Converted(folder, sha256, made_from.get("quantisation"))


def _quantisation(file: Path) -> str | None:
    """The quantisation that holds most of the weights ("Q4_1"); None for a dense file."""
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise UserError(f"{file} is no .gguf file: it starts with {magic!r}, expected b'GGUF'")
    missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if missing:
        raise UserError(f"reading a .gguf file needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    from gguf import GGUFReader

    try:
        tensors = GGUFReader(file).tensors
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise UserError(f"{file} is cut short or damaged ({error}): fetch it again") from error
    held = Counter[str]()
    for tensor in tensors:
        held[tensor.tensor_type.name] += int(tensor.n_elements)
    if not held:
        raise UserError(f"{file} holds no weights: it may be a vocabulary only")
    kind = held.most_common(1)[0][0]
    return None if kind in _DENSE else kind


def _publish(file: Path, folder: Path, made_from: dict[str, str | None]) -> None:
    """Convert into a temporary folder and rename it to ``folder``."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name[:12]}.part-", dir=folder.parent))
    except OSError as error:
        raise UserError(f"cannot write to the cache {folder.parent} ({error.strerror}): set XDG_CACHE_HOME") from error
    try:
        with _said(f"Converting {file.name} to safetensors, once; kept in {folder.parent}"), quiet_bars():
            _write_dense(file, part)
            hashed = weights_sha256(weight_files(part), None)  # remembered by place, and this one is about to move
        versions = {package: metadata.version(package) for package in ("transformers", "gguf")}
        sidecar = made_from | {"weights_sha256": hashed, "converted_with": versions}
        (part / SIDECAR).write_text(json.dumps(sidecar, indent=1), encoding="utf-8")
        part.chmod(0o755)
        _rename(part, folder)
    except OSError as error:
        raise UserError(f"cannot convert {file.name} into {folder.parent}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _rename(part: Path, folder: Path) -> None:
    """Rename; where another process was first, its folder stays."""
    try:
        part.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _write_dense(file: Path, folder: Path) -> None:
    """Dequantise with transformers and save: what it holds is dense, though it says that it is quantised."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"transformers cannot read {file.name}: {error}") from error
    if hasattr(model.config, "quantization_config"):
        model.hf_quantizer = None
        model.is_quantized = False
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """Say what takes so long: a moving line in a terminal, one line in the log elsewhere."""

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        log.info(what)
        yield
