"""The page of a report, as far as it can be tested without a browser."""

import json
import pickle
import re
from html.parser import HTMLParser

import pytest
import torch

import covector
from mutants import away, cube, cube_pull, only, ruled
from planted import cubed

x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
w = torch.tensor([[1.0, -0.5], [0.25, 2.0], [-1.5, 0.75]], dtype=torch.float64, requires_grad=True)

WRONG = ruled(lambda x, w: x @ w, lambda g, x, w: (w @ g, 2 * torch.outer(x, g)))


class Page(HTMLParser):
    """A page taken apart: its elements, its tables, its data."""

    VOID = ("meta", "br", "input", "line", "rect", "circle", "polyline")

    def __init__(self, text):
        super().__init__()
        self.text, self.elements, self.open = text, [], []
        self.rows, self.words, self.data, self.plain = [], [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.data += data if '"pairs"' in data and data.startswith("{") else ""
            return
        self.plain.append(data)
        if "tr" in self.open and ("td" in self.open or "th" in self.open):
            self.rows[-1][-1] += data

    @property
    def words_in_text(self):
        return " ".join("".join(self.plain).split())


def page_of(report, tmp_path):
    path = tmp_path / "page.html"
    report.to_html(path)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page


def test_a_failed_check(tmp_path):
    """Verdict, diagnosis, entries, pairs, plots and how to reproduce it stand on the page as text."""
    report = covector.check(WRONG, (x, w))
    page = page_of(report, tmp_path)
    text = page.words_in_text
    assert "backward returns 2.000 x the numeric gradient for input w, everywhere" in text
    assert "Look at: a term that is added twice" in text
    assert f"{report.worst.extent}" in text
    for m in report.worst.mismatches:
        row = next(row for row in page.rows if row and row[0] == str(m.entry))
        assert float(row[1]) == pytest.approx(m.analytic, rel=1e-5)
        assert float(row[2]) == pytest.approx(m.numeric, rel=1e-5)
    pairs = {row[0]: row[1:] for row in page.rows if row and row[0].startswith("d output / d ")}
    name = "d output / d w" * 2  # once for the button, once for readers without a script
    assert pairs[name][2:4] == ["2 \u00d7 6", "6"]
    assert pairs["d output / d x" * 2][2:4] == ["2 \u00d7 3", "0"]
    figures = [tag for tag, attributes in page.elements if tag == "svg"]
    assert len(figures) == 6
    assert "covector.check(" in text


def test_a_small_jacobian_is_written_out_as_a_table(tmp_path):
    """For readers without a script: analytic / numeric, with the names of rows and columns."""
    page = page_of(covector.check(WRONG, (x, w)), tmp_path)
    header = ["", *(f"w[{i}, {j}]" for i in range(3) for j in range(2))]
    start = page.rows.index(header)
    assert page.rows[start + 1] == ["output[0]", "1 / 0.5", "0 / 0", "-2 / -1", "0 / 0", "4 / 2", "0 / 0"]


def test_a_passed_check_has_its_matrices_too(tmp_path):
    """There is something to look at, and nothing in red."""
    page = page_of(covector.check(torch.sin, x), tmp_path)
    assert "passed" in page.words_in_text
    data = json.loads(page.data)
    assert data["pairs"][0]["views"][0]["analytic"][0] == pytest.approx(float(x.detach()[0].cos()), rel=1e-5)
    assert not any("beyond" in attributes.get("class", "") for _, attributes in page.elements)


def test_the_page_loads_nothing(tmp_path):
    """One file: no addresses, no sources, no links, and a policy that forbids them."""
    page = page_of(covector.check(WRONG, (x, w)), tmp_path)
    assert not re.search(r"(https?:)?//\w", page.text.replace("// ", ""))
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "base", "object", "embed")
        assert not {"src", "href", "srcset", "style", "onclick", "onload"} & set(attributes), tag
    (policy,) = [a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&`"
KEY = EVIL.replace("'", "")  # which Python would write with a backslash


def test_what_the_user_named_is_escaped(tmp_path):
    """In the name of a function, of an input, of an error: in the page, its data and the fragment."""

    def function(state):
        return cubed(lambda d: 2 * d)(state[KEY])

    function.__name__ = EVIL
    report = covector.check(function, ({KEY: x},))
    page = page_of(report, tmp_path)
    assert "<img" not in page.text
    assert "<script>alert" not in page.text
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert EVIL in "".join(page.plain)
    assert KEY in json.loads(page.data)["pairs"][0]["input"]["name"]
    fragment = report._repr_html_()
    assert "<img" not in fragment
    assert "<script" not in fragment


def test_a_large_jacobian_is_aggregated(tmp_path):
    """2000 x 2000 entries: a small page on which the one wrong entry is found, with what is around it."""
    report = covector.check(cubed(only(1234, 1.1)), away((2000,))(0))
    page = page_of(report, tmp_path)
    assert len(page.text) < 250_000
    (pair,) = json.loads(page.data)["pairs"]
    whole, around = pair["views"]
    assert whole["step"] == [32, 32]
    assert len(whole["rows"]) == len(whole["columns"]) == 63
    cell = max(range(63 * 63), key=lambda i: whole["error"][i])
    assert (whole["worstRow"][cell], whole["worstColumn"][cell]) == (1234, 1234)
    assert cell == 63 * (1234 // 32) + 1234 // 32
    assert around["title"] == "around d output[1234] / d x[1234]"
    assert around["step"] == [1, 1]
    at = around["rows"].index(1234) * len(around["columns"]) + around["columns"].index(1234)
    assert around["error"][at] == pytest.approx(whole["error"][cell])
    assert sorted(around["error"])[-2] < 1e-4


def test_many_pairs_share_the_room(tmp_path):
    """The size of a page is bounded whatever the number of tensors."""
    inputs = tuple(torch.randn(40, dtype=torch.float64, requires_grad=True) for _ in range(12))
    report = covector.check(lambda *xs: tuple(a * 2 + xs[0] for a in xs), inputs)
    page = page_of(report, tmp_path)
    assert len(json.loads(page.data)["pairs"]) == 144
    assert len(page.text) < 1_500_000


def test_a_sample_is_called_one(tmp_path):
    """Of a Jacobian that is too large for a page, and of max_entries."""
    report = covector.check(cubed(only(3, 2.0)), away((200,))(0), max_entries=50)
    page = page_of(report, tmp_path)
    assert "A sample of the rows and columns is shown." in page.words_in_text
    huge = covector.check(cubed(only(4321, 2.0)), away((5000,))(0), fast_mode=True)
    page = page_of(huge, tmp_path)
    assert "A sample of the rows and columns is shown." in page.words_in_text
    (pair,) = json.loads(page.data)["pairs"]
    assert 4321 in pair["views"][1]["rows"]


@pytest.mark.parametrize("kinks", ["fail", "pass"])
@pytest.mark.parametrize("at", [0.0, 1e-9])
def test_table_and_map_of_a_page_judge_alike(at, kinks, tmp_path):
    """Beside a kink a difference may be off by the gap of the slopes: neither counts that as wrong."""
    point = torch.tensor([1.0, at, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    page = page_of(covector.check(lambda x: x.clamp(0, 3).cumsum(0), point, kinks=kinks), tmp_path)
    data = json.loads(page.data)
    (view,) = data["pairs"][0]["views"]
    allowed = [data["atol"] + data["rtol"] * abs(number) for number in view["numeric"]]
    large = {cell for cell, error in enumerate(view["error"]) if error > allowed[cell]}
    coloured = large - set(view.get("undecided", ()))
    row = next(row for row in page.rows if row[0].startswith("d output / d x"))
    assert row[4] == str(len(coloured))


def test_what_a_check_that_passed_has_to_say_stands_on_the_page(tmp_path):
    """As the remark in the text."""
    point = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    page = page_of(covector.check(torch.relu, point, kinks="pass"), tmp_path)
    words = page.words_in_text.replace(": d", " d")
    assert "reverse mode d output[0] / d arg0[0]: not differentiable here" in words


def test_a_kink_shows_the_slopes_on_both_sides(tmp_path):
    """The plot, and the numbers in words."""
    report = covector.check(torch.relu, torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True))
    page = page_of(report, tmp_path)
    assert "one-sided slopes: 0 from the left, 1 from the right" in page.words_in_text
    assert len([tag for tag, _ in page.elements if tag == "svg"]) == 2


@pytest.mark.parametrize(
    ("function", "inputs", "text"),
    [
        (lambda x: x * torch.rand(3), x, "What is not a function of its inputs has no Jacobian to show."),
        (lambda x: x[:0], x, "The Jacobian has no entries."),
        (torch.log, torch.tensor([0.0, -1.0], dtype=torch.float64, requires_grad=True), "outside the domain"),
    ],
    ids=["random", "empty", "domain"],
)
def test_pages_of_what_has_no_jacobian(function, inputs, text, tmp_path):
    """The page says why, and numbers that are not finite do no harm."""
    page = page_of(covector.check(function, inputs), tmp_path)
    assert text in page.words_in_text
    json.loads(page.data)


def test_a_derivative_that_raises_has_a_page(tmp_path):
    """With the exception in it."""

    def broken(g, x):
        raise KeyError("lost <here>")

    page = page_of(covector.check(ruled(cube, broken), x), tmp_path)
    assert "The Jacobians could not be computed: KeyError" in page.words_in_text


def test_a_pickled_report_has_a_page_without_jacobians(tmp_path):
    """The function did not travel."""
    report = pickle.loads(pickle.dumps(covector.check(WRONG, (x, w))))
    page = page_of(report, tmp_path)
    assert "no longer has its function" in page.words_in_text
    assert str(report.worst.mismatches[0].entry) in page.words_in_text
    assert json.loads(page.data) == {"pairs": []}


def test_forward_mode_second_order_and_complex_numbers(tmp_path):
    """The mode that failed is shown, under the names of the report."""
    wrong = ruled(cube, cube_pull, lambda t, x: 2 * cube_pull(t, x))
    page = page_of(covector.check(wrong, x, check_forward_ad=True), tmp_path)
    assert "Jacobians: forward mode and differences" in page.words_in_text
    saved = ruled(
        cube, lambda g, x, s: g * s, save=lambda inputs, y: (inputs[0], 3 * inputs[0].detach() ** 2)
    )
    with pytest.raises(covector.GradcheckError) as caught:
        covector.gradgradcheck(saved, x)
    page = page_of(caught.value.report, tmp_path)
    assert "d grad_x / d x" in page.words_in_text
    z = torch.tensor([1 + 2j], requires_grad=True)
    page = page_of(covector.check(ruled(torch.square, lambda g, z: 2 * g * z), z), tmp_path)
    assert "arg0[0].imag" in page.words_in_text
    assert json.loads(page.data)["pairs"][0]["input"]["complex"] is True


def test_writing_a_page_changes_nothing_of_the_callers(tmp_path):
    """The function is run again; tensors, gradients and the random state are as before."""
    x = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    x.grad = torch.ones_like(x)
    report = covector.check(lambda y: cubed(lambda d: 2 * d)(x * 1.0), x)
    before, version = x.detach().clone(), torch.get_rng_state()
    page_of(report, tmp_path)
    assert torch.equal(x, before)
    assert torch.equal(x.grad, torch.ones_like(x))
    assert torch.equal(torch.get_rng_state(), version)


def test_a_notebook_shows_a_compact_report():
    """Verdict, entries and diagnosis, without script or style sheet."""
    fragment = covector.check(WRONG, (x, w))._repr_html_()
    parsed = Page(fragment)
    assert parsed.open == []
    assert "FAILED" in fragment
    assert "2.000 x the numeric gradient" in fragment
    assert len(parsed.rows) == 7
    assert len(fragment) < 5_000
    assert "PASSED" in covector.check(torch.sin, x)._repr_html_()


def test_the_largest_error_of_a_pair(tmp_path):
    """Also where another entry is further beyond what it is allowed."""

    class Shifted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * torch.tensor([1.0, 1e4], dtype=x.dtype)

        @staticmethod
        def backward(ctx, g):
            return g * torch.tensor([1.5, 1e4 + 300], dtype=g.dtype)

    report = covector.check(Shifted.apply, torch.ones(2, dtype=torch.float64, requires_grad=True))
    (pair,) = report.source.figures(report.findings).pairs
    assert pair.error == pytest.approx(300)
    row = re.search(r'<table id="pairs">.*?</table>', page_of(report, tmp_path).text, re.DOTALL)[0]
    assert '<td class="value">300</td></tr>' in row
