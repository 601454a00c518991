// <live-part src seconds>: fetches its content again, as long as somebody looks at the page.
import { fetchPart, replaceInside } from "./page_parts.js";

class LivePart extends HTMLElement {
  #timer = 0;
  #html = "";

  connectedCallback() {
    this.#timer = setInterval(() => document.hidden || this.#renew(), 1000 * Number(this.getAttribute("seconds")));
    if (this.hasAttribute("announce")) this.setAttribute("role", "status");
  }

  disconnectedCallback() {
    clearInterval(this.#timer);
  }

  async #renew() {
    const part = await fetchPart(this.getAttribute("src"));
    const html = part?.body.innerHTML;
    if (!part || html === this.#html || !this.isConnected) return;
    const isFirst = !this.#html;
    this.#html = html;
    if (this.hasAttribute("announce")) {
      // Forms are not replaced while somebody fills them in: the page says that there is more.
      const keys = part.querySelector("[data-keys]").dataset.keys;
      if (keys === this.querySelector("[data-keys]")?.dataset.keys && isFirst) return;
      const link = Object.assign(document.createElement("a"), { href: location.href, textContent: "Load the page again" });
      replaceInside(this, [...part.body.childNodes, link]);
    } else {
      replaceInside(this, part.body.childNodes);
    }
  }
}

customElements.define("live-part", LivePart);
