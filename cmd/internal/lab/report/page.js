"use strict";
(function () {
  const charts = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  // Colours that can be distinguished with any kind of colour vision (after Okabe and Ito). A class or variant has the same colour in all charts.
  const lineColours = {
    light: { symptom: ["#a07c1c", "#c9a227", "#7d6a3a"], baseline: ["#6b6b6b", "#9a8f80"], collapse: ["#c0392b", "#e08214", "#a64d8a"], fix: ["#0072b2", "#009e73", "#56a8dc", "#7a5fb8", "#5f8f1e", "#1f5f7a", "#1c2024", "#8a6d3b"] },
    dark: { symptom: ["#e0c04a", "#c9b458", "#a8945a"], baseline: ["#b9bec4", "#8f8675"], collapse: ["#ff7b6b", "#ffb347", "#e08cc6"], fix: ["#58a6e8", "#3fcf9f", "#a7d8f7", "#b39cf0", "#b5d66a", "#4fb9bf", "#f4f4ec", "#d8b98a"] },
  };
  const classColours = {
    "cpu": "#3f9e5a", "object-lock": "#c8102e", "row-lock": "#e0564a", "other-lock": "#f09a8c", "multixact": "#a64d8a", "notify-queue": "#d47fb5",
    "woken": "#e8963a", "commit": "#3d7fc4", "transaction": "#7a5fb8", "lock-table": "#b08fe0", "snapshot": "#5fb8c9", "buffer": "#c9b458", "io": "#1f5f9a",
    "client-write": "#8fa3ad", "other": "#8c8c50", "idle-in-transaction": "#b9b9b0",
  };

  function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

  function short(v) {
    if (v == null) return "–";
    const a = Math.abs(v);
    if (a >= 1e6) return +(v / 1e6).toFixed(2) + "M";
    if (a >= 1e4) return Math.round(v / 1e3) + "k";
    if (a >= 100) return Math.round(v).toLocaleString("en");
    return String(+v.toPrecision(3));
  }

  // join puts lines with different X values on one X axis; where a line has no point, its value is null.
  function join(chart) {
    if (chart.kind === "stack") return [chart.lines[0].x].concat(chart.lines.map((l) => l.y));
    return uPlot.join(chart.lines.map((l) => [l.x, l.y.map((y) => (chart.y.log && y <= 0 ? null : y))]));
  }

  // nearest finds the point of a series next to the cursor.
  function nearest(u, series, index) {
    const values = u.data[series];
    if (values[index] != null) return index;
    for (let d = 1; d < values.length; d++) {
      if (values[index - d] != null) return index - d;
      if (values[index + d] != null) return index + d;
    }
    return index;
  }

  function draw(box, chart) {
    const width = box.clientWidth;
    const small = chart.kind === "stack";
    const palette = lineColours[dark.matches ? "dark" : "light"];
    const used = { baseline: 0, collapse: 0, fix: 0, symptom: 0 };
    let data = join(chart);
    const plain = data;
    let steps = null;
    if (chart.x.steps) {
      steps = data[0];
      data = [steps.map((_, i) => i)].concat(data.slice(1));
    }
    const series = [{ label: chart.x.label, value: (u, v) => (v == null ? "–" : steps ? short(steps[v]) : short(v)) }];
    const bands = [];
    if (small) {
      let sum = data[0].map(() => 0);
      const stacked = data.slice(1).map((values) => (sum = sum.map((s, i) => s + (values[i] || 0))));
      data = [data[0]].concat(stacked.slice().reverse()); // the largest is drawn first, behind the others
      chart.lines.slice().reverse().forEach((l, i) => {
        const from = chart.lines.length - i;
        series.push({
          label: l.name, stroke: classColours[l.name] || "#888", fill: (classColours[l.name] || "#888") + "cc", width: 1, points: { show: false },
          value: (u, v, s, k) => (k == null ? "–" : short(plain[from][k])),
        });
        if (i > 0) bands.push({ series: [i, i + 1] });
      });
    } else {
      chart.lines.forEach((l) => {
        const kind = l.kind || "fix";
        const colour = palette[kind][used[kind]++ % palette[kind].length];
        series.push({
          label: l.name, stroke: colour, width: l.kind === "collapse" ? 2.4 : 1.6, dash: l.kind === "baseline" ? [6, 4] : undefined, spanGaps: true,
          points: { show: !!steps, size: 6, fill: colour }, value: (u, v) => short(v),
        });
      });
    }
    const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 }, font: "11px system-ui", labelFont: "11px system-ui", labelSize: 18 };
    const options = {
      width: width, height: small ? 190 : 270, series: series, bands: bands,
      cursor: { dataIdx: nearest, points: { size: 6 }, drag: { setScale: false } },
      legend: { show: true, live: true },
      scales: {
        x: { time: false, range: steps ? (u, a, b) => [a - 0.15, b + 0.15] : undefined },
        y: chart.y.log ? { distr: 3 } : { range: (u, a, b) => [0, Math.max(b, 1e-3) * 1.06] },
      },
      axes: [
        Object.assign({}, axis, { label: chart.x.label, size: 34 }, steps ? { splits: () => data[0], values: (u, s) => s.map((v) => short(steps[v])) } : { values: (u, s) => s.map(short) }),
        Object.assign({}, axis, { label: chart.y.label, size: 52, values: (u, s) => s.map((v) => (chart.y.log && !isPowerOfTen(v) && s.length > 12 ? "" : short(v))) }),
      ],
      hooks: { setCursor: [(u) => box.classList.toggle("pointed", u.cursor.left >= 0)], drawClear: [(u) => shade(u, chart.marks || [])], draw: [(u) => mark(u, chart.marks || [])] },
    };
    box.textContent = "";
    new uPlot(options, data, box);
  }

  function isPowerOfTen(v) { return Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9; }

  // shade draws the phases behind the lines, every other one, so that neighbours can be told apart.
  function shade(u, marks) {
    const c = u.ctx;
    c.save();
    c.fillStyle = css("--grid");
    marks.filter((m) => m.until).forEach((m, i) => {
      if (i % 2) return;
      const from = Math.max(u.valToPos(m.at, "x", true), u.bbox.left);
      const to = Math.min(u.valToPos(m.until, "x", true), u.bbox.left + u.bbox.width);
      if (to > from) c.fillRect(from, u.bbox.top, to - from, u.bbox.height);
    });
    c.restore();
  }

  // mark draws a line where something happened or a phase began, with its label in the first row that has room for it.
  function mark(u, marks) {
    const px = devicePixelRatio, c = u.ctx, right = u.bbox.left + u.bbox.width;
    const rows = []; // where the last label of each row ends
    c.save();
    c.strokeStyle = c.fillStyle = css("--soft");
    c.lineWidth = px;
    c.setLineDash([4 * px, 4 * px]);
    c.font = 11 * px + "px system-ui";
    c.textAlign = "left";
    c.textBaseline = "top";
    marks.forEach((m) => {
      const x = Math.round(u.valToPos(m.at, "x", true));
      if (x > u.bbox.left + 2 * px) {
        c.beginPath();
        c.moveTo(x, u.bbox.top);
        c.lineTo(x, u.bbox.top + u.bbox.height);
        c.stroke();
      }
      const wide = c.measureText(m.label).width;
      const from = Math.max(Math.min(x + 5 * px, right - wide - 2 * px), u.bbox.left + 2 * px);
      let row = 0;
      while (rows[row] > from) row++;
      rows[row] = from + wide + 8 * px;
      c.fillText(m.label, from, u.bbox.top + (3 + 13 * row) * px);
    });
    c.restore();
  }

  function drawAll() {
    document.querySelectorAll(".chart").forEach((box) => {
      if (box.clientWidth) draw(box, charts[box.dataset.result][box.dataset.chart]);
    });
  }

  drawAll();
  document.querySelectorAll("details.more").forEach((d) => d.addEventListener("toggle", drawAll)); // what is closed has no width
  dark.addEventListener("change", drawAll);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    drawAll();
  });
})();
