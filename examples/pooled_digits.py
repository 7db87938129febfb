"""A small network out of a pool of vectors, trained on with the pool: python examples/pooled_digits.py [--size small].

scikit-learn's handwritten digits (1,797 images of 8x8), three 3x3 convolutions of 32, 64 and 64 channels, of which the last
two are pooled. Training goes straight through: each step computes with the nearest vectors of the pool and with activations
rounded to some bits, and its gradients move the weights behind them. The table has the share of right answers without and with
that training, by the bits of activations; at the end tw.compress finds the pool in the trained weights, and one compiled model
serves all bits.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import tilewright as tw

BITS = (8, 6, 5, 4, 3, 2, 1)
VECTOR, BATCH = 8, 64


@dataclass(frozen=True)
class Digits:
    """Images [n, 1, 8, 8] from 0 to 1, and what they show."""

    images: torch.Tensor
    labels: torch.Tensor

    @staticmethod
    def split(seed: int) -> tuple[Digits, Digits]:
        """1,200 to train on, 597 to test."""
        data = load_digits()
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(data.target)))
        images = torch.from_numpy(data.images.astype(np.float32) / 16)[:, None]
        labels = torch.from_numpy(data.target)
        first, rest = order[:1200], order[1200:]
        return Digits(images[first], labels[first]), Digits(images[rest], labels[rest])


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Whole numbers of so many bits times a scale, as tw.ops.round_to_bits; gradients pass."""
    low, high = x.detach().amin().clamp(max=0), x.detach().amax().clamp(min=0)
    step = (high - low).clamp(min=1e-12) / (2**bits - 1)
    zero = torch.round(-low / step)
    found = (torch.clamp(torch.round(x / step) + zero, 0, 2**bits - 1) - zero) * step
    return x + (found - x).detach()


class PooledConv(nn.Conv2d):
    """A 3x3 convolution whose weight is out of `pool` [entries, 8] where there is one; bits: of its image, 0 for f32."""

    pool: torch.Tensor | None = None
    bits: int = 0

    def vectors(self) -> torch.Tensor:
        """Of eight values along the input channels."""
        return self.weight.permute(0, 2, 3, 1).reshape(-1, VECTOR)

    def pooled(self) -> torch.Tensor:
        if self.pool is None:
            return self.weight
        vectors = self.vectors()
        near = torch.cdist(vectors.detach(), self.pool).argmin(1)
        found = vectors + (self.pool[near] - vectors).detach()
        outputs, inputs, rows, columns = self.weight.shape
        return found.reshape(outputs, rows, columns, inputs).permute(0, 3, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(rounded(x, self.bits) if self.bits else x, self.pooled(), self.bias, padding=1)


class Network(nn.Sequential):
    """Ten scores of an image."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), PooledConv(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         PooledConv(64, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    @property
    def layers(self) -> list[PooledConv]:
        return [m for m in self if isinstance(m, PooledConv)]

    def set_bits(self, bits: int) -> None:
        for layer in self.layers:
            layer.bits = bits

    def make_pools(self, entries: int, scope: str, seed: int) -> None:
        """By k-means, one for the network or one for each layer."""
        groups = [self.layers] if scope == "network" else [[layer] for layer in self.layers]
        for group in groups:
            vectors = torch.cat([layer.vectors() for layer in group]).detach()
            generator = torch.Generator().manual_seed(seed)
            pool = vectors[torch.randperm(len(vectors), generator=generator)[:entries]].clone()
            for _ in range(25):
                near = torch.cdist(vectors, pool).argmin(1)
                counts = torch.bincount(near, minlength=entries)
                sums = torch.zeros_like(pool).index_add_(0, near, vectors)
                pool = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], pool)
            for layer in group:
                layer.pool = pool


def train(network: Network, data: Digits, epochs: int, rate: float, seed: int, bits: tuple[int, ...] = ()) -> None:
    """bits: that each step rounds activations to, one of them drawn."""
    generator, drawn = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    optimizer = torch.optim.Adam(network.parameters(), rate)
    steps = epochs * -(-len(data.labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(epochs):
        for part in torch.randperm(len(data.labels), generator=generator).split(BATCH):
            network.set_bits(int(drawn.choice(bits)) if bits else 0)
            loss = nn.functional.cross_entropy(network(data.images[part]), data.labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.set_bits(0)


@torch.inference_mode()
def right(network: Network, data: Digits, bits: int) -> float:
    """Percent of right answers."""
    network.set_bits(bits)
    share = (network(data.images).argmax(1) == data.labels).float().mean().item()
    network.set_bits(0)
    return 100 * share


@dataclass(frozen=True)
class Row:
    """Of the table."""

    seed: int
    pool: int
    scope: str
    model: str


def report(row: Row, network: Network, data: Digits, path: Path | None) -> None:
    """Prints a row, and appends it to a file."""
    shares = {b: right(network, data, b) for b in (*BITS, 0)}
    print(f"{row.seed:>4} {row.pool:>5} {row.scope:8} {row.model:8}" + "".join(f"{shares[b]:7.2f}" for b in BITS) +
          f"  f32 {shares[0]:.2f}", flush=True)
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(asdict(row) | {"right": {str(b): round(v, 3) for b, v in shares.items()}}) + "\n")


def compiled(network: Network, data: Digits, entries: int, save: Path | None) -> dict[int, float]:
    """Percent of right answers of one compiled model, by bits. It holds the weights as indices; save: to this file."""
    plain = Network()
    plain.load_state_dict(network.state_dict())
    for mine, theirs in zip(plain.layers, network.layers, strict=True):
        mine.weight.data = theirs.pooled().detach()
    sizes = {"input": {0: torch.export.Dim("B", min=1, max=1024)}}
    found = tw.compress(plain.eval(), args=(data.images[:2],), dynamic_shapes=sizes, pool=entries, activation_bits="A")
    print(found)
    fn = tw.compile(found.model, {"B": (1, 1024)})
    if save is not None:
        fn.save(save)
    return {b: 100 * float((fn(data.images.numpy(), b).argmax(1) == data.labels.numpy()).mean()) for b in BITS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", default="64")
    parser.add_argument("--seeds", default="0", help="comma separated")
    parser.add_argument("--scopes", default="network", help="network, layer")
    parser.add_argument("--epochs", type=int, default=8, help="without a pool, and as many with one")
    parser.add_argument("--size", choices=["full", "small"], default="full", help="small: one epoch each, compiled")
    parser.add_argument("--save", type=Path, help="where to save the compiled model")
    parser.add_argument("--json", type=Path, help="append the records to this file")
    parser.add_argument("--compile", action="store_true", help="compile what was trained with a pool")
    given = parser.parse_args()
    epochs = given.epochs if given.size == "full" else 1
    torch.set_num_threads(1)
    print(f"{'seed':>4} {'pool':>5} {'scope':8} {'':8}" + "".join(f"{f'A={b}':>7}" for b in BITS))
    for seed in (int(s) for s in given.seeds.split(",")):
        torch.manual_seed(seed)
        training, testing = Digits.split(seed)
        base = Network()
        train(base, training, epochs, 4e-3, seed)
        report(Row(seed, 0, "", "plain"), base, testing, given.json)
        for scope in given.scopes.split(","):
            for entries in (int(p) for p in given.pools.split(",")):
                network = Network()
                network.load_state_dict(base.state_dict())
                network.make_pools(entries, scope, seed)
                report(Row(seed, entries, scope, "as it is"), network, testing, given.json)
                train(network, training, epochs, 2e-3, seed, BITS[:-1])
                report(Row(seed, entries, scope, "trained"), network, testing, given.json)
                if given.compile or given.save or given.size == "small":
                    print({b: round(v, 2) for b, v in compiled(network, testing, entries, given.save).items()})


if __name__ == "__main__":
    main()
