"""Train the small gpt-oss on generated conversations and write its checkpoint.

  python train.py --model DIR --out DIR --seed 1 --steps 6000        (DIR holds tokenizer.json)
With --seconds instead of --steps the number of steps follows from the speed of the machine; the
log names it, so that a run can be repeated. On a GPU the sums of atomic additions differ in their
last bits from run to run: the same seed gives the same data, and nearly the same model.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import conversations
import model as gpt_oss

BALANCE = 0.01  # weight of the load-balancing loss
_tokenizer = None


def start_worker(path):
    global _tokenizer
    _tokenizer = Tokenizer.from_file(path)


def batch_of(job):
    """ids uint16 [rows, length + 1] and loss weights float16 of the same shape, packed without gaps."""
    seed, step, rows, length = job
    rng, need = random.Random(f"train {seed} {step}"), length + 1
    ids = np.zeros((rows, need), np.uint16)
    weights = np.zeros((rows, need), np.float16)
    for row in range(rows):
        filled = 0
        while filled < need:  # a row begins with a conversation; the last one may be cut
            pieces = conversations.training_pieces(rng)
            for (_, weight), encoded in zip(
                pieces, _tokenizer.encode_batch_fast([t for t, _ in pieces])
            ):
                part = encoded.ids[: need - filled]
                ids[row, filled : filled + len(part)] = part
                weights[row, filled : filled + len(part)] = weight
                filled += len(part)
    return ids, weights


def learning_rate(step, steps, top, warm_up=100):
    """Linear warm-up, flat, then linear to nothing over the last 60%."""
    fall = (steps - step) / (0.6 * steps)
    return top * min(1.0, (step + 1) / warm_up, fall)


def optimizer_of(model, rate, fused):
    learned = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    decay = [p for n, p in learned if p.dim() > 1 and "bias" not in n]
    other = [p for n, p in learned if not (p.dim() > 1 and "bias" not in n)]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-9, fused=fused)


def make_step(model, device, compile_model):
    def losses(ids, weights):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits, balance = model(ids[:, :-1])
        each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weight = weights[:, 1:].flatten().float()
        answers = (weight == 1).float()
        return (each * weight).sum() / weight.sum(), balance, (each * answers).sum() / answers.sum()

    return torch.compile(losses, dynamic=False) if compile_model else losses


def train(args, model, device, log):
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    step_losses = make_step(model, device, device == "cuda")
    optimizer = optimizer_of(model, args.rate, device == "cuda")
    steps, start, timed = args.steps or 10**6, time.time(), None
    jobs = ((args.seed, step, args.rows, args.length) for step in range(10**7))
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.workers, start_worker, (str(args.model / "tokenizer.json"),)) as pool:
        for step, (ids, weights) in enumerate(ahead(pool, jobs, 4 * args.workers)):
            if step == 60 and not args.steps:
                timed = time.time()
            if step == 160 and not args.steps:  # 100 steps at speed tell how many fit
                one = (time.time() - timed) / 100
                steps = 160 + int((args.seconds - (time.time() - start)) / one)
                log(f"{one * 1000:.1f} ms a step: --steps {steps}")
            if step >= steps:
                break
            ids = torch.from_numpy(ids.astype(np.int64)).to(device, non_blocking=True)
            weights = torch.from_numpy(weights).to(device, non_blocking=True)
            # Until the number of steps is known, the rate is that of the warm-up and the plateau.
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps, args.rate)
            loss, balance, answer_loss = step_losses(ids, weights)
            (loss + BALANCE * balance).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % args.log_every == 0 or step == steps - 1:
                log(
                    f"step {step} loss {loss.item():.4f} answers {answer_loss.item():.4f} balance {balance.item():.3f} "
                    f"seconds {time.time() - start:.1f}"
                )
        pool.terminate()
    return steps


def ahead(pool, jobs, count):
    """The results of the jobs in order, `count` of them under way."""
    waiting = [pool.apply_async(batch_of, (next(jobs),)) for _ in range(count)]
    while True:
        result = waiting.pop(0).get()
        waiting.append(pool.apply_async(batch_of, (next(jobs),)))
        yield result


def export(model, source, out):
    """The checkpoint directory: weights, both configs, the tokenizer's files."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    end, pad, call = (tokenizer.token_to_id(t) for t in ("<|return|>", "<|endoftext|>", "<|call|>"))
    start = tokenizer.token_to_id("<|startoftext|>")
    write = lambda name, value: (out / name).write_text(json.dumps(value, indent=2) + "\n")
    write("config.json", gpt_oss.config_json(model.config, end, pad))
    write(
        "generation_config.json",
        {
            "bos_token_id": start,
            "do_sample": True,
            "eos_token_id": [end, pad, call],
            "pad_token_id": pad,
        },
    )
    gpt_oss.save(model, out / "model.safetensors")
    for path in source.glob("*token*"):
        if out.resolve() != source.resolve():
            shutil.copy(path, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=pathlib.Path, required=True, help="directory with tokenizer.json"
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--log-every", type=int, default=100)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    lines = []

    def log(text):
        lines.append(text)
        print(text, flush=True)
        (args.out / "training.log").write_text("\n".join(lines) + "\n")

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are parallel already
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = gpt_oss.GptOss(gpt_oss.Config())
    model.initialize(args.seed)
    model.to(device)
    log(
        f"{sum(p.numel() for p in model.parameters())} parameters, {args.rows} x {args.length} tokens a step, seed {args.seed}, "
        f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}"
    )
    steps = train(args, model, device, log)
    log(f"trained {steps} steps, {steps * args.rows * args.length} tokens")
    export(model, args.model, args.out)


if __name__ == "__main__":
    main()
