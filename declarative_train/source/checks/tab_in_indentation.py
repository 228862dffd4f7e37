r"""tab-in-indentation (Y005)

Finds: a tab where a line's indentation stands.
Why:   YAML indents with spaces only; how wide a tab is depends on who looks.
Bad:
    # bytes: training:\n\tsteps: 10\n
Good:
    training:
      steps: 10
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span


def tab_in_indentation(span: Span, others: Sequence[Span]) -> Diagnostic:
    """`others` are the tabs of further lines, mended along with the first."""
    more = f", and {counted(len(others), 'more line')} too" if others else ""
    fixes = tuple(Fix(tab, "  " * (tab.end_column - tab.column), safe=False) for tab in (span, *others))
    return error("Y005", span, f"a tab indents this line{more}", "indent with spaces, two for each level", fixes=fixes)
