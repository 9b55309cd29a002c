"""``python -m analyses.attention_design --model MODEL [flags]``."""

from analyses import attention_design
from interp.cli import run_module

if __name__ == "__main__":
    run_module(attention_design)
