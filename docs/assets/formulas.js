// Typeset every formula that Markdown marked, on the first page and after each change of page.
document$.subscribe(() => {
  for (const element of document.querySelectorAll(".arithmatex:not(.typeset)")) {
    const text = element.textContent.trim();
    const source = text.slice(2, -2); // \( ... \) or \[ ... \]
    katex.render(source, element, { displayMode: text.startsWith("\\["), throwOnError: false });
    element.classList.add("typeset");
  }
});
