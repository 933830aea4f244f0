// The theme that was chosen, before anything is drawn: a page in the other one would flash.
"use strict";
(() => {
  let theme = null;
  try { theme = localStorage.getItem("murmur-theme"); } catch { /* kept nowhere: the system's */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
