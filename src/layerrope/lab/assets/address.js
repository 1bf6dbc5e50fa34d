"use strict";
// `#gain.layer=3&theme=dark&at=stream`: what differs from the start. Unknown names and impossible values are ignored.
const Address = (() => {
  const panels = [];
  let at = "";
  let ready = false;

  const parse = (text) => (text.includes("=") ? Object.fromEntries(new URLSearchParams(text)) : { at: text });

  function keep() {
    if (!ready) return;
    const entries = panels.flatMap((panel) => panel.entries());
    if (Theme.chosen() !== "auto") entries.push(["theme", Theme.chosen()]);
    if (at) entries.push(["at", at]);
    history.replaceState(null, "", entries.length ? `#${new URLSearchParams(entries)}` : "#");
  }

  // Give every panel its own of the `given` values.
  function spread(given) {
    for (const panel of panels) {
      const own = Object.entries(given).filter(([name]) => name.startsWith(`${panel.name}.`));
      panel.restore(Object.fromEntries(own.map(([name, value]) => [name.slice(panel.name.length + 1), value])));
    }
  }

  function restore() {
    const given = parse(location.hash.slice(1));
    if (given.theme) Theme.choose(given.theme);
    spread(given);
    ready = true;
    go(given.at, false);
  }

  // What a link of the page does: show a part, or move controls where they are.
  function follow(text) {
    const given = parse(text);
    spread(given);
    if (given.at) go(given.at);
  }

  // Show a part, as a link to it would.
  function go(name, focus = true) {
    const part = [...document.querySelectorAll(".part")].find((each) => each.id === name);
    if (!part) return;
    part.scrollIntoView();
    if (focus) part.focus({ preventScroll: true });
    at = name;
    keep();
  }

  function begin() {
    for (const link of document.querySelectorAll('a[href^="#"]'))
      link.addEventListener("click", (event) => {
        event.preventDefault();
        follow(link.getAttribute("href").slice(1));
      });
    const links = new Map(
      [...document.querySelectorAll("nav.parts a")].map((a) => [a.getAttribute("href").slice(1), a]),
    );
    const seen = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries)
          if (isIntersecting)
            for (const [name, link] of links)
              name === target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
      },
      { rootMargin: "-30% 0px -65% 0px" },
    );
    for (const part of document.querySelectorAll(".part")) seen.observe(part);
  }

  return { panels, begin, keep, restore, go };
})();
