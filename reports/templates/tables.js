"use strict";
// Tables of the page: read when first needed, kept as columns.

const about = JSON.parse(document.getElementById("about").textContent);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// The same rule as words.visible: nothing invisible, nothing that turns the direction of text.
function visible(text) {
  const shown = { "\n": "↵", "\r": "␍", "\t": "⇥", "\0": "␀" };
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu,
    (char) => shown[char] || `[U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);
}

// The same rule as words.number: two decimals, two significant digits below 0.1.
function number(value) {
  if (value === null || value === undefined) return "n/a";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (size > 0 && size < 5e-7) return value.toExponential(1).replaceAll("-", "−");
  const places = size >= 0.0995 || size === 0 ? 2 : Math.min(1 - Math.floor(Math.log10(size)), 6);
  const text = size.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  return (value < 0 && Number(text.replaceAll(",", "")) !== 0 ? "−" : "") + text;
}

function signed(value) {
  return (value > 0 ? "+" : "") + number(value);
}

function interval(low, high) {
  return low === null || high === null || low === undefined || high === undefined ? "" : `[${number(low)}, ${number(high)}]`;
}

// The address of a head's card; where the model has several stacks of layers, of one of them.
function headAddress(layer, head, stack = "") {
  return `#${stack && about.stacks.length > 1 ? `${encodeURIComponent(stack)}/` : ""}L${layer}H${head}`;
}

function headLink(layer, head, stack = "") {
  return element("a", { class: "head", href: headAddress(layer, head, stack) }, `L${layer}H${head}`);
}

function stackAt(table, row, site = "site") {
  return table.has(site) ? about.stackOf[table.value(row, site)] ?? "" : "";
}

// Rows of a head; of one stack where it is named.
function rowsOf(table, where, stack, site = "site") {
  const rows = table.find(where);
  return stack && table.has(site) ? rows.filter((row) => stackAt(table, row, site) === stack) : rows;
}

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

class Table {
  constructor(analysis, meta) {
    Object.assign(this, meta);
    this.analysis = analysis;
    this.at = new Map(meta.columns.map((column, index) => [column.name, index]));
  }

  load() {
    const source = document.querySelector(`script[data-table="${CSS.escape(this.id)}"]`);
    this.loading ??= source ? inflate(source.textContent).then((content) => { this.content = content; return this; }) : Promise.resolve(null);
    return this.loading;
  }

  has(...names) {
    return names.every((name) => this.at.has(name));
  }

  value(row, name) {
    const column = this.content[this.at.get(name)];
    if (column === undefined) return null;
    if (Array.isArray(column)) return column[row];
    const code = column.codes[row];
    return code === null ? null : column.levels[code];
  }

  // Rows in which every named column has the named value.
  find(where) {
    const wanted = Object.entries(where);
    const found = [];
    for (let row = 0; row < this.rows; row++) if (wanted.every(([name, value]) => this.value(row, name) === value)) found.push(row);
    return found;
  }

  record(row) {
    return Object.fromEntries(this.columns.map((column) => [column.name, this.value(row, column.name)]));
  }

  csv(rows) {
    const lines = [this.columns.map((column) => column.name).join(",")];
    for (const row of rows) lines.push(this.columns.map((column) => csvCell(this.value(row, column.name), column.kind)).join(","));
    return lines.join("\r\n") + "\r\n";
  }
}

// A spreadsheet takes text that begins with one of these signs for a formula; an apostrophe before it stops that.
function csvCell(value, kind) {
  if (value === null || value === undefined) return "";
  if (kind === "yes") return value ? "true" : "false";
  if (kind === "number" && typeof value === "number") return String(value);
  let text = String(value);
  if (/^[\s]*[=+\-@\t\r\n|]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const tables = new Map();
for (const analysis of about.analyses) for (const meta of analysis.tables) tables.set(meta.id, new Table(analysis.name, meta));

function saveAs(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
