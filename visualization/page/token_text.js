// Tokens as people can read them: white space is visible, long tokens are shortened, and each
// token has its own direction of writing.

const PICTURES = new Map([
  [" ", "␣"],
  ["\u00a0", "⍽"],
  ["\n", "⏎"],
  ["\r", "␍"],
  ["\t", "⇥"],
]);
// Characters without a shape of their own, among them those that change the direction of writing.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/u;

function visibleText(token) {
  if (token === "") return "∅";
  let text = "";
  const letters = [...token];
  letters.forEach((letter, place) => {
    const joins = letter === "\u200c" || letter === "\u200d"; // parts of words and of emoji
    if (PICTURES.has(letter)) text += PICTURES.get(letter);
    else if (joins && place > 0 && place < letters.length - 1) text += letter;
    else if (UNSEEN.test(letter)) {
      text += `‹${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;
    } else text += letter;
  });
  return text;
}

// Text whose spaces are visible only where they would be overlooked: at its ends.
function visibleEnds(text) {
  return text.replace(/^\s+|\s+$/g, visibleText);
}

function capitalized(word) {
  return word.slice(0, 1).toUpperCase() + word.slice(1);
}

const segmenter = typeof Intl.Segmenter === "function" ? new Intl.Segmenter() : null;

function shortened(text, limit) {
  const letters = segmenter ? Array.from(segmenter.segment(text), (s) => s.segment) : [...text];
  return letters.length <= limit ? text : `${letters.slice(0, limit - 1).join("")}…`;
}

// A token as an element. Its full text appears on hover where it was shortened.
function tokenElement(token, limit = 16) {
  const full = visibleText(token);
  const short = shortened(full, limit);
  return make("bdi", {
    class: "token",
    dir: "auto",
    text: short,
    title: short === full ? null : full,
  });
}

// A token and its position, for readouts.
function placedToken(token, index) {
  return make(
    "span",
    { class: "placed" },
    tokenElement(token, 24),
    make("sub", { text: String(index) }),
  );
}
