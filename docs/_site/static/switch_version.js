// The list of versions in the sidebar. It leads to the same page of another version, or to its entry page.
document.addEventListener("DOMContentLoaded", () => {
  const select = document.querySelector("select[data-version]");
  const { version, page, root } = select.dataset;
  const names = window.docsVersions || [version];
  select.replaceChildren(...names.map((name) => new Option(name, name, name === version, name === version)));
  select.addEventListener("change", async () => {
    const folder = `${root}${select.value}/`;
    const missing = await fetch(folder + page, { method: "HEAD" }).then((answer) => answer.status === 404, () => false);
    location.href = folder + (missing ? "index.html" : page);
  });
});
