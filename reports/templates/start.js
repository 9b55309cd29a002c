// What the page does when it opens, and when its address changes.

async function follow() {
  const hash = decodeURIComponent(location.hash.slice(1));
  const head = /^(?:([^/]+)\/)?L(\d+)H(\d+)$/i.exec(hash);
  if (head) return openCard(Number(head[2]), Number(head[3]), head[1] ?? "");
  closeCard();
  if (!location.hash.startsWith("#rows/")) return null;
  const [place, where] = location.hash.slice("#rows/".length).split("?");
  const section = document.querySelector(`section.table[data-id="${CSS.escape(decodeURIComponent(place))}"]`);
  if (!section) return null;
  for (const earlier of document.querySelectorAll("section.table")) { // tables above it take their room first
    if (earlier === section) break;
    if (earlier.querySelector(".grid")) await viewOf(earlier);
  }
  if (section.querySelector(".grid")) (await viewOf(section)).show(Object.fromEntries(new URLSearchParams(where ?? "")));
  else section.scrollIntoView();
  return null;
}

async function copyText(button) {
  const text = button.dataset.copyText ?? document.getElementById(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch (refused) {
    // the browser keeps the clipboard to itself: leave the text selected, for the person to copy
    const source = button.dataset.copy ? document.getElementById(button.dataset.copy) : button.parentElement.querySelector("code");
    getSelection().selectAllChildren(source);
    button.textContent = "selected";
  }
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

function saveFigure(button) {
  const figure = document.getElementById(button.dataset.figure);
  const svg = figure.querySelector("svg");
  const image = figure.querySelector("img");
  if (image) {
    const link = element("a", { href: image.src, download: `${button.dataset.name}.png` });
    link.click();
    return;
  }
  const copy = svg.cloneNode(true);
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  style.textContent = "*{stroke-linejoin:round;stroke-linecap:butt}";
  copy.prepend(style);
  saveAs(`${button.dataset.name}.svg`, "image/svg+xml", `<?xml version="1.0" encoding="utf-8"?>\n${new XMLSerializer().serializeToString(copy)}`);
}

function goToHead(event) {
  event.preventDefault();
  const input = document.getElementById("go-head");
  const head = /^\s*L?(\d+)\s*[H.,:\s]\s*(\d+)\s*$/i.exec(input.value);
  document.getElementById("go-wrong").textContent = head ? "" : "as L18H6";
  if (head) location.hash = `L${Number(head[1])}H${Number(head[2])}`;
}

document.getElementById("go").addEventListener("submit", goToHead);
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.classList.contains("copy")) copyText(button);
  if (button?.classList.contains("save")) saveFigure(button);
  const link = event.target.closest("a[href^='#'], a");
  const target = link?.getAttribute("href") ?? link?.getAttributeNS?.("http://www.w3.org/1999/xlink", "href");
  if (target && target === location.hash) follow(); // the same link again: the address does not change
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeCard(); });
addEventListener("hashchange", follow);

const nearing = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { nearing.unobserve(entry.target); viewOf(entry.target); }
}, { rootMargin: "600px" });
for (const section of document.querySelectorAll("section.table")) if (section.querySelector(".grid")) nearing.observe(section);
addEventListener("beforeprint", () => { for (const section of document.querySelectorAll("section.table")) if (section.querySelector(".grid")) viewOf(section); });

for (const box of document.querySelectorAll(".map")) new HeadMap(box);
openReadings();
follow();
