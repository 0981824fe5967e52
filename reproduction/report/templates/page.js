// The pictures are complete without this script. It shows values at the pointer, hides curves,
// and switches logarithmic axes to linear ones.
const WIDTH = 400, HEIGHT = 270, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 24; // as in inline_svg.py
const REACH = 40; // how far from the pointer a point is found
const reading = document.getElementById("reading");

function setUp(panel, entries) {
  const svg = panel.querySelector(":scope > svg");
  const { axes, floor, series } = JSON.parse(panel.querySelector("script").textContent);
  const groups = [...svg.querySelectorAll("g[data-entry]")];
  const kind = { x: Object.keys(axes.x)[0], y: Object.keys(axes.y)[0] };

  const part = (name, value) => {
    const [low, high] = axes[name][kind[name]];
    if (kind[name] === "log") value = Math.log10(Math.max(value, name === "y" && floor ? floor : 10 ** low));
    return Math.min(1, Math.max(0, (value - low) / (high - low)));
  };
  const across = (x) => LEFT + part("x", x) * (WIDTH - LEFT - RIGHT);
  const down = (y) => HEIGHT - BOTTOM - part("y", y) * (HEIGHT - TOP - BOTTOM);
  const at = (x, y) => `${across(x).toFixed(1)} ${down(y).toFixed(1)}`;

  function redraw() {
    groups.forEach((group, i) => {
      const { x, y, e } = series[i];
      const set = (name, path) => group.querySelector(name)?.setAttribute("d", path);
      set(".l", "M" + x.map((a, j) => at(a, y[j])).join("L"));
      const marker = group.querySelector(".m")?.dataset.marker;
      set(".m", x.map((a, j) => `M${at(a, y[j])}${marker}`).join(""));
      set(".b", x.map((a, j) => `M${at(a, y[j] - e[j])}L${at(a, y[j] + e[j])}m-3 0h6`).join(""));
      const upper = x.map((a, j) => at(a, y[j] + e[j])), lower = x.map((a, j) => at(a, y[j] - e[j]));
      set(".f", `M${[...upper, ...lower.reverse()].join("L")}Z`);
    });
    const ticks = (name) => axes[name][kind[name]][2];
    svg.querySelector(".axes").innerHTML =
      ticks("x").map(([v, text]) => `<path d="M${across(v)} ${TOP}V${HEIGHT - BOTTOM}"/><text x="${across(v)}" y="${HEIGHT - BOTTOM + 16}">${text}</text>`).join("") +
      ticks("y").map(([v, text]) => `<path d="M${LEFT} ${down(v)}H${WIDTH - RIGHT}"/><text class="y" x="${LEFT - 6}" y="${down(v) + 4}">${text}</text>`).join("") +
      `<path class="frame" d="M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}"/>`;
  }

  const switches = document.createElement("div");
  switches.className = "switches";
  for (const name of panel.dataset.switches) {
    const button = document.createElement("button");
    const say = () => { button.textContent = `${name}: ${kind[name]}`; };
    button.type = "button";
    button.title = `switch the ${name} axis between logarithmic and linear`;
    button.addEventListener("click", () => { kind[name] = kind[name] === "log" ? "linear" : "log"; redraw(); say(); });
    say();
    switches.append(button);
  }
  if (switches.children.length) panel.append(switches);

  const point = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  point.setAttribute("class", "point");
  point.setAttribute("r", 5);
  function nearest(event) {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let found = null, least = REACH;
    groups.forEach((group, i) => {
      if (group.hasAttribute("hidden")) return;
      series[i].x.forEach((x, j) => {
        const far = Math.hypot(across(x) - place.x, down(series[i].y[j]) - place.y);
        if (far < least) { least = far; found = { group, x, y: series[i].y[j] }; }
      });
    });
    return found;
  }
  svg.addEventListener("pointermove", (event) => {
    const found = nearest(event);
    if (!found) return leave();
    point.setAttribute("cx", across(found.x));
    point.setAttribute("cy", down(found.y));
    svg.append(point);
    const name = entries[found.group.dataset.entry]?.querySelector("span").innerHTML;
    reading.innerHTML = `${name ? name + "<br>" : ""}<b>${number(found.y)}</b> at ${number(found.x)}`;
    reading.hidden = false;
    const box = reading.getBoundingClientRect();
    reading.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    reading.style.top = `${Math.max(4, event.clientY - box.height - 12)}px`;
  });
  const leave = () => { reading.hidden = true; point.remove(); };
  svg.addEventListener("pointerleave", leave);

  entries.forEach((button, i) => button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") === "true";
    for (const group of groups) if (+group.dataset.entry === i) group.toggleAttribute("hidden", !shown);
  }));
}

const number = (value) => (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6)
  ? String(+value.toPrecision(4))
  : value.toExponential(3).replace(/\.?0*e([+-]\d+)/, (_, power) => `·10<sup>${+power}</sup>`).replace(/^1·/, "")).replace(/-/g, "−");

for (const figure of document.querySelectorAll("figure")) {
  const shared = [...figure.querySelectorAll(":scope > .legend button")];
  for (const button of figure.querySelectorAll(".legend button")) {
    button.title = "hide or show this curve";
    button.addEventListener("click", () => button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true"));
  }
  for (const panel of figure.querySelectorAll(".panel")) {
    const own = [...panel.querySelectorAll(".legend button")];
    setUp(panel, own.length ? own : shared);
  }
  figure.classList.add("live");
}

// a link to a study opens it; so does printing, for all of them
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.matches("details")) { target.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", openTarget);
openTarget();
let closed = [];
addEventListener("beforeprint", () => { closed = [...document.querySelectorAll("details:not([open])")]; for (const d of closed) d.open = true; });
addEventListener("afterprint", () => { for (const d of closed) d.open = false; });
