"""Trains the demo checkpoint that ships with the package, or measures one.

    python scripts/train_demo.py --out DIR        # train and write a new folder
    python scripts/train_demo.py --evaluate DIR   # measure a folder

The checkpoint is a small GLM-4.5 (`glm4_moe`) with its MTP layer, trained so that the MTP head
predicts what the main head predicts one step later. A converter that loses or permutes any of it
ruins that agreement. Training needs no network, runs on one CPU thread and is deterministic: the
same machine and library versions give the same files, byte for byte.
"""

import argparse
import math
import os
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from demo_checkpoint import release_tensors, write_configs, write_weights
from demo_evaluate import Scores, evaluate
from demo_model import CONFIG, DemoModel, balance_routers, make_config, watch_loads
from demo_text import take_documents
from demo_tokenizer import train_tokenizer, write_tokenizer

SEED = 1
STEPS = 800
WARMUP = 50
BATCH = 16
LENGTH = CONFIG["max_position_embeddings"]
PEAK_RATE = 3e-3
BALANCE_RATE = 1e-3
MTP_WEIGHT = 0.3
DOCUMENTS = 24_000
TOKENIZER_DOCUMENTS = 4_000


def schedule(step: int, steps: int) -> float:
    """Fraction of the peak learning rate: a linear rise, then a cosine down to nothing."""
    rise = min(1.0, (step + 1) / WARMUP)
    return rise * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """All texts, one after the other, as one row of token ids [tokens]."""
    encoded = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    return torch.tensor([i for ids in encoded for i in ids])


def draw_batch(stream: Tensor, generator: torch.Generator) -> Tensor:
    """Random windows of the stream, [BATCH, LENGTH + 2]: the MTP target is two tokens on."""
    starts = torch.randint(len(stream) - LENGTH - 2, (BATCH, 1), generator=generator)
    return stream[starts + torch.arange(LENGTH + 2)]


def losses(model: DemoModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of the main head (token t+1) and of the MTP head (token t+2)."""
    main, mtp = model(ids[:, :-1])
    main_loss = F.cross_entropy(main.flatten(0, 1), ids[:, 1:-1].flatten())
    return main_loss, F.cross_entropy(mtp.flatten(0, 1), ids[:, 2:].flatten())


def train(model: DemoModel, stream: Tensor, steps: int) -> None:
    """Train both heads together in FP32, in place."""
    generator = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), PEAK_RATE, (0.9, 0.95), weight_decay=0.01)
    loads = watch_loads(model)
    began = time.monotonic()
    for step in range(steps):
        scale = schedule(step, steps)
        optimizer.param_groups[0]["lr"] = PEAK_RATE * scale
        main_loss, mtp_loss = losses(model, draw_batch(stream, generator))
        optimizer.zero_grad()
        torch.autograd.backward(main_loss + MTP_WEIGHT * mtp_loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # Scaled like the learning rate, so that the biases settle and no two end up equal.
        balance_routers(model, loads, BALANCE_RATE * scale)
        if step % 50 == 0 or step == steps - 1:
            shares = " ".join(f"{(x.max() / x.sum()).item():.2f}" for x in loads)
            print(
                f"step {step:5d}  main {main_loss.item():.3f}  mtp {mtp_loss.item():.3f}  "
                f"busiest expert {shares}  {time.monotonic() - began:.0f} s",
                flush=True,
            )


def make_checkpoint(folder: Path, steps: int) -> None:
    """Generate the text, train tokenizer and model on it, and write the folder."""
    folder.mkdir(parents=True)
    texts = take_documents(SEED, DOCUMENTS, held_out=False)
    tokenizer = train_tokenizer(texts[:TOKENIZER_DOCUMENTS], CONFIG["vocab_size"])
    stream = encode(tokenizer, texts)
    print(f"{len(texts)} documents, {len(stream)} tokens")
    torch.manual_seed(SEED)
    model = DemoModel(make_config())
    train(model, stream, steps)
    write_tokenizer(tokenizer, folder, CONFIG["max_position_embeddings"])
    write_weights(release_tensors(model), folder)
    write_configs(folder)


def report(title: str, scores: Scores) -> None:
    """Print one measurement, a figure a line."""
    print(title)
    for name, value in asdict(scores).items():
        print(f"  {name:14s} {value:.4f}" if isinstance(value, float) else f"  {name:14s} {value}")


def main() -> None:
    """Parse the command line and do one of the two jobs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    job = parser.add_mutually_exclusive_group(required=True)
    job.add_argument("--out", type=Path, help="train, and write this new folder")
    job.add_argument("--evaluate", type=Path, metavar="DIR", help="measure this folder")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps")
    args = parser.parse_args()
    if args.out and args.out.exists():
        parser.error(f"{args.out} exists; --out needs a new folder")
    # One thread and no atomics: sums are always added up in the same order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if args.out:
        make_checkpoint(args.out, args.steps)
    intact, swapped = evaluate(args.out or args.evaluate)
    report("as stored", intact)
    report("halves of eh_proj swapped", swapped)


if __name__ == "__main__":
    main()
