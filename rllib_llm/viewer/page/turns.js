// One episode: its facts, its turns in lanes, its tokens.

const chip = (name, value, kind = "") =>
  known(value) ? el("span", { class: "chip" }, el("small", {}, `${name} `), el("span", { class: kind }, String(value))) : null;

const solved = (episode) => (known(episode.success) ? (episode.success ? "yes" : "no") : null);

function episodeFacts(episode, trials) {
  const learnt = episode.split !== "train" || !known(episode.trained) ? null
    : episode.trained ? "yes" : "no (dropped or masked)";
  return [
    el("h2", {}, `Iteration ${format(episode.iteration)}, ${episode.split}`),
    chip("return", format(episode.return), signClass(episode.return)),
    chip("solved", solved(episode)),
    chip("ended by", episode.stop_reason),
    chip("advantage", known(episode.advantage) ? format(episode.advantage, true) : null, signClass(episode.advantage)),
    chip("selected as", episode.selected_as),
    chip("group", known(episode.group_id) ? `${episode.group_id}, rollout ${episode.rollout}` : null),
    chip("seed", episode.seed),
    chip("environment", episode.environment),
    chip("turns", episode.num_turns), chip("tokens", episode.num_tokens),
    chip("trained on", learnt),
    chip("weights", episode.weights),
    trials.length > 1 ? chip("trial", trials[episode.trial].name) : null,
  ].filter(known);
}

// What stands below each other: steps of agents that acted at once, gaps, the final observation.
function itemsOf(episode, withLanes) {
  const items = [];
  let expected = 0;
  for (const turn of episode.turns) {
    const last = items.at(-1);
    if (turn.turn > expected) items.push({ gap: turn.turn - expected });
    if (withLanes && last?.turns && last.turns[0].turn === turn.turn) last.turns.push(turn);
    else items.push({ turns: [turn] });
    expected = turn.turn + 1;
  }
  items.push({ end: episode.final_observation });
  return items;
}

function turnFacts(turn) {
  const paid = Object.entries(turn.reward_parts).map(([name, x]) => `${name} ${format(x, true)}`);
  return el(
    "div", { class: "head" },
    el("b", {}, `turn ${turn.turn}`), turn.agent && el("b", {}, turn.agent),
    turn.policy && turn.policy !== turn.agent ? el("span", {}, turn.policy) : null,
    el("span", {}, "reward ", el("b", { class: signClass(turn.reward) }, format(turn.reward, true)),
      paid.length > 1 ? ` = ${paid.join(", ")}` : ""),
    known(turn.advantage) ? el("span", {}, "advantage ", el("b", { class: signClass(turn.advantage) }, format(turn.advantage, true))) : null,
    el("span", {}, `${turn.tokens} tokens`),
    known(turn.logp_mean) ? el("span", {}, `mean log-prob ${format(turn.logp_mean)}`) : null,
    turn.finish === "length" ? el("span", { class: "bad" }, "cut at its token limit") : null,
    turn.invalid ? el("span", { class: "bad" }, "no valid action") : null,
  );
}

function said(turn, view) {
  if (!turn.columns) return el("pre", { class: "said" }, turn.completion);
  const scale = view.scales[view.tint];
  const values = scale ? column(turn, view.tint) : null;
  const trained = column(turn, "trained");
  const tokens = turn.columns.text.map((text, i) => {
    const node = el("span", { "data-token": i }, text);
    if (trained && trained[i] === 0) node.className = "masked";
    else if (values && known(values[i])) {
      [node.style.background, node.style.color] = colours(scale, values[i]);
      node.dataset.value = values[i];
    }
    return node;
  });
  const pre = el("pre", { class: "said", "aria-label": `Answer of turn ${turn.turn}` }, tokens);
  pre.addEventListener("mouseover", (event) => {
    const place = event.target.dataset?.token;
    if (place !== undefined) view.onToken(turn, Number(place));
  });
  return pre;
}

// The pictures of an observation, in order; large ones are not in the transcript.
function pictures(turn) {
  if (!turn.images) return null;
  const shown = turn.images.map(({ digest, png }) =>
    png ? el("img", { src: `data:image/png;base64,${png}`, alt: `Picture ${digest}`, title: digest })
      : el("span", {}, `picture ${digest} is too large to be kept`));
  return el("div", { class: "pictures" }, shown);
}

function turnCard(turn, view) {
  const read = view.asRead && known(turn.prompt) ? turn.prompt : turn.observation;
  const node = el(
    "article", { class: "turn", "aria-label": `Turn ${turn.turn} ${turn.agent ?? ""}` },
    turnFacts(turn), pictures(turn), el("pre", { class: "read", "aria-label": "Read, not trained" }, read),
    said(turn, view),
  );
  node.addEventListener("click", () => view.onTurn(turn));
  node.turn = turn;
  if (turn === view.current) node.classList.add("current");
  return node;
}

function stepNode(item, lanes, view) {
  if (item.gap) return el("p", { class: "left-out" }, `${item.gap} turns left out`);
  if (known(item.end)) {
    return el("div", { class: "step" },
      el("article", { class: "turn" }, el("div", { class: "head" }, el("b", {}, "final observation")),
        el("pre", { class: "read" }, item.end)));
  }
  const cells = item.turns.map((turn) => {
    const card = turnCard(turn, view);
    if (lanes.length > 1) card.style.gridColumn = lanes.indexOf(turn.agent) + 1;
    return card;
  });
  return el("div", { class: "step", style: `--lanes: ${lanes.length || 1}` }, cells);
}

// A column with the turns of one episode; several of them are rollouts of a group side by side.
function episodeColumn(episode, view, heading) {
  const withLanes = view.lanes && !heading && episode.agents.length > 1;
  const lanes = withLanes ? episode.agents : [];
  const items = itemsOf(episode, withLanes);
  const scroll = el("div", { class: "scroll" });
  const names = lanes.length ? el("div", { class: "step lanes", style: `--lanes: ${lanes.length}` }, lanes.map((a) => el("h3", {}, a))) : null;
  const node = el("div", { class: "column" }, heading, names, scroll);
  const list = new VirtualList(scroll, 180, (i) => stepNode(items[i], lanes, view));
  list.setCount(items.length);
  const placeOf = (turn) => items.findIndex((item) => item.turns?.includes(turn));
  return { episode, node, list, placeOf };
}

const TOLD = [
  ["trained", "trained"], ["advantage", "advantage"], ["ratio", "ratio"], ["entropy", "entropy"],
  ["value", "value"], ["logp", "log-prob sampled"], ["old_logp", "log-prob learner"], ["gap", "gap"],
];

function tellToken(turn, place) {
  const text = turn.columns.text[place];
  const told = TOLD.map(([name, title]) => {
    const value = column(turn, name)?.[place];
    if (!known(value)) return null;
    const shown = name === "trained" ? (value ? "yes" : "no") : format(value, name === "advantage");
    return el("span", {}, ` · ${title} `, el("b", {}, shown));
  });
  $("token").replaceChildren(
    `token ${place + 1} of ${turn.columns.text.length} `,
    el("code", {}, text === "" ? "(part of a character)" : JSON.stringify(text).slice(1, -1)), ...told.filter(known),
  );
}
