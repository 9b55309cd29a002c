// The card of a head: all that the run knows of it, joined over analyses.

const card = document.getElementById("card");
let cameFrom = null;

async function openCard(layer, head, stack = "") {
  const name = `${stack} L${layer}H${head}`.trim();
  if (card.hidden) cameFrom = document.activeElement;
  const close = element("button", { type: "button", class: "close", "aria-label": "Close", onclick: closeCard }, "×");
  const pills = element("p", { class: "pills" });
  const body = element("div", { class: "parts" });
  card.replaceChildren(element("header", {}, element("h2", { id: "card-name" }, name), pills, close), body);
  card.hidden = false;
  document.body.classList.add("with-card");
  card.scrollTop = 0;
  card.focus({ preventScroll: true });
  if (layer >= about.layers || head >= about.heads) {
    body.append(element("p", {}, about.layers ? `There is no ${name}: this run has ${about.layers} layers of ${about.heads} heads, counted from 0.` : "This run scores no heads."));
    return;
  }
  for (const analysis of about.analyses) {
    const parts = [];
    for (const meta of analysis.tables) {
      const table = tables.get(meta.id);
      const show = CARD[table.view];
      if (!show || !(await table.load())) continue;
      if (table.view === "kinds") pills.append(...callings(table, layer, head, stack));
      const part = await show(table, layer, head, stack);
      if (part) parts.push(element("h4", {}, table.name.replaceAll("_", " ")), part);
    }
    if (card.querySelector("h2").textContent !== name) return; // another head was asked for meanwhile
    if (parts.length) body.append(element("section", {}, element("h3", {}, analysis.title), ...parts));
  }
  if (!body.children.length) body.append(element("p", {}, `No table says anything of ${name}.`));
}

function closeCard() {
  if (card.hidden) return;
  card.hidden = true;
  document.body.classList.remove("with-card");
  if (/^#(?:[^/]+\/)?L\d+H\d+$/i.test(location.hash)) history.replaceState(null, "", location.pathname + location.search);
  cameFrom?.focus?.({ preventScroll: true });
}

function callings(table, layer, head, stack) {
  return rowsOf(table, { layer, head }, stack).map((row) => table.record(row)).filter((record) => record.called)
    .map((record) => element("span", { class: `pill ${record.kind}` }, inStack(record, about.kinds[record.kind] ?? visible(record.kind).replaceAll("_", " "))));
}

function inStack(record, text) {
  const stack = about.stacks.length > 1 ? about.stackOf[record.site] ?? "" : "";
  return stack ? `${stack}: ${text}` : text;
}

function smallTable(columns, rows) {
  const cells = (row, tag) => element("tr", {}, ...row.map((cell, index) => element(tag, { class: columns[index].startsWith("#") ? "number" : null }, ...(Array.isArray(cell) ? cell : [cell]))));
  const head = cells(columns.map((column) => column.replace("#", "")), "th");
  return element("div", { class: "scroll" }, element("table", { class: "small" }, element("thead", {}, head), element("tbody", {}, ...rows.map((row) => cells(row, "td")))));
}

const CARD = {
  kinds(table, layer, head, stack) {
    const rows = rowsOf(table, { layer, head }, stack).map((row) => table.record(row));
    if (!rows.length) return null;
    return smallTable(["called", "#value", "#lower bound", "#threshold", "why"], rows.map((record) => [
      inStack(record, `${record.called ? "" : "not "}${about.kinds[record.kind] ?? visible(record.kind)}`), number(record.value), number(record.simultaneous_low), number(record.threshold), visible(record.reason ?? ""),
    ]));
  },

  scores(table, layer, head, stack) {
    const rows = rowsOf(table, { layer, head }, stack);
    if (!rows.length) return null;
    const all = new Map(); // values of all heads, by metric and data
    const key = (row) => `${table.value(row, "metric")}|${table.has("data") ? table.value(row, "data") : ""}|${about.stackOf[table.value(row, "site")] ?? ""}`;
    const wanted = new Set(rows.map(key));
    for (let row = 0; row < table.rows; row++) {
      const value = table.value(row, "value");
      if (value === null || !wanted.has(key(row))) continue;
      if (!all.has(key(row))) all.set(key(row), []);
      all.get(key(row)).push(value);
    }
    const order = ["repeated", "text", "weights"]; // controls come last
    const place = (row) => { const at = order.indexOf(table.has("data") ? table.value(row, "data") : ""); return at < 0 ? order.length : at; };
    rows.sort((a, b) => place(a) - place(b) || a - b);
    return smallTable(["score", "", "#value", "#chance", "#rank"], rows.map((row) => {
      const record = table.record(row);
      const others = all.get(key(row)) ?? [];
      const label = [inStack(record, about.metrics[record.metric] ?? visible(record.metric).replaceAll("_", " ")), element("small", {}, ` ${visible(record.data ?? "")}`)];
      if (record.value === null) return [label, "", "n/a", "", element("small", {}, visible(record.note ?? ""))];
      const spread = interval(record.ci_low, record.ci_high);
      const rank = 1 + others.filter((value) => value > record.value).length;
      return [label, bar(record, others), [number(record.value), spread ? element("small", {}, ` ${spread}`) : ""], record.chance === null ? "" : number(record.chance), `${rank} of ${others.length}`];
    }));
  },

  line(table, layer, head, stack) {
    const rows = rowsOf(table, { layer, head }, stack).map((row) => table.record(row)).filter((record) => record.value !== null).sort((a, b) => a.period - b.period);
    return rows.length ? smallTable(["#period", "", "#value", "#chance"], rows.map((record) => [
      String(record.period), bar(record, [0, 1]), [number(record.value), element("small", {}, ` ${interval(record.ci_low, record.ci_high)}`)], number(record.chance)])) : null;
  },

  edges(table, layer, head, stack) {
    const measure = table.has("change") ? "change" : "excess";
    const strongest = (rows) => table.has("change") ? rows : rows.sort((a, b) => (table.value(b, measure) ?? -Infinity) - (table.value(a, measure) ?? -Infinity)).slice(0, 5);
    const told = (rows, side, verb) => strongest(rows).map((row) => [table.record(row), stackAt(table, row, `${side}_site`)]).map(([record, other]) => [
      [`${verb} `, headLink(record[`${side}_layer`], record[`${side}_head`], other)], visible(record.path ?? "").replaceAll("_", " "),
      [signed(record[measure]), element("small", {}, ` ${interval(record.ci_low, record.ci_high)}`)]]);
    const rows = [...told(rowsOf(table, { target_layer: layer, target_head: head }, stack, "target_site"), "source", "fed by"), ...told(rowsOf(table, { source_layer: layer, source_head: head }, stack, "source_site"), "target", "feeds")];
    return rows.length ? smallTable(["", "path", `#${measure}`], rows) : null;
  },

  distances(table, layer, head, stack) {
    const rows = rowsOf(table, { layer, head }, stack).map((row) => table.record(row)).filter((record) => record.mass >= 0.005).sort((a, b) => b.low - a.low);
    const name = (record) => { const [near, far] = [Math.abs(record.low), Math.abs(record.high)].sort((a, b) => a - b); return `${record.low < 0 ? "+" : ""}${near === far ? near : `${near}–${far}`}`; };
    return rows.length ? smallTable(["tokens back", "", "#attention"], rows.map((record) => [
      inStack(record, name(record)), bar({ value: record.mass, ci_low: null, chance: null }, [0, 1]), number(record.mass)])) : null;
  },

  offsets(table, layer, head, stack) {
    const rows = rowsOf(table, { layer, head }, stack).map((row) => table.record(row)).filter((record) => record.share >= 0.05).sort((a, b) => b.share - a.share);
    return rows.length ? smallTable(["#offset", "#strongest there", "#attention there", "#chance"], rows.map((record) => [
      inStack(record, record.offset > 0 ? `+${record.offset}` : String(record.offset).replace("-", "−")), number(record.share), number(record.mass), number(record.chance)])) : null;
  },

  relations(table, layer, head, stack) {
    const rows = rowsOf(table, { layer, head }, stack).map((row) => table.record(row)).filter((record) => record.accuracy !== null)
      .sort((a, b) => b.called - a.called || b.difference - a.difference).slice(0, 6);
    return rows.length ? smallTable(["relation", "", "#accuracy", "#best offset"], rows.map((record) => [
      [inStack(record, visible(record.relation)), element("small", {}, ` ${visible(record.direction)}${record.called ? ", called" : ""}`)],
      bar({ ...record, value: record.accuracy, chance: record.baseline }, [0, 1]),
      [number(record.accuracy), element("small", {}, ` ${interval(record.ci_low, record.ci_high)}`)], number(record.baseline)])) : null;
  },

  pairs(table, layer, head, stack) {
    const rows = [...rowsOf(table, { layer_a: layer, head_a: head }, stack, "site_a").map((row) => [row, "b"]), ...rowsOf(table, { layer_b: layer, head_b: head }, stack, "site_b").map((row) => [row, "a"])]
      .filter(([row]) => table.value(row, "jsd") !== null).sort(([a], [b]) => table.value(a, "jsd") - table.value(b, "jsd")).slice(0, 5);
    return rows.length ? smallTable(["attends most like", "#nats apart", "#without the sink"], rows.map(([row, side]) => {
      const record = table.record(row);
      return [[headLink(record[`layer_${side}`], record[`head_${side}`], stackAt(table, row, `site_${side}`))], [number(record.jsd), element("small", {}, ` ${interval(record.ci_low, record.ci_high)}`)], number(record.jsd_without_sink)];
    })) : null;
  },

  sets(table, layer, head) {
    const rows = [];
    for (let row = 0; row < table.rows; row++) if (String(table.value(row, "heads")).split(/\s+/).includes(`L${layer}H${head}`)) rows.push(table.record(row));
    const alone = rows.sort((a, b) => a.n_heads - b.n_heads).slice(0, 12);
    return rows.length ? smallTable(["ablation", "removed", "#change of loss"], alone.map((record) => [
      visible(record.ablation ?? "").replaceAll("_", " "), record.n_heads === 1 ? "alone" : `one of ${record.n_heads} ${visible(record.chosen ?? "")} heads`,
      [signed(record.loss_change), element("small", {}, ` ${interval(record.ci_low, record.ci_high)}`)]])) : null;
  },

  rows(table, layer, head, stack) {
    const rows = rowsOf(table, { layer, head }, stack).slice(0, 12).map((row) => table.record(row));
    const columns = table.columns.filter((column) => !["layer", "head", "site"].includes(column.name));
    return rows.length ? smallTable(columns.map((column) => (column.kind === "number" ? "#" : "") + column.name.replaceAll("_", " ")),
      rows.map((record) => columns.map((column) => column.kind === "text" ? visible(record[column.name] ?? "") : number(record[column.name])))) : null;
  },

  async pattern(table, layer, head, stack) {
    const rows = rowsOf(table, { layer, head }, stack);
    const tokens = [...tables.values()].find((candidate) => candidate.analysis === table.analysis && candidate.view === "tokens");
    if (!rows.length || !tokens || !(await tokens.load())) return null;
    const strongest = rows.filter((row) => table.value(row, "key") > 0).sort((a, b) => table.value(b, "weight") - table.value(a, "weight"))[0] ?? rows[0];
    const { site, data, sequence } = table.record(strongest);
    const others = [...new Set(rows.filter((row) => table.value(row, "data") === data && table.value(row, "site") === site).map((row) => table.value(row, "sequence")))].filter((other) => other !== sequence);
    const figures = [];
    for (const each of [sequence, ...others].slice(0, 3)) figures.push(await CARD.sentence(table, tokens, { site, layer, head, data, sequence: each }));
    return element("div", {}, ...figures);
  },

  // One sequence, from the query with the strongest edge to any key but the first.
  async sentence(table, tokens, { site, layer, head, data, sequence }) {
    const rows = table.find({ site, layer, head, data, sequence });
    const query = table.value(rows.filter((row) => table.value(row, "key") > 0 && table.value(row, "key") !== table.value(row, "query")).sort((a, b) => table.value(b, "weight") - table.value(a, "weight"))[0] ?? rows[0], "query");
    const weights = await patternOf(table.analysis, { site, layer, head, data, sequence });
    const row = weights.get(query);
    const found = tokens.find({ data, sequence });
    const texts = spaced(found.map((at) => tokens.value(at, "text") ?? ""));
    const box = element("div", { class: "tokens", dir: "ltr" }, ...found.flatMap((at, index) => {
      const [position, text] = [tokens.value(at, "position"), visible(texts[index])];
      const word = text.replace(/^ +/, "") || text;
      const weight = row.get(position) ?? 0;
      const span = element("span", { class: `token${position === query ? " query" : ""}${weight >= 0.5 ? " strong" : ""}`, "data-position": position, style: `--w:${weight.toFixed(3)}` }, word);
      return index ? [text.slice(0, text.length - word.length), span] : [span];
    }));
    const figure = element("figure", { class: "reading" }, box, element("figcaption", {}, element("span", { class: "act" }, "")));
    const made = new Reading(figure, box, async (position) => weights.get(position) ?? new Map(), query);
    made.tell(row);
    return figure;
  },
};

// A value with its interval, chance as a tick, and all heads as a faint strip behind.
function bar(record, others) {
  const [low, high] = [Math.min(0, ...others.slice(0, 20000)), Math.max(record.ci_high ?? 0, record.value, 1e-9, ...others.slice(0, 20000))];
  const x = (value) => (3 + 114 * (value - low) / (high - low || 1)).toFixed(1);
  const make = (tag, attributes) => { const made = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value); return made; };
  const svg = make("svg", { class: "bar-chart", viewBox: "0 0 120 14", width: 120, height: 14, "aria-hidden": "true" });
  svg.append(make("line", { class: "axis", x1: 3, x2: 117, y1: 7, y2: 7 }));
  if (others.length > 2) svg.append(make("path", { class: "others", d: others.slice(0, 600).map((value) => `M${x(value)} 4v6`).join("") }));
  if (record.ci_low !== null && record.ci_low !== undefined) svg.append(make("line", { class: "spread", x1: x(record.ci_low), x2: x(record.ci_high), y1: 7, y2: 7 }));
  if (record.chance !== null && record.chance !== undefined) svg.append(make("line", { class: "chance", x1: x(record.chance), x2: x(record.chance), y1: 1, y2: 13 }));
  svg.append(make("circle", { class: "value", cx: x(record.value), cy: 7, r: 3 }));
  return svg;
}
