// The dashboard: asks for the key, lists jobs, shows one job. All text is set as text, never as markup.

import { Problem, call, key } from "./api.js";
import { h, headline, secondsText, stateBadge, stageTitle, timeText } from "./words.js";
import { showJob } from "./job.js";

const main = document.getElementById("main");
const link = document.getElementById("link");
const signOut = document.getElementById("sign-out");
let page = new AbortController();

export function setLink(state, text) {
  link.className = `link ${state}`;
  link.textContent = text;
}

signOut.addEventListener("click", () => { key.forget(); open(); });
window.addEventListener("hashchange", open);
open();

function open() {
  page.abort();
  page = new AbortController();
  setLink("", "");
  signOut.hidden = !key.get();
  if (!key.get()) return signIn();
  const job = location.hash.match(/^#\/jobs\/([\w-]+)$/);
  const shown = job ? showJob(main, job[1], page.signal, setLink) : showJobs(page.signal);
  shown.catch((error) => { if (error.name !== "AbortError") fail(error); });
}

function fail(error) {
  if (error instanceof Problem && error.status === 401) {
    key.forget();
    return signIn(`${error.message} ${error.remedy}`);
  }
  main.replaceChildren(h("div", { class: "notice bad", role: "alert" }, h("p", {}, error.message), h("p", {}, error.remedy ?? ""), h("a", { href: "#/" }, "All jobs")));
}

function signIn(reason = "") {
  signOut.hidden = true;
  const input = h("input", { id: "key", type: "password", autocomplete: "off", required: "", placeholder: "dgk_…" });
  const said = h("p", { class: "small dream", role: "alert" }, reason);
  const form = h("form", { class: "card sign-in" },
    h("h1", {}, "Enter your API key"),
    h("p", { class: "soft" }, "The gateway made one at its first start: see ", h("code", {}, "admin.key"), " in its state folder, or its log. The key stays in this tab."),
    h("label", { for: "key" }, "API key"), input,
    h("button", { class: "main", type: "submit" }, "Open the dashboard"), said);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    try {
      await call("/v1/jobs?limit=1");
      open();
    } catch (error) {
      key.forget();
      said.textContent = `${error.message} ${error.remedy ?? ""}`;
    }
  });
  main.replaceChildren(form);
  input.focus();
}

async function showJobs(signal) {
  document.title = "Jobs · DreamGym";
  const body = h("div", {});
  main.replaceChildren(h("section", { class: "card", "aria-label": "Jobs" }, h("div", { class: "row spread" }, h("h1", {}, "Jobs")), body));
  main.focus({ preventScroll: true });
  let drawn = "";
  while (!signal.aborted) {
    try {
      const { items } = await call("/v1/jobs?limit=50", { signal });
      setLink("live", "live");
      const now = JSON.stringify(items);
      if (now !== drawn) body.replaceChildren(items.length ? jobTable(items) : noJobs());
      drawn = now;
    } catch (error) {
      if (error.name === "AbortError" || error.status === 401) throw error;
      setLink("lost", error.message);
      drawn = "";
    }
    await new Promise((resolve) => setTimeout(resolve, 3000));
  }
}

function jobTable(items) {
  const rows = items.map((job) => {
    const href = `#/jobs/${job.id}`;
    const current = job.stages.find((stage) => stage.state === "running");
    const real = job.stages.map((stage) => stage.result?.real).filter(Boolean).at(-1);
    const until = job.finished_at ? new Date(job.finished_at) : new Date();
    const row = h("tr", { "data-href": href },
      h("td", {}, h("a", { href }, job.name || job.kind), h("div", { class: "soft small mono wide-only" }, job.id)),
      h("td", {}, stateBadge(job.state)),
      h("td", { class: "wide-only" }, job.environment.name),
      h("td", {}, `${job.progress.stages_done} of ${job.progress.stages_total}`, current ? h("div", { class: "soft small" }, stageTitle(current)) : ""),
      h("td", {}, real ? headline(real, "real") : h("span", { class: "soft" }, "–")),
      h("td", { class: "number wide-only" }, job.started_at ? secondsText((until - new Date(job.started_at)) / 1000) : "–"),
      h("td", { class: "number wide-only soft" }, timeText(job.created_at)));
    row.addEventListener("click", () => { location.hash = href; });
    return row;
  });
  const heads = [["Job"], ["State"], ["Environment", "wide-only"], ["Stages"], ["Newest REAL success"], ["Took", "number wide-only"], ["Launched", "number wide-only"]];
  return h("div", { class: "scroll" }, h("table", { class: "job-list" },
    h("thead", {}, h("tr", {}, ...heads.map(([text, kind = ""]) => h("th", { class: kind, scope: "col" }, text)))),
    h("tbody", {}, ...rows)));
}

function noJobs() {
  const example = `curl -X POST ${location.origin}/v1/jobs -H "X-API-Key: $KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '{"kind": "pipeline", "environment": "household"}'`;
  return h("div", {}, h("p", { class: "soft" }, "No jobs yet. With an environment and its trajectories in place, this trains an agent:"), h("pre", {}, example));
}
