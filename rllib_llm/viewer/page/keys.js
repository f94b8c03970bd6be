// The keyboard; docs/viewer.md lists the same keys.

const KEYS = {
  "j  ↓": "next episode",
  "k  ↑": "previous episode",
  "n": "next turn",
  "p": "previous turn",
  "→  l": "next token of the turn",
  "←  h": "previous token of the turn",
  "t": "next tint",
  "g": "rollouts of the group side by side",
  "a": "a lane for each agent, or one below the other",
  "r": "observations as the model read them, template included",
  "/": "search and filter",
  "c": "curves and configuration",
  "d": "dark or light",
  "?": "these keys",
  "Esc": "leave a field, close this",
};

function buildHelp(dialog) {
  const rows = Object.entries(KEYS).map(([key, what]) => [el("dt", {}, key), el("dd", {}, what)]);
  dialog.replaceChildren(el("h2", {}, "Keys"), el("dl", {}, rows.flat()),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
}

function listenToKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest?.("input, select, textarea");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const action = $("help").open ? null : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
