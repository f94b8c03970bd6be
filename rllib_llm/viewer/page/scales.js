// Colours of tokens. Diverging scales run from orange over the page's own colour to blue,
// sequential ones change lightness all the way: both can be read without telling red from
// green. Limits are quantiles over the whole run, so colours mean the same everywhere.

const TINTS = {
  advantage: { title: "advantage", hint: "as the loss used it", sign: true, least: 1e-6 },
  ratio: { title: "ratio", hint: "new to old probability", sign: true, log: true, least: 0.02 },
  entropy: { title: "entropy", hint: "nats" },
  value: { title: "value", hint: "the critic's, before the token", floats: true },
  distance: { title: "log-prob gap", hint: "|learner − sampler|, nats" },
  surprise: { title: "surprise", hint: "−log-prob when sampled, nats" },
};
const RAMPS = {
  light: {
    two: ["#9a4700", "#f1a340", "#ffffff", "#8fb8de", "#1f5fa8"],
    one: ["#fffdf0", "#cfe8b5", "#6fbfa0", "#3a7fa8", "#3b3372"],
  },
  dark: {
    two: ["#ffb066", "#a8641c", "#1b1e25", "#2d69a8", "#8cc4ff"],
    one: ["#1f2230", "#33427f", "#3a7ea3", "#63bd97", "#f0ec9b"],
  },
};
const MOST_VALUES = 200000;  // looked at to find limits

const theme = () => document.documentElement.dataset.theme;

const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function mix(ramp, share) {
  const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const i = Math.min(Math.floor(place), ramp.length - 2);
  const [a, b] = [parts(ramp[i]), parts(ramp[i + 1])];
  return a.map((x, k) => Math.round(x + (b[k] - x) * (place - i)));
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((v) => {
    const x = v / 255;
    return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

const quantile = (sorted, q) => sorted[Math.round(q * (sorted.length - 1))];

// A scale for each tint of which the run has numbers.
function makeScales(episodes) {
  const scales = {};
  const turns = episodes.flatMap((e) => e.turns).filter((t) => t.columns);
  const tokens = turns.reduce((sum, t) => sum + t.tokens, 0);
  const stride = Math.ceil(tokens / MOST_VALUES) || 1;
  for (const [name, tint] of Object.entries(TINTS)) {
    const values = [];
    turns.forEach((turn, i) => {
      if (i % stride) return;
      for (const x of column(turn, name) || []) {
        if (known(x)) values.push(tint.log ? Math.log(Math.max(x, 1e-9)) : x);
      }
    });
    if (!values.length) continue;
    const sorted = (tint.sign ? values.map(Math.abs) : values).sort((a, b) => a - b);
    const high = Math.max(quantile(sorted, 0.98), tint.least ?? 1e-9);
    const low = tint.sign ? -high : tint.floats ? quantile(sorted, 0.02) : 0;
    scales[name] = { ...tint, low, high: high > low ? high : low + 1e-9 };
  }
  return scales;
}

// Background and text colour of a value.
function colours(scale, x) {
  const value = scale.log ? Math.log(Math.max(x, 1e-9)) : x;
  const ramp = RAMPS[theme()][scale.sign ? "two" : "one"];
  const back = mix(ramp, (value - scale.low) / (scale.high - scale.low));
  const dark = luminance(back) < 0.179;  // where black and white read equally well
  return [`rgb(${back.join(",")})`, dark ? "#ffffff" : "#000000"];
}

function legend(scale) {
  const ramp = RAMPS[theme()][scale.sign ? "two" : "one"];
  const shown = (x) => (scale.log ? format(Math.exp(x)) : format(x, scale.sign));
  return el(
    "span", { class: "legend", "aria-label": `Colours from ${shown(scale.low)} to ${shown(scale.high)}` },
    `≤ ${shown(scale.low)}`,
    el("i", { style: `background: linear-gradient(90deg, ${ramp.join(",")})` }, scale.sign ? shown(0) : null),
    `≥ ${shown(scale.high)}`, el("span", {}, `${scale.hint} · dotted: not trained`),
  );
}
