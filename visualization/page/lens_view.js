// The logit lens: what the output head would answer after each layer.

// A small table of candidates and their probabilities, for tooltips.
function candidateList(tokens, probabilities) {
  return make(
    "table",
    { class: "candidates" },
    ...tokens.map((token, place) =>
      make(
        "tr",
        {},
        make("td", {}, tokenElement(token, 24)),
        make("td", { class: "number", text: percent(probabilities[place]) }),
      ),
    ),
  );
}

// Shows something about an element on hover, touch and focus, and hides it on Escape.
function explain(element, content) {
  element.addEventListener("pointerenter", () => tooltip.showBeside(content(), element));
  element.addEventListener("pointerleave", () => tooltip.hide());
  element.addEventListener("click", () => tooltip.showBeside(content(), element));
  element.addEventListener("focus", () => tooltip.showBeside(content(), element));
  element.addEventListener("blur", () => tooltip.hide());
}

function lensView() {
  const { positions, layers } = packedData.lens;
  const body = make("tbody");
  const cells = [];
  // The answer is at the top, the embedding at the bottom.
  const order = layers.map((_, place) => place).reverse();
  for (const place of order) {
    const { tokens, probabilities } = layers[place];
    const name = place === 0 ? "embedding" : `layer ${place - 1}`;
    const row = make("tr", {}, make("th", { scope: "row", text: name }));
    positions.forEach((position, column) => {
      const cell = make("td", { class: "lens-cell" }, tokenElement(tokens[column][0] ?? "", 10));
      explain(cell, () => [
        make("p", { class: "hint" }, `${name}, after `, placedToken(position, column)),
        candidateList(tokens[column], probabilities[column]),
      ]);
      cells.push({ cell, probability: probabilities[column][0] ?? 0 });
      row.append(cell);
    });
    body.append(row);
  }
  moveWithArrows(body, cells.map(({ cell }) => cell), positions.length);
  const head = make(
    "tr",
    {},
    make("th", { scope: "col" }),
    ...positions.map((token) => make("th", { scope: "col" }, tokenElement(token, 10))),
  );
  const table = make("table", { class: "lens" }, make("thead", {}, head), body);
  const legendPlace = make("div", { class: "without-mask" });

  function paint() {
    const { colours, index } = colouring("linear", 1, false);
    for (const { cell, probability } of cells) {
      const colour = colours[index(probability)];
      cell.style.backgroundColor = css(colour);
      cell.style.color = textOn(colour);
    }
    legendPlace.replaceChildren(legend("linear", 1, false));
  }

  paint();
  onChange((changed) => changed.has("theme") && paint());
  return make(
    "section",
    { class: "panel", "aria-label": "logit lens" },
    make("div", { class: "panel-title" }, make("h2", { text: "Logit lens" })),
    make("p", {
      class: "hint",
      text:
        "The likeliest token or class if the output head read the hidden state after each layer. " +
        "Colour is its probability; point at a cell for more candidates.",
    }),
    make("div", { class: "table-scroll" }, table),
    legendPlace,
  );
}
