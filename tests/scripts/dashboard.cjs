// Looks at the dashboard of a live daemon in a real Chromium: `node dashboard.cjs ADDRESS HOSTILE_NAME [PARTS]`.
// MURMUR_TEST_PLAYWRIGHT: a folder with node_modules/playwright-core. MURMUR_TEST_TOKEN: the daemon's token.
// MURMUR_TEST_PICTURES: where pictures of every page go; none are made without it. What is wrong ends it with 1.
"use strict";

const { createRequire } = require("node:module");
const path = require("node:path");
const { chromium } = createRequire(path.join(process.env.MURMUR_TEST_PLAYWRIGHT, "/"))("playwright-core");

const [address, hostileName, only] = process.argv.slice(2);
const pictures = process.env.MURMUR_TEST_PICTURES;
const PAGES = ["overview", "swarm", "peers", "traffic", "events", "resources", "run", "data"];
const TABS = 8;
const PATIENCE = 60000;

/** Hours of records after the first, and what the heap may grow by, in megabytes: a reference for each exchange is more. */
const HOURS = 4;
const GROWTH_MAX = 0.3;

const wrong = [];
const check = (holds, what) => {
  console.log(`${holds ? "ok   " : "WRONG"} ${what}`);
  if (!holds) wrong.push(what);
};

/** Waits until something holds; false where it does not in time. */
async function until(holds, patience = PATIENCE) {
  const deadline = Date.now() + patience;
  for (;;) {
    if (await holds()) return true;
    if (Date.now() > deadline) return false;
    await new Promise((next) => setTimeout(next, 200));
  }
}

/** A context whose requests and errors are kept. */
async function watched(browser, options) {
  const context = await browser.newContext(options);
  const heard = { requests: [], errors: [] };
  context.on("request", (request) => heard.requests.push(request.url()));
  context.on("page", (page) => {
    page.on("console", (message) => { if (message.type() === "error" || message.type() === "warning") heard.errors.push(message.text()); });
    page.on("pageerror", (error) => heard.errors.push(String(error.stack)));
    page.on("dialog", (dialog) => { heard.errors.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
  });
  return { context, heard };
}

async function open(page, name) {
  await page.goto(`http://${address}/#${name}`);
  await page.waitForSelector("main h1");
}

const text = (page, selector) => page.locator(selector).innerText();

async function everyPage(browser) {
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 390]]) {
    const { context, heard } = await watched(browser, { colorScheme: scheme, viewport: { width, height: 900 } });
    const page = await context.newPage();
    for (const name of PAGES) {
      await open(page, name);
      await page.waitForTimeout(2500);
      const said = await text(page, "main");
      check(!/undefined|NaN|\[object|Infinity/.test(said), `${name}, ${scheme}, ${width}: nothing unknown is written out`);
      const isWider = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
      check(!isWider, `${name}, ${scheme}, ${width}: nothing is wider than the screen`);
      const [charts, tables] = [await page.locator(".chart").count(), await page.locator(".chart details").count()];
      check(charts === tables, `${name}: a table behind each of ${charts} charts`);
      if (pictures) await page.screenshot({ path: path.join(pictures, `${name}-${scheme}-${width}.png`), fullPage: width < 500 });
    }
    check(heard.errors.length === 0, `no console errors: ${heard.errors.join("; ")}`);
    const away = heard.requests.filter((url) => !url.startsWith(`http://${address}/`) && !url.startsWith("data:"));
    check(away.length === 0, `no request leaves the daemon, of ${heard.requests.length}: ${away.join(" ")}`);
    await contrast(page, scheme);
    await context.close();
  }
}

/** The colours of text on the page's ground, as WCAG measures them. */
async function contrast(page, scheme) {
  const ratios = await page.evaluate(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi).slice(0, 3).map((part) => parseInt(part, 16) / 255);
    const light = (parts) => {
      const [red, green, blue] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const ground = light(colour("--paper"));
    return ["--ink", "--soft", "--accent", "--second", "--fair", "--bad"].map((name) => {
      const front = light(colour(name));
      return [name, (Math.max(front, ground) + 0.05) / (Math.min(front, ground) + 0.05)];
    });
  });
  for (const [name, ratio] of ratios) check(ratio >= 4.5, `${scheme}: the contrast of ${name} is ${ratio.toFixed(1)}, 4.5 or more`);
}

async function keysAndNames(browser) {
  const { context, heard } = await watched(browser, { viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  await open(page, "overview");
  await page.keyboard.press("4");
  await page.locator("#pages a", { hasText: "Members" }).press("Enter");
  check(await until(async () => (await text(page, "main h1")) === "Members"), "a link opens a page by key, and a digit none");
  check(await page.evaluate(() => document.activeElement.id === "main"), "and who reads goes on where the page begins");
  check(await until(async () => (await text(page, "main")).includes(hostileName)), "a member's name is shown as it is");
  const images = await page.locator("main img, main script, main iframe").count();
  check(images === 0, "a member's name becomes no element");
  await open(page, "overview");
  const chart = page.locator(".chart svg").first();
  await chart.focus();
  await page.keyboard.press("ArrowLeft");
  const at = await text(page, ".chart .said >> nth=0");
  await page.keyboard.press("Home");
  const first = await text(page, ".chart .said >> nth=0");
  check(/training \d/.test(at) && first !== at, `keys reach the points of a curve: ${at} | ${first}`);
  await page.locator(".chart summary").first().press("Enter");
  check(await until(async () => (await page.locator(".chart table tbody tr").count()) > 2), "the table of a curve opens by key");
  await page.locator("#theme").focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Enter");
  check((await page.evaluate(() => document.documentElement.dataset.theme)) === "dark", "the theme changes by key");
  await page.reload();
  await page.waitForSelector("main h1");
  check((await page.evaluate(() => document.documentElement.dataset.theme)) === "dark", "and stays after a reload");
  const ink = () => page.evaluate(() => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim());
  const onScreen = await ink();
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ media: "print", colorScheme });
    check((await ink()) === "#1f2328" && onScreen !== "#1f2328", `paper is light where the screen is dark, the system's ${colorScheme}`);
  }
  await page.emulateMedia({ media: null, colorScheme: null });
  await open(page, "run");
  await page.locator("#token").fill("00");
  await page.locator("#token").press("Enter");
  check(await until(async () => (await text(page, ".ticket")).includes("A token has 64")), "what is no token is not sent");
  await page.locator("#token").fill("0".repeat(64));
  await page.locator("#token").press("Enter");
  check(await until(async () => (await text(page, ".ticket")).includes("not valid now")), "a wrong token gets no ticket");
  await page.locator("#token").fill(process.env.MURMUR_TEST_TOKEN);
  await page.locator("#token").press("Enter");
  check(await until(async () => (await text(page, ".ticket")).includes("murmur join murmur1")), "the owner's token gets the ticket");
  check((await page.locator(".qr path").getAttribute("d"))?.length > 1000, "and its QR code");
  await page.goto("about:blank");
  await page.goto(`http://${address}/#token=${process.env.MURMUR_TEST_TOKEN}`);
  await page.waitForSelector(".qr");
  check(!page.url().includes("token"), `a token in the address does not stay there: ${page.url()}`);
  const refused = heard.errors.filter((line) => !line.includes("401"));
  check(refused.length === 0, `no console errors but the wrong token's: ${refused.join("; ")}`);
  const isSent = heard.requests.some((url) => new URL(url).search.includes(process.env.MURMUR_TEST_TOKEN));
  check(!isSent, "the token is in no request's address");
  await context.close();
}

/** A page as if it were hidden or seen. */
const hide = (page, isHidden) => page.evaluate((isHidden) => {
  Object.defineProperty(document, "visibilityState", { configurable: true, get: () => (isHidden ? "hidden" : "visible") });
  document.dispatchEvent(new Event("visibilitychange"));
}, isHidden);

const steps = async (page) => Number((await text(page, ".far")).match(/step ([\d,]+)/)?.[1].replaceAll(",", "") ?? -1);

async function eightTabs(browser) {
  const { context, heard } = await watched(browser, { viewport: { width: 900, height: 700 } });
  const pages = [];
  for (let tab = 0; tab < TABS; tab += 1) {
    const page = await context.newPage();
    await open(page, "overview");
    pages.push(page);
  }
  const moves = async (page) => {
    const before = await steps(page);
    return until(async () => (await steps(page)) > before);
  };
  const all = await Promise.all(pages.map(moves));
  check(all.every(Boolean), `all of ${TABS} tabs in sight go on: ${all}`);
  const streams = () => heard.requests.filter((url) => url.includes("/api/v1/stream"));
  check(streams().length === 1, `${TABS} tabs have one stream, there were ${streams().length}`);

  for (const page of pages) await hide(page, true);
  await pages[0].waitForTimeout(1500);
  const [asked, stood] = [heard.requests.length, await steps(pages[0])];
  await pages[0].waitForTimeout(4000);
  check(heard.requests.length === asked, `hidden tabs ask for nothing: ${heard.requests.slice(asked).join(" ")}`);
  check((await steps(pages[0])) === stood, "and draw nothing");
  // While they were hidden one after another, each took the stream over from the one before.
  const before = streams().length;
  await hide(pages[5], false);
  check(await until(async () => (await steps(pages[5])) > stood), "a tab that is seen again goes on");
  await until(async () => streams().length > before, 10000);
  const again = streams().at(-1);
  check(streams().length === before + 1 && Number(again.match(/after=(\d+)/)[1]) > 1, `it resumes after its last record: ${streams().map((url) => url.split("?")[1])}`);
  check(heard.errors.length === 0, `no console errors: ${heard.errors.join("; ")}`);
  await context.close();
}

/** The address is another daemon's by the time that a hidden tab is seen again. */
async function anotherDaemon(browser) {
  const { context, heard } = await watched(browser, { viewport: { width: 900, height: 700 } });
  const page = await context.newPage();
  await open(page, "overview");
  await hide(page, true);
  const asked = (path) => heard.requests.filter((url) => url.includes(path)).length;
  const [summaries, records] = [asked("/api/v1/summary"), asked("/api/v1/records")];
  // A full answer whose numbers are those of a process that began later.
  const record = JSON.stringify({ v: 1, seq: 1, t: new Date().toISOString(), up: 1, node: "another", kind: "event", level: "info", text: "began" });
  const body = Array.from({ length: 1000 }, () => record).join("\n");
  await page.route("**/api/v1/records*", (route) => route.fulfill({ body }), { times: 1 });
  await hide(page, false);
  check(await until(() => asked("/api/v1/summary") > summaries), "a tab begins anew with another daemon");
  const before = await steps(page);
  check(await until(async () => (await steps(page)) > before), "and goes on");
  const more = asked("/api/v1/records") - records;
  check(more <= 3, `and asks for records as often as needed: ${more} times`);
  check(heard.errors.length === 0, `no console errors: ${heard.errors.join("; ")}`);
  await context.close();
}

/** A curve says nothing before it begins, and no two ticks of an axis are written alike. */
async function curves(browser) {
  const { context } = await watched(browser, { viewport: { width: 900, height: 700 } });
  const page = await context.newPage();
  await open(page, "overview");
  const found = await page.evaluate(async () => {
    const { Chart } = await import("/assets/chart.js");
    const { fixed } = await import("/assets/format.js");
    const chart = new Chart({ title: "a", curves: [{ metric: "one", name: "one" }, { metric: "two", name: "two" }], written: (value) => fixed(value, 1) });
    const points = (times) => times.map((time) => ({ time, min: 5, mean: 5 + time / 1e4, max: 5.01 }));
    const lines = { one: points([0, 1, 2, 3, 4, 5]), two: points([3, 4, 5]) };
    chart.draw({ begin: 0, to: 5, period: 1, of: (metric) => lines[metric] });
    chart.point(1);
    const { said, shapes } = chart;
    const before = [said.textContent, shapes[1].dot.getAttribute("visibility")];
    chart.point(4);
    const ticks = [...chart.grid.querySelectorAll("text[text-anchor=start]")].map((text) => text.textContent).filter((text) => /\d$/.test(text));
    return { before, after: said.textContent, ticks };
  });
  check(/one 5/.test(found.before[0]) && !/two/.test(found.before[0]) && found.before[1] === "hidden", `a curve has no value before it begins: ${found.before}`);
  check(/two 5/.test(found.after), `and one from then on: ${found.after}`);
  check(found.ticks.length === 1, `and no two ticks of an axis are written alike: ${found.ticks}`);
  await context.close();
}

/** What is said of figures, and what there is to do next. */
async function words(browser) {
  const { context } = await watched(browser, { viewport: { width: 900, height: 700 } });
  const page = await context.newPage();
  await open(page, "overview");
  const found = await page.evaluate(async () => {
    const health = await import("/assets/health.js");
    const picture = (sample, more = {}) => ({ sample, run: { ratio_band: {} }, time: 100, now: () => 100, ...more });
    const training = { phase: "training", peers: 1, members: 2, boundary_share: 0.6 };
    const speed = (values) => health.speed({ phase: "training" }, values.map((mean) => ({ mean })), "tokens").tone;
    return {
      waiting: [0.1, 0.3, 0.6].map((share) => health.waiting(share).tone),
      whom: health.waiting(0.3, "attic").words,
      verdict: health.verdict(picture(training), false),
      next: [
        picture(training), picture({ ...training, peers: 0 }), picture({ ...training, phase: "completed" }),
        picture(training, { end: {} }), picture(training, { end: { failure: "x" } }), picture(training, { now: () => 120 }),
      ].map((one) => health.next(one, false)),
      speed: [speed([...Array(20).fill(9), 1]), speed([...Array(20).fill(9), ...Array(8).fill(1)])],
    };
  });
  check(found.waiting.join() === "good,fair,bad" && found.whom.includes("for attic"), `waiting is judged: ${found.waiting}, ${found.whom}`);
  check(found.verdict.tone === "fair" && found.verdict.words.includes("waits 60 %"), `and its share is in the verdict: ${found.verdict.words}`);
  check(found.next.join() === ",invite,use,use,logs,logs", `what is to do next: ${found.next}`);
  check(found.speed.join() === "good,fair", `one slow moment is no slow node: ${found.speed}`);
  await context.close();
}

/** The daemon has ended: what it said last stays, whatever is clicked. */
async function theEnd(browser) {
  const { context } = await watched(browser, { viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  await open(page, "overview");
  const curve = () => page.locator(".chart .line").first().getAttribute("d");
  check(await until(async () => (await curve())?.length > 20), "there is a curve");
  await context.setOffline(true);
  await page.evaluate(async () => {
    const { taken, draw } = await import("/assets/main.js");
    taken({ seq: 1e9, t: new Date().toISOString(), up: 1, kind: "end", steps: 1 });
    draw();
  });
  check((await text(page, ".head .hint")).includes("murmur sample"), "and what can be done with what was learned");
  for (const name of ["Events", "Traffic", "Overview"]) {
    await page.locator("#pages a", { hasText: name }).click();
    check(await until(async () => (await text(page, "main h1")) === (name === "Overview" ? "Ended in order" : name)), `${name} opens after the end`);
  }
  await page.locator(".windows label", { hasText: "1 h" }).click();
  await page.waitForTimeout(1000);
  check((await text(page, "main h1")) === "Ended in order" && (await curve())?.length > 20, "and keeps the last word and the curve");
  await context.close();
}

/** The page takes hours of records, in no time; its memory must not follow. */
async function hours(browser) {
  const { context, heard } = await watched(browser, { viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  const session = await context.newCDPSession(page);
  await session.send("Performance.enable");
  const measure = async () => {
    await session.send("HeapProfiler.collectGarbage");
    await session.send("HeapProfiler.collectGarbage");
    const { metrics } = await session.send("Performance.getMetrics");
    const of = (name) => metrics.find((metric) => metric.name === name).value;
    return { heap: of("JSHeapUsedSize"), nodes: of("Nodes"), listeners: of("JSEventListeners") };
  };
  const feed = (from) => page.evaluate(async (from) => {
    const { taken, draw } = await import("/assets/main.js");
    let seq = 1e9 + from * 10;
    const record = (second, body) => ({ v: 1, seq: (seq += 1), t: new Date(Date.now() + second * 1000).toISOString(), up: 1e5 + second, node: "simulated", ...body });
    for (let second = from; second < from + 3600; second += 1) {
      taken(record(second, { kind: "sample", phase: "training", doing: "training", steps: second * 3, progress: second * 3, share: 0.5,
        loss: 1 + Math.random(), validation_loss: 1.5, tokens_per_second: 1000 + second % 7, swarm_tokens_per_second: 4000, step_seconds: 0.3,
        peers: 3, exchanges: second, exchanges_failed: 3, disagreement: 0.1, ratio: 0.5 + Math.random(), interval_steps: 5, sent: second * 1000,
        received: second * 900, today: second * 1900, reachable: "yes", boundary_share: 0.01, cpu_seconds: second, memory: 1e8 + second, peak_memory: 2e8, disk_free: 5e10 }));
      const partner = `12D3KooWsimulated${Math.floor(Math.random() * 1e6)}`;
      if (second % 4 === 0) taken(record(second, { kind: "exchange", partner, result: "done", distance: Math.random(), seconds: 0.4, sent: 1000, received: 1000, lag: -second }));
      if (second % 5 === 0) taken(record(second, { kind: "peers", peers: Array.from({ length: 60 }, (_, index) => ({ peer: `12D3KooWpeer${(second / 5 + index) % 400}`, says_tokens_per_second: 10, age: 1, connected: true, trust: 1, sent: second, received: second })), more: 9 }));
      if (second % 6 === 0) taken(record(second, { kind: "event", level: "info", text: `something happened ${second}` }));
      if (second % 60 === 0) {
        draw();
        await new Promise((next) => setTimeout(next, 0));
      }
    }
    draw();
  }, from);
  for (const name of ["overview", "peers", "events"]) {
    await open(page, name);
    await page.waitForTimeout(1500);
    const base = { overview: 0, peers: 20000, events: 40000 }[name];
    await feed(base);
    const first = await measure();
    for (let hour = 1; hour <= HOURS; hour += 1) await feed(base + 3600 * hour);
    const second = await measure();
    const grown = (second.heap - first.heap) / 1e6;
    check(grown < GROWTH_MAX, `${name}: ${HOURS} hours more grow the heap by ${grown.toFixed(2)} MB of ${(first.heap / 1e6).toFixed(1)}, below ${GROWTH_MAX}`);
    check(second.nodes <= first.nodes * 1.1 + 100, `${name}: and elements go from ${first.nodes} to ${second.nodes}`);
    check(second.listeners <= first.listeners + 200, `${name}: and listeners from ${first.listeners} to ${second.listeners}`);
  }
  check(heard.errors.length === 0, `no console errors: ${heard.errors.join("; ")}`);
  await context.close();
}

(async () => {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
  try {
    const parts = { everyPage, keysAndNames, eightTabs, anotherDaemon, curves, words, theEnd, hours };
    for (const name of only?.split(",") ?? Object.keys(parts)) await parts[name](browser);
  } catch (error) {
    check(false, error.stack);
  } finally {
    await browser.close();
  }
  console.log(wrong.length === 0 ? "everything is as it should be" : `wrong: ${wrong.length}`);
  process.exit(wrong.length === 0 ? 0 : 1);
})();
