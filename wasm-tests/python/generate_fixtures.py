"""Writes wasm-tests/fixtures with Hugging Face transformers.

    python generate_fixtures.py [--out FOLDER] [--seed N] [--only NAME ...]

Same seed, same versions (requirements.txt): the same files.
"""

import argparse
import logging
from pathlib import Path

import torch
import transformers

import decoder_beams
import encoder_decoder
import encoders
import families
import ops_fixtures
import original
import sampling
import task_fixtures
import text
import training
import variants

HERE = Path(__file__).resolve().parent


def generate(out: Path, seed: int, only: set[str]) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    for part in (families, decoder_beams, encoder_decoder, encoders, variants):
        part.generate(out, seed, only)
    if not only:
        original.generate(out, seed)
        training.generate(out, seed)
        sampling.generate(out, seed)
        text.generate(out, seed)
        task_fixtures.generate(out, seed)
        ops_fixtures.generate(out, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "fixtures")
    parser.add_argument("--seed", type=int, default=2017)
    parser.add_argument("--only", nargs="*", default=[], help="names of fixtures")
    args = parser.parse_args()
    generate(args.out, args.seed, set(args.only))


if __name__ == "__main__":
    main()
