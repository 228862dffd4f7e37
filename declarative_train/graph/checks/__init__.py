"""Table of the checks of the package `graph`: code of a diagnostic -> `module.function` of the function that makes it.
The function's docstring is the manual page of the code."""

RULES: dict[str, str] = {
    "G001": "shapes.inputs_do_not_fit",
    "G002": "shapes.layer_refused",
    "G003": "shapes.batch_moved",
    "G004": "shapes.expression_does_not_fit",
    "G005": "shapes.shapes_unknown",
    "G006": "shapes.name_of_python",
    "G007": "shapes.reuse_does_not_fit",
    "G008": "shapes.double_precision",
    "G011": "shapes.non_finite_values",
    "G014": "shapes.mask_without_items",
    "G016": "shapes.negative_mask",
    "O009": "objective.target_among_inputs",
    "O011": "objective.metric_without_unit",
    "O016": "objective.target_in_disguise",
    "O101": "objective.objective_does_not_fit",
    "O102": "objective.count_from_model",
    "O103": "objective.nothing_to_learn",
    "O104": "objective.no_parameters",
    "O106": "objective.scores_not_in_chunks",
}
