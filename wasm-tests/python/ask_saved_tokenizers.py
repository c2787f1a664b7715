"""Asks the tokenizers library and transformers what they make of tokenizers that wasmformer has written.

    python ask_saved_tokenizers.py FOLDER FILE

FOLDER has a folder for each, with tokenizer.json, tokenizer_config.json and config.json, and texts.json, a list of texts. FILE gets, by
folder, `ids` (Tokenizer.from_file), `auto` (AutoTokenizer), `decoded` and `chat` (null without a template).
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from common import write_json


def main() -> None:
    root, answers = Path(sys.argv[1]), {}
    texts = json.loads((root / "texts.json").read_text())
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        plain, auto = Tokenizer.from_file(str(folder / "tokenizer.json")), AutoTokenizer.from_pretrained(folder)
        ids = [plain.encode(text).ids for text in texts]
        chat = auto.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) if auto.chat_template else None
        answers[folder.name] = {"ids": ids, "auto": [auto(text).input_ids for text in texts], "decoded": [auto.decode(row) for row in ids], "chat": chat}
    write_json(Path(sys.argv[2]), answers)


if __name__ == "__main__":
    main()
