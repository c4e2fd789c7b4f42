// Norms of hidden states over layers, one line for each token.

function tokensOfStack(name, count) {
  const map = maps.find((candidate) => candidate.name === name && candidate.rows === count);
  if (map) return map.queries;
  if (packedData.lens?.positions.length === count) return packedData.lens.positions;
  return Array.from({ length: count }, (_, place) => String(place));
}

// Round numbers in a range for an axis: 1, 2 or 5 times powers of ten.
function roundNumbers(low, high, logarithmic) {
  const start = Math.floor(Math.log10(logarithmic ? low : (high - low) / 5));
  if (!logarithmic) {
    const step = [1, 2, 5, 10].map((n) => n * 10 ** start).find((n) => (high - low) / n <= 6);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
  }
  const powers = Array.from({ length: 12 }, (_, i) => 10 ** (start + i));
  const within = (numbers) => numbers.filter((number) => number >= low && number <= high);
  const fine = within(powers.flatMap((power) => [power, 2 * power, 5 * power]));
  return fine.length <= 10 ? fine : within(powers);
}

function normChart({ name, values }) {
  const height = 300;
  const margin = { left: 52, right: 12, top: 12, bottom: 34 };
  const tokens = tokensOfStack(name, values[0].length);
  const all = values.flat().filter((value) => value !== null && value > 0);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const logarithmic = high / low > 20;
  const shape = logarithmic ? Math.log : (value) => value;
  const [bottom, top] = [logarithmic ? shape(low) : 0, shape(high)];
  const host = make("div", { class: "norm-chart" });
  const readout = make("p", { class: "readout", "aria-live": "polite" });
  let width = 0;
  let chosen = 0;

  const x = (layer) =>
    margin.left + (layer / Math.max(1, values.length - 1)) * (width - margin.left - margin.right);
  const y = (value) => {
    const norm = logarithmic ? Math.max(value ?? low, low) : value ?? 0;
    const part = (shape(norm) - bottom) / (top - bottom || 1);
    return height - margin.bottom - part * (height - margin.top - margin.bottom);
  };

  function line(series, className) {
    const points = series.map((value, layer) => `${x(layer).toFixed(1)},${y(value).toFixed(1)}`);
    return makeSvg("polyline", { points: points.join(" "), class: className });
  }

  function axis() {
    const parts = [];
    for (const number of roundNumbers(logarithmic ? low : 0, high, logarithmic)) {
      const level = y(number);
      const text = makeSvg("text", { x: margin.left - 8, y: level + 4, class: "tick end" });
      text.textContent = shortNumber(number);
      const [x1, x2] = [margin.left, width - margin.right];
      parts.push(makeSvg("line", { x1, x2, y1: level, y2: level, class: "rule" }), text);
    }
    const every = Math.ceil(values.length / Math.max(2, Math.floor(width / 40)));
    values.forEach((_, layer) => {
      if (layer % every !== 0) return;
      const level = height - margin.bottom + 18;
      const text = makeSvg("text", { x: x(layer), y: level, class: "tick middle" });
      text.textContent = layer === 0 ? "emb." : String(layer - 1);
      parts.push(text);
    });
    return parts;
  }

  function draw() {
    width = host.clientWidth;
    if (width === 0) return;
    const columns = tokens.map((_, token) => values.map((row) => row[token]));
    const mean = values.map((row) => row.reduce((sum, v) => sum + (v ?? 0), 0) / row.length);
    const label = `norms in the ${name}`;
    const highlight = line(columns[chosen], "norm chosen");
    const svg = makeSvg(
      "svg",
      { width, height, role: "img", "aria-label": label },
      ...axis(),
      ...columns.map((series) => line(series, "norm")),
      line(mean, "norm mean"),
      highlight,
    );
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const part = (event.clientX - box.left - margin.left) / (width - margin.left - margin.right);
      const last = values.length - 1;
      const layer = Math.min(last, Math.max(0, Math.round(part * last)));
      const distance = (token) => Math.abs(y(values[layer][token]) - (event.clientY - box.top));
      chosen = tokens.reduce((best, _, t) => (distance(t) < distance(best) ? t : best), 0);
      highlight.setAttribute("points", line(columns[chosen], "").getAttribute("points"));
      describe(layer);
    });
    host.replaceChildren(svg);
    describe(values.length - 1);
  }

  function describe(layer) {
    const where = layer === 0 ? "after the embedding" : `after layer ${layer - 1}`;
    const norm = shortNumber(values[layer][chosen] ?? 0);
    readout.replaceChildren(
      placedToken(tokens[chosen], chosen),
      where,
      make("strong", { class: "value", text: norm }),
    );
  }

  // The keyboard's way to a token's line.
  const options = tokens.map((token, place) => [
    place,
    `${place} ${shortened(visibleText(token), 24)}`,
  ]);
  const { field } = selectField("Token", options, 0, (value) => {
    chosen = Number(value);
    draw();
  });
  onWidthChange(host, draw);
  const axisNote = logarithmic ? "; the axis is logarithmic" : "";
  return make(
    "div",
    {},
    make(
      "div",
      { class: "panel-title" },
      make("h3", { text: mapName(name) }),
      make("div", { class: "controls" }, field),
    ),
    host,
    readout,
    make("p", {
      class: "hint",
      text:
        "From left to right: after the embedding, then after each layer. Thin lines are tokens, " +
        `the coloured line is the chosen one, the dashed line is their mean${axisNote}.`,
    }),
  );
}

function normView() {
  return make(
    "section",
    { class: "panel", "aria-label": "norms of hidden states" },
    make("div", { class: "panel-title" }, make("h2", { text: "Norms of hidden states" })),
    ...packedData.norms.map(normChart),
  );
}
