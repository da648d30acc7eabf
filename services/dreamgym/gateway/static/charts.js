// Line charts as SVG: axes with round ticks, a legend that shows the values under the pointer, interval bars.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 380, HEIGHT = 190, LEFT = 46, RIGHT = 12, TOP = 8, BOTTOM = 34;
const MOST_POINTS = 400;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) found.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  return found;
}

export function formatValue(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (unit === "%") return `${(100 * value).toFixed(Math.abs(value) < 0.0995 && value !== 0 ? 1 : 0)} %`;
  const size = Math.abs(value);
  const text = size !== 0 && (size < 0.001 || size >= 1e6) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  return text;
}

function thinned(points) {
  if (points.length <= MOST_POINTS) return points;
  const stride = points.length / MOST_POINTS;
  const kept = Array.from({ length: MOST_POINTS }, (_, i) => points[Math.floor(i * stride)]);
  return [...kept, points.at(-1)];
}

function verticalRange(series, whole) {
  if (whole) return [0, 1];
  const values = series.flatMap((one) => one.points.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]));
  let low = Math.min(...values), high = Math.max(...values);
  if (low > 0 && low < 0.4 * high) low = 0;
  if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
  const room = (high - low) * 0.06;
  return [low === 0 ? 0 : low - room, high + room];
}

// series: [{name, colour: 0..3, dashed, points: [{x, y, low, high, n}]}]; x are numbers, `labels` names whole ones.
export function lineChart({ title, unit = "", xTitle, series, labels, whole = false, wide = false }) {
  const shown = series.map((one) => ({ ...one, points: thinned(one.points.filter((point) => Number.isFinite(point.y))) })).filter((one) => one.points.length);
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = unit && unit !== "%" ? `${title} (${unit})` : title;
  const legend = document.createElement("div");
  legend.className = "legend";
  figure.append(caption, legend);
  if (!shown.length) {
    legend.textContent = "No points yet.";
    return figure;
  }
  const width = wide ? 1000 : WIDTH, height = wide ? 230 : HEIGHT;
  const xs = [...new Set(shown.flatMap((one) => one.points.map((point) => point.x)))].sort((a, b) => a - b);
  const pad = labels ? 0.5 : xs.length > 1 ? 0 : 0.5;
  const [xLow, xHigh] = [xs[0] - pad, xs.at(-1) + pad];
  const [yLow, yHigh] = verticalRange(shown, whole);
  const X = (x) => LEFT + ((x - xLow) / (xHigh - xLow)) * (width - LEFT - RIGHT);
  const Y = (y) => TOP + (1 - (y - yLow) / (yHigh - yLow)) * (height - TOP - BOTTOM);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img" });
  chart.append(svg("title", {}, `${title}: ` + shown.map((one) => `${one.name} ${formatValue(one.points.at(-1).y, unit)}`).join(", ")));
  for (const tick of ticks(yLow, yHigh, 5)) {
    chart.append(svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: Y(tick), y2: Y(tick) }));
    chart.append(svg("text", { x: LEFT - 6, y: Y(tick) + 4, "text-anchor": "end" }, formatValue(tick, unit)));
  }
  const marks = labels ? xs : ticks(xLow, xHigh, Math.min(6, Math.max(1, xs.length - 1))).filter((tick) => Number.isInteger(tick));
  for (const mark of marks) {
    chart.append(svg("text", { x: X(mark), y: height - BOTTOM + 16, "text-anchor": "middle" }, labels ? labels.get(mark) ?? "" : formatValue(mark)));
  }
  if (xTitle) chart.append(svg("text", { x: (LEFT + width - RIGHT) / 2, y: height - 3, "text-anchor": "middle" }, xTitle));
  shown.forEach((one, index) => {
    const group = svg("g", { class: `c${one.colour}` });
    const shift = labels ? (index - (shown.length - 1) / 2) * 10 : 0;
    const path = one.points.map((point, i) => `${i ? "L" : "M"}${(X(point.x) + shift).toFixed(1)} ${Y(point.y).toFixed(1)}`).join("");
    group.append(svg("path", { class: one.dashed ? "curve dashed" : "curve", d: path }));
    for (const point of one.points) {
      const x = X(point.x) + shift;
      if (point.low !== undefined) {
        group.append(svg("line", { class: "bar", x1: x, x2: x, y1: Y(point.low), y2: Y(point.high) }));
        for (const end of [point.low, point.high]) group.append(svg("line", { class: "bar", x1: x - 4, x2: x + 4, y1: Y(end), y2: Y(end) }));
      }
      if (one.points.length <= 40) group.append(svg("circle", { class: "dot", cx: x, cy: Y(point.y), r: 3.5 }));
    }
    chart.append(group);
  });
  figure.append(chart);
  addReadout(chart, legend, { shown, xs, X, unit, labels, width, height });
  return figure;
}

function addReadout(chart, legend, { shown, xs, X, unit, labels, width, height }) {
  const cross = svg("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  chart.append(cross);
  const entries = shown.map((one) => {
    const entry = document.createElement("span");
    entry.className = `c${one.colour}${one.dashed ? " dashed" : ""}`;
    legend.append(entry);
    return entry;
  });
  const say = (x) => shown.forEach((one, i) => {
    const point = x === undefined ? one.points.at(-1) : one.points.find((candidate) => candidate.x === x);
    let text = `${one.name} ${formatValue(point?.y, unit)}`;
    if (point?.low !== undefined) text += ` [${formatValue(point.low, unit)}, ${formatValue(point.high, unit)}] n = ${point.n}`;
    if (i === 0 && x !== undefined) text += labels ? ` · ${labels.get(x) ?? x}` : ` · at ${x}`;
    entries[i].textContent = text;
  });
  say();
  chart.addEventListener("pointermove", (event) => {
    const at = ((event.clientX - chart.getBoundingClientRect().left) / chart.getBoundingClientRect().width) * width;
    const nearest = xs.reduce((best, x) => (Math.abs(X(x) - at) < Math.abs(X(best) - at) ? x : best), xs[0]);
    cross.setAttribute("x1", X(nearest));
    cross.setAttribute("x2", X(nearest));
    cross.setAttribute("visibility", "visible");
    say(nearest);
  });
  chart.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); say(); });
}
