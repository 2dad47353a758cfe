// Charts of the history. Without this script, the same numbers are in a table.
"use strict";
(() => {
  const box = document.querySelector("[data-history]");
  if (!box || typeof uPlot === "undefined") return;
  const problem = document.getElementById("history-problem");
  const every = 60000; // ms between two looks at the server: minutes are counted once
  const height = 220;
  let data = null;
  let plots = [];
  let looked = 0;

  const rounded = (n) => (n >= 100 ? n.toFixed(0) : String(+n.toPrecision(3)));
  const count = (n) => (n == null ? "–" : n >= 1e6 ? rounded(n / 1e6) + " M" : n >= 1e4 ? rounded(n / 1e3) + " k" : rounded(n));
  const time = (s) => {
    if (s == null) return "–";
    if (s === 0) return "0";
    if (s < 1) return rounded(s * 1000) + " ms";
    if (s < 120) return rounded(s) + " s";
    if (s < 7200) return rounded(s / 60) + " min";
    return s < 172800 ? rounded(s / 3600) + " h" : rounded(s / 86400) + " d";
  };
  const clock = (s) => (data.hours > 24 ? weirTimes.weekday : weirTimes.minute)(new Date(s * 1000));
  const seconds = (s) => s || null;
  const perMinute = (name) => (p) => p[name] / (data.step / 60);

  // Steps between ticks: whole numbers of jobs, and times that are round in their units.
  const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => [1, 2, 5].map((n) => +(n + "e" + (from + i)))).flat();
  const steps = {
    y: powers(0, 12),
    time: [...powers(-4, 0), 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, ...powers(0, 4).map((d) => d * 172800)],
  };

  // A line through one point can't be seen: points without neighbours are drawn as such.
  const alone = (plot, series, all) => {
    if (all) return null;
    const values = plot.data[series];
    return values.flatMap((v, i) => (v != null && values[i - 1] == null && values[i + 1] == null ? [i] : []));
  };

  // Lines differ in their dashes too, not only in their colours.
  const line = (label, colour, value, more = {}) => ({ label, colour, value, scale: "y", ...more });
  const quantiles = (what) => [
    line("p50", "--accent", (p) => seconds(p[what + "_p50"]), { scale: "time" }),
    line("p95", "--warn", (p) => seconds(p[what + "_p95"]), { scale: "time", dash: [6, 4] }),
  ];
  const charts = {
    ended: [
      line("completed", "--good", perMinute("completed")),
      line("retried", "--warn", perMinute("retried"), { dash: [6, 4] }),
      line("failed", "--bad", perMinute("failed"), { width: 2.5 }),
      line("cancelled", "--soft", perMinute("cancelled"), { dash: [2, 3] }),
    ],
    waiting: [line("waiting", "--accent", (p) => p.waiting), line("oldest", "--warn", (p) => p.oldest, { scale: "time", dash: [6, 4] })],
    wait: quantiles("wait"),
    run: quantiles("run"),
  };

  const draw = () => {
    for (const plot of plots) plot.destroy();
    plots = [];
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const fromZero = (floor) => ({ range: (_, least, most) => [0, Math.max(most * 1.05, floor) || 1] });
    const ages = data.points.map((p) => Date.parse(p.at) / 1000);
    for (const part of box.querySelectorAll("[data-chart]")) {
      const lines = charts[part.dataset.chart];
      const axis = (scale, side) => ({
        scale, side, size: 64, stroke: colour("--soft"), ticks: { stroke: colour("--line") },
        grid: { stroke: colour("--line"), width: 1, show: side !== 1 }, incrs: steps[scale], values: (_, all) => all.map(scale === "time" ? time : count),
      });
      const scales = [...new Set(lines.map((l) => l.scale))];
      const options = {
        width: part.clientWidth, height, padding: [8, scales.length > 1 ? 0 : 32, 0, 0], cursor: { sync: { key: "weir" }, drag: { x: false, y: false } },
        scales: { x: { time: true }, y: fromZero(1), time: fromZero(0) },
        axes: [{ ...axis("x", 2), size: 40, space: data.hours > 24 ? 100 : 60, values: (_, all) => all.map(clock) }, ...scales.map((s, i) => axis(s, i ? 1 : 3))],
        series: [{ label: "Time in " + weirTimes.zone, value: (_, v) => (v == null ? "–" : clock(v)) }, ...lines.map((l) => ({
          label: l.label, scale: l.scale, stroke: colour(l.colour), width: l.width ?? 1.5, dash: l.dash, points: { filter: alone }, value: (_, v) => (l.scale === "time" ? time : count)(v),
        }))],
      };
      part.replaceChildren();
      plots.push(new uPlot(options, [ages, ...lines.map((l) => data.points.map(l.value))], part));
      part.querySelector("canvas").setAttribute("aria-hidden", "true"); // the table says the same
    }
  };

  const look = async () => {
    looked = Date.now();
    try {
      const answer = await fetch(weirAddress(box.dataset.history), { headers: { Accept: "application/json" }, cache: "no-store", signal: AbortSignal.timeout(15000) });
      if (answer.redirected || answer.status === 401) return; // the page is loaded again, to log in
      if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? answer.statusText);
      data = await answer.json();
      data.points ??= [];
      box.hidden = data.points.length === 0;
      problem.hidden = true;
      if (!box.hidden) draw();
    } catch (error) {
      problem.textContent = "The charts are not up to date: " + error.message;
      problem.hidden = false;
    }
  };

  new ResizeObserver(() => {
    for (const plot of plots) {
      const width = plot.root.parentElement.clientWidth;
      if (width !== plot.width && width > 0) plot.setSize({ width, height });
    }
  }).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && !box.hidden && draw());
  const due = () => !document.hidden && Date.now() - looked >= every && look();
  setInterval(due, 5000);
  document.addEventListener("visibilitychange", due);
  look();
})();
