// A matrix as a heat map: tokens on both axes, a number for the cell under the pointer, the finger
// or the keyboard's cursor. Masked cells are hatched.

const CELL = { smallest: 2, largest: 32, labelled: 9 };
const LARGEST_CANVAS = 8192; // pixels of one side; browsers draw nothing beyond their limits

function hatch(context, density) {
  const size = 6 * density;
  const tile = make("canvas", { width: size, height: size });
  const pen = tile.getContext("2d");
  const [ground, line] = ramps().masked;
  pen.fillStyle = css(ground);
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = css(line);
  pen.lineWidth = density;
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

class HeatMap {
  constructor(label) {
    this.cell = null; // the cell that is read out
    this.zoom = 1;
    this.columnLabels = make("div", { class: "heat-columns" });
    this.rowLabels = make("div", { class: "heat-rows" });
    this.sumLabels = make("div", { class: "heat-sums" });
    this.sumHead = make("div", { class: "heat-sum-head", text: "sum" });
    this.canvas = make("canvas");
    this.cursor = make("div", { class: "heat-cursor" });
    this.cells = make(
      "div",
      {
        class: "heat-cells",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "heat map",
        "aria-label": `${label}; arrow keys move between cells`,
        onpointermove: (event) => this.point(event),
        onpointerdown: (event) => this.point(event),
        onpointerleave: () => this.leave(),
        onfocus: () => this.cells.matches(":focus-visible") && this.select(this.cell ?? [0, 0]),
        onblur: () => this.leave(),
        onkeydown: (event) => this.key(event),
      },
      this.canvas,
      this.cursor,
    );
    this.frame = make(
      "div",
      { class: "heat-frame" },
      make("div", { class: "heat-corner" }),
      this.columnLabels,
      this.sumHead,
      this.rowLabels,
      this.cells,
      this.sumLabels,
    );
    this.scroller = make("div", { class: "heat-scroll" }, this.frame);
    this.readout = make("p", { class: "readout", "aria-live": "polite" });
    const zoomButton = (text, name, factor) =>
      make("button", {
        type: "button",
        text,
        "aria-label": name,
        title: name,
        onclick: () => this.magnify(factor),
      });
    this.tools = make(
      "div",
      { class: "heat-tools" },
      zoomButton("−", "smaller cells", 1 / 1.5),
      zoomButton("+", "larger cells", 1.5),
      zoomButton("fit", "fit the map to its column", null),
    );
    this.legend = make("div");
    this.element = make(
      "div",
      { class: "heat" },
      make("div", { class: "heat-head" }, this.legend, this.tools),
      this.scroller,
      this.readout,
    );
    onWidthChange(this.element, () => this.draw());
  }

  // `content` has: matrix, rowTokens, columnTokens, sums (or null), scale, largest, format.
  show(content) {
    this.content = content;
    const { rows, columns } = content.matrix;
    if (this.cell && (this.cell[0] >= rows || this.cell[1] >= columns)) this.cell = null;
    this.draw();
    this.describe();
  }

  magnify(factor) {
    this.zoom = factor === null ? 1 : Math.min(12, Math.max(0.25, this.zoom * factor));
    this.draw();
  }

  draw() {
    if (!this.content || this.element.clientWidth === 0) return;
    const { matrix, rowTokens, columnTokens, sums } = this.content;
    const density = Math.min(devicePixelRatio || 1, 2);
    const margin = this.reserve(rowTokens, "--row-label");
    this.reserve(columnTokens, "--column-label");
    const room = this.element.clientWidth - margin - (sums ? 46 : 4);
    const fit = Math.min(CELL.largest, Math.max(CELL.smallest, Math.floor(room / matrix.columns)));
    const limit = LARGEST_CANVAS / density / Math.max(matrix.rows, matrix.columns);
    this.size = Math.max(1, Math.min(Math.round(fit * this.zoom), Math.floor(limit)));
    this.frame.classList.toggle("without-sums", !sums);
    this.paint(density);
    this.label(this.rowLabels, rowTokens, "top");
    this.label(this.columnLabels, columnTokens, "left");
    this.labelSums(sums);
    this.columnLabels.style.width = `${matrix.columns * this.size}px`;
    this.placeCursor();
    const { scale, largest } = this.content;
    this.legend.replaceChildren(legend(scale, largest, matrix.signed));
  }

  // Makes room for the longest label of an axis, up to the limit in the style sheet.
  reserve(tokens, property) {
    const limit = parseFloat(getComputedStyle(this.element).getPropertyValue("--label")) || 96;
    const longest = Math.max(...tokens.map((token) => visibleText(token).length), 1);
    const room = Math.min(limit, 22 + 8 * longest);
    this.element.style.setProperty(property, `${room}px`);
    return room;
  }

  paint(density) {
    const { matrix, scale, largest } = this.content;
    const { rows, columns } = matrix;
    const side = this.size * density;
    this.canvas.width = columns * side;
    this.canvas.height = rows * side;
    this.canvas.style.width = `${columns * this.size}px`;
    this.canvas.style.height = `${rows * this.size}px`;
    const pen = this.canvas.getContext("2d");
    const small = make("canvas", { width: columns, height: rows });
    const pixels = small.getContext("2d").createImageData(columns, rows);
    const { colours, index } = colouring(scale, largest, matrix.signed);
    const masked = [];
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const value = matrix.at(row, column);
        if (value === null) masked.push([row, column]);
        else pixels.data.set([...colours[index(value)], 255], 4 * (row * columns + column));
      }
    }
    small.getContext("2d").putImageData(pixels, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, 0, 0, this.canvas.width, this.canvas.height);
    pen.fillStyle = hatch(pen, density);
    for (const [row, column] of masked) pen.fillRect(column * side, row * side, side, side);
    this.legend.classList.toggle("without-mask", masked.length === 0);
    if (this.size >= 10) this.separate(pen, side, rows, columns, density);
  }

  // Thin lines between cells, where there is room for them.
  separate(pen, side, rows, columns, density) {
    pen.fillStyle = getComputedStyle(this.element).getPropertyValue("--panel");
    for (let row = 1; row < rows; row++) pen.fillRect(0, row * side, columns * side, density);
    for (let column = 1; column < columns; column++) {
      pen.fillRect(column * side, 0, density, rows * side);
    }
  }

  // Labels beside rows or above columns: all of them, or every second, third, … for small cells.
  label(strip, tokens, edge) {
    const every = this.labelStep();
    const labels = [];
    strip.style.fontSize = `${this.fontSize(12.5)}px`;
    tokens.forEach((token, index) => {
      if (index % every !== 0) return;
      // One letter needs no turning to fit above its column.
      const upright = [...visibleText(token)].length === 1 ? "upright" : null;
      const item = make(
        "span",
        { "data-index": index, class: upright },
        tokenElement(token, 14),
      );
      item.style[edge] = `${Math.max(4, (index + 0.5) * this.size)}px`;
      labels.push(item);
    });
    strip.replaceChildren(...labels);
  }

  labelStep() {
    return this.size >= CELL.labelled ? 1 : Math.ceil(13 / this.size);
  }

  fontSize(largest) {
    return this.labelStep() > 1 ? 10 : Math.min(largest, this.size);
  }

  labelSums(sums) {
    if (!sums) {
      this.sumLabels.replaceChildren();
      return;
    }
    const every = this.labelStep();
    this.sumLabels.style.fontSize = `${this.fontSize(11)}px`;
    const labels = sums.map((sum, index) => {
      if (index % every !== 0) return null;
      const item = make("span", { text: sum.toFixed(2) });
      item.style.top = `${Math.max(4, (index + 0.5) * this.size)}px`;
      return item;
    });
    this.sumLabels.replaceChildren(...labels.filter(Boolean));
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const { rows, columns } = this.content.matrix;
    const row = Math.floor((event.clientY - box.top) / this.size);
    const column = Math.floor((event.clientX - box.left) / this.size);
    if (row < 0 || column < 0 || row >= rows || column >= columns) return;
    this.cell = [row, column];
    this.describe();
    tooltip.show(this.sentence(), event.clientX, event.clientY);
  }

  leave() {
    tooltip.hide();
  }

  key(event) {
    const { rows, columns } = this.content.matrix;
    const [row, column] = this.cell ?? [0, 0];
    const cells = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, columns - 1],
      PageUp: [0, column],
      PageDown: [rows - 1, column],
    };
    if (event.key === "Escape") {
      this.cell = null;
      tooltip.hide();
      this.describe();
    } else if (cells[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      const [r, c] = cells[event.key];
      this.select([Math.min(rows - 1, Math.max(0, r)), Math.min(columns - 1, Math.max(0, c))]);
    }
  }

  select(cell) {
    if (!this.content) return;
    this.cell = cell;
    this.describe();
    this.cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
    tooltip.showBeside(this.sentence(), this.cursor);
  }

  placeCursor() {
    this.cursor.hidden = !this.cell;
    for (const [strip, place] of [[this.rowLabels, 0], [this.columnLabels, 1]]) {
      for (const item of strip.children) {
        const on = this.cell && Number(item.dataset.index) === this.cell[place];
        item.classList.toggle("on", Boolean(on));
      }
    }
    if (!this.cell) return;
    const [row, column] = this.cell;
    Object.assign(this.cursor.style, {
      left: `${column * this.size}px`,
      top: `${row * this.size}px`,
      width: `${this.size}px`,
      height: `${this.size}px`,
    });
  }

  describe() {
    this.placeCursor();
    if (this.cell) this.readout.replaceChildren(...this.sentence());
    else {
      const text = "Point at a cell, or move with the arrow keys, to read its value.";
      this.readout.replaceChildren(make("span", { class: "hint", text }));
    }
  }

  // "it → animal 0.43120, row sum 1.0000"
  sentence() {
    const { matrix, rowTokens, columnTokens, sums, format } = this.content;
    const [row, column] = this.cell;
    const value = matrix.at(row, column);
    return [
      make(
        "span",
        { class: "pair" },
        placedToken(rowTokens[row], row),
        " → ",
        placedToken(columnTokens[column], column),
      ),
      value === null
        ? make("em", { class: "value", text: "masked" })
        : make("strong", { class: "value", text: format(value) }),
      sums ? make("span", { class: "hint", text: `row sum ${sums[row].toFixed(4)}` }) : null,
    ].filter(Boolean);
  }
}
