#!/usr/bin/env python3
"""Runs the reference model on a container (any writer's), in f64 on its dequantized weights.

python3 tests/oracle/container_logits.py CONTAINER --tokens 1,2,3 --out FILE [--eps-compat]
"""

import pathlib

import run_model
from container import Container

if __name__ == "__main__":
    parser = run_model.parser(__doc__.splitlines()[0], "a container folder")
    about = "read subnormal codebook entries as 0, as the C engine does"
    parser.add_argument("--flush-subnormals", action="store_true", help=about)
    args = parser.parse_args()
    source = Container(args.folder, args.flush_subnormals)
    run_model.main(args, source, pathlib.Path(args.folder) / "tokenizer.model")
