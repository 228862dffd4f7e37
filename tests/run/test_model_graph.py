"""The model as TensorBoard draws it: blocks as scopes, every input an entry that is there."""

from __future__ import annotations

from pathlib import Path

from declarative_train.run.graph_and_hparams import model_graph
from tests.engine.made_recipes import DEEP, DIGITS, compiled, write_data


def test_every_input_is_an_entry_and_blocks_are_scopes(tmp_path: Path) -> None:
    write_data(tmp_path)
    for recipe in (DIGITS, DEEP):
        nodes = {node.path: node for node in model_graph(compiled(tmp_path, recipe))}
        assert {each for node in nodes.values() for each in node.inputs} <= set(nodes)
        assert nodes["fields/x"].operation == "field"
        assert nodes["loss/loss"].inputs == ("logits", "fields/y")
    assert nodes["layers/0/norm"].inputs == ("hidden",)
    assert nodes["layers/1/norm"].inputs == ("layers/0/out",)
    assert nodes["logits"].inputs == ("layers/5/out",)
    assert nodes["logits"].shape == (-1, 10)
