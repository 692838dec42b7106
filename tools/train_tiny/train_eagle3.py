"""Train an Eagle3 head for the small gpt-oss, which stays as it is, and write its checkpoint.

  python train_eagle3.py --model ../../models/nibble-tiny-gpt-oss --out DIR

The head learns from the conversations that the model was trained on (never from held-out items):
its loss is the cross entropy with the model's own distribution, of a chain of drafts as they are
made in use. What it reports of each draft is how often its likeliest id is the model's, in
answers, where all before it were.
"""

import argparse
import multiprocessing
import os
import pathlib
import time

import numpy as np
import torch

import eagle3
import gpt_oss
import train


def hidden_rows(model, ids, layer_ids):
    """The residual rows behind the layers, one beside the other [B, T, 3 H], and the logits."""
    rows = []
    x = model.embed_tokens(ids)
    positions = torch.arange(ids.shape[1], device=ids.device)
    cos, sin = (t.view(1, 1, *t.shape) for t in gpt_oss.rotation(model.config, positions))
    for i, layer in enumerate(model.layers):
        x = x + layer.self_attn(layer.input_layernorm(x), cos, sin)
        x = x + layer.mlp(layer.post_attention_layernorm(x))[0]
        if i in layer_ids:
            rows.append(x)
    return torch.cat(rows, -1), model.lm_head(model.norm(x))


def draft_vocabulary(batches, size):
    """The ids most often answered."""
    counts = np.zeros(eagle3.Config.vocab_size, np.int64)
    for ids, weights in batches:
        counts += np.bincount(ids[weights == 1], minlength=len(counts))
    chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
    return torch.from_numpy(chosen), counts[chosen].sum() / counts.sum()


def make_batches(args, count):
    """The first `count` batches, as train.py makes them."""
    jobs = [(args.seed, f"eagle {step}", args.rows, args.length) for step in range(count)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.workers, train.start_worker, (str(args.model / "tokenizer.json"),)) as pool:
        return pool.map(train.batch_of, jobs, chunksize=8)


def losses_of(head, target, ids, weights, target_ids, drafts):
    """The sum of the drafts' losses, and of each draft how often it was right where it counts."""
    length = ids.shape[1] - 1
    count = length - drafts
    with torch.no_grad():
        rows, logits = hidden_rows(target, ids[:, :length], head.config.layer_ids)
        wanted = logits.softmax(-1)[..., target_ids]  # of id t + 1, at t
        likeliest = logits.argmax(-1)
        embedded = target.embed_tokens(ids[:, 1:length])
    loss, right, shares = 0.0, None, []
    for j, drafted in enumerate(head(embedded, rows[:, :count], drafts)):
        at = slice(1 + j, 1 + j + count)
        weight = (weights[:, 2 + j : 2 + j + count] == 1).float()
        each = -(wanted[:, at] * drafted.log_softmax(-1)).sum(-1)
        loss = loss + 0.8**j * (each * weight).sum() / weight.sum()
        hit = (target_ids[drafted.argmax(-1)] == likeliest[:, at]) & (weight > 0)
        tried = (weight > 0) if right is None else right & (weight > 0)
        right = hit if right is None else right & hit
        shares.append(right.sum() / tried.sum())
    return loss, shares


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batches", type=int, default=500, help="which are gone through in turns")
    parser.add_argument("--batch-file", type=pathlib.Path, help="keeps them: written where it is not there")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=0, help="in place of --steps, if not 0")
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are parallel already
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.batch_file and args.batch_file.exists():
        kept = np.load(args.batch_file)
        batches = list(zip(kept["ids"], kept["weights"]))
    else:
        batches = make_batches(args, args.batches)
        if args.batch_file:
            ids, weights = zip(*batches)
            np.savez_compressed(args.batch_file, ids=np.stack(ids), weights=np.stack(weights))
    if args.steps == 0:
        return
    lines = []

    def log(text):
        lines.append(text)
        print(text, flush=True)
        (args.out / "training.log").write_text("\n".join(lines) + "\n")

    fit(args, batches, log)


def fit(args, batches, log):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    target = gpt_oss.load(args.model).to(device)
    head = eagle3.Eagle3(eagle3.Config()).to(device)
    target_ids, share = draft_vocabulary(batches, head.config.draft_vocab_size)
    log(
        f"{sum(p.numel() for p in head.parameters())} parameters, {args.rows} x {args.length} tokens a step, "
        f"{len(batches)} batches, seed {args.seed}, torch {torch.__version__}, "
        f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}; "
        f"the draft vocabulary is {share:.2%} of what is answered"
    )
    optimizer = torch.optim.AdamW(head.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01)
    start, timed, step, steps = time.time(), 0.0, 0, args.steps
    while step < steps:
        if step == 20:
            timed = time.time()
        if step == 70 and args.seconds:  # 50 steps at speed tell how many fit
            steps = 70 + int((args.seconds - (time.time() - start)) / ((time.time() - timed) / 50))
            log(f"--steps {steps}")
        ids, weights = batches[step % len(batches)]
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate(step, steps, args.rate)
        loss, shares = losses_of(
            head,
            target,
            torch.from_numpy(ids.astype(np.int64)).to(device),
            torch.from_numpy(weights.astype(np.float32)).to(device),
            target_ids.to(device),
            args.drafts,
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            rights = " ".join(f"{s:.3f}" for s in torch.stack(shares).tolist())
            log(f"step {step} loss {loss.item():.4f} right {rights} seconds {time.time() - start:.0f}")
        step += 1
    eagle3.save(head, target_ids, args.out)
    log(f"trained {steps} steps, {steps * args.rows * args.length} tokens")


if __name__ == "__main__":
    main()
