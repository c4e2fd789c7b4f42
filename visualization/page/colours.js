// Colours of numbers. The ramps themselves come from visualization/colour_ramps.py.

function readRamp(name) {
  const digits = packedData.ramps[name];
  const byte = (place) => parseInt(digits.slice(2 * place, 2 * place + 2), 16);
  return Array.from({ length: 256 }, (_, i) => [byte(3 * i), byte(3 * i + 1), byte(3 * i + 2)]);
}

const RAMPS = {
  light: {
    sequential: readRamp("light"),
    diverging: readRamp("light_signed"),
    masked: [[236, 238, 241], [196, 201, 209]], // ground and lines of the hatching
  },
  dark: {
    sequential: readRamp("dark"),
    diverging: readRamp("dark_signed"),
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
  const number = (p) => {
    const exact = Math.sign(p) * value(Math.abs(p)) * largest;
    return shortNumber(Number(exact.toPrecision(2)));
  };
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
