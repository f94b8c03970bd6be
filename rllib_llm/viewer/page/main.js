// State, and what changes it.

const view = {
  episodes: [], shown: [], episode: null, current: null, token: -1, scales: {}, tint: "",
  group: false, lanes: true, asRead: false, columns: [],
};
let run, list, figures = [];

function episodeRow(i) {
  const episode = view.shown[i], [low, high] = view.returns;
  const share = known(episode.return) ? (episode.return - low) / (high - low || 1) : 0;
  const chosen = episode === view.episode;
  const sub = [
    `iteration ${format(episode.iteration)}`, episode.split === "train" ? null : episode.split,
    episode.selected_as, episode.stop_reason, known(episode.group_id) ? `group ${episode.group_id}.${episode.rollout}` : null,
  ];
  return el("div", {
    class: "row", role: "option", id: `row-${i}`, "aria-selected": chosen ? "true" : "false",
    onclick: () => choose(i),
  },
    el("div", { class: "top" }, el("b", { class: signClass(episode.return) }, format(episode.return)),
      el("span", { class: "bar", "aria-hidden": "true" }, el("i", { style: `width: ${(100 * share).toFixed(0)}%` })),
      el("span", {}, known(episode.success) ? (episode.success ? "✓ solved" : "✗ not solved") : "")),
    el("div", { class: "sub" }, sub.filter(known).join(" · ")));
}

function applyFilters() {
  view.shown = filtered($("filters"), view.episodes, run.trials);
  const turns = view.shown.reduce((sum, e) => sum + e.turns.length, 0);
  $("count").textContent = `${view.shown.length} of ${view.episodes.length} episodes, ${turns} turns`;
  list.setCount(view.shown.length);
  if (!view.shown.length) {
    $("list").removeAttribute("aria-activedescendant");
    view.episode = view.current = null;
    drawEpisode();
  } else if (!view.shown.includes(view.episode)) choose(0);
  else list.show(view.shown.indexOf(view.episode));
}

function choose(i) {
  if (!view.shown.length) return;
  const place = Math.min(Math.max(i, 0), view.shown.length - 1);
  view.episode = view.shown[place];
  view.current = view.episode.turns[0] ?? null;
  view.token = -1;
  $("list").setAttribute("aria-activedescendant", `row-${place}`);
  list.redraw();
  list.show(place);
  drawEpisode();
  for (const figure of figures) figure.mark(view.episode.iteration);
}

const step = (by) => choose(view.shown.indexOf(view.episode) + by);

function rolloutHeading(episode) {
  const words = `rollout ${episode.rollout}: return ${format(episode.return)}`;
  const advantage = known(episode.advantage) ? `, advantage ${format(episode.advantage, true)}` : "";
  return el("h3", {
    tabindex: 0, role: "button", title: "Show this one",
    onclick: () => showEpisode(episode),
    onkeydown: (event) => { if (event.key === "Enter") showEpisode(episode); },
  }, words + advantage, known(episode.success) ? (episode.success ? " ✓" : " ✗") : "");
}

function showEpisode(episode) {
  view.group = false;
  const place = view.shown.indexOf(episode);
  if (place >= 0) return choose(place);
  view.episode = episode;
  view.current = episode.turns[0] ?? null;
  list.redraw();
  drawEpisode();
}

function drawEpisode() {
  const episode = view.episode;
  $("facts-of-episode").replaceChildren(...(episode ? episodeFacts(episode, run.trials) : []));
  drawTools();
  if (!episode) {
    view.columns = [];
    $("turns").replaceChildren(el("p", { class: "empty" }, "No episode passes these filters."));
    return;
  }
  const group = view.group ? rolloutsOfGroup(view.episodes, episode) : [episode];
  view.columns = group.map((e) => episodeColumn(e, view, view.group ? rolloutHeading(e) : null));
  for (const { episode: e, node } of view.columns) node.classList.toggle("chosen", view.group && e === episode);
  $("turns").replaceChildren(...view.columns.map((c) => c.node));
  for (const c of view.columns) c.list.draw();
}

function redrawTurns() {
  for (const c of view.columns) c.list.redraw();
}

function drawTools() {
  const episode = view.episode;
  const toggle = (key, title, hint, on) =>
    el("button", { "aria-pressed": String(view[key]), title: hint, id: `tool-${key}`, disabled: !on, onclick: () => flip(key) }, title);
  const tints = Object.entries(view.scales).map(([name, scale]) =>
    el("option", { value: name, selected: name === view.tint }, scale.title));
  const picker = el("select", { id: "tint", onchange: (event) => setTint(event.target.value) },
    el("option", { value: "" }, "none"), tints);
  const many = episode ? rolloutsOfGroup(view.episodes, episode).length : 0;
  $("tools").replaceChildren(
    el("label", {}, "Tint ", picker),
    ...(view.tint ? [legend(view.scales[view.tint])] : []),
    toggle("group", many > 1 ? `Group (${many})` : "Group", "Rollouts of the same task side by side (g)", many > 1),
    toggle("lanes", "Lanes", "A lane for each agent (a)", (episode?.agents.length ?? 0) > 1),
    toggle("asRead", "As read", "Observations as the model read them, template included (r)", true),
  );
}

function flip(key) {
  if ($(`tool-${key}`).disabled) return;
  view[key] = !view[key];
  drawEpisode();
}

function setTint(name) {
  view.tint = name;
  drawTools();
  redrawTurns();
}

function nextTint() {
  const names = ["", ...Object.keys(view.scales)];
  setTint(names[(names.indexOf(view.tint) + 1) % names.length]);
}

const columnOfEpisode = () => view.columns.find((c) => c.episode === view.episode);

function goToTurn(by) {
  const turns = view.episode?.turns ?? [];
  const next = turns[turns.indexOf(view.current) + by];
  if (next) setTurn(next);
}

function setTurn(turn) {
  if (turn !== view.current) view.token = -1;
  view.current = turn;
  const shown = view.columns.find((c) => c.placeOf(turn) >= 0);
  shown.list.show(shown.placeOf(turn));
  for (const node of document.querySelectorAll("article.turn")) node.classList.toggle("current", node.turn === turn);
}

function goToToken(by) {
  const turn = view.current;
  if (!turn?.columns) return;
  setTurn(turn);
  view.token = Math.min(Math.max(view.token + by, 0), turn.columns.text.length - 1);
  const spans = document.querySelectorAll("article.current .said span");
  spans.forEach((span, i) => span.classList.toggle("at", i === view.token));
  spans[view.token]?.scrollIntoView({ block: "nearest" });
  tellToken(turn, view.token);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  if (run) { drawTools(); redrawTurns(); }
}

const flipTheme = () => setTheme(theme() === "dark" ? "light" : "dark");

function openHelp() {
  $("help").showModal();
}

function showRun() {
  $("title").textContent = run.name;
  $("facts").textContent = run.facts.join(" · ");
  $("config").querySelector("pre").textContent = run.config || "This run has no recipe.yaml.";
  $("links").replaceChildren(...run.links.flatMap(([title, href], i) =>
    [i ? " · " : "Files beside this page: ", el("a", { href }, title)]));
  const jump = (iteration) => {
    const place = view.shown.findIndex((e) => e.iteration >= iteration);
    if (place >= 0) choose(place);
  };
  figures = run.curves.map((curve) => curveFigure(curve, jump));
  $("curves").replaceChildren(...figures.map((f) => f.node));
  if (!figures.length) $("curves").textContent = "There is no result.json to draw curves from.";
}

async function main() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  run = await unpack();
  view.episodes = run.episodes;
  const returns = run.episodes.map((e) => e.return).filter(known);
  view.returns = [returns.reduce((a, b) => Math.min(a, b), 0), returns.reduce((a, b) => Math.max(a, b), 0)];
  view.scales = makeScales(run.episodes);
  view.tint = "advantage" in view.scales ? "advantage" : "";
  view.onTurn = setTurn;
  view.onToken = tellToken;
  showRun();
  buildFilters($("filters"), run.episodes, run.trials, applyFilters);
  buildHelp($("help"));
  $("theme").addEventListener("click", flipTheme);
  $("help-button").addEventListener("click", openHelp);
  list = new VirtualList($("list"), 50, episodeRow);
  listenToKeys({
    j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
    n: () => goToTurn(1), p: () => goToTurn(-1),
    l: () => goToToken(1), ArrowRight: () => goToToken(1), h: () => goToToken(-1), ArrowLeft: () => goToToken(-1),
    t: nextTint, g: () => flip("group"), a: () => flip("lanes"), r: () => flip("asRead"),
    "/": () => $("filters").elements.text.focus(), c: () => { $("run").open = !$("run").open; },
    d: flipTheme, "?": openHelp,
  });
  applyFilters();
  document.documentElement.dataset.ready = "yes";
}

main();
