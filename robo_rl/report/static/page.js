"use strict";
// The theme button, copy buttons, and opening folded parts for print.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  // The page's own history entry survives a reload even where files have no storage; storage serves the next visit.
  const storage = {
    get: () => {
      if (history.state?.theme) return history.state.theme;
      try { return localStorage.getItem("theme"); } catch { return null; }
    },
    set: (value) => {
      try { history.replaceState({ ...history.state, theme: value }, ""); } catch { /* a sandboxed frame */ }
      try { localStorage.setItem("theme", value); } catch { /* private window */ }
    },
  };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => { button.textContent = isDark() ? "Light" : "Dark"; };

  const stored = storage.get();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    storage.set(root.dataset.theme);
    label();
  });
  system.addEventListener("change", label);
  label();

  async function copy(event) {
    const code = event.target.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      event.target.textContent = "Copied";
      setTimeout(() => { event.target.textContent = "Copy"; }, 1500);
    } catch { // no permission: select it, so that the person can copy it
      getSelection().selectAllChildren(code);
    }
  }
  for (const item of document.querySelectorAll("button.copy")) item.addEventListener("click", copy);

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const item of closed) item.open = true;
  });
  addEventListener("afterprint", () => {
    for (const item of closed) item.open = false;
  });
})();
