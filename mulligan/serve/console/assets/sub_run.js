// <sub-run>: the transcript of a sub-agent's run, fetched when it is opened. Without this module its link leads there.
import { fetchPart, replaceInside } from "./page_parts.js";

class SubRun extends HTMLElement {
  connectedCallback() {
    this.querySelector("details").addEventListener("toggle", () => this.#open(), { once: true });
  }

  async #open() {
    const inside = this.querySelector(".inside");
    inside.textContent = "Loading …";
    const part = await fetchPart(`${this.querySelector("a").href}?part=sub_run`);
    if (part) replaceInside(inside, part.body.childNodes);
    else inside.textContent = "It cannot be read now.";
  }
}

customElements.define("sub-run", SubRun);
