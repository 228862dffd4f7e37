"""Words of picture users: each leads to the key here, or to the answer that there is no such thing."""

from __future__ import annotations

import pytest

import declarative_train as dt

RECIPE = """\
data:
  source: {{type: {source}, path: pets}}
  fields: {{image: {{type: image, column: image, size: 32}}, kind: {{type: category, column: label}}}}
  transforms: [{{type: {transform}}}]
model: {{graph: {{net: {{type: {net}, out_features: 2, input: image}}}}}}
objective: {{loss: {{type: cross_entropy, input: net, target: kind}}}}
training: {{epochs: 1, global_batch_size: 8, optimizer: {{type: adam, lr: 1e-3}}}}
"""


@pytest.mark.parametrize(
    ("keys", "help"),
    [
        ({"net": "resnet18"}, "`{type: resnet, depth: 18}`"),
        ({"net": "yolov8"}, "detectors of any number of objects are not supported"),
        ({"net": "resnet, pretrained: true"}, "its weights under `model.weights`"),
        ({"source": "coco"}, "write a row for each picture"),
        ({"source": "feather"}, "the source `arrow` reads .feather files"),
        ({"source": "xlsx"}, "save the table as CSV UTF-8"),
        ({"transform": "ToTensor"}, "not needed: pictures become float32"),
        ({"transform": "to_tensor"}, "not needed: pictures become float32"),
    ],
)
def test_a_word_of_another_library_is_answered(keys: dict[str, str], help: str) -> None:
    words = {"source": "image_folder", "transform": "random_flip", "net": "resnet", **keys}
    found = dt.loads(RECIPE.format(**words)).lint(static=True)
    assert any(help in (each.help or "") for each in found)
