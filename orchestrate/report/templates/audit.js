
"use strict";
(() => {
  const every = (selector, within = document) => [...within.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;

  // Theme: as the system says, until the button is pressed; a browser that keeps nothing for files forgets it.
  const theme = byId("theme");
  const recall = (write) => {
    try {
      if (write) localStorage.setItem("muster-theme", write);
      return localStorage.getItem("muster-theme");
    } catch {
      return null;
    }
  };
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { theme.textContent = dark() ? "Light theme" : "Dark theme"; };
  const kept = recall();
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    recall(root.dataset.theme);
    nameTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();
  theme.hidden = false;

  // Filter: a card is shown if its state is, and if the words are in its head or in one of its entries.
  const hostNames = JSON.parse(byId("host-names").textContent);
  const texts = new Map();
  const textOf = (node) => {
    if (!texts.has(node)) {
      const keys = every("[data-hosts]", node).map((names) => hostNames[names.dataset.hosts]);
      texts.set(node, [node.textContent.toLowerCase(), ...keys].join("\n"));
    }
    return texts.get(node);
  };
  const heads = new Map();
  const headOf = (card) => {
    if (!heads.has(card)) {
      const copy = card.cloneNode(true);
      every(".entry, .more", copy).forEach((entry) => entry.remove());
      heads.set(card, copy.textContent.toLowerCase());
    }
    return heads.get(card);
  };
  const cards = every(".card");
  const rows = every("tr[data-state]");
  const others = every("[data-row]");
  const words = byId("words");
  const toggles = every("[data-toggle]");

  const filter = () => {
    const asked = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (text) => asked.every((word) => text.includes(word));
    const states = new Set(toggles.filter((one) => one.getAttribute("aria-pressed") === "true").map((one) => one.dataset.toggle));
    let shown = 0;
    for (const card of cards) {
      const whole = matches(headOf(card));
      let found = whole;
      for (const entry of every(".entry", card)) {
        entry.hidden = !(whole || matches(headOf(card) + textOf(entry)));
        found ||= !entry.hidden;
      }
      const more = card.querySelector(".more");
      if (more) {
        more.hidden = every(".entry", more).every((entry) => entry.hidden);
        if (asked.length && !whole && !more.hidden) more.open = true;
      }
      card.hidden = !(found && states.has(card.dataset.state));
      shown += card.hidden ? 0 : 1;
    }
    for (const row of rows) row.hidden = !(states.has(row.dataset.state) && matches(textOf(row)));
    for (const other of others) other.hidden = !matches(textOf(other));
    byId("nothing").hidden = shown > 0 || cards.length === 0;
    byId("shown").textContent = cards.length ? `${shown} of ${cards.length} shown` : "";
  };
  let waiting = 0;
  words.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 120);
  });
  for (const toggle of toggles) {
    toggle.addEventListener("click", () => {
      toggle.setAttribute("aria-pressed", String(toggle.getAttribute("aria-pressed") !== "true"));
      filter();
    });
  }
  byId("controls").hidden = false;
  filter();

  // Details: all at once, for a link that leads into one, and for paper.
  const expand = byId("expand");
  expand.addEventListener("click", () => {
    const open = expand.getAttribute("aria-pressed") !== "true";
    expand.setAttribute("aria-pressed", String(open));
    every("main details").forEach((one) => { one.open = open; });
  });
  const reveal = () => {
    const target = location.hash.length > 1 && byId(location.hash.slice(1));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target && target.hidden) {
      words.value = "";
      toggles.forEach((one) => one.setAttribute("aria-pressed", "true"));
      filter();
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", reveal);
  reveal();
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = every("main details:not([open], .about)");
    closed.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));

  // Copying: a file has no clipboard in some browsers; there the text is selected and copied the old way.
  const selectAndCopy = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return document.execCommand("copy");
  };
  for (const command of every(".command")) {
    const code = command.querySelector("code");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the commands");
    button.addEventListener("click", async () => {
      let done;
      try {
        await navigator.clipboard.writeText(code.textContent);
        done = true;
      } catch {
        done = selectAndCopy(code);
      }
      button.textContent = done ? "Copied" : "Selected";
      byId("shown").textContent = done ? "Copied to the clipboard" : "Selected: copy it with the keyboard";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    command.append(button);
  }
})();
