// All heads of all layers as small multiples. A tile is drawn when it comes into the window.

const TILE = { smallest: 26, largest: 76, gap: 3 };

// Draws a head into a canvas of at most width x height pixels. A pixel shows the largest value
// below it, so that a thin line of weights stays visible.
function drawTile(canvas, array, codes, mask, map, head, width, height) {
  const { rows, columns } = map;
  const wide = Math.min(columns, width);
  const high = Math.min(rows, height);
  const centre = array.packed.signed ? (array.values.length >> 1) - 1 : 0;
  const best = new Int32Array(wide * high).fill(-1);
  const start = head * rows * columns;
  for (let row = 0, place = 0; row < rows; row++) {
    const line = Math.floor((row * high) / rows) * wide;
    for (let column = 0; column < columns; column++, place++) {
      if (!mask[place]) continue;
      const pixel = line + (wide === columns ? column : Math.floor((column * wide) / columns));
      const code = codes[start + place];
      const before = best[pixel];
      if (before < 0 || Math.abs(code - centre) > Math.abs(before - centre)) best[pixel] = code;
    }
  }
  let largest = array.packed.scale;
  if (state.range === "head") {
    largest = 0;
    for (const code of best) {
      if (code >= 0) largest = Math.max(largest, Math.abs(array.values[code]));
    }
  }
  const { colours, index } = colouring(state.scale, largest, array.packed.signed);
  canvas.width = wide;
  canvas.height = high;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(wide, high);
  const bytes = pixels.data;
  for (let i = 0; i < best.length; i++) {
    if (best[i] < 0) continue; // masked: the hatched ground of the tile is seen
    const colour = colours[index(array.values[best[i]])];
    bytes[4 * i] = colour[0];
    bytes[4 * i + 1] = colour[1];
    bytes[4 * i + 2] = colour[2];
    bytes[4 * i + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
}

function headGrid() {
  const grid = make("div", { class: "head-grid", role: "grid", "aria-label": "all heads" });
  const scroller = make("div", { class: "grid-scroll" }, grid);
  let tiles = [];
  let roving = null;
  let size = TILE.smallest;

  const observer = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        const tile = tiles[Number(target.dataset.place)];
        if (!tile || tile.button !== target) continue;
        tile.near = isIntersecting;
        if (isIntersecting && !tile.drawn) draw(tile);
      }
    },
    { rootMargin: "200px" },
  );

  async function draw(tile) {
    tile.drawn = true;
    const map = currentMap();
    const { quantity } = state;
    const array = map.arrays[quantity];
    const [codes, mask] = await Promise.all([array.codes(tile.layer), map.mask(tile.layer)]);
    if (map !== currentMap() || quantity !== state.quantity) return;
    const density = Math.min(devicePixelRatio || 1, 2);
    const height = Math.round(size * density * aspect(map));
    drawTile(tile.canvas, array, codes, mask, map, tile.head, Math.round(size * density), height);
    tile.button.classList.add("drawn");
  }

  function aspect(map) {
    return Math.min(1.6, Math.max(0.5, map.rows / map.columns));
  }

  function redraw() {
    for (const tile of tiles) {
      tile.drawn = false;
      if (tile.near) draw(tile);
    }
  }

  function build() {
    const map = currentMap();
    observer.disconnect();
    tiles = [];
    const rows = [
      make(
        "div",
        { class: "grid-row grid-head", role: "row" },
        make("span", { role: "columnheader", class: "grid-corner", text: "layer" }),
        ...Array.from({ length: map.heads }, (_, head) =>
          make("span", { role: "columnheader", text: String(head) }),
        ),
      ),
    ];
    map.layers.forEach((number, layer) => {
      const row = make(
        "div",
        { class: "grid-row", role: "row" },
        make("span", { role: "rowheader", text: String(number), title: map.kinds[layer] }),
      );
      for (let head = 0; head < map.heads; head++) row.append(makeTile(map, layer, head));
      rows.push(row);
    });
    grid.style.setProperty("--heads", map.heads);
    grid.style.setProperty("--aspect", String(1 / aspect(map)));
    grid.replaceChildren(...rows);
    const buttons = tiles.map((tile) => tile.button);
    roving = moveWithArrows(grid, buttons, map.heads);
    for (const button of buttons) observer.observe(button);
    mark();
    fit();
  }

  function makeTile(map, layer, head) {
    const { labels } = map.summary(layer, head);
    const name = [headName(map, layer, head), ...labels].join(", ");
    const canvas = make("canvas", { width: 1, height: 1, "aria-hidden": "true" });
    const button = make(
      "button",
      {
        type: "button",
        class: "tile",
        role: "gridcell",
        "aria-label": name,
        title: name,
        "data-place": tiles.length,
        onclick: () => change({ layer, head }),
      },
      canvas,
    );
    tiles.push({ layer, head, canvas, button, drawn: false, near: false });
    return button;
  }

  function mark() {
    tiles.forEach(({ layer, head, button }, index) => {
      const on = layer === state.layer && head === state.head;
      button.setAttribute("aria-selected", String(on));
      if (on) roving.stop(index);
    });
  }

  function fit() {
    const room = scroller.clientWidth - 34;
    if (room <= 0) return;
    const each = Math.floor(room / currentMap().heads) - TILE.gap;
    const wanted = Math.min(TILE.largest, Math.max(TILE.smallest, each));
    grid.style.setProperty("--tile", `${wanted}px`);
    if (wanted !== size) {
      size = wanted;
      redraw();
    }
  }

  build();
  onWidthChange(scroller, fit);
  onChange((changed) => {
    if (changed.has("map")) build();
    else if (["theme", "scale", "range", "quantity"].some((name) => changed.has(name))) redraw();
    if (changed.has("layer") || changed.has("head")) mark();
  });
  return scroller;
}
