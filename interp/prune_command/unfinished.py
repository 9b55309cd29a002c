"""What an interrupted `interp prune` has left, and going on with it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from typing import Any

from interp.errors import UserError
from interp.flags import Prune
from interp.models.files import read_json
from interp.models.hooked import HookedModel
from interp.models.pruning.heads import Kept
from interp.results.storage import plain, to_json, write_file

__all__ = ["Unfinished"]


class Unfinished:
    """The folder of a command that is under way: what it has decided, and the state of its training."""

    def __init__(self, flags: Prune) -> None:
        self.flags = flags
        self.folder = flags.out.parent / f".{flags.out.name}.unfinished"
        self.plan = self.folder / "plan.json"

    def check_free(self) -> None:
        """Refuse to write where something is, or to begin anew what was interrupted."""
        out, flags = self.flags.out, self.flags
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is there already, and nothing is overwritten: choose another --out, or remove it")
        if self.folder.exists() and flags.force:
            shutil.rmtree(self.folder)
        if self.folder.exists() and not flags.resume:
            raise UserError(
                f"an interrupted pruning into {out} was found; --resume goes on with it, --force starts again"
            )

    def decided(
        self, model: HookedModel, choose: Callable[[], tuple[Kept, dict[str, Any]]]
    ) -> tuple[Kept, dict[str, Any]]:
        """What stays, as it was decided before the interruption, or now.

        Raises:
            UserError: what was interrupted had other settings, or was of another model.
        """
        inputs = self._inputs(model)
        if self.plan.is_file():
            before = read_json(self.plan)
            if before.get("inputs") != inputs:
                raise UserError(
                    f"the interrupted pruning into {self.flags.out} had other settings or another model: --force "
                    "starts again, another --out leaves it alone"
                )
            return {name: tuple(heads) for name, heads in before["kept"].items()}, before["how"]
        kept, how = choose()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.plan, to_json({"inputs": inputs, "kept": kept, "how": how}))
        return kept, how

    def remove(self) -> None:
        """Nothing is left to go on with."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _inputs(self, model: HookedModel) -> str:
        """A hash of all that the result depends on."""
        free = ("out", "resume", "force", "debug", "times", "batch_sizes", "lengths", "rounds")
        chosen = {n: v for n, v in dataclasses.asdict(self.flags).items() if n not in free}
        said = json.dumps(plain({"model": model.info.get("weights_sha256"), "flags": chosen}), sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()
