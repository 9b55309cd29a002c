"""``python -m analyses.induction_heads --model MODEL [flags]``."""

from analyses import induction_heads
from interp.cli import run_module

if __name__ == "__main__":
    run_module(induction_heads)
