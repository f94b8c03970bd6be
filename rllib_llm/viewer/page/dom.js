// Nodes and numbers. Text of models and environments enters the page as text nodes only.

const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

function fill(node, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return node;
}

const el = (tag, properties = {}, ...children) =>
  fill(document.createElement(tag), properties, children);
const svg = (tag, properties = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

const known = (x) => x !== null && x !== undefined;

// A number as short as its size allows, with a real minus sign.
function format(x, signed = false) {
  if (!known(x)) return "–";
  if (typeof x !== "number") return String(x);
  const size = Math.abs(x);
  let text = Number.isInteger(x) ? String(size) : size.toPrecision(3);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) text = size.toExponential(1);
  else if (text.includes(".")) text = text.replace(/\.?0+$/, "");
  return (x < 0 ? "−" : signed && x > 0 ? "+" : "") + text;
}

const signClass = (x) => (!known(x) || x === 0 ? "" : x > 0 ? "good" : "bad");
