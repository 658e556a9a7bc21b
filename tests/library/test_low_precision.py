"""Numbers of eight and four bits: rounding against PyTorch's types, tiles against a loop,
products against 64 bits, rotations against what they must keep."""
import pytest
import torch
from torch.autograd import gradcheck

from tfmlib.accounting import (
    E2M1,
    E4M3,
    E5M2,
    NumberFormat,
    RoundedLinear,
    bits_a_number,
    block_scaled,
    hadamard,
    quantise_tiles,
    rotate,
    round_to,
    scaled_product,
)
from tfmlib.workbench import seeded

TYPES = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2,
         NumberFormat(5, 10, 65_504.): torch.float16,
         NumberFormat(8, 7, torch.finfo(torch.bfloat16).max): torch.bfloat16}


@pytest.mark.parametrize("format", TYPES)
def test_rounding_is_that_of_the_type(format):
    x = torch.randn(5_000, generator=seeded(0)) * torch.logspace(-9, 5, 5_000)
    x = x.clamp(-format.largest, format.largest)
    assert torch.equal(round_to(x, format), x.to(TYPES[format]).float())
    assert (round_to(torch.tensor([torch.inf, -torch.inf]), format).tolist()
            == pytest.approx([format.largest, -format.largest]))


def test_every_magnitude_is_kept():
    for format, count in ((E2M1, 8), (E4M3, 127), (E5M2, 124), (NumberFormat(3, 2, 28.), 32)):
        x = format.magnitudes()
        assert len(x) == count and x[-1] == format.largest and torch.equal(x, x.sort().values)
        assert torch.equal(round_to(-x, format), -x)


@pytest.mark.parametrize(("tile", "scale"),
                         [((1, 4), "float32"), ((2, 3), "E8M0"), ((1, 2), "E4M3"),
                          ((5, 7), "float32"), ((4, 4), "E8M0")])
def test_tiles_are_rounded_one_by_one(tile, scale):
    x = torch.randn(5, 7, generator=seeded(1)) * torch.logspace(0, 2, 7)
    found, (R, S) = block_scaled(x, E2M1, tile, scale), tile
    assert found.shape == x.shape
    top = (max(float(x[i:i + R, j:j + S].abs().max()) for i in range(0, 5, R)
               for j in range(0, 7, S)) / 6 / 448)
    for i in range(0, 5, R):
        for j in range(0, 7, S):
            part = x[i:i + R, j:j + S]
            s = float(part.abs().max()) / 6
            if scale == "E8M0": s = next(2.**e for e in range(-99, 99) if 2.**e >= s)
            if scale == "E4M3": s = float(torch.tensor(s / top).to(torch.float8_e4m3fn)) * top
            torch.testing.assert_close(found[i:i + R, j:j + S], round_to(part / s, E2M1) * s)


def test_zeros_stay_zeros_and_bits_are_counted():
    for scale in ("float32", "E8M0", "E4M3"):
        assert not block_scaled(torch.zeros(3, 40), E4M3, (1, 32), scale).any()
    assert ((bits_a_number(E2M1, (1, 16), "E4M3"), bits_a_number(E2M1, (1, 32), "E8M0"),
             bits_a_number(E4M3, (2, 4))) == (4.5, 4.25, 12))
    with pytest.raises(ValueError, match="x:"): quantise_tiles(torch.zeros(3), E4M3, (1, 1))
    with pytest.raises(ValueError, match="scale"):
        quantise_tiles(torch.zeros(3, 3), E4M3, (1, 1), "E5M2")


def test_a_product_in_blocks_is_the_product_of_what_remains():
    X, W = (torch.randn(n, 70, generator=seeded(n)).double() for n in (3, 5))
    for way in (((1, 16), "E4M3"), ((1, 32), "E8M0"), ((1, 70), "float32")):
        found = scaled_product(quantise_tiles(X, E2M1, *way), quantise_tiles(W, E2M1, *way))
        torch.testing.assert_close(found,
                                   block_scaled(X, E2M1, *way) @ block_scaled(W, E2M1, *way).T)
    whole = scaled_product(quantise_tiles(X, E4M3, (1, 7)), quantise_tiles(W, E4M3, (1, 7)),
                           lambda s: s.round())
    assert torch.equal(whole, whole.round())


def test_a_rotation_keeps_lengths_and_products():
    for n in (1, 2, 8, 64): torch.testing.assert_close(hadamard(n) @ hadamard(n).T, torch.eye(n))
    signs = torch.tensor([1., -1.] * 6).double()
    X, W = (torch.randn(n, 12, generator=seeded(n)).double() for n in (3, 5))
    torch.testing.assert_close(rotate(X, signs) @ rotate(W, signs).T, X @ W.T)
    torch.testing.assert_close(rotate(X, signs)[:, :4], (X * signs)[:, :4] @ hadamard(4).double())
    with pytest.raises(ValueError, match="n:"): hadamard(6)
    with pytest.raises(ValueError, match="signs"): rotate(X, signs[:3])


def test_the_three_products_of_a_step():
    x, W = (torch.randn(n, 4, generator=seeded(n), dtype=torch.float64, requires_grad=True)
            for n in (3, 5))
    assert gradcheck(lambda x, W: RoundedLinear.apply(x, W, torch.clone, torch.clone), (x, W))
    def ahead(v): return block_scaled(v, E2M1, (1, 2), "E8M0")
    def back(v): return block_scaled(v, E5M2, (1, 2))
    g = torch.randn(3, 5, generator=seeded(9), dtype=torch.float64)
    y = RoundedLinear.apply(x, W, ahead, back)
    assert torch.equal(y, ahead(x) @ ahead(W).T)
    y.backward(g)
    assert (torch.equal(x.grad, back(g) @ ahead(W.T).T)
            and torch.equal(W.grad, back(g.T) @ ahead(x.T).T))
