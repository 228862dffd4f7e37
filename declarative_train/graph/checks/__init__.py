"""The rules of this room: code -> module. A rule is one file, whose docstring is its manual page."""

RULES: dict[str, str] = {
    "G001": "inputs_do_not_fit",
    "G002": "layer_refused",
    "G003": "batch_moved",
    "G004": "expression_does_not_fit",
    "G005": "shapes_unknown",
    "G006": "name_of_torch",
    "G007": "reuse_does_not_fit",
    "G008": "double_precision",
    "G011": "non_finite_values",
    "G014": "mask_without_items",
    "O009": "target_among_inputs",
    "O011": "metric_without_unit",
    "O101": "objective_does_not_fit",
    "O102": "count_from_model",
    "O103": "nothing_to_learn",
    "O104": "no_parameters",
}
