// <edited-field>: says what the model asked for, where a person has changed it.
class EditedField extends HTMLElement {
  connectedCallback() {
    const input = this.querySelector("input, select, textarea");
    const asked = input.value;
    const note = Object.assign(document.createElement("p"), { className: "change" });
    note.setAttribute("role", "status");
    this.append(note);
    input.addEventListener("input", () => {
      const isEdited = input.value !== asked;
      this.classList.toggle("edited", isEdited);
      note.textContent = isEdited ? `Changed. Before: ${asked || "(nothing)"}` : "";
    });
  }
}

customElements.define("edited-field", EditedField);
