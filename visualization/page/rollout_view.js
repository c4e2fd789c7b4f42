// What the layers do together: attention rollout, and for classifiers attention x gradient.

const WHOLES = {
  rollout: {
    label: "attention rollout",
    text:
      "The layers' mean weights multiplied along the residual stream, half identity and half " +
      "attention in each layer (Abnar and Zuidema, 2020). A row tells how much of each input " +
      "token reaches that position. It says where information can flow, not what is used.",
  },
  relevance: {
    label: "attention × gradient",
    text:
      "The positive part of attention × gradient of the predicted class, averaged over heads " +
      "and propagated through the layers shown (Chefer, Gur and Wolf, 2021). " +
      "Larger means that the prediction rests more on that token.",
  },
};

function hasWhole(map) {
  return Boolean(map.rollout || map.relevance);
}

function rolloutView() {
  let which = null;
  let row = null;
  const picker = make("div", { class: "controls" });
  const explanation = make("p", { class: "hint prose" });
  const title = make("h2");
  const strip = make("p", { class: "token-strip" });
  const stripTitle = make("p", { class: "hint" });
  const heat = new HeatMap("all layers together");
  heat.cells.addEventListener("click", () => heat.cell && pickRow(heat.cell[0]));
  heat.cells.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && heat.cell) pickRow(heat.cell[0]);
  });

  function pickRow(index) {
    row = index;
    update();
  }

  function build() {
    const map = currentMap();
    const names = Object.keys(WHOLES).filter((name) => map[name]);
    if (!names.includes(which)) which = names[0] ?? null;
    // Classifiers read the first token, language models the last.
    row = map.name === "decoder" ? map.rows - 1 : 0;
    const pick = (name) => {
      which = name;
      update();
    };
    const options = names.map((name) => [name, WHOLES[name].label]);
    picker.replaceChildren();
    if (names.length > 1) picker.append(selectField("Show", options, which, pick).field);
  }

  async function update() {
    const map = currentMap();
    if (!which || !map[which]) {
      title.textContent = "Rollout";
      explanation.textContent = "There is no rollout for this stack of layers.";
      heat.element.hidden = true;
      strip.replaceChildren();
      stripTitle.replaceChildren();
      return;
    }
    const matrix = await map.wholeMatrix(which);
    if (map !== currentMap()) return;
    heat.element.hidden = false;
    title.textContent = which === "rollout" ? "Rollout" : "Attention × gradient";
    explanation.textContent = WHOLES[which].text;
    const largest = largestOf(matrix);
    heat.show({
      matrix,
      rowTokens: map.queries,
      columnTokens: map.keys,
      sums: null,
      scale: state.scale,
      largest,
      format: which === "rollout" ? (value) => value.toFixed(5) : shortNumber,
    });
    drawStrip(map, matrix);
  }

  // The text itself, coloured by one row of the matrix.
  function drawStrip(map, matrix) {
    const values = map.keys.map((_, column) => matrix.at(row, column));
    const { colours, index } = colouring(state.scale, Math.max(...values), false);
    stripTitle.replaceChildren(
      "Seen from ",
      placedToken(map.queries[row], row),
      " (pick a row of the map for another)",
    );
    strip.replaceChildren(
      ...map.keys.map((token, column) => {
        const colour = colours[index(values[column])];
        const title = shortNumber(values[column]);
        const item = make("span", { class: "chip", title }, tokenElement(token));
        item.style.backgroundColor = css(colour);
        item.style.color = textOn(colour);
        return item;
      }),
    );
  }

  build();
  update();
  onChange((changed) => {
    if (changed.has("map")) build();
    if (["map", "scale", "theme"].some((name) => changed.has(name))) update();
  });
  return make(
    "section",
    { class: "panel", "aria-label": "rollout" },
    make("div", { class: "panel-title" }, title, picker),
    explanation,
    stripTitle,
    strip,
    heat.element,
  );
}
