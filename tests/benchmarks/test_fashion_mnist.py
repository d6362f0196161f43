"""The loader of Fashion-MNIST: the files' format, pixels and rows, and what it says where there are none."""

import gzip
import struct

import numpy as np
import pytest
from late import late

fashion = late("benchmarks.helpers.fashion_mnist")


def idx(array):
    """An array of bytes as an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path):
    """Five training and three test images; images packed, labels not. Image i has the one pixel i, in row i."""
    for part, count in (("train", 5), ("t10k", 3)):
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), np.arange(count), np.arange(count)] = 255
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8)))
    return tmp_path


def test_rows_and_labels_belong_together_and_pixels_are_those_of_the_papers(folder):
    (x, y), (x_test, y_test) = fashion.fashion_mnist(0, rows=5, test_rows=3, folder=folder)
    assert sorted(y.tolist()) == [0, 1, 2, 3, 4] and sorted(y_test.tolist()) == [0, 1, 2]
    assert (x.argmax(1) == 29 * y).all() and (x_test.argmax(1) == 29 * y_test).all()
    assert x.max() == pytest.approx(1.0) and x.min() == pytest.approx(0.01)


def test_squares_of_pixels_are_averaged(folder):
    (x, y), _ = fashion.fashion_mnist(0, rows=5, test_rows=3, side=14, folder=folder)
    assert x.shape == (5, 196)
    assert (x.argmax(1) == 15 * (y // 2)).all()
    assert x.max() == pytest.approx(0.99 / 4 + 0.01)


def test_the_environment_names_the_folder_and_without_files_it_is_said_how_to_get_them(folder, monkeypatch, tmp_path):
    monkeypatch.setenv(fashion.VARIABLE, str(folder))
    assert fashion.found_folder() == folder
    with pytest.raises(FileNotFoundError, match=r"Debian package dataset-fashion-mnist.*FASHION_MNIST"):
        fashion.found_folder(tmp_path / "nowhere")


def test_a_file_that_is_cut_off_and_too_many_rows_are_refused(folder):
    with pytest.raises(ValueError, match="6 rows were asked for, and there are 5"):
        fashion.fashion_mnist(0, rows=6, test_rows=3, folder=folder)
    labels = folder / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(ValueError, match="4 values where the header says"):
        fashion.fashion_mnist(0, rows=5, test_rows=3, folder=folder)
