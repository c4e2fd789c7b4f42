// Reads what visualization/packed_arrays.py wrote: base64, zlib, quantised codes.

const packedData = JSON.parse(document.getElementById("data").textContent);

// Texts are decoded one after the other, so that the first head is seen soon. What a person waits
// for is taken first.
const waiting = [];
let decoding = false;

function inflate(text) {
  return new Promise((resolve, reject) => {
    waiting.push({ text, resolve, reject });
    decodeWaiting();
  });
}

function takeFirst(text) {
  const place = waiting.findIndex((job) => job.text === text);
  if (place > 0) waiting.unshift(...waiting.splice(place, 1));
}

async function decodeWaiting() {
  if (decoding) return;
  decoding = true;
  while (waiting.length > 0) {
    const { text, resolve, reject } = waiting.shift();
    await decode(text).then(resolve, reject);
  }
  decoding = false;
}

async function decode(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// High bytes come first, then low bytes.
function joinPlanes(planes) {
  const count = planes.length / 2;
  const codes = new Uint16Array(count);
  for (let i = 0; i < count; i++) codes[i] = planes[i] * 256 + planes[count + i];
  return codes;
}

// The value of every code. Codes are square roots, so that small values keep their digits.
function valuesOfCodes({ bits, signed, scale }) {
  const largest = 2 ** (bits - (signed ? 1 : 0)) - 1;
  const values = new Float64Array(2 ** bits);
  for (let code = 0; code < values.length; code++) {
    const root = (code - (signed ? largest : 0)) / largest;
    values[code] = Math.sign(root) * root * root * scale;
  }
  return values;
}

// An array whose parts, such as layers, are decoded when they are first asked for.
class PackedArray {
  constructor(packed) {
    this.packed = packed;
    this.values = valuesOfCodes(packed);
    this.parts = new Map();
  }

  codes(part) {
    if (!this.parts.has(part)) {
      const text = this.packed.parts[part];
      const wide = this.packed.bits === 16;
      this.parts.set(part, inflate(text).then((bytes) => (wide ? joinPlanes(bytes) : bytes)));
    }
    return this.parts.get(part);
  }
}

// One stack of layers. `layer` here is the place of a layer among those that are shown.
class AttentionData {
  constructor(map) {
    Object.assign(this, map);
    this.rows = map.queries.length;
    this.columns = map.keys.length;
    this.arrays = { weights: new PackedArray(map.weights) };
    if (map.products) this.arrays.products = new PackedArray(map.products);
    this.masks = new Map();
    this.rowSums = new Map();
  }

  // One byte for each pair of query and key: 1 where attention is allowed.
  // Layers often have the same mask, which is decoded once.
  mask(layer) {
    const text = this.visible[layer];
    if (!this.masks.has(text)) {
      const count = this.rows * this.columns;
      const unpacked = inflate(text).then((bytes) => {
        const mask = new Uint8Array(count);
        for (let i = 0; i < count; i++) mask[i] = (bytes[i >> 3] >> (7 - (i & 7))) & 1;
        return mask;
      });
      this.masks.set(text, unpacked);
    }
    return this.masks.get(text);
  }

  // The sums of rows (head, query) before weights were quantised, in steps of 1e-4.
  rowSumsOf(layer) {
    const text = this.sums[layer];
    if (!this.rowSums.has(text)) this.rowSums.set(text, inflate(text).then(joinPlanes));
    takeFirst(text);
    return this.rowSums.get(text);
  }

  // A matrix of one head: `at(row, column)` is a number, or null where the mask forbids attention.
  async matrix(layer, head, quantity = "weights") {
    const array = this.arrays[quantity];
    const parts = Promise.all([array.codes(layer), this.mask(layer)]);
    takeFirst(this.visible[layer]);
    takeFirst(array.packed.parts[layer]);
    const [codes, mask] = await parts;
    const { rows, columns } = this;
    const start = head * rows * columns;
    const { values } = array;
    return {
      rows,
      columns,
      signed: array.packed.signed,
      at: (row, column) => {
        const place = row * columns + column;
        return mask[place] ? values[codes[start + place]] : null;
      },
    };
  }

  // The mean over the heads of some layers. A pair that no layer allows is null.
  async meanMatrix(layers) {
    const { rows, columns, heads } = this;
    const count = rows * columns;
    const sums = new Float64Array(count);
    const allowed = new Uint8Array(count);
    const { values } = this.arrays.weights;
    for (const layer of layers) {
      const codes = await this.arrays.weights.codes(layer);
      const mask = await this.mask(layer);
      for (let head = 0; head < heads; head++) {
        const start = head * count;
        for (let i = 0; i < count; i++) if (mask[i]) sums[i] += values[codes[start + i]];
      }
      for (let i = 0; i < count; i++) allowed[i] |= mask[i];
    }
    const scale = 1 / (layers.length * heads);
    const at = (row, column) => {
      const place = row * columns + column;
      return allowed[place] ? sums[place] * scale : null;
    };
    return { rows, columns, signed: false, at };
  }

  // Rollout or relevance: one matrix for all layers together.
  async wholeMatrix(name) {
    const array = new PackedArray(this[name]);
    const codes = await array.codes(0);
    const { rows, columns } = this;
    const at = (row, column) => array.values[codes[row * columns + column]];
    return { rows, columns, signed: false, at };
  }

  summary(layer, head) {
    return this.summaries[layer * this.heads + head];
  }
}
