// A pattern drawn on text: keys shaded by weight, the query ringed, an arc to each strong key.

class Reading {
  // tokens: the spans, by position; weights(query) gives a Map from key to weight.
  constructor(figure, box, weights, query) {
    Object.assign(this, { figure, box, weights, query });
    this.spans = new Map([...box.querySelectorAll(".token")].map((span) => [Number(span.dataset.position), span]));
    this.arcs = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.arcs.setAttribute("class", "arcs");
    this.arcs.setAttribute("aria-hidden", "true");
    box.append(this.arcs);
    box.addEventListener("click", (event) => { const span = event.target.closest(".token"); if (span) this.choose(Number(span.dataset.position)); });
    box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.drawArcs()).observe(box);
    this.focusable(query);
    this.drawArcs();
  }

  focusable(position) {
    for (const [at, span] of this.spans) span.tabIndex = at === position ? 0 : -1;
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (!step) return;
    event.preventDefault();
    const positions = [...this.spans.keys()];
    const next = positions[Math.min(Math.max(positions.indexOf(this.query) + step, 0), positions.length - 1)];
    this.choose(next).then(() => this.spans.get(next).focus({ preventScroll: true }));
  }

  async choose(query) {
    const row = await this.weights(query);
    this.query = query;
    for (const [position, span] of this.spans) {
      const weight = row.get(position) ?? 0;
      span.style.setProperty("--w", weight.toFixed(3));
      span.classList.toggle("query", position === query);
      span.classList.toggle("strong", weight >= 0.5);
      span.title = weight ? `${number(weight)}` : "";
    }
    this.focusable(query);
    this.drawArcs();
    this.tell(row);
  }

  tell(row) {
    const act = this.figure.querySelector(".act");
    if (!act) return;
    const strong = [...row].filter(([, weight]) => weight >= 0.05).sort((a, b) => b[1] - a[1]).slice(0, 3);
    const name = (position) => { const span = this.spans.get(position); return span ? `“${span.textContent.trim() || "␣"}”` : `position ${position}`; };
    act.textContent = `From ${name(this.query)} (position ${this.query}): ` +
      (strong.map(([key, weight]) => `${number(weight)} to ${name(key)}${key === 0 ? ", the first token" : ""}`).join("; ") || "no weight of 0.05 or more") + ".";
  }

  drawArcs() {
    const from = this.spans.get(this.query);
    if (!from) return;
    const middle = (span) => { const boxes = span.getClientRects(); const box = boxes[boxes.length - 1] ?? span.getBoundingClientRect(); return box; };
    const frame = this.box.getBoundingClientRect();
    this.arcs.replaceChildren();
    for (const [position, span] of this.spans) {
      const weight = Number(span.style.getPropertyValue("--w"));
      if (weight < 0.15 || position === this.query) continue;
      const [a, b] = [middle(from), middle(span)];
      const [x1, y1, x2, y2] = [a.x + a.width / 2 - frame.x, a.y - frame.y, b.x + b.width / 2 - frame.x, b.bottom - frame.y];
      const sameLine = Math.abs(a.y - b.y) < 4;
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", sameLine
        ? `M${x1},${y1} C${x1},${y1 - 16} ${x2},${y1 - 16} ${x2},${b.y - frame.y}`
        : y2 < y1 ? `M${x1},${y1} C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${y2}`
          : `M${x1},${a.bottom - frame.y} C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${b.y - frame.y}`);
      path.setAttribute("stroke-width", (0.8 + 2.2 * weight).toFixed(2));
      this.arcs.append(path);
    }
  }
}

// The same rule as words.spaced: some vocabularies write no spaces, and mark what continues a word by ##.
function spaced(texts) {
  if (texts.some((text) => text.startsWith(" "))) return texts;
  return texts.map((text) => text.startsWith("##") ? text.slice(2) : ` ${text}`);
}

// Weights of one head on one sequence, by query.
async function patternOf(analysis, where) {
  const table = [...tables.values()].find((candidate) => candidate.analysis === analysis && candidate.view === "pattern");
  if (!table || !(await table.load())) return null;
  const rows = new Map();
  for (const row of table.find(where)) {
    const query = table.value(row, "query");
    if (!rows.has(query)) rows.set(query, new Map());
    rows.get(query).set(table.value(row, "key"), table.value(row, "weight"));
  }
  return rows;
}

function openReadings() {
  for (const figure of document.querySelectorAll("figure.reading")) {
    const { analysis, site, layer, head, data, sequence, query } = figure.dataset;
    let rows = null;
    const weights = async (position) => {
      rows ??= await patternOf(analysis, { site, layer: Number(layer), head: Number(head), data, sequence: Number(sequence) });
      return rows?.get(position) ?? new Map();
    };
    new Reading(figure, figure.querySelector(".tokens"), weights, Number(query));
  }
}
