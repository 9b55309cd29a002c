// A table on the page: sorted by a click, filtered by words and conditions, taken away as CSV.

const PAGE = 12;
const CONDITION = /^([A-Za-z_]\w*)(>=|<=|!=|=|>|<)(.*)$/;

// What is shown: a layer and a head become one column with a link; site goes where there is but one stack.
function shownColumns(table) {
  const made = [];
  for (const column of table.columns) {
    const pair = /^(.*)layer$/.exec(column.name);
    if (pair && table.has(`${pair[1]}head`)) made.push({ title: (pair[1].replaceAll("_", " ") + "head").trim(), kind: "head", layer: column.name, head: `${pair[1]}head`, help: "layer and query head, zero-based" });
    else if (/^(.*)head$/.test(column.name) && table.has(column.name.replace(/head$/, "layer"))) continue;
    else if (column.name.endsWith("site") && about.stacks.length < 2) continue;
    else made.push({ title: column.name.replaceAll("_", " "), ...column });
  }
  return made;
}

function parseFilter(text) {
  return [...text.matchAll(/([^\s"]*"[^"]*"|[^\s"]+)/g)].map(([term]) => {
    const condition = CONDITION.exec(term);
    const clean = (part) => part.replace(/^"|"$/g, "").replaceAll('""', '"');
    if (condition) return { column: condition[1], sign: condition[2], value: clean(condition[3]) };
    const head = /^L(\d+)H(\d+)$/i.exec(term);
    return head ? { layer: Number(head[1]), head: Number(head[2]), word: term.toUpperCase() } : { word: clean(term).toLowerCase() };
  });
}

// One term as a test of a row; null if the table has no such column.
function test(table, term) {
  if (term.column !== undefined) {
    const column = table.columns.find((candidate) => candidate.name === term.column);
    if (!column) return null;
    return (row) => compare(table.value(row, term.column), term.sign, term.value, column.kind);
  }
  if (term.layer !== undefined) {
    const pairs = shownColumns(table).filter((column) => column.kind === "head");
    const lists = table.columns.filter((column) => column.kind === "text").map((column) => column.name);
    return (row) => pairs.some((pair) => table.value(row, pair.layer) === term.layer && table.value(row, pair.head) === term.head)
      || lists.some((name) => String(table.value(row, name) ?? "").split(/\s+/).includes(term.word));
  }
  const texts = table.columns.filter((column) => column.kind === "text").map((column) => column.name);
  return (row) => texts.some((name) => String(table.value(row, name) ?? "").toLowerCase().includes(term.word));
}

function compare(value, sign, wanted, kind) {
  if (value === null) return sign === "!=" ? wanted !== "" : wanted === "" && sign === "=";
  if (kind === "text") {
    const same = String(value) === wanted;
    return sign === "=" ? same : sign === "!=" ? !same : false;
  }
  const other = kind === "yes" ? ({ true: 1, yes: 1, false: 0, no: 0 })[wanted.toLowerCase()] ?? Number(wanted) : Number(wanted.replace("−", "-"));
  return { "=": value === other, "!=": value !== other, ">": value > other, "<": value < other, ">=": value >= other, "<=": value <= other }[sign];
}

class View {
  constructor(section, table) {
    this.section = section;
    this.table = table;
    this.columns = shownColumns(table);
    this.first = 0;
    this.size = PAGE;
    const sort = /^(-?)(.+)$/.exec(table.sort || "");
    this.order = sort ? { column: sort[2], down: sort[1] === "-" } : null;
    this.build();
  }

  build() {
    this.input = element("input", { type: "search", placeholder: "filter", "aria-label": `Filter the table ${this.table.name}`, spellcheck: "false" });
    this.input.value = this.table.filter || "";
    this.input.addEventListener("input", () => { this.first = 0; this.update(); });
    this.status = element("span", { class: "status", role: "status" });
    this.head = element("tr");
    for (const column of this.columns) {
      const button = element("button", { type: "button", title: column.help || null }, column.title);
      button.addEventListener("click", () => this.sort(column));
      this.head.append(element("th", { scope: "col", class: column.kind === "number" ? "number" : null }, button));
    }
    this.body = element("tbody");
    this.back = element("button", { type: "button", "aria-label": "Earlier rows" }, "‹");
    this.forth = element("button", { type: "button", "aria-label": "Later rows" }, "›");
    this.more = element("button", { type: "button" }, "show 100");
    this.back.addEventListener("click", () => { this.first = Math.max(0, this.first - this.size); this.draw(); });
    this.forth.addEventListener("click", () => { this.first += this.size; this.draw(); });
    this.more.addEventListener("click", () => { this.size = 100; this.first = 0; this.draw(); });
    const csv = element("button", { type: "button", class: "csv" }, "save CSV");
    csv.addEventListener("click", () => saveAs(`${this.table.id.replaceAll("/", "-")}.csv`, "text/csv", this.table.csv(this.rows)));
    const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table ${this.table.name}` },
      element("table", {}, element("thead", {}, this.head), this.body));
    this.section.querySelector(".grid").replaceChildren(
      element("div", { class: "controls" }, this.input, this.status, csv), scroll,
      element("div", { class: "pager" }, this.back, this.forth, this.more));
    this.update();
  }

  sort(column) {
    const name = column.kind === "head" ? column.layer : column.name;
    const numeric = column.kind === "number" || column.kind === "yes";
    this.order = { column: name, down: this.order?.column === name ? !this.order.down : numeric };
    this.first = 0;
    this.update();
  }

  update() {
    const terms = parseFilter(this.input.value);
    const tests = terms.map((term) => test(this.table, term));
    this.unknown = terms.filter((_, index) => tests[index] === null).map((term) => term.column);
    this.rows = [];
    for (let row = 0; row < this.table.rows; row++) if (tests.every((passes) => passes === null || passes(row))) this.rows.push(row);
    if (this.order) this.arrange();
    this.draw();
  }

  arrange() {
    const { column, down } = this.order;
    const shown = this.columns.find((candidate) => candidate.layer === column);
    const key = shown ? (row) => this.table.value(row, shown.layer) * 1e6 + this.table.value(row, shown.head) : (row) => this.table.value(row, column);
    const keys = new Map(this.rows.map((row) => [row, key(row)]));
    const ranked = (a, b) => typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b), "en") : a - b;
    this.rows.sort((a, b) => {
      const [one, other] = [keys.get(a), keys.get(b)];
      if (one === null || other === null) return (one === null) - (other === null); // what is missing comes last either way
      return (down ? -1 : 1) * ranked(one, other) || a - b;
    });
  }

  draw() {
    const shown = this.rows.slice(this.first, this.first + this.size);
    this.body.replaceChildren(...shown.map((row) => element("tr", {}, ...this.columns.map((column) => this.cell(row, column)))));
    [...this.head.children].forEach((cell, index) => {
      const column = this.columns[index];
      const sorted = this.order && (column.layer ?? column.name) === this.order.column;
      cell.setAttribute("aria-sort", sorted ? (this.order.down ? "descending" : "ascending") : "none");
    });
    const to = this.first + shown.length;
    const range = this.rows.length === 0 ? "no rows" : `${this.first + 1}–${to} of ${this.rows.length.toLocaleString("en-US")}`;
    this.status.textContent = this.unknown.length ? `no column ${this.unknown.join(", ")}; ${range}` : range;
    this.back.disabled = this.first === 0;
    this.forth.disabled = to >= this.rows.length;
    this.back.hidden = this.forth.hidden = this.rows.length <= this.size;
    this.more.hidden = this.size >= 100 || this.rows.length <= this.size;
  }

  cell(row, column) {
    if (column.kind === "head") {
      const [layer, head] = [this.table.value(row, column.layer), this.table.value(row, column.head)];
      if (layer === null) return element("td", { class: "missing" }, "–");
      if (head === null) return element("td", {}, `L${layer}`); // a row about a layer
      return element("td", {}, headLink(layer, head, stackAt(this.table, row, column.layer.replace(/layer$/, "site"))));
    }
    const value = this.table.value(row, column.name);
    if (value === null) return element("td", { class: column.kind === "number" ? "missing number" : "missing" }, "–");
    if (column.kind === "yes") return element("td", {}, value ? "yes" : "no");
    if (column.kind === "number") {
      const whole = Number.isInteger(value);
      const ids = column.whole || /^(n|n_heads|layer|head|copy|position|draw|period|sequence|query|key|token)$/.test(column.name);
      return element("td", { class: "number", title: String(value) }, ids && whole ? value.toLocaleString("en-US", { useGrouping: !/^(layer|head|token)$/.test(column.name) }) : number(value));
    }
    const shape = column.name === "text" ? "token-text" : value.length <= 28 ? "short" : "";
    return element("td", { class: `text ${shape}` }, ...withHeads(visible(value)));
  }

  // Show rows that a sentence speaks of.
  show(where) {
    this.input.value = Object.entries(where).map(([name, value]) => `${name}=${/[\s"]/.test(value) ? `"${value}"` : value}`).join(" ");
    this.first = 0;
    this.update();
    this.section.classList.add("sought");
    this.section.scrollIntoView({ block: "start", behavior: "instant" });
    this.input.focus({ preventScroll: true });
    setTimeout(() => this.section.classList.remove("sought"), 2500);
  }
}

// Text in which every head name is a link.
function withHeads(text) {
  return text.split(/\b(L\d+H\d+)\b/).map((part, index) => {
    const name = index % 2 ? /^L(\d+)H(\d+)$/.exec(part) : null;
    return name && name[1] < about.layers && name[2] < about.heads ? headLink(name[1], name[2]) : part;
  });
}

const views = new Map();

async function viewOf(section) {
  const table = tables.get(section.dataset.id);
  await table.load();
  if (!views.has(table.id)) views.set(table.id, new View(section, table));
  return views.get(table.id);
}
