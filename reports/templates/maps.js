// Layer x head maps answer the pointer and the arrow keys with the head under them.

const tip = document.getElementById("tip");

class HeadMap {
  constructor(box) {
    this.box = box;
    this.layers = Number(box.dataset.layers);
    this.heads = Number(box.dataset.heads);
    this.cursor = element("div", { class: "cursor", hidden: true });
    box.append(this.cursor);
    box.addEventListener("pointermove", (event) => this.move(...this.cellAt(event)));
    box.addEventListener("pointerleave", () => this.leave());
    box.addEventListener("click", (event) => { const [layer, head] = this.cellAt(event); location.hash = headAddress(layer, head, box.dataset.stack); });
    box.addEventListener("blur", () => this.leave());
    box.addEventListener("keydown", (event) => this.key(event));
  }

  cellAt(event) {
    const frame = this.box.getBoundingClientRect();
    const inside = (part, n) => Math.min(Math.max(Math.floor(part * n), 0), n - 1);
    return [inside((event.clientY - frame.y) / frame.height, this.layers), inside((event.clientX - frame.x) / frame.width, this.heads)];
  }

  key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const [layer, head] = this.cell ?? [0, 0];
    if (event.key === "Enter") location.hash = headAddress(layer, head, this.box.dataset.stack);
    if (event.key === "Escape") this.leave();
    if (!step) return;
    event.preventDefault();
    const within = (value, n) => Math.min(Math.max(value, 0), n - 1);
    this.move(...(this.cell ? [within(layer + step[0], this.layers), within(head + step[1], this.heads)] : [0, 0]));
  }

  async move(layer, head) {
    this.cell = [layer, head];
    const [width, height] = [100 / this.heads, 100 / this.layers];
    this.cursor.hidden = false;
    this.cursor.style.cssText = `left:${head * width}%;top:${layer * height}%;width:${width}%;height:${height}%`;
    const text = await this.tell(layer, head);
    if (!this.cell || this.cell[0] !== layer || this.cell[1] !== head) return;
    tip.textContent = text;
    tip.hidden = false;
    const at = this.cursor.getBoundingClientRect();
    const room = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(Math.max(at.x + at.width / 2 - room.width / 2, 6), innerWidth - room.width - 6)}px`;
    tip.style.top = `${at.y > room.height + 10 ? at.y - room.height - 6 : at.bottom + 6}px`;
  }

  async tell(layer, head) {
    const { analysis, metric, data, stack } = this.box.dataset;
    const name = `L${layer}H${head}`;
    if (metric === "kinds") return this.kinds(analysis, layer, head, stack, name);
    const table = tables.get(`${analysis}/heads`);
    if (!table || !(await table.load())) return name;
    this.rows ??= new Map(table.find({ metric, data }).filter((row) => (about.stackOf[table.value(row, "site")] ?? "") === stack)
      .map((row) => [`${table.value(row, "layer")},${table.value(row, "head")}`, row]));
    const row = this.rows.get(`${layer},${head}`);
    if (row === undefined) return name;
    const score = table.record(row);
    if (score.value === null) return `${name}: not defined${score.note ? `, ${visible(score.note)}` : ""}`;
    const chance = score.chance === null || score.chance === undefined ? "" : `, chance ${number(score.chance)}`;
    return `${name}: ${number(score.value)} ${interval(score.ci_low, score.ci_high)}${chance}`.replace(" ,", ",");
  }

  async kinds(analysis, layer, head, stack, name) {
    const table = tables.get(`${analysis}/kinds`);
    if (!table || !(await table.load())) return name;
    const rows = table.find({ layer, head }).map((row) => table.record(row))
      .filter((record) => record.called && (about.stackOf[record.site] ?? "") === stack);
    const told = rows.map((record) => `${about.kinds[record.kind] ?? visible(record.kind)}${record.detail ? ` (${visible(record.detail)})` : ""} ${number(record.value)}`);
    return `${name}: ${told.join("; ") || "called nothing"}`;
  }

  leave() {
    this.cell = null;
    this.cursor.hidden = true;
    tip.hidden = true;
  }
}
