"""The rules of this room: code -> module. A rule is one file, whose docstring is its manual page."""

RULES: dict[str, str] = {
    "D001": "missing_file",
    "D002": "empty_glob",
    "D003": "unreadable_source",
    "D004": "different_columns",
    "D005": "unknown_column",
    "D006": "column_does_not_fit",
    "D007": "missing_value",
    "D008": "value_out_of_range",
    "D009": "not_a_whole_number",
    "D010": "empty_set",
    "D011": "window_cut_to_pieces",
    "D012": "rows_without_window",
    "D013": "rows_outside_window",
    "D014": "no_statistics",
    "D015": "remote_source",
    "D016": "split_does_not_fit",
    "D017": "token_by_token",
    "D018": "rows_without_order",
    "D020": "source_without_file_system",
}
