"""Vision transformers: patches against PyTorch's unfold, positions by what they must not depend
on, other sizes, images of shapes, and the study, tiny."""
import json
import math

import pytest
import torch
import torch.nn.functional as F

from bench import vision_shapes
from bench.__main__ import RECORDS
from tfmlib.encoders.vision import (
    SHAPES,
    GridRotary,
    SmallCNN,
    cut_patches,
    draw_shapes,
    grid_angles,
    grid_positions,
    load_vit,
    resize_table,
    resized,
    vit,
)
from tfmlib.heads import attention_weights
from tfmlib.positions import rotate_pairs
from tfmlib.transformer import random_seed
from tfmlib.workbench import parse_record, seeded


def small(positions: str = "learned", class_token: bool = True,
          shape: tuple = (3, 8, 12)) -> torch.nn.Module:
    with random_seed(0): return vit(shape, 4, 16, 2, 2, 5, positions, class_token).double()


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize(("shape", "size"),
                         [((2, 1, 4, 4), 2), ((1, 3, 6, 9), 3), ((3, 2, 5, 5), 1),
                          ((2, 4, 8, 4), 4), ((0, 1, 4, 4), 2)])
def test_patches_are_those_of_unfold(shape, size):
    x = images(*shape)
    assert torch.equal(cut_patches(x, size), F.unfold(x, size, stride=size).mT)


@pytest.mark.parametrize(("shape", "size"),
                         [((4, 4), 2), ((1, 1, 4, 5), 2), ((1, 1, 0, 4), 2), ((1, 4, 4), 2)])
def test_images_that_cannot_be_cut_are_refused(shape, size):
    with pytest.raises(ValueError, match="^images: "): cut_patches(torch.zeros(shape), size)


@pytest.mark.parametrize("base", [10., 100.])
def test_half_of_the_pairs_turn_by_the_row_and_half_by_the_column(base):
    angles = grid_angles(grid_positions(3, 5), 8, base)
    at = 1 * 5 + 3                                                        # row 1, column 3
    assert (angles.shape == (15, 4) and angles[at].tolist()
            == pytest.approx([1, base**-.5, 3, 3 * base**-.5]))
    with pytest.raises(ValueError, match="^head_dim: "): grid_angles(grid_positions(2, 2), 6)


@pytest.mark.parametrize("move", [(0, 1), (1, 0), (5, -2)])
def test_scores_depend_on_offsets_only(move):
    q, k = (images(12, 16, seed=n) for n in (1, 2))
    place = grid_positions(3, 4)
    def scores(places):
        angles = grid_angles(places, 16)
        return rotate_pairs(q, angles.cos(), angles.sin()) @ rotate_pairs(k, angles.cos(),
                angles.sin()).T
    torch.testing.assert_close(scores(place), scores(place + torch.tensor(move)))
    assert not torch.allclose(scores(place), scores(place.flip(1)))


def test_the_tokens_before_the_patches_are_not_rotated():
    encoding, t = GridRotary(8, (2, 3), prefix=1), images(1, 2, 7, 8)
    turned = encoding.rotate(t, torch.arange(7))
    # the first patch is at (0, 0)
    assert (torch.equal(turned[:, :, :2], t[:, :, :2]) and not torch.allclose(turned[:, :, 2:],
            t[:, :, 2:]))
    torch.testing.assert_close(turned.norm(dim=-1), t.norm(dim=-1))


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("class_token", [True, False])
def test_a_resized_model_is_the_same_at_its_own_size_and_leaves_the_first_as_it_was(positions,
        class_token):
    model, x = small(positions, class_token), images(2, 3, 8, 12)
    first = model(x)
    torch.testing.assert_close(resized(model, 2, 3)(x), first, atol=1e-9, rtol=0)
    large = resized(model, 4, 4)
    assert large(images(2, 3, 16, 16)).shape == (2, 5) and torch.equal(model(x), first)
    with pytest.raises(ValueError, match="^images: "): large(x)
    with pytest.raises(ValueError, match="^images: "): model(images(2, 3, 16, 16))


def test_a_table_is_enlarged_as_an_image():
    table = torch.cat((torch.full((1, 2), 9.),
                       torch.stack((grid_positions(4, 4)[:, 0].float(),
                                    grid_positions(4, 4)[:, 1].float()), 1)))
    larger = resize_table(table, (4, 4), (8, 8))
    assert larger.shape == (65, 2) and torch.equal(larger[0], table[0])
    rows, columns = larger[1:].T.unflatten(1, (8, 8))
    assert torch.allclose(rows, columns.T, atol=1e-6) and bool((rows.diff(dim=0) > 0).all())
    with pytest.raises(ValueError, match="^old: "): resize_table(table, (5, 5), (8, 8))


def test_without_positions_patches_may_be_exchanged():
    model, x = small(class_token=False), images(2, 3, 8, 12)
    order = torch.randperm(6, generator=seeded(1))
    mixed = F.fold(cut_patches(x, 4)[:, order].mT, (8, 12), 4, stride=4)
    assert not torch.allclose(model(mixed), model(x))
    with torch.no_grad(): model.encoding.weight.zero_()
    torch.testing.assert_close(model(mixed), model(x))


def test_a_model_reads_its_class_token_or_the_mean():
    for first in (True, False):
        model, x = small(class_token=first), images(2, 3, 8, 12)
        h, _ = model.stack(model.tokens(x))
        assert h.shape == (2, 6 + first, 16)
        torch.testing.assert_close(model(x), model.head(h[:, 0] if first else h.mean(1)))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="^positions: "):
        vit((1, 8, 8), 4, 8, 1, 2, 3, "sinusoidal")
    with pytest.raises(ValueError, match="^state: "):
        load_vit(small(), {"vit.pooler.dense.weight": torch.zeros(16, 16)})
    with pytest.raises(ValueError, match="^state: "):
        load_vit(small(), {"classifier.bias": torch.zeros(4)})
    with pytest.raises(ValueError, match="^size: "): draw_shapes(3, 15, 0)


def test_older_names_are_read_too():
    model = small()
    def named(name):
        for ours, theirs in (("stack.blocks.", "vit.encoder.layer."),
                             ("attention.norm", "layernorm_before"),
                             ("feed_forward.norm", "layernorm_after"),
                             ("feed_forward.inner.up", "intermediate.dense"),
                             ("feed_forward.inner.down", "output.dense"),
                             ("attention.inner.q_proj", "attention.attention.query"),
                             ("attention.inner.k_proj", "attention.attention.key"),
                             ("attention.inner.v_proj", "attention.attention.value"),
                             ("attention.inner.o_proj", "attention.output.dense"),
                             ("stack.norm", "vit.layernorm"),
                             ("proj.", "vit.embeddings.patch_embeddings.projection.")
                             if name.startswith("proj") else ("head.", "classifier."),
                             ("class_token", "vit.embeddings.cls_token"),
                             ("encoding.weight",
                              "vit.embeddings.position_embeddings")): name = name.replace(
                                  ours, theirs)
        return name
    state = {named(name): t.clone() for name, t in model.state_dict().items()}
    with random_seed(1): other = vit((3, 8, 12), 4, 16, 2, 2, 5).double()
    load_vit(other, state)
    assert all(torch.equal(a, b)
               for a, b in zip(other.state_dict().values(), model.state_dict().values()))


# --- images of shapes -----------------------------------------------------------------------------

def test_shapes_are_whole_and_their_seeds_count():
    x, y = draw_shapes(200, 16, 3, noise=0.)
    assert x.shape == (200, 1, 16, 16) and set(y.tolist()) == set(range(len(SHAPES)))
    assert (all(float(edge.abs().max()) == 0 for edge in (x[..., 0], x[..., -1], x[..., 0, :],
            x[..., -1, :])) and float(x.max()) == 1)
    again = draw_shapes(200, 16, 3, noise=0.)
    assert (torch.equal(x, again[0]) and torch.equal(y, again[1])
            and not torch.equal(x, draw_shapes(200, 16, 4, noise=0.)[0]))


def test_the_area_of_a_shape_is_that_of_geometry():
    x, y = draw_shapes(400, 64, 1, radius=(20., 20.), noise=0., tilt=0.)
    # circle, square, triangle, cross
    wanted = math.pi * 16**2, 28.4**2, 3 * math.sqrt(3) / 4 * 20**2, 36**2 - 4 * 13**2
    for kind, area in enumerate(wanted):
        assert (float(x[y == kind].sum((1, 2, 3)).mean())
                == pytest.approx(area, rel=.03)), SHAPES[kind]


# --- the study, tiny ------------------------------------------------------------------------------

def test_moved_images_are_mirrored_or_not_and_whole():
    x = F.pad(images(20, 1, 4, 4), (2, 2, 2, 2))
    moved = vision_shapes.moved(x, 0, 1)
    assert moved.shape == x.shape and not torch.equal(moved, vision_shapes.moved(x, 0, 2))
    torch.testing.assert_close(moved.flatten(1).sort(1).values, x.flatten(1).sort(1).values)


@pytest.mark.whole
def test_every_model_has_as_many_candidates_and_seeds(monkeypatch, tmp_path):
    for name, value in {"STEPS": 4, "WARM": 1, "BATCH": 8, "HELD": 20, "TESTED": 20, "MOST": 16,
                        "SEEDS": 2, "RATES": (.002, .006),
                        "PLAN": [("CNN", 16, False), ("learned", 16, False), ("rotary", 8, True),
                                 ("class token", 16, False)]}.items(): monkeypatch.setattr(
                                     vision_shapes, name, value)
    monkeypatch.setattr(vision_shapes.RUNS, "path", tmp_path / "vision_shapes.jsonl")
    rows = list(vision_shapes.measure(0))
    assert ([row["what"] for row in rows] == ["search", "search", "end"] * 4
            and all(row["tested"]["n"] == 2 for row in rows if row["what"] == "end"))
    assert ([("larger field" in row, row["augmented"]) for row in rows if row["what"] == "end"]
            == [(True, False), (True, False), (False, True), (True, False)])
    facts = json.loads((RECORDS / "attention_cost.json").read_text()) | {"name": "vision_shapes"}
    assert len(parse_record(json.dumps(facts | {"rows": rows})).rows) == len(rows)


def test_the_models_of_the_study_cost_the_same():
    from torch.utils.flop_counter import FlopCounterMode
    def operations(kind):
        with FlopCounterMode(display=False) as counter, attention_weights(), torch.no_grad():
            vision_shapes.made(kind, 0)(torch.zeros(1, 1, 16, 16))
        return counter.get_total_flops()
    costs = {kind: operations(kind) for kind in ("CNN", "learned", "rotary")}
    assert costs["learned"] == costs["rotary"] and abs(costs["CNN"] / costs["learned"] - 1) < .02
    assert SmallCNN(4)(torch.zeros(2, 1, 24, 24)).shape == (2, 4)
