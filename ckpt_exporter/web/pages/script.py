"""The script of the status page: asks for the page again and changes only what differs.

Elements stay the same ones, so focus, scroll position, selection and opened details stay, too. The page is
whole without it: then the browser loads it anew now and then.
"""

from __future__ import annotations

SCRIPT = """
(() => {
  'use strict';
  const BUSY_MS = 2000, IDLE_MS = 5000, PATIENCE_MS = 10000, COST_SHARE = 20;
  const page = document.getElementById('page');
  const lost = document.getElementById('lost');
  let timer = 0, asking = false;

  function morphAttributes(live, fresh) {
    for (const {name, value} of fresh.attributes) {
      if (live.getAttribute(name) !== value) live.setAttribute(name, value);
    }
    for (const {name} of [...live.attributes]) {
      const opened = live.localName === 'details' && name === 'open';
      if (!opened && !fresh.hasAttribute(name)) live.removeAttribute(name);
    }
  }

  function sameElement(live, fresh) {
    return live.nodeName === fresh.nodeName && (live.id || '') === (fresh.id || '');
  }

  function find(from, wanted) {
    if (!wanted.id) return from && sameElement(from, wanted) ? from : null;
    while (from && !sameElement(from, wanted)) from = from.nextSibling;
    return from;
  }

  function morph(live, fresh) {
    if (live.isEqualNode(fresh)) return;
    morphAttributes(live, fresh);
    let at = live.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const match = find(at, wanted);
      if (!match) {
        live.insertBefore(document.importNode(wanted, true), at);
        continue;
      }
      while (at !== match) {
        const gone = at;
        at = at.nextSibling;
        gone.remove();
      }
      if (match.nodeType !== Node.ELEMENT_NODE) {
        if (match.data !== wanted.data) match.data = wanted.data;
      } else {
        morph(match, wanted);
      }
      at = match.nextSibling;
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  function say(text) {
    if (lost.textContent !== text) lost.textContent = text;
    lost.hidden = !text;
  }

  function selecting() {
    const selection = getSelection();
    return selection && !selection.isCollapsed && page.contains(selection.anchorNode);
  }

  async function load() {
    const control = new AbortController();
    const limit = setTimeout(() => control.abort(), PATIENCE_MS);
    try {
      const answer = await fetch(location.pathname, {cache: 'no-store', signal: control.signal});
      if (!answer.ok) throw new Error('HTTP ' + answer.status);
      return new DOMParser().parseFromString(await answer.text(), 'text/html');
    } finally {
      clearTimeout(limit);
      control.abort();  // what of a refusal was not read would keep its connection
    }
  }

  async function refresh() {
    clearTimeout(timer);
    if (asking) return;
    asking = true;
    const began = performance.now();
    try {
      if (!document.hidden && !selecting()) {
        const fresh = await load();
        const part = fresh.getElementById('page');
        if (!part) throw new Error('another page');
        if (fresh.documentElement.dataset.look !== document.documentElement.dataset.look) {
          location.reload();
          return;
        }
        document.title = fresh.title;
        morph(page, part);
        say('');
      } else if (!document.hidden) {
        say('Not updating while text is selected.');
      }
    } catch (error) {
      say('No answer from the exporter: what is shown here is old. It will be asked again.');
    } finally {
      asking = false;
      // A page that is slow to make is asked for less often.
      const least = COST_SHARE * Math.min(performance.now() - began, PATIENCE_MS);
      timer = setTimeout(refresh, Math.max(least, page.dataset.busy ? BUSY_MS : IDLE_MS));
    }
  }

  document.addEventListener('visibilitychange', () => { if (!document.hidden) refresh(); });
  timer = setTimeout(refresh, BUSY_MS);
})();
""".strip()
