"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  root.classList.add("js");
  const $ = (id) => document.getElementById(id);

  // --- theme
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const themeButton = $("theme");
  const nameTheme = () => { themeButton.textContent = dark() ? "Light" : "Dark"; };
  themeButton.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    nameTheme();
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { nameTheme(); draw(); });
  nameTheme();
  if (!data.pairs.length) return;

  // --- state: which pair and view, the window of it that is seen (its corner in cells, its share of each
  // side), the cell pointed at
  const maps = ["analytic", "numeric", "error"].map((kind) => ({ kind, canvas: $("map-" + kind) }));
  const state = { pair: 0, view: 0, x: 0, y: 0, share: 1, cell: null };
  const view = () => data.pairs[state.pair].views[state.view];
  const across = () => view().columns.length;
  const down = () => view().rows.length;
  // How many cells of a side are seen: one at least.
  const seen = (cells, share = state.share) => Math.max(Math.min(1, cells), cells * share);
  const seenAcross = () => seen(across());
  const seenDown = () => seen(down());
  // A map fills its place: as high as its cells are, no higher than wide, and no flatter than can be pointed at.
  const flatness = () => Math.min(1, Math.max(0.2, down() / across()));

  // --- names and numbers
  const label = (part, coordinate) => {
    let rest = coordinate, tail = "";
    if (part.complex) { tail = rest % 2 ? ".imag" : ".real"; rest = Math.floor(rest / 2); }
    const index = [];
    for (const size of [...part.shape].reverse()) { index.unshift(rest % size); rest = Math.floor(rest / size); }
    return part.name + (index.length ? `[${index.join(", ")}]` : "") + tail;
  };
  const number = (value) => typeof value === "string" ? value : String(Number(value.toPrecision(6)));
  const finite = (value) => typeof value === "number";
  const allowed = (cell) => {
    if (view().allowed) return view().allowed[cell];
    const n = view().numeric[cell];
    return finite(n) ? data.atol + data.rtol * Math.abs(n) : data.atol;
  };
  // What the difference cannot decide is not wrong: next to a kink or a pole it may be off by more than that.
  const undecided = (cell) => (view().undecided || []).includes(cell);
  const beyond = (cell) => {
    const error = view().error[cell];
    return !undecided(cell) && (!finite(error) || error > allowed(cell));
  };

  // --- colours
  const css = (name) => getComputedStyle(root).getPropertyValue(name).split(",").map(Number);
  let palette = {};
  const mix = (from, to, share) => `rgb(${from.map((c, i) => Math.round(c + (to[i] - c) * share)).join(",")})`;
  const bend = (share) => $("scale").value === "log" ? Math.log1p(share * 999) / Math.log(1000) : share;
  const diverging = (share) => share < 0
    ? mix(palette.mid, palette.low, bend(-share)) : mix(palette.mid, palette.high, bend(share));
  // The error in decades of what is allowed: calm below, a warning above.
  const excess = (decades) => decades <= 0
    ? mix(palette.mid, palette.calm, Math.min(1, Math.max(0, (decades + 6) / 6)))
    : mix(palette.calm, palette.high, 0.35 + 0.65 * Math.min(1, decades / 4));
  const colour = (kind, cell, largest) => {
    const v = view();
    if (kind === "error") {
      if (undecided(cell)) return excess(0);
      if (!finite(v.error[cell])) return excess(4);
      return v.error[cell] === 0 ? excess(-6) : excess(Math.log10(v.error[cell] / allowed(cell)));
    }
    const value = v[kind][cell];
    if (!finite(value)) return "magenta";
    return diverging(largest ? value / largest : 0);
  };
  const largestOf = (v) => {
    let largest = 0;
    for (const list of [v.analytic, v.numeric]) for (const x of list) if (finite(x)) largest = Math.max(largest, Math.abs(x));
    return largest;
  };

  // --- drawing
  const place = (map) => {
    map.canvas.style.aspectRatio = String(1 / flatness());
    const box = map.canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    const wide = Math.max(1, Math.round(box.width * ratio)), high = Math.max(1, Math.round(box.height * ratio));
    if (map.canvas.width !== wide) map.canvas.width = wide;
    if (map.canvas.height !== high) map.canvas.height = high;
    return { wide, high, ratio, cellWide: wide / seenAcross(), cellHigh: high / seenDown() };
  };
  function drawMap(map, largest) {
    const { wide, high, ratio, cellWide, cellHigh } = place(map), pen = map.canvas.getContext("2d");
    pen.clearRect(0, 0, wide, high);
    const v = view(), width = across(), gap = Math.min(cellWide, cellHigh) > 9 * ratio ? ratio : 0;
    const firstRow = Math.max(0, Math.floor(state.y)), lastRow = Math.min(down(), Math.ceil(state.y + seenDown()));
    const firstColumn = Math.max(0, Math.floor(state.x)), lastColumn = Math.min(width, Math.ceil(state.x + seenAcross()));
    const roomy = cellWide > 52 * ratio && cellHigh > 18 * ratio;
    pen.font = `${11 * ratio}px ui-monospace, Menlo, Consolas, monospace`;
    pen.textAlign = "center"; pen.textBaseline = "middle";
    for (let i = firstRow; i < lastRow; i++) for (let j = firstColumn; j < lastColumn; j++) {
      const at = i * width + j;
      const left = Math.floor((j - state.x) * cellWide), top = Math.floor((i - state.y) * cellHigh);
      const right = Math.floor((j + 1 - state.x) * cellWide), bottom = Math.floor((i + 1 - state.y) * cellHigh);
      pen.fillStyle = colour(map.kind, at, largest);
      pen.fillRect(left, top, right - left - gap, bottom - top - gap);
      if (roomy) {
        const shade = pen.fillStyle.match(/\w\w/g).map((h) => parseInt(h, 16));
        pen.fillStyle = shade[0] * 0.3 + shade[1] * 0.6 + shade[2] * 0.1 > 140 ? "#14181d" : "#f4f6f8";
        const value = v[map.kind][at];
        pen.fillText(finite(value) ? String(Number(value.toPrecision(3))) : value, (left + right) / 2, (top + bottom) / 2);
      }
    }
    pen.strokeStyle = getComputedStyle(root).getPropertyValue("--grey"); pen.lineWidth = ratio;
    pen.strokeRect(-state.x * cellWide, -state.y * cellHigh, width * cellWide, down() * cellHigh);
    if (state.cell !== null) {
      const i = Math.floor(state.cell / width), j = state.cell % width;
      pen.strokeStyle = getComputedStyle(root).getPropertyValue("--ink"); pen.lineWidth = 2 * ratio;
      pen.strokeRect((j - state.x) * cellWide, (i - state.y) * cellHigh, Math.max(cellWide, 4), Math.max(cellHigh, 4));
    }
  }
  function drawLegends(largest) {
    for (const map of maps) {
      const canvas = $("legend-" + map.kind), pen = canvas.getContext("2d");
      canvas.width = 200; canvas.height = 1;
      for (let i = 0; i < 200; i++) {
        pen.fillStyle = map.kind === "error" ? excess(-6 + i / 20) : diverging(i / 99.5 - 1);
        pen.fillRect(i, 0, 1, 1);
      }
      if (map.kind !== "error") {
        $("low-" + map.kind).textContent = number(-largest);
        $("high-" + map.kind).textContent = number(largest);
      }
    }
  }
  function draw() {
    if (!data.pairs.length) return;
    palette = { low: css("--low"), mid: css("--mid"), high: css("--high"), calm: css("--calm") };
    const largest = largestOf(view());
    for (const map of maps) drawMap(map, largest);
    drawLegends(largest);
    say();
  }
  function say() {
    const readout = $("readout"), v = view(), pair = data.pairs[state.pair];
    readout.textContent = "";
    const line = (text, strong) => {
      const row = document.createElement("div"), inner = strong ? document.createElement("b") : row;
      inner.textContent = text;
      if (strong) row.append(inner);
      readout.append(row);
    };
    if (state.cell === null) {
      line("Point at a cell to see its values, or focus a map and use the arrow keys.");
      line(`${v.rows.length} × ${v.columns.length} cells` + (v.step[0] * v.step[1] > 1
        ? `, each the worst of ${v.step[0]} × ${v.step[1]} entries` : ""));
      return;
    }
    const row = v.worstRow ? v.worstRow[state.cell] : v.rows[Math.floor(state.cell / across())];
    const column = v.worstColumn ? v.worstColumn[state.cell] : v.columns[state.cell % across()];
    const error = v.error[state.cell], wrong = beyond(state.cell);
    line(`d ${label(pair.output, row)} / d ${label(pair.input, column)}` + (v.worstRow
      ? `   (the worst of ${v.step[0]} × ${v.step[1]} entries)` : ""));
    line(`analytic ${number(v.analytic[state.cell])}   numeric ${number(v.numeric[state.cell])}   ` +
      (undecided(state.cell) ? `error ${number(error)}, by which the difference itself may be off`
        : `error ${number(error)} ${wrong ? ">" : "≤"} allowed ${number(allowed(state.cell))}`), wrong);
  }

  // --- moving about
  const reset = () => { state.share = 1; state.x = 0; state.y = 0; };
  const hold = (low, value, high) => Math.min(Math.max(low, value), Math.max(low, high));
  const settle = () => {
    state.x = hold(0, state.x, across() - seenAcross());
    state.y = hold(0, state.y, down() - seenDown());
  };
  const zoom = (factor, x = 0.5, y = 0.5) => {
    const share = hold(Math.min(1, 2 / Math.max(across(), down())), state.share * factor, 1);
    state.x += (seenAcross() - seen(across(), share)) * x;
    state.y += (seenDown() - seen(down(), share)) * y;
    state.share = share;
    settle();
    draw();
  };
  const choose = (pair, index) => {
    state.pair = pair; state.view = index; state.cell = null;
    const views = $("view");
    views.textContent = "";
    data.pairs[pair].views.forEach((v, i) => views.add(new Option(v.title, String(i), false, i === index)));
    views.disabled = data.pairs[pair].views.length < 2;
    document.querySelectorAll("[data-pair]").forEach((button) => {
      const mine = Number(button.dataset.pair) === pair;
      button.closest("tr").classList.toggle("current", mine);
      button.setAttribute("aria-pressed", String(mine));
    });
    $("pair-name").textContent = `d ${data.pairs[pair].output.name} / d ${data.pairs[pair].input.name}`;
    reset();
    draw();
  };
  const keep = (cell) => {
    state.cell = cell;
    const i = Math.floor(cell / across()), j = cell % across();
    state.x = hold(j + 1 - seenAcross(), state.x, j);
    state.y = hold(i + 1 - seenDown(), state.y, i);
    settle();
    draw();
  };
  const at = (map, event) => {
    const box = map.canvas.getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
  };
  const cellAt = ({ x, y }) => {
    const j = Math.floor(state.x + x * seenAcross()), i = Math.floor(state.y + y * seenDown());
    return i >= 0 && j >= 0 && i < down() && j < across() ? i * across() + j : null;
  };
  const steps = {
    ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
  };
  for (const map of maps) {
    let dragged = null;
    map.canvas.addEventListener("pointerdown", (event) => {
      dragged = { ...at(map, event), left: state.x, top: state.y };
      map.canvas.setPointerCapture(event.pointerId);
    });
    map.canvas.addEventListener("pointerup", () => { dragged = null; });
    map.canvas.addEventListener("pointermove", (event) => {
      const here = at(map, event);
      if (dragged && event.buttons) {
        state.x = dragged.left - (here.x - dragged.x) * seenAcross();
        state.y = dragged.top - (here.y - dragged.y) * seenDown();
        settle();
      }
      state.cell = cellAt(here);
      draw();
    });
    map.canvas.addEventListener("pointerleave", () => { state.cell = null; draw(); });
    map.canvas.addEventListener("wheel", (event) => {
      // A page that scrolls must not get stuck here: zoom with Ctrl, or once the map has the focus.
      if (!event.ctrlKey && document.activeElement !== map.canvas) return;
      event.preventDefault();
      const here = at(map, event);
      zoom(event.deltaY > 0 ? 1.25 : 0.8, here.x, here.y);
    }, { passive: false });
    map.canvas.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      if (step) {
        const cell = state.cell ?? 0, i = Math.floor(cell / across()), j = cell % across();
        keep(state.cell === null ? 0 : hold(0, i + step[0], down() - 1) * across() + hold(0, j + step[1], across() - 1));
      } else if (event.key === "+" || event.key === "=") zoom(0.7);
      else if (event.key === "-") zoom(1 / 0.7);
      else if (event.key === "0") { reset(); draw(); }
      else return;
      event.preventDefault();
    });
  }
  // A button zooms towards what is most wrong.
  const towardsWorst = (factor) => {
    const v = view();
    let worst = 0, most = -1;
    v.error.forEach((error, cell) => {
      const share = undecided(cell) ? 1 : finite(error) ? error / allowed(cell) : Infinity;
      if (share > most) { most = share; worst = cell; }
    });
    const x = (worst % across() + 0.5 - state.x) / seenAcross();
    const y = (Math.floor(worst / across()) + 0.5 - state.y) / seenDown();
    zoom(factor, hold(0, x, 1), hold(0, y, 1));
  };
  $("zoom-in").addEventListener("click", () => towardsWorst(0.7));
  $("zoom-out").addEventListener("click", () => zoom(1 / 0.7));
  $("zoom-reset").addEventListener("click", () => { reset(); draw(); });
  $("scale").addEventListener("change", draw);
  $("view").addEventListener("change", (event) => choose(state.pair, Number(event.target.value)));
  document.querySelectorAll("[data-pair]").forEach((button) =>
    button.addEventListener("click", () => choose(Number(button.dataset.pair), 0)));
  addEventListener("resize", draw);
  choose(0, 0);
})();
