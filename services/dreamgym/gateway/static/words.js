// How things are said and drawn in small: elements, times, states, success with its interval.

import { formatValue } from "./charts.js";

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function secondsText(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  const two = (number) => String(number).padStart(2, "0");
  return minutes < 60 ? `${minutes}:${two(whole % 60)} min` : `${Math.floor(minutes / 60)}:${two(minutes % 60)} h`;
}

export const clockText = (date) => date.toLocaleTimeString([], { hour12: false });

export function timeText(moment) {
  const date = new Date(moment), today = new Date().toDateString() === date.toDateString();
  return today ? clockText(date) : `${date.toLocaleDateString()} ${clockText(date)}`;
}

export const stateBadge = (state) => h("span", { class: `state ${state}` }, state);

const KINDS = {
  train_experience_model: "Train the experience model", measure_fidelity: "Measure fidelity", reembed: "Embed anew", train_policy: "Train the policy",
  evaluate: "Evaluate", sim_to_real: "Sim to real",
};

const ALGORITHMS = {
  sft: () => "SFT warm start", expert_iteration: () => "expert iteration in the dream", grpo: (stage) => `GRPO in the ${stage.spec.source}`,
};

export function stageTitle(stage) {
  const title = KINDS[stage.kind] ?? stage.kind;
  if (stage.kind === "train_policy") return `${title}: ${ALGORITHMS[stage.spec.algorithm]?.(stage) ?? stage.spec.algorithm}`;
  return stage.label ? `${title}: ${stage.label}` : title;
}

// "REAL 45 % [33, 58] n = 60"
export function headline(found, where) {
  const interval = found.low !== undefined ? ` [${Math.round(100 * found.low)}, ${Math.round(100 * found.high)}] n = ${found.n}` : "";
  return h("span", { class: "headline" }, h("b", { class: where }, `${where === "real" ? "REAL" : "dream"} ${formatValue(found.value, "%")}`), h("span", { class: "interval" }, interval));
}

export function shortData(data) {
  if (data?.from && data?.to) {
    const { from, to, error, ...rest } = data;
    return [`${from} → ${to}`, error?.message, shortData(rest)].filter(Boolean).join(" · ");
  }
  const parts = Object.entries(data ?? {}).filter(([, value]) => value !== null && value !== "").map(([name, value]) => {
    if (name === "stage") return `stage ${value + 1}`; // counted from 1, as on the page
    if (typeof value === "number") return `${name} ${Number.isInteger(value) ? value : formatValue(value)}`;
    if (typeof value === "object") return `${name} ${JSON.stringify(value)}`;
    return `${name} ${value}`;
  });
  const text = parts.join(" · ");
  return text.length > 400 ? `${text.slice(0, 400)}…` : text;
}
