"""The hub: a model's folder by name, its refusals in words, and its progress bars kept to terminals."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from interp.errors import UserError

_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py")
_PICKLES = "pytorch_model*.bin"


def download(name: str, revision: str | None, near: str) -> Path:
    """The local folder of a hub model (named by its commit): downloaded, or from the hub's cache.

    Args:
        name: of the model, ``organisation/model``.
        revision: branch, tag or commit; None for the newest.
        near: what to say of similar names when there is no such model.

    Raises:
        UserError: there is no such model or revision, it is gated, or the hub cannot be reached.
    """
    from huggingface_hub import constants, errors, snapshot_download

    def fetch(patterns: Sequence[str]) -> Path:
        # subfolders hold the same weights in other formats
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns), ignore_patterns=["*/*"]))

    at = f" at revision {revision!r}" if revision else ""
    page = f"https://huggingface.co/{name}"
    try:
        with quiet_bars():
            folder = fetch(_FILES)
            return folder if any(folder.glob("*.safetensors")) else fetch([*_FILES, _PICKLES])
    except errors.GatedRepoError as error:
        raise UserError(f"{name} is gated: accept its conditions at {page}, then run: hf auth login") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{name} has no revision {revision!r}: see {page}/commits") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(f"no model {name!r}, here or on the hub (a private one? hf auth login). {near}") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        why = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else "the hub cannot be reached"
        raise UserError(
            f"{name!r}{at} is no folder or bundled model, is not in the hub's cache, and {why}. {near} "
            f"Where there is a network: hf download {name}; or give the folder it lies in"
        ) from error
    except OSError as error:
        raise UserError(f"downloading {name}{at} failed: {error}") from error


@contextlib.contextmanager
def quiet_bars() -> Iterator[None]:
    """Without the progress bars of transformers and the hub where standard error is no terminal."""
    from transformers.utils import logging

    if sys.stderr.isatty() or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
