"""The house: who may import whom, what is public, what an import costs."""

import ast
import inspect
from functools import cache
from pathlib import Path

import pytest

import covector
from forked import printed

SOURCE = Path(covector.__file__).parent

# Left to right: a room may import from the rooms before it, and from itself.
ROOMS = [
    "_lazy",
    "_described",
    "errors",
    "_random",
    "_files",
    "_tree",
    "_chart",
    "_engine",
    "_redirect",
    "_images",
    "_tasks",
    "_linear",
    "transforms",
    "functional",
    "sparsity",
    "scipy",
    "verify",
    "checks",
    "evidence",
    "diagnose",
    "report",
    "api",
    "kernels",
    "adjoint",
    "agreement",
    "_index",
    "_jacobians",
    "compat",
    "cases",
    "bench",
    "_pool",
    "_results",
    "cli",
    "__main__",
]

PUBLIC = [
    "GradcheckError",
    "Report",
    "SparsityPattern",
    "agree",
    "as_function",
    "as_sparse_gradcheck",
    "case",
    "check",
    "check_adjoint",
    "check_kernel",
    "check_pattern",
    "compile",
    "functionalize",
    "grad",
    "grad_and_value",
    "gradcheck",
    "gradgradcheck",
    "hessian",
    "hessian_blocks",
    "hessian_diagonal",
    "hessian_plan",
    "hvp",
    "jacfwd",
    "jacobian",
    "jacobian_plan",
    "jacrev",
    "jvp",
    "kernelcheck",
    "linearize",
    "sparse_hessian",
    "sparse_jacobian",
    "sparsity",
    "swap",
    "value_and_jacobian",
    "vhp",
    "vjp",
]

# What covector implements, so what its source must not call.
IMPLEMENTED = [
    "torch.func.vjp",
    "torch.func.jvp",
    "torch.func.grad",
    "torch.func.jacrev",
    "torch.func.jacfwd",
    "torch.func.hessian",
    "torch.func.linearize",
    "torch.func.functionalize",
    "torch.autograd.functional",
    "torch.autograd.gradcheck",
    "torch.sparse.as_sparse_gradcheck",
]


def modules():
    return sorted(SOURCE.rglob("*.py"))


def room_of(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def walked(tree):
    """All nodes of a module, which several tests go through."""
    return list(ast.walk(tree))


def imported_names(path):
    for node in walked(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


# Files of the engine that every room may import: what torch calls things and how it words them. They know
# nothing of the rest.
GROUND = ["containers", "messages", "tensors"]


def test_rooms_import_one_way_only():
    """A module imports covector's rooms to its left only, and no room is missing from the list."""
    ground = [f"covector._engine.{name}" for name in GROUND]
    for path in modules():
        room = room_of(path)
        if room == "__init__":
            continue
        assert room in ROOMS, f"{room} is not in the list of rooms"
        for name in imported_names(path):
            if name.startswith("covector.") and name.rpartition(".")[0] not in ground:
                target = name.split(".")[1]
                assert ROOMS.index(target) <= ROOMS.index(room), f"{path.name} imports {name}"


@pytest.mark.parametrize("name", GROUND)
def test_the_ground_stands_on_nothing(name):
    """What every room may import imports no room, but for the first one."""
    names = list(imported_names(SOURCE / "_engine" / f"{name}.py"))
    assert names
    ours = [name for name in names if name.startswith("covector")]
    assert all(name.startswith("covector.errors.") for name in ours)


# What `diagnose` may know of `verify` and `checks`: findings as data, not what evaluates a function.
FINDINGS = ["finding", "forgiving"]


def test_a_diagnosis_evaluates_nothing():
    """Its rules read the evidence; what runs the function or a derivative stays before it."""
    for path in modules():
        if room_of(path) == "diagnose":
            for name in imported_names(path):
                assert not name.startswith("covector._engine"), f"{path.name} imports {name}"
                if name.startswith(("covector.verify", "covector.checks")):
                    assert name.split(".")[2] in FINDINGS, f"{path.name} imports {name}"
            assert ".derivatives" not in path.read_text(encoding="utf-8"), path


def test_source_does_not_call_what_it_implements():
    """An engine, not a wrapper."""
    for path in modules():
        names = set(imported_names(path))
        text = path.read_text(encoding="utf-8")
        for name in IMPLEMENTED:
            assert name not in names, f"{path} imports {name}"
            assert f"{name}(" not in text, f"{path} calls {name}"


def test_what_is_implemented_is_fetched_in_one_place_only():
    """To compare with torch, `compat.peer` fetches its functions by name; nothing else looks one up so.

    The package itself fetches its own rooms, and only those.
    """
    fetching = [path.name for path in modules() if "import_module" in path.read_text(encoding="utf-8")]
    assert fetching == ["__init__.py", "compat.py"]
    fetched = [*covector._ROOM_OF.values(), *covector._ROOMS.values()]
    assert all(room.startswith("covector.") for room in fetched)
    engine = [path for path in modules() if room_of(path) in ROOMS[: ROOMS.index("compat")]]
    assert not any("peer(" in path.read_text(encoding="utf-8") for path in engine)


def test_engine_readme_lists_every_private_name():
    """`_engine/README.md` names every private torch module that the engine imports."""
    listed = (SOURCE / "_engine" / "README.md").read_text(encoding="utf-8")
    for path in (SOURCE / "_engine").glob("*.py"):
        for name in imported_names(path):
            if name.startswith("torch._"):
                assert name.rsplit(".", 1)[0] in listed, f"{path.name}: {name}"


def test_public_list():
    """What `from covector import *` gives, documented and with an example each."""
    assert covector.__all__ == PUBLIC
    for name in PUBLIC:
        document = inspect.getdoc(getattr(covector, name))
        assert document, name
        assert ">>>" in document or name[0].isupper(), f"{name} has no example"


# What a program may write first, each in a process of its own.
FIRST_LINES = [
    "from covector import gradcheck; gradcheck(torch.sin, torch.ones(2).double().requires_grad_())",
    "import covector; covector.check, covector.gradgradcheck, covector.as_sparse_gradcheck, covector.Report",
    "import covector; covector.functional.jacobian(torch.sin, torch.ones(2))",
    "from covector import functional; functional.hessian",
    "import covector.functional; covector.functional.hessian",
    "import covector; covector.api.check, covector.compat.swap, covector.cases.case",
    "import covector; covector.checks.table.CHECKS",
    "import covector; covector.sparse_jacobian; covector.sparsity(torch.sin, torch.ones(2))",
    "import covector.sparsity.plan; covector.sparsity(torch.sin, torch.ones(2))",
    "from covector import *; case, swap, grad, Report",
    "import covector; assert set(covector.__all__) | {'functional', 'scipy'} <= set(dir(covector))",
]


@pytest.mark.parametrize("line", FIRST_LINES)
def test_what_is_loaded_on_first_use_is_there(line):
    """Names and rooms that `import covector` does not load can be used as if it did."""
    assert printed(f"import torch; {line}") == ""


def test_an_unknown_name_is_an_attribute_error():
    """Also for what looks up names: `hasattr`, `getattr` with a default."""
    assert not hasattr(covector, "jacobain")
    with pytest.raises(AttributeError, match="'covector' has no attribute 'jacobain'"):
        covector.jacobain  # noqa: B018


def test_import_does_not_load_the_checks():
    """A program that takes a gradient does not wait for the rooms that it has no use for."""
    code = (
        "import covector, sys; print(*sorted({m.split('.')[1] for m in sys.modules if m[:9] == 'covector.'}))"
    )
    rooms = [
        "_chart",
        "_described",
        "_engine",
        "_images",
        "_lazy",
        "_linear",
        "_tree",
        "errors",
        "transforms",
    ]
    assert printed(code).split() == rooms


def test_functional_list():
    """The functional door has the verbs of the original, with the parameters of the original."""
    import torch.autograd.functional as peer

    from covector import functional

    assert sorted(functional.__all__) == sorted(peer.__all__)
    for name in functional.__all__:
        ours, theirs = (inspect.signature(getattr(room, name)).parameters for room in (functional, peer))
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


def test_import_loads_nothing_heavy():
    """Importing covector loads no compiler, algebra, plotting or terminal library."""
    code = (
        "import torch, sys; before = set(sys.modules); import covector\n"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    assert set(printed(code).split()) <= {"covector", "torch", "fnmatch"}
    heavy = (
        "import covector, sys; print([m for m in ('sympy', 'torch._dynamo', 'rich', 'matplotlib', 'scipy')"
    )
    assert printed(heavy + " if m in sys.modules])") == "[]\n"
