"""Functions that programs may call: read from text, and tried on their examples."""

from __future__ import annotations

import ast
import dataclasses
import doctest
from collections.abc import Iterable

from rllib_llm.sandbox.sandbox import Sandbox
from rllib_llm.sandbox.shared import result_text


@dataclasses.dataclass(frozen=True)
class Function:
    """A function and what its docstring says about it.

    Attributes:
        name: Its name.
        head: Name and parameters, e.g. ``"squares(a, b)"``.
        description: First line of the docstring.
        examples: Expressions of the docstring and the text of their values.
        source: The source.
    """

    name: str
    head: str
    description: str
    examples: tuple[tuple[str, str], ...]
    source: str

    @property
    def summary(self) -> str:
        """Return one line for an agent to read."""
        return f"{self.head}: {self.description}"


def read_function(source: str) -> Function:
    r"""Return the only function that a source defines.

    Beside it there may be imports. Its docstring has a description in the first line
    and at least one example, as doctest writes it.

    Example::

        >>> doc = "'''Twice a.\n\n    >>> twice(2)\n    4\n    '''"
        >>> function = read_function(f"def twice(a):\n    {doc}\n    return 2 * a")
        >>> function.summary, function.examples
        ('twice(a): Twice a.', (('twice(2)', '4'),))

    Raises:
        ValueError: If the source is anything else.
    """
    source = source.strip()
    try:
        statements = ast.parse(source).body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is no Python: {error}.") from error
    defined = [s for s in statements if isinstance(s, ast.FunctionDef)]
    others = [s for s in statements if not isinstance(s, ast.Import | ast.ImportFrom)]
    if len(defined) != 1 or others != defined or defined[0].decorator_list:
        raise ValueError(
            "it must define one function, without decorators, beside imports."
        )
    (node,) = defined
    docstring = ast.get_docstring(node) or ""
    examples = tuple(
        (example.source.strip(), example.want.strip())
        for example in doctest.DocTestParser().get_examples(docstring)
    )
    description = docstring.partition("\n")[0].strip()
    if not description or not examples or not all(want for _, want in examples):
        raise ValueError(
            f"the docstring of {node.name} must have a description and an example with "
            f"its result. Write e.g. '>>> {node.name}(1, 2)' and '3' in the next line."
        )
    head = f"{node.name}({ast.unparse(node.args)})"
    return Function(node.name, head, description, examples, source)


def with_functions(functions: Iterable[Function], program: str) -> str:
    """Return a program after the sources of functions that it may call."""
    return "\n\n".join([*(f.source for f in functions), program])


def failed_example(function: Function, sandbox: Sandbox) -> str | None:
    """Run a function's examples in the sandbox.

    Returns:
        The first one that does not give its result, and what it gives; None if all do.
    """
    for expression, want in function.examples:
        program = with_functions([function], f"print(repr({expression}))")
        result = sandbox.run(program)
        if not result.ok or result.stdout.strip() != want:
            return f"{expression} gave {result_text(result)}, not {want}."
    return None
