#!/usr/bin/env python3
"""Writes what Hugging Face transformers computes with a model that ships, in float32 on the
dequantized weights, on held-out prompts and on one long prompt.

Usage: tools/write_tiny_goldens.py [MODEL OUT]   (needs torch, transformers, safetensors; 2 minutes on 16 cores)
By default models/nibble-tiny-gpt-oss and tests/goldens/nibble_tiny.json; the other is
models/nibble-tiny-qwen3-next and tests/goldens/nibble_tiny_qwen3_next.json.
"""

import datetime
import json
import pathlib
import random
import sys
import tempfile
import types

import torch
import transformers
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools/train_tiny"))
import conversations  # noqa: E402
import evaluate  # noqa: E402
from families import family_of  # noqa: E402

MODEL, OUT = map(pathlib.Path, sys.argv[1:] or (
    ROOT / "models/nibble-tiny-gpt-oss", ROOT / "tests/goldens/nibble_tiny.json"))
FAMILY = family_of(MODEL)
PER_TASK = 6  # two of each effort
LONG = 6000
TOP = 8
# Where the long prompt's top ids are kept: both sides of the window and of position 4,096.
POSITIONS = [0, 1, 30, 31, 32, 33, 63, 64, 127, 128, 129, 500, 1000, 2047, 2048, 3000,
             4094, 4095, 4096, 4097, 4500, 5000, 5500, 5998]
HEAD = {
    "answers": "prompt: ids up to where the model begins; ids: what greedy decoding samples, to the stop; "
    "gaps: logit of the best id minus that of the second, at each sampled id; logprobs: of each "
    "sampled id",
    "long": "ids: one prompt of conversations; next_logprobs[i]: log-probability of ids[i+1] after "
    "ids[0..i]; positions, top_ids, top_logprobs: the best ids after ids[0..position]",
    "changes": "how far (maximum, mean) the long prompt's next_logprobs move under a wrong reading "
    "of the same weights: a comparison must be finer than that to see it",
}


def rounded(values):
    return [round(float(v), 5) for v in values]


def answers(reference, engine):
    rows = []
    for task in conversations.NAMES:
        for item in conversations.held_out_items(task, PER_TASK, seed=2):
            prompt = engine.prompt_ids(item)
            ids = engine.greedy([prompt])[0]
            with torch.no_grad():
                logits = reference(torch.tensor([prompt + ids])).logits[0].float()
            logits = logits[len(prompt) - 1 : -1]
            best = logits.topk(2).values
            assert logits.argmax(-1).tolist() == ids, "transformers samples other ids"
            rows.append({
                "task": task, "effort": item.effort, "prompt": prompt, "ids": ids,
                "gaps": rounded(best[:, 0] - best[:, 1]),
                "logprobs": rounded(logits.log_softmax(-1).max(-1).values),
            })
        print(task, flush=True)
    return rows


def long_ids(tokenizer):
    rng, ids = random.Random("long prompt"), []
    while len(ids) < LONG:
        text = "".join(piece for piece, _ in conversations.training_pieces(rng, FAMILY.chat))
        ids += tokenizer.encode(text).ids
    return ids[:LONG]


def next_logprobs(logits, ids):
    return logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:]).unsqueeze(1))[:, 0]


def change_of(name, ids, expected):
    change, swap = FAMILY.module().ABLATIONS[name]
    options = types.SimpleNamespace(device="cpu", batch=1, max_new=1)
    model = evaluate.TorchEngine(MODEL, options, change, swap).model
    cache = model.new_cache(1, len(ids), "cpu")
    with torch.no_grad():
        logits = model.decode(torch.tensor([ids]), cache, 0, torch.tensor([0]), last_only=False)
    moved = (next_logprobs(logits[0], ids) - expected).abs()
    return rounded([moved.max(), moved.mean()])


def reference_model():
    options = {"attn_implementation": "eager"}
    if FAMILY.model_type == "gpt_oss":
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
        return transformers.AutoModelForCausalLM.from_pretrained(MODEL, **options).float().eval()
    with tempfile.TemporaryDirectory() as directory:  # transformers has no reader of NVFP4
        FAMILY.module().write_dequantized(MODEL, pathlib.Path(directory))
        options["dtype"] = torch.float32
        return transformers.AutoModelForCausalLM.from_pretrained(directory, **options).eval()


def main():
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    options = types.SimpleNamespace(device="cpu", batch=1, max_new=400)
    engine = evaluate.TorchEngine(MODEL, options)
    reference = reference_model()
    rows = answers(reference, engine)
    ids = long_ids(tokenizer)
    with torch.no_grad():
        logits = reference(torch.tensor([ids])).logits[0].float()
    expected, top = next_logprobs(logits, ids), logits[POSITIONS].log_softmax(-1).topk(TOP)
    golden = {
        "head": {**HEAD, "written_by": f"tools/write_tiny_goldens.py, transformers "
                 f"{transformers.__version__}, torch {torch.__version__}, float32, "
                 f"{datetime.date.today()}"},
        "answers": rows,
        "long": {"ids": ids, "next_logprobs": rounded(expected), "positions": POSITIONS,
                 "top_ids": top.indices.tolist(),
                 "top_logprobs": [rounded(row) for row in top.values]},
        "changes": {name: change_of(name, ids, expected) for name in FAMILY.module().ABLATIONS},
    }
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in golden.pop("answers"))
    rest = json.dumps(golden, separators=(",", ":"))
    OUT.write_text('{"answers":[\n' + lines + "\n],\n" + rest[1:] + "\n")
    print(OUT.stat().st_size, "bytes", golden["changes"])


if __name__ == "__main__":
    main()
