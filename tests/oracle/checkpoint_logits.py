#!/usr/bin/env python3
"""Runs the reference model on a source checkpoint, in f64 on its own weights.

python3 tests/oracle/checkpoint_logits.py SRC --tokens 1,2,3 --out FILE [--text-nll TEXT]
"""

import pathlib

import run_model
from checkpoint import Checkpoint

if __name__ == "__main__":
    args = run_model.parser(__doc__.splitlines()[0], "a checkpoint folder").parse_args()
    run_model.main(args, Checkpoint(args.folder), pathlib.Path(args.folder) / "tiktoken.model")
