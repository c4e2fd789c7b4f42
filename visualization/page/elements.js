// Elements of the page, and the tooltip.
// Text is only ever set as text, never parsed as markup: tokens and prompts come from anywhere.

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A number with a fixed count of decimals; a dash for what is not known.
function decimal(value, digits) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

// Three digits, whatever the size of the number.
function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e6) return Math.round(value).toLocaleString("en");
  if (size === 0 || (size >= 0.001 && size < 1e6)) return String(Number(value.toPrecision(3)));
  return value.toExponential(1);
}

const tooltip = {
  element: make("div", { class: "tooltip", "aria-hidden": "true" }),

  // Shows elements beside a point of the window, and keeps them inside of it.
  show(content, x, y) {
    const box = this.element;
    box.replaceChildren(...content);
    box.classList.add("shown");
    const { width, height } = box.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
    const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, top)}px`;
  },

  showBeside(content, element) {
    const box = element.getBoundingClientRect();
    this.show(content, box.left + box.width / 2, box.bottom - 6);
  },

  hide() {
    this.element.classList.remove("shown");
  },
};

// Arrow keys move the focus among cells that are laid out in rows; only one cell is a tab stop.
function moveWithArrows(container, cells, columns) {
  let current = 0;
  const stop = (index) => {
    cells[current].tabIndex = -1;
    current = index;
    cells[current].tabIndex = 0;
  };
  cells.forEach((cell, index) => {
    cell.tabIndex = index === 0 ? 0 : -1;
    cell.addEventListener("focus", () => stop(index));
  });
  container.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = Math.floor(current / columns) * columns;
    const steps = {
      ArrowLeft: current - 1,
      ArrowRight: current + 1,
      ArrowUp: current - columns,
      ArrowDown: current + columns,
      Home: row,
      End: Math.min(row + columns, cells.length) - 1,
    };
    const next = steps[event.key];
    if (next === undefined) return;
    event.preventDefault();
    if (next >= 0 && next < cells.length) cells[next].focus();
  });
  return { stop };
}

// Calls `draw` when the width of an element changes, at most once in a frame.
function onWidthChange(element, draw) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    const changed = now !== width;
    width = now; // 0 while the element is hidden
    if (changed && now > 0) requestAnimationFrame(draw);
  }).observe(element);
}
