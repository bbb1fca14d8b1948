// What the theme leaves out for people who read with a keyboard or a screen reader.
(function () {
  "use strict";
  function mend() {
    var search = document.querySelector(".md-search");
    if (search) search.setAttribute("aria-label", "Search");
    // Code that scrolls has to be reached by the keyboard.
    document.querySelectorAll("pre > code").forEach(function (code) {
      code.tabIndex = 0;
    });
    // The theme names several parts of the navigation alike.
    document.querySelectorAll("nav.md-code__nav, nav[data-md-level]:not([data-md-level='0'])").forEach(function (nav, place) {
      var named = document.getElementById(nav.getAttribute("aria-labelledby") || "");
      if (nav.dataset.named) return;
      nav.dataset.named = "yes";
      nav.removeAttribute("aria-labelledby");
      nav.setAttribute("aria-label", (named ? named.textContent.trim() : "code") + ", part " + (place + 1));
    });
  }
  document.addEventListener("DOMContentLoaded", function () {
    mend();
    // The theme adds such buttons later.
    new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
  });
})();
