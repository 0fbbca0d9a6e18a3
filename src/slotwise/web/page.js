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
  // Anybody may choose names and labels: characters that are invisible, or reverse the text, are escaped.
  const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0]/gu;
  const shown = (text) => String(text).replace(hidden, (each) => {
    const code = each.codePointAt(0).toString(16);
    return code.length > 4 ? `\\u{${code}}` : "\\u" + code.padStart(4, "0");
  });
  const seconds = (value) => value === null || value === undefined ? "" :
    value < 0.9995 ? Math.round(value * 1000) + " ms" :
    value < 99.5 ? value.toFixed(value < 9.95 ? 1 : 0) + " s" :
    value < 5970 ? Math.round(value / 60) + " min" : (value / 3600).toFixed(1) + " h";

  const wait = (value) => value === 0 ? "<1 s" : seconds(value);  // it began and ended between two samples

  let chosen = null, kind = "semaphore", search = "", stream = null, last = null;
  const isChosen = (each) => each.name === chosen && each.kind === kind;  // tiers may have the name of a semaphore

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

  const whoOf = (each) => [each.host, each.pid].filter((part) => part !== null).join(":");
  const keysOf = (each) => Object.entries(each.keys || {}).map(([tier, key]) => `${tier}=${key}`).join(" ");
  const titleOf = (each) => each.unreadable ? "unreadable" : each.label || keysOf(each) || whoOf(each) || each.id;
  const percent = (part, whole) => `${whole ? Math.max(Math.min(part / whole, 1), 0) * 100 : 0}%`;
  const barOf = (share) => {
    const bar = make("div", "bar");
    bar.append(make("i"));
    bar.firstChild.style.width = share;
    return bar;
  };
  // The bottleneck of tiers: "tokens: 37 left of 6,000, next grant in 200 ms".
  const shortOf = (short) => shown(short.what) + (short.next === null ? "" : `, next grant in ${seconds(short.next)}`);
  const buildLimit = (limit) => {
    const item = make("li"), button = make("button");
    button.type = "button";
    const spark = drawn("svg", {class: "spark", viewBox: "0 0 84 26", "aria-hidden": "true"});
    spark.append(drawn("polygon", {points: ""}), drawn("polyline", {points: ""}));
    const more = make("span", "more");
    more.append(make("span", "waits"), make("span", "times"), make("span", "rate"), make("span", "oldest"));
    button.append(make("span", "name"), make("span", "count"), barOf("0"), more, spark);
    button.addEventListener("click", () => choose(limit));
    item.append(button);
    return item;
  };
  const updateLimit = (item, limit) => {
    const button = item.firstElementChild, full = limit.full >= 1;
    button.dataset.limit = limit.name;
    button.setAttribute("aria-current", String(isChosen(limit)));
    item.classList.toggle("isfull", full);
    $(".name", item).textContent = shown(limit.name);
    $(".count", item).textContent = (limit.value === null ? "a rate" : `${limit.held} / ${limit.value || "∞"}`) +
      (limit.closed ? " closed" : limit.paused_for ? " paused" : !full ? "" :
        limit.kind === "tiers" && (limit.value === null || limit.held < limit.value) ? ", a part full" : " full") +
      (limit.kind === "tiers" ? " (tiers)" : "");
    $(".bar i", item).style.width = percent(limit.full, 1);
    $(".waits", item).textContent = limit.waiting ? `${limit.waiting} waiting` : "";
    $(".times", item).textContent = limit.wait_p50 === null ? "" :
      `waits p50 ${wait(limit.wait_p50)}, p95 ${wait(limit.wait_p95)}`;
    $(".rate", item).textContent = limit.per_second === null || limit.value === null ? "" :  // rates have no holders
      `${limit.per_second.toFixed(1)} acquisitions/s`;
    $(".oldest", item).textContent = limit.short ? shortOf(limit.short) : limit.waiting && limit.oldest ?
      `oldest: ${shown(titleOf(limit.oldest))}, ${seconds(limit.oldest.age)}` : "";
    const step = 84 / Math.max(limit.spark.length - 1, 1);
    const points = limit.spark.map(
      (each, at) => `${(at * step).toFixed(1)},${(25 - Math.min(each, 1) * 24).toFixed(1)}`).join(" ");
    $("polyline", item).setAttribute("points", points);
    $("polygon", item).setAttribute("points", points && `0,26 ${points} 84,26`);
  };
  const showList = (data) => {
    const isIdle = (each) => !each.held && !each.waiting && !each.closed && !each.paused_for && !each.full && !isChosen(each);
    // The server searches all of them; until it has answered, search those that are here.
    const wanted = search.toLowerCase();
    const limits = data.limits.filter((each) => each.name.toLowerCase().includes(wanted));
    const idle = limits.filter(isIdle);
    const keyOf = (each) => `${each.kind} ${each.name}`;
    sync($("#used"), limits.filter((each) => !isIdle(each)), keyOf, buildLimit, updateLimit);
    sync($("#idle"), idle, keyOf, buildLimit, updateLimit);
    $("#folded").hidden = !idle.length;
    $("#folded summary").textContent = `${idle.length} idle`;
    const cut = data.found - data.limits.length;
    $("#more").textContent = `${data.total} ${data.total === 1 ? "limit" : "limits"}` +
      (data.found < data.total ? `, ${data.found} found` : "") + (cut > 0 ? `, ${cut} not shown` : "");
    $("#where").textContent = `limits ${shown(data.where)}`;
  };

  // -------------------------------------------------------------- one of them

  const buildHolder = (each) => {
    const item = make("li"), who = make("span");
    who.append(make("span", "label"), make("span", "who"));
    item.append(make("b"), who, make("span", "age"));
    if (!each.id) return item;
    if (last.steer) {
      const kick = make("button", "", "Kick");
      kick.type = "button";
      kick.dataset.action = "kick";
      kick.addEventListener("click", () => ask(
        `Take the slots away from ${item.dataset.title}? The next in line gets them at once.`,
        {action: "kick", id: each.id, name: chosen}));
      item.append(kick);
    }
    const ttl = make("div", "ttl");
    ttl.append(make("span", "left"), barOf("100%"));
    item.append(ttl);
    return item;
  };
  const updateHolder = (item, each) => {
    $("b", item).textContent = each.slot_number === null ? "–" : `#${each.slot_number}`;
    item.classList.toggle("empty", !each.id);
    if (!each.id) {
      const more = each.until - each.slot_number;
      $(".label", item).textContent = more ? `to #${each.until}: ${more + 1} free` : "free";
      return;
    }
    item.dataset.holder = each.id;
    item.dataset.title = shown(titleOf(each));
    item.classList.toggle("eldest", Boolean(each.eldest));
    $(".label", item).textContent = shown(each.unreadable ? "unreadable" : each.label || "");
    $(".who", item).textContent = shown([keysOf(each), whoOf(each)].filter(Boolean).join(" "));
    $(".age", item).textContent = (each.slots > 1 ? `${each.slots} slots, ` : "") +
      (each.age === null ? "" : `for ${seconds(each.age)}`) + (each.eldest ? ", longest" : "");
    const kick = $("button", item);
    if (kick) kick.setAttribute("aria-label", `Kick ${item.dataset.title}`);
    const ttl = $(".ttl", item), left = each.ttl === null || each.age === null ? null : Math.max(each.ttl - each.age, 0);
    ttl.hidden = left === null;
    if (left === null) return;
    $(".left", ttl).textContent = `ends in ${seconds(left)} of ${seconds(each.ttl)}`;
    $(".bar i", ttl).style.width = percent(left, each.ttl);
    ttl.classList.toggle("ends", left < each.ttl / 5);
  };
  const buildWaiter = () => {
    const item = make("li"), who = make("span");
    who.append(make("span", "label"), make("span", "who"));
    item.append(make("b"), who, make("span", "age"), make("span", "why"));
    return item;
  };
  const reasonOf = (each, row) => {
    if (each.lacks) return `lacks ${each.lacks}`;
    if (each.place > 1) return `${each.place - 1} ahead`;
    if (row.paused_for) return `paused for another ${seconds(row.paused_for)}`;
    const free = Math.max(row.value - row.held, 0);
    return free ? `needs ${each.slots} slots, ${free} free` : row.value === 1 ? "the slot is held" : `all ${row.value} slots held`;
  };
  const updateWaiter = (row) => (item, each) => {
    item.dataset.waiter = each.id;
    $("b", item).textContent = `${each.place}.`;
    $(".label", item).textContent = shown(each.label || "");
    $(".who", item).textContent = shown([keysOf(each), whoOf(each)].filter(Boolean).join(" "));
    $(".age", item).textContent = each.age === null ? "" : `waiting for ${seconds(each.age)}`;
    $(".why", item).textContent = shown([reasonOf(each, row), each.slots > 1 ? `needs ${each.slots}` : "",
      each.estimate === null ? "" : `about ${seconds(each.estimate)} to go`].filter(Boolean).join(" · "));
  };
  const showStrip = (holds) => {
    const box = $("#strip"), lanes = new Map();
    for (const each of holds) {
      const number = each.slot ?? 0;
      if (!lanes.has(number)) lanes.set(number, []);
      lanes.get(number).push(each);
    }
    const numbers = [...lanes.keys()].sort((a, b) => a - b).slice(0, 40);
    if (!numbers.length) { box.replaceChildren(make("p", "who", "no holds were seen")); return; }
    const rows = numbers.map((number) => {
      const row = make("div", "row"), track = make("div", "track");
      lanes.get(number).sort((a, b) => a.from - b.from).forEach((each, at) => {
        const isWide = each.to - each.from > 4;  // otherwise only a few letters would be visible
        const hold = make("div", at % 2 ? "hold odd" : "hold", isWide ? shown(each.label) : "");
        hold.title = shown(`${each.label}, ${seconds(each.to - each.from)}${each.ended ? "" : ", still holds"}`);
        hold.style.left = percent(each.from + 60, 60);
        hold.style.width = `max(3px, ${percent(each.to - each.from, 60)})`;
        track.append(hold);
      });
      row.append(make("span", "", number ? `#${number}` : "–"), track);
      return row;
    });
    const axis = make("div", "axis");
    axis.append(make("span", "", "a minute ago"), make("span", "", "30 s"), make("span", "", "now"));
    box.replaceChildren(...rows, axis);
  };
  const seriesOf = (each) => each.tier === null ? "" : each.key === null ? each.tier : `${each.tier}=${each.key}`;
  const buildSeries = (each) => {
    const item = make("li"), head = make("p"), target = {name: chosen, kind, tier: each.tier, key: each.key};
    head.append(make("span", "name"), make("span", "now"));
    for (const [action, text] of last.steer ? [["freeze", "Freeze"], ["thaw", "Thaw"]] : []) {
      const button = make("button", "", text);
      button.type = "button";
      button.dataset.action = action;
      button.addEventListener("click", () => ask(questions[action](
        `'${shown([chosen, seriesOf(each)].filter(Boolean).join(" "))}'`), {action, ...target}));
      head.append(button);
    }
    item.append(head, make("div", "chart"), make("ul", "changes"));
    return item;
  };
  const updateSeries = (limit, at) => (item, each) => {
    const value = each.value ?? limit.value, changes = each.changes, points = [];
    $(".name", item).textContent = shown(seriesOf(each));
    $(".now", item).textContent = `${value} now`;
    const begin = changes.length ? Math.min(changes[0].at, at - 60) : at - 60;
    const most = Math.max(value, 1, ...changes.map((one) => Math.max(one.old, one.new)));
    const x = (when) => ((when - begin) / Math.max(at - begin, 1)) * 600, y = (one) => 66 - (one / most) * 60;
    let now = changes.length ? changes[0].old : value;
    points.push(`0,${y(now)}`);
    for (const one of changes) {
      points.push(`${x(one.at)},${y(now)}`, `${x(one.at)},${y(one.new)}`);
      now = one.new;
    }
    points.push(`600,${y(now)}`);
    const picture = drawn("svg", {viewBox: "0 0 600 70", preserveAspectRatio: "none", role: "img",
      "aria-label": `the value, now ${value}: ${changes.map((one) => one.new).join(", ")}`});
    picture.append(drawn("polyline", {points: points.join(" ")}));
    const axis = make("div", "axis");
    axis.append(make("span", "", `${seconds(at - begin)} ago`), make("span", "", `top ${most}`), make("span", "", "now"));
    $(".chart", item).replaceChildren(picture, axis);
    $(".changes", item).replaceChildren(...changes.slice(-5).reverse().map((one) => {
      const line = make("li");
      line.append(make("span", "who", `${seconds(Math.max(at - one.at, 0))} ago`),
        make("b", "", `${one.old} → ${one.new}`), make("span", "", shown(one.reason)));
      return line;
    }));
  };
  const showHistory = (limit, at) => {
    $("#history").hidden = !limit.adaptive.length;
    sync($("#history > ul"), limit.adaptive, (each) => `${limit.name} ${seriesOf(each)}`, buildSeries,
      updateSeries(limit, at));
  };
  const showTiers = (tiers) => {
    $("#tiers").hidden = !tiers.length;
    const rows = [], add = (title, name, each) => {
      const isRate = each.rate !== null, most = isRate ? each.burst : each.value;
      const taken = isRate ? most - each.level : each.held, row = make("li");
      row.classList.toggle("isfull", Boolean(most) && taken >= most);
      row.append(make("span", name, shown(title)), barOf(percent(taken, most)),
        make("span", "count", (isRate ? `${Math.floor(each.level)} left of ${most}, ${each.rate}` :
          each.value ? `${each.held} / ${each.value}` : `${each.held} held`) +
          (each.waiting ? `, ${each.waiting} waiting` : "")));
      rows.push(row);
    };
    for (const tier of tiers) {
      if (!tier.keyed) { add(tier.name, "name", tier); continue; }
      const head = make("li");
      head.append(make("span", "name", shown(tier.name)), make("span"),
        make("span", "who", `${tier.keys_in_use} keys in use, ${tier.rate || tier.value || "∞"} each`));
      rows.push(head);
      for (const each of tier.keys) add(each.key, "key", each);
    }
    $("#tiers ul").replaceChildren(...rows);
  };
  const tag = (color, text) => make("span", `tag ${color}`, text);
  const showHead = (row) => {
    $("#detail h2").textContent = shown(chosen);
    const tags = $("#tags"), blame = $("#blame");
    tags.replaceChildren();
    blame.hidden = true;
    if (!row) { $("#facts").textContent = "no limit has this name any more"; return; }
    const full = row.full >= 1;
    if (row.closed) tags.append(tag("red", "closed"));
    else if (row.paused_for) tags.append(tag("amber", `paused for ${seconds(row.paused_for)}`));
    if (row.frozen) tags.append(tag("amber", "frozen"));
    if (full) tags.append(tag("red", "full"));
    else if (!row.waiting) tags.append(tag("green", "free"));
    if (row.waiting) tags.append(tag("amber", `${row.waiting} waiting`));
    $("#facts").textContent = (row.value === null ? "" : `${row.held} of ${row.value || "any number of"} held, `) +
      `${row.waiting} waiting` +
      (row.first_waits === null || !row.waiting ? "" : `, the first for ${seconds(row.first_waits)}`) +
      (row.closed && row.reason ? `; closed: ${shown(row.reason)}` : "");
    const oldest = row.oldest;
    blame.replaceChildren();
    if (row.short) blame.append(make("b", "", shortOf(row.short)));
    blame.hidden = !row.short;
    if (!row.waiting || !oldest || oldest.age === null) return;
    blame.hidden = false;
    blame.append(document.createTextNode(row.short ? "; held longest: " : "Held longest: "), make("b", "", shown(titleOf(oldest))),
      document.createTextNode(shown(`${oldest.label && whoOf(oldest) ? ` at ${whoOf(oldest)}` : ""}` +
        `${oldest.slot_number ? `, in slot ${oldest.slot_number}` : ""}, for ${seconds(oldest.age)}`)));
  };
  const showDetail = (data) => {
    const limit = data.limit, row = limit || data.limits.find(isChosen);
    $("#detail").hidden = chosen === null;
    $("#nothing").hidden = chosen !== null;
    document.body.classList.toggle("one", chosen !== null);
    if (chosen === null) return;
    showHead(row);
    if (!limit) {  // not yet, or not any more
      $("#steer").hidden = $("#tiers").hidden = $("#history").hidden = true;
      for (const list of ["#lanes", "#line", "#strip", "#free", "#behind"]) $(list).replaceChildren();
      return;
    }
    const value = limit.value;
    $("#steer").hidden = !data.steer;
    $("#steer label").hidden = $("[data-action=resize]").hidden = limit.kind !== "semaphore";
    if (limit.oldest && limit.waiting)
      for (const each of limit.holders) each.eldest = each.id === limit.oldest.id;
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
        else if (!taken.has(number)) {
          const before = lanes[lanes.length - 1];
          if (before && !before.id && before.until === number - 1) before.until = number;
          else lanes.push({id: "", slot_number: number, until: number});
        }
    }
    sync($("#lanes"), lanes, (each) => each.id || `free ${each.slot_number}`, buildHolder, updateHolder);
    $("#free").textContent = limit.holders_total > limit.holders.length ?
      `and ${limit.holders_total - limit.holders.length} more` :
      numbered || !value || limit.short ? "" : `${Math.max(value - limit.held, 0)} free`;
    sync($("#line"), limit.waiters, (each) => each.id, buildWaiter, updateWaiter(limit));
    $("#behind").textContent = limit.waiters_total > limit.waiters.length ?
      `and ${limit.waiters_total - limit.waiters.length} more` : limit.waiters_total ? "" : "nobody waits";
    showTiers(limit.tiers);
    showStrip(limit.strip);
    showHistory(limit, data.at);
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
    if (value >= 1) ask(`Resize '${shown(chosen)}' to ${value} slots?`, {action: "resize", name: chosen, kind, value});
  });
  const questions = {
    close: (name) => `Close ${name} for everybody? Waiters and newcomers are refused.`,
    open: (name) => `Open ${name} again?`,
    freeze: (name) => `Keep the value of ${name} where it is?`,
    thaw: (name) => `Let the value of ${name} move again?`,
  };
  for (const action of ["close", "open"])
    $(`[data-action=${action}]`).addEventListener("click", () => ask(
      questions[action](`'${shown(chosen)}'`), {action, name: chosen, kind}));
  $("#steer").addEventListener("submit", (event) => event.preventDefault());

  // ------------------------------------------------------------------- the stream

  const isNarrow = () => matchMedia("(max-width: 760px)").matches;
  let asked = false, silence = 0;
  const say = (text, kind) => {
    const state = $("#state");
    state.setAttribute("aria-live", kind === "bad" ? "assertive" : "off");  // not every second
    state.textContent = text;
    state.className = kind;
  };
  const show = (data) => {
    if (data.error) { say(shown(data.error), "bad"); return; }
    clearTimeout(silence);
    last = data;
    if (data.errors.length) say(shown(data.errors[0]), "bad");
    else say(`live, ${new Date(data.at * 1000).toLocaleTimeString()}`, "live");
    // Nobody should have to search for what holds others up.
    const waited = data.limits.find((each) => each.waiting);
    if (chosen === null && !asked && !search && waited && !isNarrow())
      choose(waited);
    if (data.limit && data.limit.name === chosen) kind = data.limit.kind;  // a link may have the name alone
    asked = true;
    showList(data);
    showDetail(data);
  };
  const connect = () => {
    if (stream) stream.close();
    stream = null;
    clearTimeout(silence);
    if (document.hidden) { say("paused", ""); return; }
    const query = new URLSearchParams();
    if (chosen !== null) { query.set("name", chosen); query.set("kind", kind); }
    if (search) query.set("q", search);
    stream = new EventSource(`events?${query}`);
    stream.onmessage = (event) => show(JSON.parse(event.data));
    // A stream ends from time to time and is opened again: that is shown only if it takes long.
    stream.onerror = () => {
      clearTimeout(silence);
      silence = setTimeout(() => say("reconnecting …", "bad"), 3000);
      if (stream && stream.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    };
  };
  const choose = (limit) => {
    const hash = `#${encodeURIComponent(limit.name)}${limit.kind === "tiers" ? "&tiers" : ""}`;
    // On a phone the detail stands in place of the list, and the button "back" leads to that.
    if (isNarrow()) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
    turnTo(limit);
  };
  const turnTo = (limit) => {
    ({name: chosen, kind} = limit);
    if (isNarrow()) scrollTo(0, 0);
    if (last) { showList(last); showDetail({...last, limit: last.limit && isChosen(last.limit) ? last.limit : null}); }
    connect();
  };
  let typing = 0;
  $("input[type=search]").addEventListener("input", (event) => {
    search = event.target.value;
    if (last) showList(last);
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
  const fromAddress = () => {
    const [name, suffix] = location.hash.slice(1).split("&");
    const found = {name: null, kind: suffix === "tiers" ? suffix : "semaphore"};
    try { found.name = decodeURIComponent(name) || null; } catch (error) { /* not one of ours */ }
    return found;
  };
  addEventListener("popstate", () => turnTo(fromAddress()));
  $("#back").addEventListener("click", (event) => {
    event.preventDefault();
    history.pushState(null, "", location.pathname + location.search);
    turnTo({name: null, kind: "semaphore"});
  });
  ({name: chosen, kind} = fromAddress());
  const first = JSON.parse($("#first").textContent);  // so that the first paint isn't empty
  if (first) show(first);
  if (!stream) connect();
})();
