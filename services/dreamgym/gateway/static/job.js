// The page of one job: state, stages, results, live curves, events.

import { call, followJob } from "./api.js";
import { formatValue, lineChart } from "./charts.js";
import { clockText, h, headline, secondsText, shortData, stageTitle, stateBadge, timeText } from "./words.js";

const CHARTS = [
  { title: "Success", unit: "%", whole: true, curves: [["dream_success", "dream", 0], ["real_success", "REAL", 1], ["canary_dream", "canary in the dream", 0, true], ["canary_real", "canary REAL", 1, true]] },
  { title: "Mean reward", curves: [["reward", "reward", 0]] },
  { title: "KL to the reference policy", unit: "nats", curves: [["kl", "KL", 0]] },
  { title: "Loss of the experience model", unit: "nats per token", curves: [["experience_loss", "loss", 0]] },
  { title: "Loss of the policy", unit: "nats per token", curves: [["policy_loss", "loss", 0]] },
  { title: "Policy loss", curves: [["loss", "loss", 0]] },
  { title: "Entropy", unit: "nats per token", curves: [["entropy", "entropy", 0]] },
  { title: "Invalid actions", unit: "%", curves: [["invalid_rate", "share of steps", 2]] },
  { title: "Time of an iteration", unit: "s", curves: [["rollout_seconds", "playing", 0], ["update_seconds", "learning", 2]] },
  { title: "Groups of rollouts", curves: [["groups_used", "used", 0], ["groups_zero_variance", "without variance", 2], ["groups_incomplete", "incomplete", 3]] },
  { title: "Tasks", curves: [["synthetic_tasks", "synthetic in the iteration", 0], ["generated_tasks", "newly generated", 2]], more: true },
  { title: "Clipped share", unit: "%", curves: [["clip_fraction", "share of tokens", 2]], more: true },
];
const KNOWN = new Set([...CHARTS.flatMap((chart) => chart.curves.map(([name]) => name)), "progress", "seconds", "dream_episodes", "real_episodes"]);
const X_TITLES = { train_policy: "iteration", sim_to_real: "iteration", train_experience_model: "optimiser step" };
const SHOWN_EVENTS = 1500;

export async function showJob(main, id, signal, setLink) {
  const view = { id, main, signal, job: await call(`/v1/jobs/${id}`, { signal }), metrics: new Map(), dirty: new Set(), fetchedAt: Date.now() };
  build(view);
  drawJob(view);
  main.focus({ preventScroll: true });
  const clock = setInterval(() => draw(view), 1000);
  signal.addEventListener("abort", () => clearInterval(clock));
  await followJob(id, {
    signal,
    onLink: (live) => setLink(live ? "live" : "lost", live ? "live" : "connection lost, trying again"),
    onEvent: (event, data) => received(view, event, data),
  });
  setLink("", "");
  clearInterval(clock);
  await refresh(view);
  draw(view);
}

function build(view) {
  view.head = h("section", { class: "card", "aria-label": "Job" });
  view.stages = h("section", { class: "card", "aria-label": "Stages" });
  view.results = h("section", { class: "card", "aria-label": "Results", hidden: "" });
  view.curves = h("div", { class: "card curves", hidden: "" });
  view.stageCurves = new Map();
  view.log = h("ol", { class: "log", tabindex: "0", "aria-label": "Events, newest first" });
  const log = h("section", { class: "card" }, h("h2", {}, "What happened"), view.log);
  view.main.replaceChildren(h("a", { href: "#/", class: "small" }, "← All jobs"), view.head, view.stages, view.results, view.curves, log);
}

function received(view, event, data) {
  if (event === "metric") {
    const place = `${data.stage}|${data.name}`;
    if (!view.metrics.has(place)) view.metrics.set(place, new Map());
    view.metrics.get(place).set(data.step, data.value);
    view.dirty.add(data.stage);
  } else if (event === "job_event") {
    addToLog(view, data);
    if (/^(job|stage|dispatch|lease|model)\./.test(data.type)) refreshSoon(view);
  }
  if (!view.drawing) view.drawing = setTimeout(() => { view.drawing = null; draw(view); }, 150);
}

function refreshSoon(view) {
  view.refreshing ??= setTimeout(() => { view.refreshing = null; refresh(view).catch(() => {}); }, 250);
}

async function refresh(view) {
  view.job = await call(`/v1/jobs/${view.id}`, { signal: view.signal });
  view.fetchedAt = Date.now();
  drawJob(view);
}

function draw(view) {
  drawStages(view);
  for (const stage of view.dirty) drawStageCurves(view, stage);
  view.dirty.clear();
}

function drawJob(view) {
  drawHead(view);
  drawStages(view);
  drawResults(view);
  for (const stage of view.job.stages) view.dirty.add(stage.index);
}

function drawHead(view) {
  const { job } = view;
  const title = job.name || (job.kind === "pipeline" ? "Pipeline" : job.kind);
  document.title = `${title}: ${job.state} · DreamGym`;
  const buttons = [];
  const add = (text, action, kind = "") => {
    const button = h("button", { type: "button", class: kind }, text);
    button.addEventListener("click", () => steer(view, action, button));
    buttons.push(button);
  };
  if (["queued", "running"].includes(job.state)) add("Pause", "pause");
  if (job.state === "paused") add("Resume", "resume", "main");
  if (job.state === "failed") add("Retry from the failed stage", "retry", "main");
  if (["queued", "running", "paused", "pausing"].includes(job.state)) add("Cancel", "cancel", "danger");
  const notices = [];
  if (job.error) notices.push(h("div", { class: "notice bad", role: "alert" }, h("p", {}, h("b", {}, job.error.message || job.error.code)), h("p", {}, job.error.remedy ?? "")));
  if (job.dispatch_error && job.state === "queued") notices.push(h("div", { class: "notice warn" }, h("p", {}, h("b", {}, "The queue does not take the job yet: "), job.dispatch_error), h("p", {}, "It is stored and sent again by itself. Check that the broker runs.")));
  view.said = h("div", { class: "small", role: "alert" });
  const fact = (name, value) => h("span", {}, `${name} `, h("b", {}, value));
  const facts = [fact("environment", job.environment.name), fact("launched", timeText(job.created_at)), fact("attempt", String(job.attempt)), fact("seed", String(job.seed))];
  if (job.worker) facts.push(fact("worker", job.worker));
  view.head.replaceChildren(
    h("div", { class: "row spread" }, h("div", { class: "row" }, h("h1", {}, title), stateBadge(job.state)), h("div", { class: "row" }, ...buttons)),
    h("div", { class: "soft small mono" }, job.id), h("div", { class: "facts" }, ...facts), view.said, ...notices);
}

async function steer(view, action, button) {
  if (action === "cancel" && button.textContent === "Cancel") {
    button.textContent = "Really cancel?";
    setTimeout(() => { button.textContent = "Cancel"; }, 4000);
    return;
  }
  button.disabled = true;
  try {
    view.job = await call(`/v1/jobs/${view.id}/${action}`, { method: "POST" });
    drawJob(view);
    if (["resume", "retry"].includes(action)) window.dispatchEvent(new HashChangeEvent("hashchange"));
  } catch (error) {
    button.disabled = false;
    view.said.textContent = `${error.message} ${error.remedy ?? ""}`;
  }
}

function newest(view, stage, name) {
  return [...(view.metrics.get(`${stage}|${name}`) ?? new Map()).values()].at(-1);
}

function drawStages(view) {
  const since = (Date.now() - view.fetchedAt) / 1000;
  const rows = view.job.stages.map((stage) => {
    const running = stage.state === "running";
    const seconds = running ? (stage.seconds ?? 0) + since : stage.seconds;
    return h("li", {}, h("span", { class: "soft" }, String(stage.index + 1)), h("span", {}, stageTitle(stage)), stateBadge(stage.state),
      h("span", { class: "time soft small" }, secondsText(seconds)), h("span", { class: "found small" }, ...(running ? progressOf(view, stage) : finding(stage))));
  });
  view.stages.replaceChildren(h("h2", {}, "Stages"), h("ol", { class: "stages" }, ...rows));
}

function progressOf(view, stage) {
  const played = ["dream", "real"].map((where) => [where, newest(view, stage.index, `${where}_episodes`)]).filter(([, count]) => count);
  if (played.length) return [played.map(([where, count]) => `${count} ${where === "real" ? "REAL" : "dream"} episodes`).join(", ")];
  const share = newest(view, stage.index, "progress");
  if (share === undefined) return [h("span", { class: "soft" }, "working …")];
  return [h("progress", { value: share, max: 1, "aria-label": stageTitle(stage) }), ` ${Math.round(100 * share)} %`];
}

function finding(stage) {
  const { result } = stage;
  if (!result) return [];
  const found = ["dream", "real"].filter((where) => result[where]?.value !== undefined).map((where) => headline(result[where], where));
  if (found.length) return found;
  if (result.state_exact) return [`next state exact ${formatValue(result.state_exact.value, "%")}, success F1 ${formatValue(result.success?.f1)}`];
  for (const where of ["dream", "real"]) {
    if (result[`${where}_success_last`] === undefined || result[`${where}_success_last`] === null) continue;
    const moved = `${where} success ${formatValue(result[`${where}_success_first`], "%")} → ${formatValue(result[`${where}_success_last`], "%")}`;
    return [`${moved}, ${result.iterations_done} iterations`, result.stopped_by ? `; stopped by ${result.stopped_by}` : ""];
  }
  return [result.loss_end !== undefined ? `loss ${formatValue(result.loss_start)} → ${formatValue(result.loss_end)}` : result.version ?? ""];
}

function drawResults(view) {
  const evaluations = view.job.stages.filter((stage) => stage.result?.dream || stage.result?.real);
  view.results.hidden = !evaluations.length;
  if (!evaluations.length) return;
  const interval = (found) => found.low === undefined ? "" : h("span", { class: "interval" }, `[${Math.round(100 * found.low)}, ${Math.round(100 * found.high)}] % n = ${found.n}`);
  const cell = (found, where) => found ? h("td", {}, h("span", { class: "headline" }, h("b", { class: where }, formatValue(found.value, "%")), interval(found))) : h("td", { class: "soft" }, "–");
  const rows = evaluations.map((stage) => {
    const { dream, real } = stage.result;
    const gap = dream && real ? `${dream.value >= real.value ? "+" : "−"}${Math.abs(100 * (dream.value - real.value)).toFixed(0)} points` : "–";
    return h("tr", {}, h("td", {}, stage.label || stageTitle(stage)), cell(dream, "dream"), cell(real, "real"), h("td", { class: "number" }, gap), h("td", { class: "number wide-only" }, String(stage.result.real_transitions ?? "–")));
  });
  const head = (text, kind = "") => h("th", { scope: "col", class: kind }, text);
  const table = h("table", {}, h("thead", {}, h("tr", {}, head("Evaluation"), head("In the dream"), head("REAL"), head("Dream − REAL", "number"), head("Real steps used", "number wide-only"))), h("tbody", {}, ...rows));
  const labels = new Map(evaluations.map((stage, i) => [i, stage.label || stageTitle(stage)]));
  const series = [["dream", "dream", 0], ["real", "REAL", 1]].map(([where, name, colour]) => ({
    name, colour, points: evaluations.flatMap((stage, i) => stage.result[where] ? [{ x: i, y: stage.result[where].value, ...stage.result[where] }] : []),
  }));
  const parts = [h("h2", {}, "Success in the dream and in reality"), h("div", { class: "scroll" }, table), h("p", { class: "soft small" }, "Held-out tasks; 95 % Wilson intervals. Only REAL counts: the dream's own figure shows how far it flatters.")];
  if (evaluations.length > 1) parts.push(h("div", { class: "charts wide" }, lineChart({ title: "By evaluation", unit: "%", whole: true, series, labels, wide: window.innerWidth > 700 })));
  view.results.replaceChildren(...parts);
}

function drawStageCurves(view, index) {
  const stage = view.job.stages[index];
  if (!stage || stage.kind === "evaluate") return;
  const points = (name) => [...(view.metrics.get(`${index}|${name}`) ?? new Map())].sort((a, b) => a[0] - b[0]).map(([x, y]) => ({ x, y }));
  const xTitle = stage.spec.algorithm === "sft" ? "optimiser step" : X_TITLES[stage.kind] ?? "step";
  const charts = [], more = [];
  for (const chart of CHARTS) {
    const series = chart.curves.map(([name, text, colour, dashed]) => ({ name: text, colour, dashed, points: points(name) })).filter((one) => one.points.length);
    if (series.length) (chart.more ? more : charts).push(lineChart({ ...chart, xTitle, series }));
  }
  for (const place of [...view.metrics.keys()].sort()) {
    const [owner, name] = place.split("|");
    if (Number(owner) === index && !KNOWN.has(name)) more.push(lineChart({ title: name.replaceAll("_", " "), xTitle, series: [{ name: "value", colour: 3, points: points(name) }] }));
  }
  if (!charts.length && !more.length) return;
  if (stage.kind === "measure_fidelity") return;
  let place = view.stageCurves.get(index);
  if (!place) {
    place = { charts: h("div", { class: "charts" }), more: h("div", { class: "charts" }), details: h("details", {}) };
    place.details.append(h("summary", {}, "More curves"), place.more);
    place.section = h("section", {}, h("h2", {}, `${index + 1}. ${stageTitle(stage)}`), place.charts, place.details);
    view.stageCurves.set(index, place);
    const order = [...view.stageCurves.entries()].sort((a, b) => a[0] - b[0]).map(([, one]) => one.section);
    view.curves.replaceChildren(...order);
    view.curves.hidden = false;
  }
  place.section.className = charts.length > 1 ? "several" : "";
  place.charts.replaceChildren(...charts);
  place.more.replaceChildren(...more);
  place.details.hidden = !more.length;
}

function addToLog(view, { type, data, at }) {
  const bad = /(failed|lost|error)/.test(type) || data?.to === "failed";
  const entry = h("li", {}, h("span", { class: "soft" }, clockText(new Date(at))), h("span", { class: bad ? "bad" : "" }, type), h("span", { class: "said" }, shortData(data)));
  view.log.prepend(entry);
  while (view.log.childElementCount > SHOWN_EVENTS) view.log.lastElementChild.remove();
}
