"use strict";
(() => {
  const $ = (query, from = document) => from.querySelector(query);
  const make = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const drawn = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  // Names and labels are anybody's: what can't be seen, or turns the text around, is written out.
  const hidden = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
  const shown = (text) => String(text).replace(hidden,
    (each) => "\\u" + each.charCodeAt(0).toString(16).padStart(4, "0"));
  const seconds = (value) => value === null || value === undefined ? "" :
    value < 0.9995 ? Math.round(value * 1000) + " ms" :
    value < 99.5 ? value.toFixed(value < 9.95 ? 1 : 0) + " s" :
    value < 5970 ? Math.round(value / 60) + " min" : (value / 3600).toFixed(1) + " h";

  let chosen = null, search = "", stream = null, last = null;

  // Keep an element for each key, so that the focus stays where it is.
  const sync = (list, items, keyOf, build, update) => {
    const known = new Map([...list.children].map((each) => [each.dataset.key, each]));
    let place = list.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      let element = known.get(key);
      known.delete(key);
      if (!element) {
        element = build(item);
        element.dataset.key = key;
      }
      update(element, item);
      if (element === place) place = place.nextElementSibling;
      else {
        const focused = document.activeElement;
        const had = element.contains(focused);
        list.insertBefore(element, place);
        if (had) focused.focus({preventScroll: true});
      }
    }
    for (const gone of known.values()) gone.remove();
  };

  // ---------------------------------------------------------------- the list

  const buildLimit = (limit) => {
    const item = make("li"), button = make("button");
    button.type = "button";
    button.append(make("span", "name"), make("span", "count"));
    const bar = make("div", "bar");
    bar.append(make("i"));
    const spark = drawn("svg", {class: "spark", viewBox: "0 0 90 18", "aria-hidden": "true"});
    spark.append(drawn("polyline", {points: ""}));
    const more = make("span", "more");
    more.append(make("span", "waits"), make("span", "times"), make("span", "rate"), spark);
    button.append(bar, more);
    button.addEventListener("click", () => choose(limit.name));
    item.append(button);
    return item;
  };
  const updateLimit = (item, limit) => {
    const button = item.firstElementChild, full = limit.full >= 1;
    button.dataset.limit = limit.name;
    button.setAttribute("aria-current", String(limit.name === chosen));
    item.classList.toggle("isfull", full);
    $(".name", item).textContent = shown(limit.name);
    $(".count", item).textContent = `${limit.held} / ${limit.value || "∞"}` +
      (limit.closed ? " closed" : full ? " full" : "") + (limit.kind === "tiers" ? " (tiers)" : "");
    $(".bar i", item).style.width = `${Math.min(limit.full, 1) * 100}%`;
    $(".waits", item).textContent = limit.waiting ? `${limit.waiting} waiting` : "";
    $(".times", item).textContent = limit.wait_p50 === null ? "" :
      `waits p50 ${seconds(limit.wait_p50)}, p95 ${seconds(limit.wait_p95)}`;
    $(".rate", item).textContent = limit.per_second === null ? "" :
      `${limit.per_second.toFixed(1)} acquisitions/s`;
    const step = 90 / Math.max(limit.spark.length - 1, 1);
    $("polyline", item).setAttribute("points", limit.spark.map(
      (each, at) => `${(at * step).toFixed(1)},${(17 - Math.min(each, 1) * 16).toFixed(1)}`).join(" "));
  };
  const showList = (data) => {
    const isIdle = (each) => !each.held && !each.waiting && !each.closed && each.name !== chosen;
    const idle = data.limits.filter(isIdle);
    const keyOf = (each) => `${each.kind} ${each.name}`;
    sync($("#used"), data.limits.filter((each) => !isIdle(each)), keyOf, buildLimit, updateLimit);
    sync($("#idle"), idle, keyOf, buildLimit, updateLimit);
    $("#folded").hidden = !idle.length;
    $("#folded summary").textContent = `${idle.length} idle`;
    const cut = data.found - data.limits.length;
    $("#more").textContent = `${data.total} limits` +
      (data.found < data.total ? `, ${data.found} found` : "") + (cut > 0 ? `, ${cut} not shown` : "");
  };

  // -------------------------------------------------------------- one of them

  const whoOf = (each) => [each.host, each.pid].filter((part) => part !== null).join(":");
  const keysOf = (each) => Object.entries(each.keys || {}).map(([tier, key]) => `${tier}=${key}`).join(" ");
  const buildHolder = (each) => {
    const item = make("li");
    item.append(make("b"), make("span", "label"), make("span", "who"), make("span", "age"));
    if (each.id) {
      const kick = make("button", "", "Kick");
      kick.type = "button";
      kick.dataset.action = "kick";
      kick.addEventListener("click", () => ask(
        `Take the slots away from ${item.dataset.title}? The next in line gets them at once.`,
        {action: "kick", id: each.id}));
      item.append(kick);
    }
    return item;
  };
  const updateHolder = (item, each) => {
    $("b", item).textContent = each.slot_number === null ? "–" : `#${each.slot_number}`;
    item.classList.toggle("empty", !each.id);
    if (!each.id) { $(".label", item).textContent = "free"; return; }
    item.dataset.holder = each.id;
    item.dataset.title = shown(each.label || whoOf(each) || each.id);
    $(".label", item).textContent = shown(each.unreadable ? "unreadable" : each.label || "");
    $(".who", item).textContent = shown([keysOf(each), whoOf(each)].filter(Boolean).join(" "));
    $(".age", item).textContent = (each.slots > 1 ? `${each.slots} slots, ` : "") +
      (each.age === null ? "" : `for ${seconds(each.age)}`);
    const kick = $("button", item);
    if (kick) { kick.hidden = !last.steer; kick.setAttribute("aria-label", `Kick ${item.dataset.title}`); }
  };
  const buildWaiter = () => {
    const item = make("li");
    item.append(make("b"), make("span", "label"), make("span", "who"), make("span", "age"), make("span", "why"));
    return item;
  };
  const updateWaiter = (item, each) => {
    item.dataset.waiter = each.id;
    $("b", item).textContent = `${each.place}.`;
    $(".label", item).textContent = shown(each.label || "");
    $(".who", item).textContent = shown([keysOf(each), whoOf(each)].filter(Boolean).join(" "));
    $(".age", item).textContent = each.age === null ? "" : `waits for ${seconds(each.age)}`;
    $(".why", item).textContent = shown([each.lacks ? `lacks ${each.lacks}` : "",
      each.slots > 1 ? `needs ${each.slots}` : "",
      each.estimate === null ? "" : `about ${seconds(each.estimate)} to go`].filter(Boolean).join(", "));
  };
  const showStrip = (holds) => {
    const box = $("#strip");
    box.replaceChildren();
    const rows = [...new Set(holds.map((each) => each.slot ?? 0))].sort((a, b) => a - b).slice(0, 40);
    if (!rows.length) { box.append(make("p", "who", "nobody was seen holding it")); return; }
    const height = rows.length * 10;
    const picture = drawn("svg", {viewBox: `0 0 600 ${height}`, preserveAspectRatio: "none", height,
      role: "img", "aria-label": "who held which slot in the last minute"});
    for (const each of holds) {
      const row = rows.indexOf(each.slot ?? 0);
      if (row < 0) continue;
      const x = (each.from + 60) * 10, width = Math.max((each.to - each.from) * 10, 2);
      const rect = drawn("rect", {x, y: row * 10 + 1, width, height: 8});
      const title = drawn("title", {});
      title.textContent = shown(`#${each.slot ?? "–"} ${each.label} ${seconds(each.to - each.from)}`);
      rect.append(title);
      picture.append(rect);
    }
    box.append(picture);
  };
  const showHistory = (values, at) => {
    const box = $("#history");
    box.replaceChildren();
    if (values.length < 2) return;
    const begin = values[0][0], most = Math.max(...values.map((each) => each[1]), 1);
    const x = (when) => ((when - begin) / Math.max(at - begin, 1)) * 600;
    const points = [];
    values.forEach(([when, value], index) => {
      const y = 58 - (value / most) * 54;
      points.push(`${x(when)},${y}`, `${x(index + 1 < values.length ? values[index + 1][0] : at)},${y}`);
    });
    const picture = drawn("svg", {viewBox: "0 0 600 60", preserveAspectRatio: "none", role: "img",
      "aria-label": `the value: ${values.map((each) => each[1]).join(", ")}`});
    picture.append(drawn("polyline", {points: points.join(" ")}));
    box.append(make("h3", "", "Value over time"), picture);
  };
  const showTiers = (tiers) => {
    $("#tiers").hidden = !tiers.length;
    const rows = [];
    for (const tier of tiers) {
      for (const each of tier.keys && tier.keys.length ? tier.keys : [{...tier, key: null}]) {
        const row = make("tr");
        for (const cell of [tier.name, each.key ?? "", each.value || "∞", each.held, each.waiting,
          each.level === null || each.level === undefined ? "" : Math.floor(each.level)])
          row.append(make("td", "", shown(cell)));
        rows.push(row);
      }
    }
    $("#tiers tbody").replaceChildren(...rows);
  };
  const showDetail = (data) => {
    const limit = data.limit, row = data.limits.find((each) => each.name === chosen);
    $("#detail").hidden = chosen === null;
    $("#nothing").hidden = chosen !== null;
    if (chosen === null) return;
    $("#detail h2").textContent = shown(chosen);
    if (!limit) { $("#facts").textContent = "there is none of that name now"; return; }
    const value = row ? row.value : 0;
    $("#facts").textContent = row ? `${row.held} of ${value || "any number of"} held, ` +
      `${row.waiting} waiting` + (row.closed ? `; closed${row.reason ? ": " + shown(row.reason) : ""}` : "") : "";
    $("#steer").hidden = !data.steer || limit.kind !== "semaphore";
    const numbered = limit.kind === "semaphore" && value <= 64;
    let lanes = limit.holders;
    if (numbered) {
      const byNumber = new Map(limit.holders.map((each) => [each.slot_number, each]));
      const taken = new Set();
      for (const each of limit.holders)
        for (let more = 0; more < each.slots; more++) taken.add((each.slot_number ?? 0) + more);
      lanes = limit.holders.filter((each) => each.slot_number === null || each.slot_number > value);
      for (let number = 1; number <= value; number++)
        if (byNumber.has(number)) lanes.push(byNumber.get(number));
        else if (!taken.has(number)) lanes.push({id: "", slot_number: number});
    }
    sync($("#lanes"), lanes, (each) => each.id || `free ${each.slot_number}`, buildHolder, updateHolder);
    $("#free").textContent = limit.holders_total > limit.holders.length ?
      `and ${limit.holders_total - limit.holders.length} more` :
      numbered || !value ? "" : `${Math.max(value - (row ? row.held : 0), 0)} free`;
    sync($("#line"), limit.waiters, (each) => each.id, buildWaiter, updateWaiter);
    $("#behind").textContent = limit.waiters_total > limit.waiters.length ?
      `and ${limit.waiters_total - limit.waiters.length} more` : limit.waiters_total ? "" : "nobody waits";
    showTiers(limit.tiers);
    showStrip(limit.strip);
    showHistory(limit.values, data.at);
  };

  // ------------------------------------------------------------------- steering

  const dialog = $("dialog");
  let wanted = null;
  const ask = (question, what) => {
    wanted = what;
    $("#question").textContent = question;
    $("#answer").textContent = "";
    dialog.showModal();
  };
  $("[data-action=cancel]").addEventListener("click", () => dialog.close());
  $("[data-action=confirm]").addEventListener("click", async () => {
    try {
      const reply = await fetch("steer", {method: "POST", body: JSON.stringify(wanted),
        headers: {"Content-Type": "application/json"}});
      const answer = await reply.json();
      if (reply.ok) dialog.close();
      else $("#answer").textContent = shown(answer.error);
    } catch (error) { $("#answer").textContent = "the server didn't answer"; }
  });
  $("[data-action=resize]").addEventListener("click", () => {
    const value = Number($("#value").value);
    if (value >= 1) ask(`Give '${shown(chosen)}' ${value} slots?`, {action: "resize", name: chosen, value});
  });
  for (const action of ["close", "open"])
    $(`[data-action=${action}]`).addEventListener("click", () => ask(
      action === "close" ? `Close '${shown(chosen)}' for everybody? Waiters and newcomers are refused.` :
        `Open '${shown(chosen)}' again?`, {action, name: chosen}));
  $("#steer").addEventListener("submit", (event) => event.preventDefault());

  // ------------------------------------------------------------------- the stream

  const show = (data) => {
    if (data.error) { $("#state").textContent = shown(data.error); return; }
    last = data;
    $("#state").textContent = data.errors.length ? shown(data.errors[0]) :
      `live, ${new Date(data.at * 1000).toLocaleTimeString()}`;
    showList(data);
    showDetail(data);
  };
  const connect = () => {
    if (stream) stream.close();
    stream = null;
    if (document.hidden) { $("#state").textContent = "paused"; return; }
    const query = new URLSearchParams();
    if (chosen !== null) query.set("name", chosen);
    if (search) query.set("q", search);
    stream = new EventSource(`events?${query}`);
    stream.onmessage = (event) => show(JSON.parse(event.data));
    stream.onerror = () => { $("#state").textContent = "reconnecting …"; };
  };
  const choose = (name) => {
    chosen = name;
    history.replaceState(null, "", `#${encodeURIComponent(name)}`);
    if (last) { showList(last); showDetail({...last, limit: last.limit && last.limit.name === name ? last.limit : null}); }
    connect();
  };
  let typing = 0;
  $("input[type=search]").addEventListener("input", (event) => {
    search = event.target.value;
    clearTimeout(typing);
    typing = setTimeout(connect, 200);
  });
  document.addEventListener("visibilitychange", connect);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement.tagName !== "INPUT") {
      event.preventDefault();
      $("input[type=search]").focus();
    }
    const buttons = [...document.querySelectorAll(".limits button")];
    const at = buttons.indexOf(document.activeElement);
    if (at >= 0 && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      const next = buttons[at + (event.key === "ArrowDown" ? 1 : -1)];
      if (next) next.focus();
    }
  });
  if (location.hash.length > 1) {
    try { chosen = decodeURIComponent(location.hash.slice(1)); } catch (error) { chosen = null; }
  }
  connect();
})();
