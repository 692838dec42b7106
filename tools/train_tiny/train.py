"""Train a small model on generated conversations and write its checkpoint.

  python train.py --model DIR --out DIR --seed 1 --steps 6000 [--family qwen3_next]
DIR holds tokenizer.json, tokenizer_config.json and, but for gpt-oss, chat_template.jinja.
With --seconds instead of --steps the number of steps follows from the speed of the machine; the
log names it, so that a run can be repeated. On a GPU the sums of atomic additions differ in their
last bits from run to run: the same seed gives the same data, and nearly the same model.
"""

import argparse
import importlib
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
from families import FAMILIES

BALANCE = 0.01  # weight of the load-balancing loss
_tokenizer, _chat = None, None


def start_worker(path, chat="harmony"):
    global _tokenizer, _chat
    _tokenizer, _chat = Tokenizer.from_file(path), importlib.import_module(chat)


def batch_of(job):
    """ids uint16 [rows, length + 1] and loss weights float16 of the same shape, packed without gaps."""
    seed, step, rows, length = job
    rng, need = random.Random(f"train {seed} {step}"), length + 1
    ids = np.zeros((rows, need), np.uint16)
    weights = np.zeros((rows, need), np.float16)
    for row in range(rows):
        filled = 0
        while filled < need:  # a row begins with a conversation; the last one may be cut
            pieces = conversations.training_pieces(rng, _chat)
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


def optimizer_of(model, rate, device):
    learned = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    decay = [p for n, p in learned if p.dim() > 1 and "bias" not in n]
    other = [p for n, p in learned if not (p.dim() > 1 and "bias" not in n)]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}]
    on_gpu = device == "cuda"
    rate = torch.tensor(rate, device=device) if on_gpu else rate  # which a graph reads anew
    return torch.optim.AdamW(
        groups, lr=rate, betas=(0.9, 0.98), eps=1e-9, fused=on_gpu, capturable=on_gpu
    )


def cross_entropy(logits, ids, weights):
    """The weighted mean, and that of answers alone."""
    each = F.cross_entropy(logits.float().flatten(0, 1), ids.flatten(), reduction="none")
    weight = weights.flatten().float()
    answers = (weight == 1).float()
    return (each * weight).sum() / weight.sum(), (each * answers).sum() / answers.sum()


class Trainer:
    """Steps of training. On a GPU, with --run graph, the third is recorded and the others replay it."""

    def __init__(self, args, model, device):
        self.args, self.model, self.device = args, model, device
        self.optimizer = optimizer_of(model, args.rate, device)
        on_gpu = device == "cuda"
        self.losses_of, self.cross_entropy = self.losses, cross_entropy
        if on_gpu and args.run != "eager":
            self.losses_of = model.compiled(self.losses)
            self.cross_entropy = torch.compile(cross_entropy, dynamic=False)
        self.records = on_gpu and args.run == "graph"
        shape = (args.rows, args.length + 1)
        self.ids = torch.zeros(shape, dtype=torch.long, device=device)
        self.weights = torch.zeros(shape, dtype=torch.float16, device=device)
        self.graph, self.steps_made, self.reported = None, 0, None

    def losses(self, ids, weights):
        """What is minimized; then of answers, of the balance, and of drafted answers where there are drafts."""
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            logits, balance, drafts = self.model(ids[:, :-1])
        loss, of_answers = self.cross_entropy(logits, ids[:, 1:], weights[:, 1:])
        loss = loss + BALANCE * balance
        if drafts is None:
            return loss, of_answers, balance
        of_drafts, of_drafted_answers = self.cross_entropy(drafts[:, :-1], ids[:, 2:], weights[:, 2:])
        return loss + of_drafts, of_answers, balance, of_drafted_answers

    def _step(self):
        loss, *others = self.losses_of(self.ids, self.weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.reported = [loss.detach()] + [t.detach() for t in others]

    def step(self, ids, weights, rate):
        self.ids.copy_(torch.from_numpy(ids.astype(np.int64)), non_blocking=True)
        self.weights.copy_(torch.from_numpy(weights), non_blocking=True)
        for group in self.optimizer.param_groups:
            if self.device == "cuda":
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.steps_made += 1
        if self.graph:
            self.graph.replay()
        elif not self.records:
            self._step()
        elif self.steps_made < 3:
            self._on_side_stream()
        else:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()
            self.graph.replay()

    def _on_side_stream(self):
        """As recording a graph asks of the steps before."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step()
        torch.cuda.current_stream().wait_stream(side)

    def report(self):
        names = ("loss", "answers", "balance", "drafts")
        return " ".join(f"{n} {t.item():.4f}" for n, t in zip(names, self.reported))


def train(args, model, device, log):
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    trainer = Trainer(args, model, device)
    steps, start, timed = args.steps or 10**6, time.time(), None
    jobs = ((args.seed, step, args.rows, args.length) for step in range(10**7))
    context = multiprocessing.get_context("spawn")
    chat = FAMILIES[args.family].chat.__name__
    tokenizer = str(args.model / "tokenizer.json")
    with context.Pool(args.workers, start_worker, (tokenizer, chat)) as pool:
        for step, (ids, weights) in enumerate(ahead(pool, jobs, 4 * args.workers)):
            if step == 60 and not args.steps:
                timed = time.time()
            if step == 160 and not args.steps:  # 100 steps at speed tell how many fit
                one = (time.time() - timed) / 100
                steps = 160 + int((args.seconds - (time.time() - start)) / one)
                log(f"{one * 1000:.1f} ms a step: --steps {steps}")
            if step >= steps:
                break
            # Until the number of steps is known, the rate is that of the warm-up and the plateau.
            trainer.step(ids, weights, learning_rate(step, steps, args.rate))
            if step % args.log_every == 0 or step == steps - 1:
                log(f"step {step} {trainer.report()} seconds {time.time() - start:.1f}")
        pool.terminate()
    return steps


def ahead(pool, jobs, count):
    """The results of the jobs in order, `count` of them under way."""
    waiting = [pool.apply_async(batch_of, (next(jobs),)) for _ in range(count)]
    while True:
        result = waiting.pop(0).get()
        waiting.append(pool.apply_async(batch_of, (next(jobs),)))
        yield result


def export(model, args, ids):
    """The checkpoint directory: weights, both configs, the tokenizer's files. ids [B, T]: texts by
    which scales of inputs are set where the family has such."""
    source, out = args.model, args.out
    out.mkdir(parents=True, exist_ok=True)
    family = FAMILIES[args.family]
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    end, pad = (tokenizer.token_to_id(t) for t in (family.chat.END, family.chat.PAD))
    start = tokenizer.token_to_id("<|startoftext|>")
    stops = [tokenizer.token_to_id(t) for t in family.chat.STOPS]
    write = lambda name, value: (out / name).write_text(json.dumps(value, indent=2) + "\n")
    write("config.json", family.module().config_json(model.config, end, pad))
    write(
        "generation_config.json",
        {
            "bos_token_id": pad if start is None else start,
            "do_sample": True,
            "eos_token_id": stops,
            "pad_token_id": pad,
        },
    )
    family.module().save(model, out / "model.safetensors", ids)
    if out.resolve() != source.resolve():
        for path in [*source.glob("*token*"), *source.glob("chat_template.jinja")]:
            shutil.copy(path, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=pathlib.Path, required=True, help="directory with tokenizer.json"
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--family", choices=FAMILIES, default="gpt_oss")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--start", type=pathlib.Path, help="checkpoint to go on from")
    parser.add_argument("--run", choices=("graph", "compiled", "eager"), default="compiled")
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
    model = FAMILIES[args.family].module().build()
    model.initialize(args.seed)
    if args.start:
        model.load_state_dict(FAMILIES[args.family].module().load(args.start).state_dict())
    model.to(device)
    log(
        f"{sum(p.numel() for p in model.parameters())} parameters, {args.rows} x {args.length} tokens a step, seed {args.seed}, "
        f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}"
    )
    steps = train(args, model, device, log)
    log(f"trained {steps} steps, {steps * args.rows * args.length} tokens")
    start_worker(str(args.model / "tokenizer.json"), FAMILIES[args.family].chat.__name__)
    ids, _ = batch_of((args.seed, "export", 8, 1024))
    trained = FAMILIES[args.family].module().build()  # which nothing has compiled
    trained.load_state_dict(model.state_dict())
    export(trained, args, torch.from_numpy(ids.astype(np.int64)))


if __name__ == "__main__":
    main()
