// <live-run src page>: follows a run. The stream has the HTML of each step that changes; the rest of the page is fetched again.
import { fetchPart, replaceInside, showLocalTimes } from "./page_parts.js";

const STEPS_IN_PAGE = 100;
const PAUSE = 1500;

class LiveRun extends HTMLElement {
  #source = null;
  #renewing = 0;

  connectedCallback() {
    if (this.hasAttribute("src")) this.#follow();
  }

  disconnectedCallback() {
    this.#source?.close();
    clearTimeout(this.#renewing);
  }

  #follow() {
    this.#source = new EventSource(this.getAttribute("src"));
    this.#source.addEventListener("entry", (event) => this.#showEntry(event.data));
    this.#source.addEventListener("text", (event) => this.#showText(JSON.parse(event.data)));
    this.#source.addEventListener("input", (event) => this.#showInput(JSON.parse(event.data)));
    this.#source.addEventListener("progress", (event) => this.#showProgress(JSON.parse(event.data)));
    this.#source.addEventListener("problem", (event) => this.#say(event.data));
    this.#source.addEventListener("ended", () => {
      this.#source.close();
      this.#say("");
      this.#renew(["summary", "transcript", "timeline", "act"]);
    });
    this.#source.onopen = () => this.#say("");
    this.#source.onerror = () => {
      this.#say("The connection is lost; trying again …");
      // A browser gives up at an answer that is no stream, as a proxy sends while the server restarts.
      if (this.#source.readyState === EventSource.CLOSED) setTimeout(() => this.isConnected && this.#follow(), 2000);
    };
  }

  #showEntry(html) {
    const entries = this.querySelector("#transcript .entries");
    const isAtEnd = window.innerHeight + window.scrollY > document.body.scrollHeight - 200;
    for (const entry of [...new DOMParser().parseFromString(html, "text/html").body.children]) {
      const old = entry.id && document.getElementById(entry.id);
      if (old) this.#replace(old, entry);
      else entries.append(entry);
      showLocalTimes(entry);
    }
    entries.querySelector(":scope > .empty")?.remove();
    // With the oldest steps, what is between them: messages, turns and compactions.
    const oldest = [...entries.querySelectorAll(":scope > .step")].at(-STEPS_IN_PAGE);
    while (oldest?.previousElementSibling) oldest.previousElementSibling.remove();
    this.#renewSoon();
    if (isAtEnd) window.scrollTo({ top: document.body.scrollHeight, behavior: "instant" });
  }

  #replace(old, entry) {
    const open = [...old.querySelectorAll("details")].map((each) => each.open);
    const writing = old.querySelector(".writing .text")?.textContent;
    entry.querySelectorAll("details").forEach((each, place) => { if (open[place]) each.open = true; });
    const target = entry.querySelector(".writing .text");
    if (target && writing) target.textContent = writing;
    target?.after(...old.querySelectorAll(".writing .input"));
    const focused = old.contains(document.activeElement) && document.activeElement.id;
    old.replaceWith(entry);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  #showText({ step, text, begins }) {
    const place = document.querySelector(`#step-${Number(step)} .writing .text`);
    if (begins) place?.replaceChildren();
    place?.append(text);
  }

  #showInput({ step, index, name, text, begins, void: isVoid }) {
    const place = document.querySelector(`#step-${Number(step)} .writing .text`);
    if (!place) return;
    let input = place.parentElement.querySelector(`.input[data-index="${Number(index)}"]`);
    if (isVoid || begins) input?.remove();
    if (isVoid) return;
    if (begins || !input) {
      input = document.createElement("pre");
      input.className = "input text";
      input.dataset.index = index;
      const tool = document.createElement("code");
      tool.textContent = name;
      input.append(tool, " ");
      place.parentElement.querySelector(".hint").before(input);
    }
    input.append(text);
  }

  #showProgress({ call, text }) {
    const place = document.getElementById(call)?.querySelector(":scope > .progress");
    if (place) place.textContent = `● ${text}`;
  }

  #renewSoon() {
    this.#renewing ||= setTimeout(() => {
      this.#renewing = 0;
      this.#renew(["summary", "timeline"]);
    }, PAUSE);
  }

  async #renew(ids) {
    const page = await fetchPart(this.getAttribute("page"));
    for (const id of page ? ids : []) {
      const [here, there] = [document.getElementById(id), page.getElementById(id)];
      if (here && there && here.innerHTML !== there.innerHTML) replaceInside(here, there.childNodes);
    }
  }

  #say(text) {
    const place = this.querySelector(".connection");
    if (place.textContent !== text) place.textContent = text;
  }
}

customElements.define("live-run", LiveRun);
