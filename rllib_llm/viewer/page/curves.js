// The run's curves, one small figure for each result key, one line for each trial.

const [WIDTH, HEIGHT, LEFT] = [256, 84, 52];

function curveFigure(curve, onIteration) {
  const all = curve.lines.flatMap((line) => line.points);
  const bounds = (k) => [Math.min(...all.map((p) => p[k])), Math.max(...all.map((p) => p[k]))];
  const [[x0, x1], [y0, y1]] = [bounds(0), bounds(1)];
  const x = (v) => LEFT + ((v - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - 6);
  const y = (v) => 6 + (1 - (v - y0) / (y1 - y0 || 1)) * (HEIGHT - 24);
  const drawn = curve.lines.map((line) => line.points.length > 1
    ? svg("polyline", { class: "curve", points: line.points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") })
    : line.points.map((p) => svg("circle", { class: "dot", cx: x(p[0]), cy: y(p[1]), r: 2.5 })));
  const text = (at, anchor, ...words) => svg("text", { x: at[0], y: at[1], "text-anchor": anchor }, ...words);
  const last = curve.lines.map((line) => format(line.points.at(-1)[1])).join(", ");
  const now = svg("line", { class: "now", y1: 4, y2: HEIGHT - 16, visibility: "hidden" });
  const label = `${curve.title}: ${format(y0)} to ${format(y1)} over iterations ${x0} to ${x1}, last ${last}`;
  const picture = svg("svg", { width: WIDTH, height: HEIGHT, role: "img", "aria-label": label },
    svg("line", { class: "axis", x1: LEFT, x2: WIDTH - 6, y1: HEIGHT - 16, y2: HEIGHT - 16 }),
    drawn.flat(), now,
    text([LEFT - 4, 12], "end", format(y1)), text([LEFT - 4, HEIGHT - 16], "end", format(y0)),
    text([LEFT, HEIGHT - 4], "start", format(x0)), text([WIDTH - 6, HEIGHT - 4], "end", format(x1)));
  picture.addEventListener("click", (event) => {
    const share = (event.offsetX - LEFT) / (WIDTH - LEFT - 6);
    onIteration(Math.round(x0 + Math.min(Math.max(share, 0), 1) * (x1 - x0)));
  });
  const mark = (iteration) => {
    const inside = known(iteration) && iteration >= x0 && iteration <= x1;
    now.setAttribute("visibility", inside ? "visible" : "hidden");
    for (const end of ["x1", "x2"]) now.setAttribute(end, inside ? x(iteration) : 0);
  };
  const node = el("figure", {}, el("figcaption", {}, el("b", { title: curve.key }, curve.title), el("span", {}, last)), picture);
  return { node, mark };
}
