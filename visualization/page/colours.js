// Colours of numbers. Lightness falls or rises evenly along the ramp (in Oklab), so the order of
// values is legible without seeing hues. Low values are close to the background of the page.

function oklabToRgb(lightness, a, b) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((linear) => {
    const c = Math.min(1, Math.max(0, linear));
    return Math.round(255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055));
  });
}

// Points are [lightness, chroma, hue in degrees] at equal distances; 256 colours between them.
function rampThrough(points) {
  const places = points.map(([lightness, chroma, hue]) => {
    const angle = (hue * Math.PI) / 180;
    return [lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)];
  });
  return Array.from({ length: 256 }, (_, i) => {
    const position = (i / 255) * (places.length - 1);
    const low = Math.min(Math.floor(position), places.length - 2);
    const part = position - low;
    return oklabToRgb(...places[low].map((v, axis) => v + part * (places[low + 1][axis] - v)));
  });
}

const RAMPS = {
  light: {
    sequential: rampThrough([
      [0.975, 0.018, 95],
      [0.8, 0.1, 165],
      [0.61, 0.105, 215],
      [0.42, 0.12, 265],
      [0.25, 0.11, 290],
    ]),
    diverging: rampThrough([
      [0.42, 0.15, 262],
      [0.7, 0.1, 245],
      [0.975, 0.004, 90],
      [0.74, 0.13, 65],
      [0.48, 0.13, 45],
    ]),
    masked: [[236, 238, 241], [196, 201, 209]],
  },
  dark: {
    sequential: rampThrough([
      [0.2, 0.025, 270],
      [0.37, 0.1, 275],
      [0.56, 0.11, 225],
      [0.75, 0.12, 170],
      [0.95, 0.12, 105],
    ]),
    diverging: rampThrough([
      [0.78, 0.12, 240],
      [0.5, 0.12, 250],
      [0.22, 0.01, 270],
      [0.55, 0.12, 55],
      [0.85, 0.13, 75],
    ]),
    masked: [[38, 41, 47], [72, 78, 88]],
  },
};

const darkPreference = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : darkPreference.matches;
}

function ramps() {
  return isDark() ? RAMPS.dark : RAMPS.light;
}

function css([red, green, blue], alpha = 1) {
  return `rgb(${red} ${green} ${blue} / ${alpha})`;
}

// Text that can be read on a colour.
function textOn([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#16181d" : "#ffffff";
}

const SCALES = {
  root: { label: "square root", position: (x) => Math.sqrt(x), value: (p) => p * p },
  linear: { label: "linear", position: (x) => x, value: (p) => p },
};

// Returns a function from a value to a place in the ramp, 0 to 255, and the ramp itself.
// `largest` is the value at the end of the ramp. Signed values have zero in the middle.
function colouring(scale, largest, signed) {
  const { position } = SCALES[scale];
  const ramp = ramps();
  const end = largest || 1;
  if (!signed) {
    return {
      colours: ramp.sequential,
      index: (x) => Math.min(255, Math.round(255 * position(Math.max(0, x) / end))),
    };
  }
  return {
    colours: ramp.diverging,
    index: (x) => {
      const size = Math.min(1, position(Math.abs(x) / end));
      return Math.round(127.5 + 127.5 * Math.sign(x) * size);
    },
  };
}

// The legend of a ramp: a strip of colour with numbers below it.
function legend(scale, largest, signed) {
  const { value } = SCALES[scale];
  const { colours } = colouring(scale, largest, signed);
  const canvas = make("canvas", { width: 256, height: 1 });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(256, 1);
  colours.forEach((colour, i) => pixels.data.set([...colour, 255], 4 * i));
  context.putImageData(pixels, 0, 0);
  const positions = signed ? [-1, -0.5, 0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  const number = (p) => shortNumber(Number((Math.sign(p) * value(Math.abs(p)) * largest).toPrecision(2)));
  return make(
    "div",
    { class: "legend" },
    make(
      "div",
      { class: "legend-ramp" },
      canvas,
      make(
        "div",
        { class: "legend-numbers" },
        ...positions.map((p) => make("span", { text: number(p) })),
      ),
    ),
    make("div", { class: "legend-masked" }, make("i"), make("span", { text: "masked" })),
  );
}
