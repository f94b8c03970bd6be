// Which episodes are listed, and in which order.

const ORDERS = {
  "as they came": () => 0,
  "newest first": (a, b) => b.iteration - a.iteration,
  "highest return": (a, b) => b.return - a.return,
  "lowest return": (a, b) => a.return - b.return,
};

const choices = (values) => [...new Set(values.filter(known))].sort();

function select(name, title, options) {
  return el("label", {}, title,
    el("select", { name }, el("option", { value: "" }, "all"),
      options.map((o) => el("option", { value: o }, String(o)))));
}

function range(name, title, step) {
  const field = (end, hint) => el("input", {
    name: name + end, type: "number", step, placeholder: hint, "aria-label": `${title} ${hint}`,
  });
  return el("label", {}, title,
    el("span", { class: "range" }, field("From", "from"), field("To", "to")));
}

function buildFilters(form, episodes, trials, onChange) {
  const agents = choices(episodes.flatMap((e) => e.agents));
  const environments = choices(episodes.map((e) => e.environment));
  form.replaceChildren(
    el("label", { class: "wide" }, "Text of any turn ( / )",
      el("input", { name: "text", type: "search", autocomplete: "off" })),
    range("return", "Return", "any"),
    range("iteration", "Iteration", "1"),
    select("stop", "Stop reason", choices(episodes.map((e) => e.stop_reason))),
    select("split", "Split", choices(episodes.map((e) => e.split))),
    select("selected_as", "Selected as", choices(episodes.map((e) => e.selected_as))),
    el("label", {}, "Task (group or seed)", el("input", { name: "task", inputmode: "numeric" })),
    ...(agents.length ? [select("agent", "Agent", agents)] : []),
    ...(environments.length ? [select("environment", "Environment", environments)] : []),
    ...(trials.length > 1 ? [select("trial", "Trial", trials.map((t) => t.name))] : []),
    el("label", {}, "Order",
      el("select", { name: "order" }, Object.keys(ORDERS).map((o) => el("option", {}, o)))),
  );
  form.addEventListener("input", onChange);
  form.addEventListener("submit", (event) => event.preventDefault());
}

function filtered(form, episodes, trials) {
  const value = (name) => form.elements[name]?.value.trim() ?? "";
  const bound = (name, otherwise) => (value(name) === "" ? otherwise : Number(value(name)));
  const within = (name) => {
    const [low, high] = [bound(`${name}From`, -Infinity), bound(`${name}To`, Infinity)];
    return (e) => (low === -Infinity && high === Infinity) || (e[name] >= low && e[name] <= high);
  };
  const equal = (name, key) => (e) => value(name) === "" || String(key(e)) === value(name);
  const text = value("text").toLowerCase(), task = value("task");
  const tests = [
    within("return"), within("iteration"),
    equal("stop", (e) => e.stop_reason), equal("split", (e) => e.split),
    equal("selected_as", (e) => e.selected_as), equal("trial", (e) => trials[e.trial].name),
    equal("environment", (e) => e.environment),
    (e) => value("agent") === "" || e.agents.includes(value("agent")),
    (e) => task === "" || String(e.group_id) === task || String(e.seed) === task,
    (e) => text === "" || textOf(e).includes(text),
  ];
  return episodes.filter((e) => tests.every((test) => test(e))).sort(ORDERS[value("order")]);
}
