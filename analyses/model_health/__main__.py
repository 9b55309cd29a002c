"""``python -m analyses.model_health --model MODEL [flags]``."""

from analyses import model_health
from interp.cli import run_module

if __name__ == "__main__":
    run_module(model_health)
