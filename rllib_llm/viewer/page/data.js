// What the page knows: the run, its episodes, and columns of tokens.

async function unpack() {
  const bytes = Uint8Array.from(atob($("data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// One number per token of a turn, or null: the file writes equal numbers of a turn once.
function column(turn, name) {
  if (!turn.columns) return null;
  if (name === "surprise") return column(turn, "logp")?.map((x) => known(x) ? -x : null);
  if (name === "distance") return column(turn, "gap")?.map((x) => known(x) ? Math.abs(x) : null);
  const values = turn.columns[name];
  if (values === undefined) return null;
  return Array.isArray(values) ? values : turn.columns.text.map(() => values);
}

const texts = new WeakMap();
function textOf(episode) {
  if (!texts.has(episode)) {
    const all = episode.turns.map((t) => `${t.observation}\n${t.completion}`);
    texts.set(episode, [...all, episode.final_observation].join("\n").toLowerCase());
  }
  return texts.get(episode);
}

const sameTask = (a, b) =>
  known(a.group_id) && a.group_id === b.group_id && a.trial === b.trial &&
  a.iteration === b.iteration && a.split === b.split;

const rolloutsOfGroup = (episodes, episode) => {
  const group = episodes.filter((other) => other === episode || sameTask(other, episode));
  return group.sort((a, b) => a.rollout - b.rollout);
};
