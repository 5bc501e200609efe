"""Private names of torch's, and what its errors say, stay in the engine: a new torch changes one room."""

import ast
import re
from pathlib import Path

import pytest
import torch

from test_rooms import SOURCE, imported_names, modules, parsed, room_of, walked

# Private names of Python's own: named tuples, and the frame of the caller.
OF_PYTHON = {"_replace", "_getframe"}
# Of the executor that Dask's client makes, which does not say otherwise whose it is.
OF_DASK = {"_client", "_kwargs", "_shutdown"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def is_own(node):
    """Whether this is an attribute of the object whose method it stands in."""
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def names_in(statement):
    """What a statement of a module or a class defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return [node.id for node in stored if isinstance(node.ctx, ast.Store)]


def defined(tree):
    """The names that a module and its classes define, and the attributes that methods set on `self`."""
    for node in walked(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                yield from names_in(statement)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


# What tensors, nodes of graphs, modules and memory of torch's have. A name of ours that is the same as one of
# these is read from `self` only, so that it cannot be taken for torch's.
OF_TORCH = {
    name
    for each in (torch.ones(1), torch.ones(1, requires_grad=True).exp().grad_fn, torch.nn.Linear(1, 1))
    for name in [*dir(each), *dir(torch.autograd.Function), *dir(torch.UntypedStorage)]
}


def called(call):
    """What is called, as it is written, as far as that is names and dots."""
    names, node = [], call.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(names)])


LOOKS_UP = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "getattr_static", "get"}


def used_attributes(tree):
    """The attributes that a module uses of others, also by their name as a string."""
    for node in walked(tree):
        names = []
        if isinstance(node, ast.Attribute) and not (is_own(node) and node.attr in OF_TORCH):
            yield node.attr
        elif isinstance(node, ast.Call) and called(node).rpartition(".")[2] in LOOKS_UP:
            names = node.args
        elif isinstance(node, ast.Subscript):
            names = [node.slice]
        yield from (a.value for a in names if isinstance(a, ast.Constant) and type(a.value) is str)


def outside_the_engine():
    """Every module of covector but those of the engine, and the plugin."""
    rooms = [(path, parsed(path)) for path in modules() if room_of(path) != "_engine"]
    outside = sorted(SOURCE.parent.glob("covector_pytest*.py"))
    return [*rooms, *((plugin, parsed(plugin)) for plugin in outside)]


def foreign(trees):
    """Private attributes that these modules use and that none of them defines."""
    ours = {name for _, tree in trees for name in defined(tree)} - OF_TORCH | OF_PYTHON | OF_DASK
    return [
        f"{path.name}: {name}"
        for path, tree in trees
        for name in used_attributes(tree)
        if is_private(name) and name not in ours
    ]


def errors_in(tree):
    """The names of exceptions: what is caught, and arguments of that name or type."""
    for node in walked(tree):
        if isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        elif isinstance(node, ast.arg):
            kind = ast.unparse(node.annotation) if node.annotation else ""
            if node.arg == "error" or re.search("Exception|Error|Warning", kind):
                yield node.arg


TEXTS = ("str", "repr", "text_of", "described", "first_sentence")
SEARCHES = {"search", "match", "fullmatch", "findall", "find", "index", "count", "startswith", "endswith"}


def has_text(expression, errors):
    """Whether the text of one of these errors is a part of it."""
    for node in ast.walk(expression):
        parts = []
        if isinstance(node, ast.Call) and called(node) in TEXTS:
            parts = node.args
        elif isinstance(node, ast.FormattedValue) or (
            isinstance(node, ast.Attribute) and node.attr == "args"
        ):
            parts = [node.value]
        if any(isinstance(part, ast.Name) and part.id in errors for part in parts):
            return True
    return False


def matched_texts(tree):
    """The places where a module looks into the text of an error, or has the words of a warning."""
    errors = set(errors_in(tree))
    assigned = (node for node in walked(tree) if isinstance(node, ast.Assign))
    texts = {ast.unparse(node.targets[0]) for node in assigned if has_text(node.value, errors)}
    for node in walked(tree):
        parts = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn | ast.Eq):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and called(node) == "warnings.filterwarnings":
            if any(each.arg == "message" and isinstance(each.value, ast.Constant) for each in node.keywords):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and called(node).rpartition(".")[2] in SEARCHES:
            parts = [node.func, *node.args]
        if any(has_text(part, errors) or ast.unparse(part) in texts for part in parts):
            yield ast.unparse(node)


def test_private_torch_names_stay_in_the_engine():
    """Outside the engine no module imports or names a private module of torch's, or reads an attribute."""
    trees = outside_the_engine()
    for path, tree in trees:
        assert "torch._" not in path.read_text(encoding="utf-8"), path
        names = [name for name in imported_names(path) if name.startswith("torch.")]
        assert not [name for name in names if any(map(is_private, name.split(".")))], path
        assert not list(matched_texts(tree)), path
    assert not foreign(trees)


BREAKING = [
    "def f(x): return x._version",
    "def f(x): return getattr(x, '_backward_hooks', None)",
    "class C:\n    def f(self, x): return self._kept, x.grad_fn._saved_self",
    "def f(x): x._backward_hooks = None",
    "def f(x): setattr(x, '_backward_hooks', None)",
    "def f(x):\n    _version = 1\n    return getattr(x, '_version')",
    "def f(x): return vars(x)['_parameters']",
    "def f(x): return x.__dict__.get('_parameters')",
    "def f(x): return operator.attrgetter('_version')(x)",
    "import torch as t\ndef f(x): return t._C",
    "class C:\n    _values = 1\n    def f(self, x): return self._values, x._values()",
]
LOOKING = [
    "def f(error): return 'leaf Variable' in str(error)",
    "def f(error): return 'leaf Variable' not in str(error)",
    "def f(error): return re.search('leaf', str(error))",
    "def f(e: Exception): return text_of(e).startswith('leaf')",
    "try: g()\nexcept RuntimeError as raised:\n    text = str(raised)\n    h('leaf' in text)",
    "try: g()\nexcept RuntimeError as raised:\n    h('leaf' in raised.args[0])",
    "def f(error): return 'leaf' in f'{error}'",
    "def f(error): return LEAF.search(str(error))",
    "warnings.filterwarnings('ignore', message='There is a performance drop')",
]


@pytest.mark.parametrize("code", BREAKING)
def test_a_private_attribute_is_seen(code):
    """The rule above notices the ways of reading one, and leaves our own alone."""
    mine = "class D:\n    def __init__(self): self._kept = 1"
    trees = [(Path("it.py"), ast.parse(code)), (Path("mine.py"), ast.parse(mine))]
    assert len(foreign(trees)) == 1


@pytest.mark.parametrize("code", LOOKING)
def test_a_matched_text_is_seen(code):
    """Whether an error says something is asked in `_engine/messages.py`."""
    assert len(list(matched_texts(ast.parse(code)))) == 1
