"""Encoder-decoder and encoder-only models whose shapes fit nothing evenly, and what transformers makes of them, beam searches with random
options among it.

    python odd_families.py --out DIR [--seed N] [--only NAME ...]

Each folder is laid out like those of wasm-tests/fixtures. Weights are random.
"""

import argparse
import random
import shutil
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import beams
import encoder_decoder
import encoders
import variants
from common import write_json
from encoder_decoder import GREEDY, Poor, bart, m2m_100, marian, mbart, pegasus, require, t5, t5_v1_1, until_good
from encoders import albert, bert, distilbert, labels, roberta

BORDERS = (1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 150)


def both(d: int, heads: tuple[int, int], layers: tuple[int, int], inner: tuple[int, int], **changes) -> dict:
    return {"d_model": d, "encoder_attention_heads": heads[0], "decoder_attention_heads": heads[1], "encoder_layers": layers[0], "decoder_layers": layers[1],
            "encoder_ffn_dim": inner[0], "decoder_ffn_dim": inner[1], "num_hidden_layers": layers[0], "max_position_embeddings": 256, "max_length": 200} | changes


def encoder_decoders() -> list[encoder_decoder.Spec]:
    S = lambda name, config, **more: encoder_decoder.Spec(name, config, "", steps=0, gain=1.3, **more)
    pad = {"pad_token_id": 96, "decoder_start_token_id": 96, "bad_words_ids": [[96]], "decoder_vocab_size": 97, "vocab_size": 97}
    return [
        S("marian-5x6", marian(**both(30, (5, 3), (2, 1), (37, 41), **pad)), layout="bin"),
        S("marian-3x24", marian(**both(72, (3, 6), (1, 3), (101, 50), **pad, scale_embedding=False, activation_function="relu"))),
        S("marian-apart", marian(**both(20, (1, 2), (1, 1), (33, 35), **pad | {"vocab_size": 1009}, share_encoder_decoder_embeddings=False)), layout="bin"),
        S("bart-2x13", bart(**both(26, (2, 1), (1, 2), (51, 27), vocab_size=97, scale_embedding=True))),
        S("bart-7x10", bart(**both(70, (7, 5), (2, 2), (90, 131), vocab_size=1009, activation_function="relu"))),
        S("mbart-3x10", mbart(**both(30, (3, 5), (2, 1), (47, 61), vocab_size=97)), layout="bin"),
        S("pegasus-1x34", pegasus(**both(34, (1, 2), (1, 2), (35, 77), vocab_size=1009, activation_function="gelu"))),
        S("m2m_100-1x34", m2m_100(**both(34, (1, 17), (2, 2), (35, 39), vocab_size=97))),
        S("t5-3x10", t5(d_model=36, num_heads=3, d_kv=10, d_ff=71, vocab_size=97), embedding=2.5),
        S("t5-5x6", t5(d_model=22, num_heads=5, d_kv=6, d_ff=45, vocab_size=1009, num_layers=3, num_decoder_layers=1, relative_attention_num_buckets=10,
                       relative_attention_max_distance=17), embedding=2.5, layout="bin"),
        S("flan-t5-7x6", t5_v1_1(d_model=38, num_heads=7, d_kv=6, d_ff=53, vocab_size=97, num_decoder_layers=1)),
        S("mt5-1x80", t5_v1_1(architectures=["MT5ForConditionalGeneration"], model_type="mt5", d_model=30, num_heads=1, d_kv=80, d_ff=66, vocab_size=97, num_layers=3)),
    ]


def encoder_onlys() -> list[encoders.Spec]:
    S = lambda name, config, **more: encoders.Spec(name, config, "", **more)
    shape = lambda heads, size, inner, layers, vocabulary=97: {"num_attention_heads": heads, "hidden_size": heads * size, "intermediate_size": inner,
                                                                "num_hidden_layers": layers, "vocab_size": vocabulary, "max_position_embeddings": 258}
    distil = lambda heads, size, inner, layers: {"n_heads": heads, "dim": heads * size, "hidden_dim": inner, "n_layers": layers, "vocab_size": 97,
                                                 "max_position_embeddings": 258}
    names = lambda n: labels(*(f"L{i}" for i in range(n)))
    return [
        S("bert-5x6", bert("ForMaskedLM", **shape(5, 6, 47, 3))), S("bert-1x34", bert("Model", **shape(1, 34, 35, 1)), layout="bin"),
        S("bert-3x24", bert("ForSequenceClassification", **shape(3, 24, 101, 2), **names(7))), S("bert-7x10", bert("ForTokenClassification", **shape(7, 10, 53, 1), **names(9))),
        S("bert-2x80", bert("ForQuestionAnswering", **shape(2, 80, 77, 1))), S("distilbert-3x6", distilbert("ForMaskedLM", **distil(3, 6, 41, 3))),
        S("distilbert-1x26", distilbert("ForSequenceClassification", **distil(1, 26, 77, 1), **names(3))), S("roberta-3x10", roberta("ForMaskedLM", **shape(3, 10, 61, 2))),
        S("roberta-5x12", roberta("ForSequenceClassification", **shape(5, 12, 33, 1), **names(1)), layout="bin"),
        S("xlm-roberta-6x6", roberta("Model", model_type="xlm-roberta", **shape(6, 6, 51, 2, 1009))),
        S("albert-3x10", albert("ForMaskedLM", **shape(3, 10, 47, 5), embedding_size=21, num_hidden_groups=2)),
        S("albert-1x22", albert("ForSequenceClassification", **shape(1, 22, 31, 3), embedding_size=50, num_hidden_groups=3, **names(5))),
    ]


def originals(seed: int) -> dict[str, dict]:
    """Values of the original's configuration, drawn together."""
    out = {}
    for number in range(8):
        r = random.Random(f"original {number} {seed}")
        heads, sides = r.choice(((1, 1), (3, 2), (5, 3), (2, 6))), r.choice(((1, 2), (2, 1), (1, 1), (2, 0), (0, 2)))
        values = variants.config(encoder_layers=sides[0], decoder_layers=sides[1], d_model=r.choice((22, 30, 46)), encoder_attention_heads=heads[0],
                                 decoder_attention_heads=heads[1], encoder_ffn_dim=r.randint(9, 70), decoder_ffn_dim=r.randint(9, 70), vocab_size=r.choice((37, 101)),
                                 activation_function=r.choice(("relu", "gelu")), head_dim=r.choice((5, 6, 10)), normalize_before=r.random() < 0.5,
                                 position_embedding_type=r.choice(("sinusoidal", "learned", "none")), scale_embedding=r.random() < 0.7,
                                 tie_word_embeddings=r.random() < 0.6, residual=r.random() < 0.8)
        if r.random() < 0.5:
            values["value_head_dim"] = r.choice((3, 8, 13))
        if r.random() < 0.4:
            values["scale"] = r.choice((0.2, 0.9))
        if 0 in sides:
            values |= {"is_encoder_decoder": False, "tie_word_embeddings": True}
            if sides[1] == 0:
                values["architectures"] = [r.choice(("TransformerForMaskedLM", "TransformerModel"))]
        elif r.random() < 0.5:
            values |= {"share_encoder_decoder_embeddings": False, "encoder_vocab_size": r.choice((41, 67))}
        out[f"original-{number}"] = values
    return out


def options(r: random.Random, size: int, text: list[int], encoder: bool) -> dict:
    """A beam search; the end tokens are some that greedy search finds."""
    count = r.randint(2, 6)
    ends = r.sample(text, min(len(text), r.randint(1, 2)))
    out = {"numBeams": count, "maxNewTokens": r.randint(10, 24), "numReturnSequences": r.randint(1, count), "eosTokenId": sorted(set(ends))}
    word = lambda: r.randrange(4, size - 8)
    maybe = {
        "lengthPenalty": lambda: r.choice((-1.0, 0.0, 0.3, 2.0)), "earlyStopping": lambda: r.choice((True, "never")), "noRepeatNgramSize": lambda: r.choice((0, 1, 2, 3)),
        "repetitionPenalty": lambda: r.choice((0.8, 1.3)), "minLength": lambda: r.randint(2, 9), "minNewTokens": lambda: r.randint(2, 6),
        "badWordsIds": lambda: [[r.choice(text)], [r.choice(text), r.choice(text)], [word(), word(), word()]], "forcedEosTokenId": word,
    }
    if encoder:
        maybe |= {"encoderNoRepeatNgramSize": lambda: r.choice((1, 2)), "encoderRepetitionPenalty": lambda: r.choice((0.7, 1.5)), "forcedBosTokenId": word}
    return out | {k: v() for k, v in maybe.items() if r.random() < 0.3}


def random_runs(model, r: random.Random, count: int) -> list[dict]:
    size, encoder, runs = model.config.vocab_size, model.config.is_encoder_decoder, []
    size = min(size, getattr(model.config, "decoder_vocab_size", size))
    pick = lambda n: [r.randrange(4, size - 8) for _ in range(n)]

    def make() -> dict:
        source = pick(r.choice((1, 2, 5, 16, 17, 30)))
        (greedy,), _ = beams.generate(model, [source], GREEDY | {"minNewTokens": 20})
        chosen = options(r, size, greedy[0]["tokenIds"], encoder) | ({"doSample": False} if model.generation_config.do_sample else {})
        prefix = None
        if encoder and r.random() < 0.3:
            prefix = [*([model.generation_config.decoder_start_token_id] if r.random() < 0.5 else []), *pick(r.randint(1, 17))]
        (found,), margin = beams.generate(model, [source], chosen, prefix=prefix)
        require(margin > beams.MARGIN, "margin")
        require(all(s["score"] > -1e8 for s in found), "unfinished")
        return {"inputIds": source, **({} if prefix is None else {"decoderInputIds": prefix}), "options": chosen, "sequences": found}

    for _ in range(count):
        try:
            runs.append(until_good(make, "random options"))
        except Poor as reason:
            print(reason)
    return runs


@torch.no_grad()
def write_encoder_decoder(spec: encoder_decoder.Spec, folder: Path, seed: int) -> str:
    r = random.Random(f"{spec.name} {seed}")
    spec = replace(spec, dtype=r.choice(("F32", "F16", "BF16")), lengths=((1, 1), *((r.choice(BORDERS), r.choice(BORDERS[:7])) for _ in range(3))))
    encoder_decoder.write_model(spec, folder, seed)
    model, generator = encoder_decoder.load(spec, folder), torch.Generator().manual_seed(seed + 1)
    pick = lambda n: torch.randint(4, 89, (n,), generator=generator).tolist()
    cases, tensors = encoder_decoder.forward_cases(spec, model, generator)
    runs, batches = [], []
    for length in (2, 17, 60):
        def greedy() -> dict:
            source = pick(length)
            (found,), margin = beams.generate(model, [source], GREEDY)
            require(margin > 2e-3, "margin")
            return {"inputIds": source, "options": GREEDY, "sequences": found}
        runs.append(until_good(greedy, f"{spec.name}, greedy"))
    runs += random_runs(model, r, 8)
    for name in ("left", "right", "holes"):
        case, tensors[f"batch.{name}.logits"] = until_good(lambda: encoder_decoder.batch_case(name, model, pick), f"{spec.name}, {name}")
        batches.append(case)
    write_json(folder / "expected.json", {"kind": "encoder-decoder", "note": f"{spec.layout}, {spec.dtype}", "seed": seed, "cases": cases, "runs": runs, "batches": batches})
    save_file({k: v.detach().float().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}, folder / "expected.safetensors")
    return f"{len({str(run['sequences'][0]['tokenIds']) for run in runs})} texts of {len(runs)}"


def write_encoder(spec: encoders.Spec, folder: Path, seed: int) -> str:
    r = random.Random(f"{spec.name} {seed}")
    spec = replace(spec, dtype=r.choice(("F32", "F16", "BF16")))
    encoders.write_model(spec, folder, seed)
    answers, tensors = encoders.expect(spec, folder, seed, tuple(r.sample(BORDERS[3:], 2)) + (r.choice((200, 130)),))
    write_json(folder / "expected.json", answers)
    save_file(tensors, folder / "expected.safetensors")
    return f"{spec.layout}, {spec.dtype}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for specs, write in ((encoder_decoders(), write_encoder_decoder), (encoder_onlys(), write_encoder)):
        for spec in specs:
            if args.only and spec.name not in args.only:
                continue
            for trial in range(args.seed, args.seed + 20000, 1000):
                try:
                    print(f"{spec.name}: seed {trial}, {write(spec, args.out / spec.name, trial)}", flush=True)
                    break
                except Poor as reason:
                    print(reason, flush=True)
            else:
                raise RuntimeError(f"[{spec.name}] no seed will do")
    for name, values in originals(args.seed).items():
        if not args.only or name in args.only:
            variants.write(values, "", args.out / name, args.seed)
            print(f"{name}: {({k: v for k, v in values.items() if k not in variants.config()})}", flush=True)
    fixtures = Path(__file__).resolve().parent.parent / "fixtures"
    for name in ("gpt2", "llama-gqa", "opt", "bloom", "qwen3", "mistral-full", "gpt_neox", "gemma"):
        folder = f"beams-{name}"
        if args.only and folder not in args.only:
            continue
        shutil.copytree(fixtures / name, args.out / folder, dirs_exist_ok=True)
        (args.out / folder / "expected.json").unlink()
        model = AutoModelForCausalLM.from_pretrained(args.out / folder, dtype=torch.float32, attn_implementation="eager").eval()
        runs = random_runs(model, random.Random(f"{folder} {args.seed}"), 8)
        write_json(args.out / folder / "beams.json", {"runs": runs, "batches": []})
        print(f"{folder}: {len(runs)} searches", flush=True)


if __name__ == "__main__":
    main()
