// The image, spectrogram or series that the model sees, with the weights that one patch gives to
// the others on top. Cells of the picture are counted row by row; the model may order its patches
// differently.

function imageView() {
  const { png, name, grid, cells, leading } = packedData.image;
  const [gridRows, gridColumns] = grid;
  const patchOfCell = [];
  cells.forEach((cell, patch) => (patchOfCell[cell] = patch));
  let query = 0; // the place of the query among all tokens
  let source = "head";
  let opacity = 0.65;
  let values = null;
  const image = new Image();
  const canvas = make("canvas", {
    class: "image-map",
    tabindex: "0",
    role: "application",
    "aria-label": `${name}; arrow keys move the query patch`,
  });
  const original = make("canvas", { "aria-hidden": "true" });
  const readout = make("p", { class: "readout", "aria-live": "polite" });
  const picker = make("div", { class: "controls" });
  const leadingButtons = make("div", { class: "controls" });
  const legendPlace = make("div");

  function sources(map) {
    const wholes = Object.keys(WHOLES).filter((name) => map[name]);
    return [...OVERS, ...wholes.map((name) => [name, WHOLES[name].label])];
  }

  function build() {
    const map = currentMap();
    const pick = (value) => {
      source = value;
      update();
    };
    const slider = make("input", {
      type: "range",
      id: "image-opacity",
      min: "0",
      max: "1",
      step: "0.05",
      value: String(opacity),
      oninput: () => {
        opacity = Number(slider.value);
        draw();
      },
    });
    const label = make("label", { for: "image-opacity", text: "Overlay" });
    picker.replaceChildren(
      selectField("Weights of", sources(map), source, pick).field,
      make("div", { class: "field" }, label, slider),
    );
    leadingButtons.replaceChildren(
      ...map.queries.slice(0, leading).map((token, index) => {
        const pickThis = () => pickQuery(index);
        const properties = { type: "button", class: "token-button", onclick: pickThis };
        return make("button", properties, "from ", tokenElement(token));
      }),
    );
  }

  async function update() {
    const map = currentMap();
    let matrix;
    if (WHOLES[source]) matrix = await map.wholeMatrix(source);
    else if (source === "layer") matrix = await map.meanMatrix([state.layer]);
    else if (source === "all") matrix = await map.meanMatrix(map.layers.map((_, place) => place));
    else matrix = await map.matrix(state.layer, state.head);
    values = patchOfCell.map((patch) => matrix.at(query, patch + leading));
    draw();
    describe(map, matrix);
  }

  // Pixels have only a row and a column; patches of sounds and series have names of their own.
  function placeName(cell) {
    const token = currentMap().keys[patchOfCell[cell] + leading];
    if (name !== "image") return name === "series" ? `steps ${token}` : token;
    return `row ${Math.floor(cell / gridColumns)}, column ${cell % gridColumns}`;
  }

  // The cell of the query patch; undefined for [CLS].
  function queryCell() {
    return cells[query - leading];
  }

  function describe(map, matrix) {
    const elsewhere = Array.from({ length: leading }, (_, key) => [
      " · on ",
      tokenElement(map.keys[key]),
      ` ${shortNumber(matrix.at(query, key) ?? 0)}`,
    ]);
    const cell = queryCell();
    const at = name === "image" ? "patch in" : "patch at";
    const where =
      cell === undefined ? tokenElement(map.queries[query]) : `${at} ${placeName(cell)}`;
    const best = values.indexOf(Math.max(...values.map((value) => value ?? -1)));
    const most = ` · most on ${placeName(best)} (${shortNumber(values[best] ?? 0)})`;
    readout.replaceChildren(make("span", {}, "from ", where, most, ...elsewhere.flat()));
  }

  function draw() {
    if (!values || !image.naturalWidth || canvas.clientWidth === 0) return;
    const density = Math.min(devicePixelRatio || 1, 2);
    const wide = canvas.clientWidth * density;
    const high = Math.round((wide * image.naturalHeight) / image.naturalWidth);
    const pen = drawImage(original, wide, high, "none");
    drawOverlay(drawImage(canvas, wide, high, "grayscale(1)"), wide, high, density);
    if (query >= leading) outline(pen, wide, high, density);
  }

  function drawImage(place, wide, high, filter) {
    place.width = wide;
    place.height = high;
    const pen = place.getContext("2d");
    pen.imageSmoothingEnabled = image.naturalWidth >= 128; // small images stay sharp
    pen.filter = filter;
    pen.drawImage(image, 0, 0, wide, high);
    pen.filter = "none";
    return pen;
  }

  // Colours on a grey image: colours of the image itself would be taken for weights.
  function drawOverlay(pen, wide, high, density) {
    const largest = Math.max(...values.map((value) => value ?? 0), 1e-12);
    const { colours, index } = colouring("linear", largest, false);
    const [side, height] = [wide / gridColumns, high / gridRows];
    values.forEach((value, place) => {
      const [row, column] = [Math.floor(place / gridColumns), place % gridColumns];
      pen.fillStyle = value === null ? hatch(pen, density) : css(colours[index(value)], opacity);
      pen.fillRect(column * side, row * height, side, height);
    });
    if (query >= leading) outline(pen, wide, high, density);
    legendPlace.replaceChildren(legend("linear", largest, false));
    legendPlace.className = values.includes(null) ? "" : "without-mask";
  }

  // A frame around the query patch that is seen on any ground.
  function outline(pen, wide, high, density) {
    const cell = queryCell();
    const [side, height] = [wide / gridColumns, high / gridRows];
    const box = [(cell % gridColumns) * side, Math.floor(cell / gridColumns) * height];
    for (const [width, colour] of [[4.5, "#ffffff"], [2, "#16181d"]]) {
      pen.lineWidth = width * density;
      pen.strokeStyle = colour;
      pen.strokeRect(...box, side, height);
    }
  }

  function pickQuery(index) {
    query = index;
    update();
  }

  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * gridRows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * gridColumns);
    pickQuery(leading + patchOfCell[row * gridColumns + column]);
  });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -gridColumns, ArrowDown: gridColumns };
    if (!steps[event.key]) return;
    event.preventDefault();
    const cell = queryCell();
    const next = cell === undefined ? 0 : cell + steps[event.key];
    if (next in patchOfCell) pickQuery(leading + patchOfCell[next]);
  });
  image.addEventListener("load", draw);
  image.src = `data:image/png;base64,${png}`;
  build();
  update();
  onWidthChange(canvas, draw);
  onChange((changed) => {
    if (changed.has("map")) build();
    if (["map", "layer", "head", "theme"].some((name) => changed.has(name))) update();
  });
  return make(
    "section",
    { class: "panel", "aria-label": name },
    make("div", { class: "panel-title" }, make("h2", { text: capitalized(name) }), picker),
    make("p", {
      class: "hint",
      text:
        "Pick a patch: the overlay shows how much weight it gives to each patch. " +
        "Colours go up to the largest of these weights." +
        (name === "spectrogram" ? " Time runs to the right, pitch upwards." : ""),
    }),
    leadingButtons,
    make("div", { class: "image-pair" }, canvas, original),
    readout,
    legendPlace,
  );
}
