"""Images a second of training the small image models, ours against PyTorch eager: whole steps, batch 64, two threads.

Both are measured in turn, several times, so that other work on the machine weighs on both; medians and the ratio are
printed. Needs torch, and the example built before:

    cargo build --release -p murmur-training --example measure
    python scripts/bench_pytorch_images.py target/release/examples/measure images
"""

import statistics
import subprocess
import sys
import time

import torch
from torch import nn

ROUNDS = 5
SECONDS = 2.0
BATCH = 64


def models():
    """The same layers as `murmur`'s, by name."""
    return {
        "mlp": nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)),
        "cnn": nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
        ),
    }


def images_per_second(model):
    """By the median step; with the fused AdamW and the clipping that `murmur` does."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    loss_of = nn.CrossEntropyLoss()
    images, labels = torch.rand(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    seconds, begin = [], time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
    return BATCH / statistics.median(seconds)


def main():
    torch.set_num_threads(2)
    ours, theirs = {}, {}
    for _ in range(ROUNDS):
        for line in subprocess.run(sys.argv[1:], check=True, capture_output=True, text=True).stdout.splitlines():
            name, speed = line.split()
            ours.setdefault(name, []).append(float(speed))
        for name, model in models().items():
            theirs.setdefault(name, []).append(images_per_second(model))
    for name in theirs:
        mine, other = statistics.median(ours[name]), statistics.median(theirs[name])
        print(f"{name}: murmur {mine:.0f} images/s, PyTorch {torch.__version__} {other:.0f}, ratio {mine / other:.2f}")


if __name__ == "__main__":
    main()
