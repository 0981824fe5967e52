for (const figure of document.querySelectorAll("figure")) {
  figure.querySelector(".plots").hidden = false;
  for (const panel of figure.querySelectorAll(".panel")) {
    const plot = panel.querySelector(".plot");
    const { data, layout } = JSON.parse(panel.querySelector("script").textContent);
    Plotly.newPlot(plot, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
    for (const name of ["x", "y"]) {
      const axis = layout[name + "axis"];
      if (axis.type !== "log") continue;
      const button = document.createElement("button");
      const say = () => { button.textContent = `${name}: ${axis.type === "log" ? "log" : "linear"}`; };
      button.type = "button";
      button.title = `switch the ${name} axis between logarithmic and linear`;
      button.addEventListener("click", () => {
        axis.type = axis.type === "log" ? "linear" : "log";
        Plotly.relayout(plot, { [`${name}axis.type`]: axis.type, [`${name}axis.autorange`]: true });
        say();
      });
      say();
      panel.querySelector(".switches").append(button);
    }
  }
  figure.classList.add("live"); // only now: if the script fails, the static picture stays
}
addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
