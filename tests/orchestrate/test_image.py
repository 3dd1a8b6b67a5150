"""One image on every host, or nothing starts."""

from __future__ import annotations

import pytest

from orchestrate import image
from orchestrate.errors import CannotTell, Refused

ID, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


class Engine:
    """An engine that holds images by name; `stores_as` is what it makes of an image that it is sent."""

    def __init__(self, where, named=None, stores_as=None):
        self.where = where
        self.named = dict(named or {})
        self.stores_as = stores_as
        self.held = {}
        self.loaded = 0

    def image_id(self, ref):
        return ref if ref in self.named.values() else self.named.get(ref)

    def image_bytes(self, ref):
        return 10

    def layers(self, ref):
        return self.held.get(ref, ())

    def image_ids(self):
        return tuple(self.held)

    def save_image(self, ref):
        yield from (ref.encode(), b"12345")

    def load_image(self, stream):
        sent, *_ = list(stream)
        self.loaded += 1
        self.named["<none>"] = self.stores_as or sent.decode()

    def tag_image(self, image_id, ref):
        self.named[ref] = image_id


def test_this_machines_image_is_the_one_that_counts():
    assert image.choose("muster:cpu", Engine("here", {"muster:cpu": ID}), [Engine("a", {"muster:cpu": OTHER})]) == ID


def test_without_one_here_the_hosts_own_counts_when_it_is_the_same_on_all():
    hosts = [Engine("a", {"muster:cpu": ID}), Engine("b", {"muster:cpu": ID})]
    assert image.choose("muster:cpu", None, hosts) == ID
    assert image.choose("muster:cpu", Engine("here"), hosts) == ID


@pytest.mark.parametrize(
    ("a", "b", "where", "what"),
    [
        ({}, {}, "muster:cpu", "no image is named muster:cpu, neither on this machine nor on the hosts"),
        ({"muster:cpu": ID}, {}, "b", "not on b, and this machine has no copy to bring"),
        ({"muster:cpu": ID}, {"muster:cpu": OTHER}, "muster:cpu", f"different images .*a {'a' * 12}, b {'b' * 12}"),
    ],
)
def test_hosts_without_one_and_the_same_image_are_named(a, b, where, what):
    with pytest.raises(Refused, match=what) as caught:
        image.choose("muster:cpu", Engine("here"), [Engine("a", a), Engine("b", b)])
    assert caught.value.where == where
    assert "orchestrate build" in caught.value.next_step


def test_only_hosts_that_lack_the_image_get_it_and_all_know_it_by_name_afterwards():
    here, a, b = Engine("here", {"muster:cpu": ID}), Engine("a", {"old": ID}), Engine("b", {"muster:cpu": OTHER})
    told = []
    image.bring(ID, "muster:cpu", here, [a, b], lambda *row: told.append(row))
    assert (a.loaded, b.loaded) == (0, 1)
    assert a.named["muster:cpu"] == b.named["muster:cpu"] == ID
    assert told == [("b", len(ID), 10), ("b", len(ID) + 5, 10)]
    assert image.missing(ID, [a, b, here]) == []


@pytest.mark.parametrize("ref", [f"registry/muster@{ID}", ID])
def test_a_name_that_is_a_digest_is_given_to_nothing(ref):
    a = Engine("a", {"old": ID})
    image.bring(ID, ref, None, [a], lambda *_: None)
    assert a.named == {"old": ID}


def test_a_host_that_makes_another_image_of_it_is_refused():
    here, b = Engine("here", {"muster:cpu": ID}), Engine("b", stores_as=OTHER)
    with pytest.raises(Refused, match="missing, not sha256:aaa") as caught:
        image.bring(ID, "muster:cpu", here, [b], lambda *_: None)
    assert caught.value.where == "b"


def test_an_image_that_nobody_can_bring_is_told_with_the_host_that_lacks_it():
    with pytest.raises(CannotTell, match="the image is not on b") as caught:
        image.bring(ID, "muster:cpu", None, [Engine("a", {"x": ID}), Engine("b")], lambda *_: None)
    assert caught.value.where == "b"


LAYERS = tuple(f"sha256:{letter * 64}" for letter in "abc")


@pytest.mark.parametrize(
    ("held", "spared"),
    [
        ({}, ""),
        ({"x": LAYERS[:2]}, "ab"),
        ({"x": LAYERS[:1], "y": LAYERS[:2]}, "ab"),
        ({"x": LAYERS[1:]}, ""),  # the same layers on another ground are other files of the engine
        ({"x": (LAYERS[0], LAYERS[2])}, "a"),
    ],
)
def test_only_layers_that_lie_below_on_the_host_stay_here(held, spared):
    target = Engine("gpu01")
    target.held = held
    assert image._spared(LAYERS, target) == {f"blobs/sha256/{letter * 64}" for letter in spared}


def test_a_layer_that_comes_again_higher_up_travels():
    target = Engine("gpu01")
    target.held = {"x": LAYERS[:1]}
    assert image._spared((LAYERS[0], LAYERS[1], LAYERS[0]), target) == set()
