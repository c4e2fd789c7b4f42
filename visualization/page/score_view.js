// The text, coloured by how surprising each token was to the model.

const SURPRISE = 10; // nats, at the end of the ramp: a probability of 0.00005

function scoreView() {
  const { tokens, logProbabilities, ranks, candidates } = packedData.scores;
  const items = tokens.map((token, place) => {
    const item = make("span", { class: "chip score" }, tokenElement(token, 40));
    const nats = logProbabilities[place];
    const probability = percent(nats === null ? 0 : Math.exp(nats));
    const rank = ranks[place].toLocaleString("en");
    explain(item, () => [
      make("p", {}, placedToken(token, place)),
      make("p", { text: `probability ${probability}, ${decimal(nats, 3)} nats, rank ${rank}` }),
      candidateList(candidates.tokens[place], candidates.probabilities[place]),
    ]);
    return item;
  });
  const text = make("p", { class: "token-strip scores" }, ...items);
  if (items.length) moveWithArrows(text, items, 1e9);
  const legendPlace = make("div", { class: "without-mask" });
  const known = logProbabilities.filter((value) => value !== null);
  const mean = known.reduce((sum, value) => sum + value, 0) / Math.max(1, known.length);
  const first = ranks.filter((rank) => rank === 1).length;

  function paint() {
    const { colours, index } = colouring("linear", SURPRISE, false);
    items.forEach((item, place) => {
      const colour = colours[index(-(logProbabilities[place] ?? -SURPRISE))];
      item.style.backgroundColor = css(colour);
      item.style.color = textOn(colour);
    });
    legendPlace.replaceChildren(legend("linear", SURPRISE, false));
  }

  paint();
  onChange((changed) => changed.has("theme") && paint());
  return make(
    "section",
    { class: "panel", "aria-label": "token probabilities" },
    make("div", { class: "panel-title" }, make("h2", { text: "Token probabilities" })),
    make("p", {
      class: "hint",
      text:
        `${tokens.length} tokens, mean log-probability ${decimal(mean, 3)} nats ` +
        `(perplexity ${shortNumber(Math.exp(-mean))}); ` +
        `${first} were the model's first choice. Colour is −log p in nats.`,
    }),
    text,
    legendPlace,
  );
}
