"""Fashion-MNIST: 70,000 photographs of ten kinds of clothes, 28 by 28 pixels (Xiao, Rasul and Vollgraf 2017, MIT).

`add_options` gives a script the choice between it and scikit-learn's digits, and `chosen` loads what was chosen.

The four files of the data set, in the format of MNIST (IDX), packed or not, in one folder: the one that is given, the
one that the environment variable FASHION_MNIST names, or that of the Debian package `dataset-fashion-mnist`.
"""

from __future__ import annotations

import gzip
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.helpers.classification_data import Split, digits

VARIABLE = "FASHION_MNIST"
#: Where the Debian package puts the files.
PACKAGED = Path("/usr/share/datasets/fashion-mnist")
#: The bytes of an IDX file of unsigned bytes before its number of dimensions, and the largest pixel.
UNSIGNED_BYTES, MAX_PIXEL, WIDTH = b"\0\0\x08", 255, 28


class Images(NamedTuple):
    """A data set: its name, its rows by seed, and the rows of a step as in the papers; None takes a client's all."""

    name: str
    load: Callable[[int], Split]
    batch_size: int | None


def add_options(parser: ArgumentParser) -> None:
    """The options that choose a data set and its size."""
    parser.add_argument("--data", choices=("digits", "fashion"), default="digits", help="scikit-learn's, Fashion-MNIST")
    parser.add_argument("--rows", type=int, default=6000, help="training images of Fashion-MNIST")
    parser.add_argument("--test-rows", type=int, default=2000, help="its test images")
    parser.add_argument("--side", type=int, default=14, help="its pixels a side: 28, 14 or 7")
    parser.add_argument("--folder", type=Path, help=f"of its files; by default {VARIABLE}, or that of Debian's package")


def chosen(options: Namespace) -> Images:
    """The data set that was chosen; half of the digits are to test on."""
    if options.data == "digits":
        return Images("digits", partial(digits, test_size=0.5), None)
    found_folder(options.folder)  # before anything is computed
    load = partial(
        fashion_mnist, rows=options.rows, test_rows=options.test_rows, side=options.side, folder=options.folder
    )
    return Images("Fashion-MNIST", load, 100)


def fashion_mnist(
    seed: int, rows: int = 60_000, test_rows: int = 10_000, side: int = WIDTH, folder: Path | None = None
) -> Split:
    """Rows drawn without replacement of the training and of the test images, pixels in [0.01, 1] as in the papers.

    Args:
        seed: of the draw.
        rows: of the 60,000 training images.
        test_rows: of the 10,000 test images.
        side: pixels of a side, a divisor of 28; squares of pixels are averaged where it is below 28.
        folder: of the files.
    """
    rng = np.random.default_rng(seed)
    train, test = (
        _drawn(rng, images, labels, count, side)
        for (images, labels), count in zip(_parts(found_folder(folder)), (rows, test_rows), strict=True)
    )
    return train, test


def found_folder(folder: Path | None = None) -> Path:
    """The folder of the files; FileNotFoundError, with how to get them, if there is none."""
    named = os.environ.get(VARIABLE)
    place = folder or (Path(named) if named else PACKAGED)
    first = "train-images-idx3-ubyte"
    if not any((place / name).is_file() for name in (first, f"{first}.gz")):
        raise FileNotFoundError(
            f"Fashion-MNIST: {place / first}[.gz] is not there. Install the Debian package dataset-fashion-mnist, or "
            f"take its four files from github.com/zalandoresearch/fashion-mnist and let the environment variable "
            f"{VARIABLE} name their folder"
        )
    return place


def _parts(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images (n, 28, 28) and labels (n,) for training, and to test on."""
    return [
        (read_idx(folder / f"{part}-images-idx3-ubyte"), read_idx(folder / f"{part}-labels-idx1-ubyte"))
        for part in ("train", "t10k")
    ]


def read_idx(path: Path) -> np.ndarray:
    """The array of unsigned bytes in an IDX file, or in the same file packed by gzip."""
    packed = path.with_name(path.name + ".gz")
    data = path.read_bytes() if path.is_file() else gzip.decompress(packed.read_bytes())
    if data[:3] != UNSIGNED_BYTES:
        raise ValueError(f"{path}: expected an IDX file of unsigned bytes, which begins with 0, 0, 8")
    shape = tuple(np.frombuffer(data, ">u4", count=data[3], offset=4).tolist())
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape))
    if len(values) != np.prod(shape):
        raise ValueError(f"{path}: {len(values)} values where the header says {shape}; the file is cut off")
    return values.reshape(shape)


def _drawn(
    rng: np.random.Generator, images: np.ndarray, labels: np.ndarray, count: int, side: int
) -> tuple[Tensor, Tensor]:
    """So many rows, of `side` by `side` pixels."""
    if WIDTH % side:
        raise ValueError(f"side={side} does not divide {WIDTH}: take 28, 14 or 7")
    if count > len(labels):
        raise ValueError(f"{count} rows were asked for, and there are {len(labels)}")
    rows, block = rng.permutation(len(labels))[:count], WIDTH // side
    squares = images[rows].reshape(count, side, block, side, block).astype(np.float32)
    pixels = squares.mean((2, 4)).reshape(count, side * side) * (0.99 / MAX_PIXEL) + 0.01
    return torch.from_numpy(pixels.astype(np.float32)), torch.from_numpy(labels[rows].astype(np.int64))
