// The page in a real browser: node tests/browser/page.cjs ASYNCPATCH FOLDER [NAME ...]
//
// ASYNCPATCH is the command to start the server with, FOLDER where screenshots go, NAMEs which tests to run (all).
"use strict";
const { chromium } = require("playwright-core");
const { spawn } = require("node:child_process");
const assert = require("node:assert/strict");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");

const [command, shots, ...only] = process.argv.slice(2);
const work = fs.mkdtempSync(path.join(os.tmpdir(), "page-"));
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

const free = () => new Promise((resolve) => {
  const server = net.createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

// ---- What a visitor does

class Visitor {
  constructor(page, address) {
    this.page = page;
    this.address = address;
    this.outside = [];
    this.errors = [];
    page.on("request", (request) => { if (!/^(data:|blob:)/.test(request.url()) && !request.url().startsWith(address)) this.outside.push(request.url()); });
    page.on("pageerror", (error) => this.errors.push(error.message));
    page.on("console", (message) => { if (message.type() === "error") this.errors.push(message.text()); });
  }

  async open(query = "") {
    await this.page.goto(`${this.address}/${query}`);
    await this.page.waitForSelector("async-painter canvas");
    await this.page.waitForFunction(() => window.asyncpatch?.shown());
  }

  async example(name) {
    await this.page.click(`.examples button[name="${name}"]`);
    await this.page.waitForFunction(() => document.querySelector('async-painter[mode="hole"]').image);
  }

  // gradio makes what is on a tab when it is first opened, and gives each control its value a moment after it is there
  async tab(name) {
    await this.page.getByRole("tab", { name }).click();
    await this.page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
  }

  // a number beside a slider, or a number alone
  async set(id, value) {
    const input = this.page.locator(`#${id} input[type="number"]`);
    await input.fill(String(value));
    await input.press("Tab");
  }

  async label(name) {
    await this.page.locator("#label input").click();
    await this.page.getByRole("option", { name }).click();
  }

  painter(mode) { return this.page.locator(`async-painter[mode="${mode}"]`); }

  // a stroke, in shares of the canvas
  async stroke(mode, ...places) {
    const canvas = this.painter(mode).locator("canvas");
    await canvas.scrollIntoViewIfNeeded();
    const box = await canvas.boundingBox();
    const at = ([x, y]) => [box.x + x * box.width, box.y + y * box.height];
    await this.page.mouse.move(...at(places[0]));
    await this.page.mouse.down();
    for (const place of places.slice(1)) await this.page.mouse.move(...at(place), { steps: 6 });
    await this.page.mouse.up();
  }

  painted(mode = "hole") { return this.painter(mode).evaluate((each) => [...each.painted].filter((value) => value).length); }

  status() { return this.page.locator("async-job .status").textContent(); }

  async said(words) {
    await this.page.waitForFunction((words) => document.querySelector("async-job .status").textContent.includes(words), words);
  }

  async done() {
    await this.page.waitForFunction(() => /Done|wrong/.test(document.querySelector("async-job .status").textContent + document.querySelector("async-job .status").className), null, { timeout: 180000 });
    assert.match(await this.status(), /^Done/);
    await this.page.waitForFunction(() => [...document.querySelectorAll("async-job .view img")].every((each) => each.complete && each.naturalWidth));
  }

  async run(tool) {
    await this.page.evaluate(() => { document.querySelector("async-job").say(""); });
    await this.page.click(`#run-${tool}`);
    await this.done();
  }

  // levels of pictures, as the browser decodes them
  levels(...urls) {
    return this.page.evaluate((urls) => Promise.all(urls.map(async (url) => {
      const image = Object.assign(new Image(), { src: url });
      await image.decode();
      const { width, height } = image, context = new OffscreenCanvas(width, height).getContext("2d");
      context.drawImage(image, 0, 0);
      return { width, height, data: [...context.getImageData(0, 0, width, height).data] };
    })), urls);
  }

  // what is downloaded
  result() { return this.page.getByText("Download PNG").getAttribute("href"); }

  // what the interface makes, as a file
  async made(name, fields) {
    const url = await this.page.evaluate(async (fields) => {
      const body = new FormData();
      for (const [name, value] of Object.entries(fields)) body.append(name, value);
      let job = await (await fetch("/api/jobs", { method: "POST", body })).json();
      while (["waiting", "running"].includes(job.state)) job = await (await fetch(`/api/jobs/${job.id}`)).json();
      const blob = await (await fetch(`/api/jobs/${job.id}/pictures/0`)).blob();
      return new Promise((resolve) => { const reader = new FileReader(); reader.onload = () => resolve(reader.result); reader.readAsDataURL(blob); });
    }, fields);
    const file = path.join(work, name);
    fs.writeFileSync(file, Buffer.from(url.split(",")[1], "base64"));
    return file;
  }

  // a PNG drawn by the browser
  async drawn(name, width, height, script) {
    const url = await this.page.evaluate(([width, height, script]) => {
      const page = Object.assign(document.createElement("canvas"), { width, height });
      new Function("context", script)(page.getContext("2d"));
      return page.toDataURL();
    }, [width, height, script]);
    const file = path.join(work, name);
    fs.writeFileSync(file, Buffer.from(url.split(",")[1], "base64"));
    return file;
  }

  async shot(name, options = {}) {
    await this.page.evaluate(() => scrollTo(0, 0));
    await this.page.mouse.move(2, 2);
    await this.page.waitForTimeout(400);
    await this.page.screenshot({ path: path.join(shots, `${name}.png`), ...options });
  }
}

// ---- Tests

const tests = {
  async "a hole is drawn and filled, and no other pixel changes"(visitor) {
    await visitor.open();
    await visitor.example("orange");
    await visitor.set("steps", 4);
    await visitor.stroke("hole", [0.35, 0.4], [0.6, 0.5]);
    const painted = await visitor.painter("hole").evaluate((each) => [...each.painted]);
    await visitor.run("inpaint");
    const [before, after] = await visitor.levels("/asyncpatch/orange.png", await visitor.result());
    assert.deepEqual([after.width, after.height], [128, 128]);
    let changed = 0;
    painted.forEach((value, k) => {
      for (let c = 0; c < 3; c++) {
        const same = before.data[4 * k + c] === after.data[4 * k + c];
        if (!value) assert.ok(same, `pixel ${k} is not in the hole, and changed`);
        else changed += !same;
      }
    });
    assert.ok(changed > 300);
    assert.equal(await visitor.page.locator("async-job button:text('Cancel')").isVisible(), false);
    assert.deepEqual(visitor.outside, []);
    assert.deepEqual(visitor.errors, []);
  },

  async "brush, eraser, undo, redo, clear, strength"(visitor) {
    await visitor.open();
    await visitor.example("orange");
    const tool = (name) => visitor.painter("hole").getByRole("button", { name, exact: false }).first().click();
    await visitor.stroke("hole", [0.2, 0.5], [0.8, 0.5]);
    const whole = await visitor.painted();
    await tool("Eraser");
    await visitor.stroke("hole", [0.5, 0.2], [0.5, 0.8]);
    const less = await visitor.painted();
    assert.ok(0 < less && less < whole);
    await tool("Undo");
    assert.equal(await visitor.painted(), whole);
    await tool("Redo");
    assert.equal(await visitor.painted(), less);
    await tool("Clear");
    assert.equal(await visitor.painted(), 0);
    await tool("Undo");
    assert.equal(await visitor.painted(), less);
    await tool("Clear");
    await tool("Brush");
    await visitor.painter("hole").getByLabel("Strength %").fill("50");
    await visitor.stroke("hole", [0.5, 0.5], [0.5, 0.5]);
    const values = await visitor.painter("hole").evaluate((each) => [...new Set(each.painted)].sort());
    assert.deepEqual(values, [0, 127]);
  },

  async "the keyboard paints too"(visitor) {
    await visitor.open();
    await visitor.example("orange");
    await visitor.painter("hole").locator("canvas").focus();
    await visitor.page.keyboard.press("ArrowRight");
    await visitor.page.keyboard.press("Space");
    const one = await visitor.painted();
    assert.ok(one > 20);
    for (const key of ["]", "]", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "Space"]) await visitor.page.keyboard.press(key);
    assert.ok(await visitor.painted() > 2 * one);
    await visitor.page.keyboard.press("Control+z");
    assert.equal(await visitor.painted(), one);
    await visitor.page.keyboard.press("Delete");
    assert.equal(await visitor.painted(), 0);
    await visitor.page.keyboard.press("Tab"); // and out of it
    assert.notEqual(await visitor.page.evaluate(() => document.activeElement.tagName), "CANVAS");
  },

  async "a mask can be loaded, inverted, grown"(visitor) {
    await visitor.open();
    await visitor.example("orange");
    await visitor.set("steps", 2);
    const mask = await visitor.drawn("mask.png", 128, 128, "context.fillRect(0, 0, 128, 128); context.fillStyle = '#fff'; context.fillRect(40, 40, 16, 16);");
    await visitor.painter("hole").locator("input.mask").setInputFiles(mask);
    await visitor.page.waitForFunction(() => document.querySelector('async-painter[mode="hole"]').painted.some((each) => each));
    assert.equal(await visitor.painted(), 256);
    await visitor.set("grow-the-hole", 2);
    await visitor.run("inpaint");
    const [before, after] = await visitor.levels("/asyncpatch/orange.png", await visitor.result());
    const differs = (x, y) => [0, 1, 2].some((c) => before.data[4 * (128 * y + x) + c] !== after.data[4 * (128 * y + x) + c]);
    let beyond = 0;
    for (let y = 0; y < 128; y++) for (let x = 0; x < 128; x++) {
      if (!differs(x, y)) continue;
      assert.ok(x >= 38 && x < 58 && y >= 38 && y < 58);
      beyond += x < 40;
    }
    assert.ok(beyond > 4);
    const wrong = await visitor.drawn("wrong.png", 100, 50, "context.fillRect(0, 0, 9, 9);");
    await visitor.painter("hole").locator("input.mask").setInputFiles(wrong);
    await visitor.page.waitForFunction(() => document.querySelector('async-painter[mode="hole"] .message').textContent.includes("another picture"));
  },

  async "cancelling stops the work"(visitor) {
    await visitor.open();
    await visitor.set("steps", 64);
    await visitor.set("candidates", 8);
    await visitor.tab("Generate");
    await visitor.page.click("#run-generate");
    await visitor.page.waitForFunction(() => /^[1-9]\d* %/.test(document.querySelector("async-job .status").textContent));
    await visitor.page.waitForFunction(() => document.querySelectorAll("async-job .sights img[src]").length === 3);
    await visitor.shot("running");
    await visitor.page.getByRole("button", { name: "Stop this job" }).click();
    await visitor.said("Cancelled");
    await visitor.set("steps", 1);
    await visitor.set("candidates", 1);
    await visitor.run("generate"); // it is free again
  },

  async "candidates, going on from one, history and undo"(visitor) {
    await visitor.open();
    await visitor.example("orange");
    await visitor.set("steps", 2);
    await visitor.set("candidates", 3);
    await visitor.set("seed", 5);
    await visitor.stroke("hole", [0.4, 0.4], [0.6, 0.6]);
    await visitor.run("inpaint");
    const tiles = visitor.page.locator("async-job .candidates button");
    assert.deepEqual(await tiles.locator("span").allTextContents(), ["seed 5", "seed 6", "seed 7"]);
    await tiles.nth(1).click();
    assert.match(await visitor.result(), /pictures\/1$/);
    assert.match(await visitor.page.locator("async-job img.after").getAttribute("src"), /pictures\/1\?/);
    const chosen = await visitor.levels(await visitor.result());
    await visitor.page.getByRole("button", { name: "Make it the current picture" }).click();
    await visitor.page.waitForSelector("async-past img >> nth=1");
    const src = () => visitor.painter("hole").evaluate((each) => each.image.src);
    const now = await visitor.levels(await src());
    assert.deepEqual(now, chosen);
    assert.ok(await visitor.painted() > 0); // the same hole, for another try
    await visitor.page.getByRole("button", { name: "Back to the picture before" }).click();
    await visitor.page.waitForFunction(() => document.querySelectorAll('async-past button[aria-pressed="true"]').length && document.querySelectorAll("async-past button")[0].disabled);
    await visitor.page.waitForTimeout(300);
    assert.deepEqual(await visitor.levels(await src()), await visitor.levels("/asyncpatch/orange.png"));
  },

  async "before and after can be compared"(visitor) {
    await visitor.open();
    await visitor.example("orange");
    await visitor.set("steps", 1);
    await visitor.stroke("hole", [0.4, 0.4], [0.6, 0.6]);
    await visitor.run("inpaint");
    const range = visitor.page.getByLabel("how much of the picture before is shown");
    await range.fill("40");
    assert.match(await visitor.page.locator("async-job img.after").getAttribute("style"), /40%/);
    await range.press("ArrowRight");
    assert.match(await visitor.page.locator("async-job img.after").getAttribute("style"), /41%/);
  },

  async "a PNG that was made brings its settings back"(visitor) {
    await visitor.open();
    await visitor.example("orange");
    await visitor.set("steps", 3);
    await visitor.set("seed", 77);
    await visitor.set("feather", 2);
    await visitor.stroke("hole", [0.4, 0.4], [0.6, 0.6]);
    await visitor.run("inpaint");
    const [download] = await Promise.all([visitor.page.waitForEvent("download"), visitor.page.getByText("Download PNG").click()]);
    assert.equal(download.suggestedFilename(), "inpaint-77.png");
    const file = path.join(work, "made.png");
    await download.saveAs(file);
    await visitor.open(); // anew
    await visitor.tab("Outpaint");
    await visitor.painter("sides").locator('input[type="file"]').first().setInputFiles(file);
    await visitor.page.waitForFunction(() => document.querySelector("#notice").textContent.includes("restored"));
    for (const [id, value] of [["steps", "3"], ["seed", "77"], ["feather", "2"]]) {
      assert.equal(await visitor.page.locator(`#${id} input[type="number"]`).inputValue(), value);
    }
    assert.equal(await visitor.page.getByRole("tab", { name: "Inpaint" }).getAttribute("aria-selected"), "true");
    await visitor.stroke("hole", [0.4, 0.4], [0.6, 0.6]);
    await visitor.run("inpaint");
  },

  async "settings that no control has are restored, and others stay usable"(visitor) {
    await visitor.open();
    const file = await visitor.made("other.png", { tool: "generate", steps: 2, eta: 0.5, seed: 8, width: 24, refine: 0.75 });
    await visitor.painter("hole").locator('input[type="file"]').first().setInputFiles(file);
    await visitor.page.waitForFunction(() => document.querySelector("#notice").textContent.includes("restored"));
    assert.equal(await visitor.page.locator("#more textarea, #more input").inputValue(), "eta=0.5 refine=0.75");
    assert.equal(await visitor.page.getByRole("tab", { name: "Generate" }).getAttribute("aria-selected"), "true");
    await visitor.run("generate");
    const [given, again] = await visitor.levels(`data:image/png;base64,${fs.readFileSync(file, "base64")}`, await visitor.result());
    assert.deepEqual(again, given);
    await visitor.page.locator("#more textarea, #more input").fill("etta=1");
    await visitor.page.click("#run-generate");
    await visitor.said("there is no 'etta'");
  },

  async "a large photo is worked on at its own size"(visitor) {
    await visitor.open();
    const photo = await visitor.drawn("large.png", 2400, 1200, "context.fillStyle = '#468'; context.fillRect(0, 0, 2400, 1200); context.fillStyle = '#fa0'; context.fillRect(900, 300, 700, 600);");
    await visitor.painter("hole").locator('input[type="file"]').first().setInputFiles(photo);
    await visitor.page.waitForFunction(() => document.querySelector('async-painter[mode="hole"]').image);
    const message = visitor.painter("hole").locator(".message");
    await visitor.painter("hole").locator("input.mask").setInputFiles(await visitor.drawn("square.png", 50, 50, ""));
    await visitor.page.waitForFunction(() => document.querySelector('async-painter[mode="hole"] .message').textContent.includes("the photo 2400 x 1200"));
    const half = await visitor.drawn("half.png", 1200, 600, "context.fillRect(0, 0, 1200, 600); context.fillStyle = '#fff'; context.fillRect(600, 300, 16, 16);");
    await visitor.painter("hole").locator("input.mask").setInputFiles(half);
    await visitor.page.waitForFunction(() => document.querySelector('async-painter[mode="hole"] .message').textContent.includes("brought to"));
    assert.match(await message.textContent(), /1200 x 600 .* 2400 x 1200/);
    await visitor.set("steps", 1);
    await visitor.run("inpaint");
    const found = await visitor.page.evaluate(async (urls) => { // where it changed; so many levels are slow to hand over
      const [before, after] = await Promise.all(urls.map(async (url) => {
        const image = Object.assign(new Image(), { src: url });
        await image.decode();
        const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
        context.drawImage(image, 0, 0);
        return context.getImageData(0, 0, image.width, image.height);
      }));
      const rows = [], columns = [];
      for (let k = 0; k < after.data.length; k++) {
        if (before.data[k] === after.data[k]) continue;
        columns.push((k >> 2) % after.width);
        rows.push(Math.floor((k >> 2) / after.width));
      }
      return { size: [after.width, after.height], count: rows.length, columns: [Math.min(...columns), Math.max(...columns)], rows: [Math.min(...rows), Math.max(...rows)] };
    }, [`data:image/png;base64,${fs.readFileSync(photo, "base64")}`, await visitor.result()]);
    assert.deepEqual(found.size, [2400, 1200]);
    assert.ok(found.count > 500);
    for (const [[low, high], first] of [[found.columns, 1200], [found.rows, 600]]) assert.ok(low >= first - 3 && high < first + 36, `${low} to ${high}`);
    await visitor.tab("Outpaint");
    await visitor.set("right", 0);
    await visitor.page.waitForFunction(() => !document.querySelector('async-painter[mode="sides"]').sides[2]);
    await visitor.stroke("sides", [0.995, 0.5], [1.195, 0.5]); // a fifth of its width
    await visitor.page.waitForFunction(() => Number(document.querySelector("#right input").value) > 0);
    const right = Number(await visitor.page.locator("#right input").inputValue());
    assert.ok(Math.abs(right - 480) < 30, `${right} pixels`);
  },

  async "what runs is stopped when something else is run"(visitor) {
    await visitor.open();
    await visitor.set("steps", 64);
    await visitor.set("candidates", 8);
    await visitor.tab("Generate");
    await visitor.page.click("#run-generate");
    await visitor.page.waitForFunction(() => /^\d+ %/.test(document.querySelector("async-job .status").textContent));
    const first = await visitor.page.evaluate(() => document.querySelector("async-job").job.id);
    await visitor.set("steps", 1);
    await visitor.set("candidates", 1);
    await visitor.run("generate");
    const state = await visitor.page.evaluate(async (id) => (await (await fetch(`/api/jobs/${id}`)).json()).state, first);
    assert.equal(state, "cancelled");
  },

  async "a job that the server has lost is given up"(visitor, context) {
    await visitor.open();
    await visitor.page.evaluate(() => asyncpatch.follow(JSON.stringify({ id: "lost", inputs: [], state: "running" })));
    await visitor.said("does not know this job");
    assert.equal(await visitor.page.getByRole("button", { name: "Stop this job" }).isVisible(), false);
  },

  async "who uses the keyboard sees where it is"(visitor) {
    await visitor.open();
    for (const place of ['#grow-the-hole input[type="range"]', "#invert input", "#quality input >> nth=1", "async-painter[mode=hole] canvas"]) {
      await visitor.page.locator(place).focus();
      await visitor.page.keyboard.press("Shift"); // as if it came by Tab
      const line = await visitor.page.locator(place).evaluate((each) => getComputedStyle(each).outlineStyle);
      assert.equal(line, "solid", place);
    }
  },

  async "it says the same as a command line and as Python"(visitor) {
    await visitor.open();
    await visitor.set("steps", 2);
    await visitor.set("seed", 3);
    await visitor.tab("Generate");
    await visitor.run("generate");
    await visitor.page.click("async-job summary");
    await visitor.page.waitForFunction(() => document.querySelector("async-job pre.python code").textContent);
    const said = await visitor.page.locator("async-job pre.command").textContent();
    assert.equal(said, "asyncpatch generate --size 64x64 --seed 3 --model asyncpatch-64 --steps 2 -o out.png");
    assert.match(await visitor.page.locator("async-job pre.python").textContent(), /from_pretrained\('asyncpatch-64'\)[^]*pipe\.generate\(size=\(64, 64\), seed=3, steps=2\)/);
    await visitor.page.getByRole("button", { name: "Copy as command line" }).click();
    await visitor.page.waitForSelector("async-job button:text('Copied')");
    assert.equal(await visitor.page.evaluate(() => navigator.clipboard.readText()), said);
  },

  async "time can be painted, and is seen before it is run"(visitor) {
    await visitor.open();
    await visitor.set("seed", 3);
    await visitor.label("monarch");
    await visitor.tab("Order");
    await visitor.page.waitForSelector("#strip img");
    const spiral = await visitor.page.locator("#strip").innerHTML();
    await visitor.page.getByLabel("row by row").check();
    await visitor.page.waitForFunction((before) => document.querySelector("#strip").innerHTML !== before && document.querySelector("#strip img"), spiral);
    await visitor.page.getByLabel("as I paint it").check();
    await visitor.page.waitForFunction(() => document.querySelector("#strip").textContent.includes("no order is painted"));
    await visitor.page.click("#run-order");
    await visitor.said("no order is painted yet");
    await visitor.page.getByLabel("in a spiral").check();
    await visitor.stroke("order", [0.1, 0.3], [0.9, 0.3]); // who paints an order means it
    await visitor.page.waitForFunction(() => document.querySelector('#order-kind input[value="as I paint it"]').checked);
    await visitor.painter("order").getByLabel("When").fill("5");
    await visitor.stroke("order", [0.1, 0.6], [0.9, 0.6]);
    await visitor.page.waitForSelector("#strip img");
    await visitor.run("order");
    await visitor.shot("ui-order");
    await visitor.page.click("async-job summary");
    await visitor.page.waitForFunction(() => document.querySelector("async-job pre.command code").textContent.includes("--schedule order.png"));
    const [order] = await visitor.levels(await visitor.page.locator("async-job .inputs a").getAttribute("href"));
    assert.equal(order.width, 64);
    assert.ok(new Set(order.data).size >= 3);
    await visitor.page.getByLabel("sure parts first").check();
    await visitor.page.waitForFunction(() => document.querySelector("#strip").textContent.includes("as it goes"));
    await visitor.run("order");
  },

  async "a picture is extended by dragging, and by numbers"(visitor) {
    await visitor.open();
    await visitor.example("orange");
    await visitor.set("steps", 1);
    await visitor.tab("Outpaint");
    const right = visitor.page.locator('#right input[type="number"]');
    const before = Number(await right.inputValue());
    await visitor.stroke("sides", [0.995, 0.5], [1.15, 0.5]);
    await visitor.page.waitForFunction((before) => Number(document.querySelector('#right input').value) > before, before);
    await visitor.set("right", 16);
    await visitor.set("top", 8);
    await visitor.page.waitForFunction(() => document.querySelector('async-painter[mode="sides"]').sides.join() === "0,8,16,0");
    await visitor.run("outpaint");
    const [made, given] = await visitor.levels(await visitor.result(), "/asyncpatch/orange.png");
    assert.deepEqual([made.width, made.height], [144, 136]);
    for (let y = 0; y < 128; y++) for (let x = 0; x < 128; x++) for (let c = 0; c < 3; c++) {
      assert.equal(made.data[4 * (144 * (y + 8) + x) + c], given.data[4 * (128 * y + x) + c]);
    }
  },

  async "a texture grows, and is shown tiled"(visitor) {
    await visitor.open();
    await visitor.example("pebbles");
    await visitor.set("steps", 4);
    await visitor.tab("Texture");
    await visitor.set("texture-width", 112);
    await visitor.set("texture-height", 112);
    await visitor.run("texture");
    const [made] = await visitor.levels(await visitor.result());
    assert.deepEqual([made.width, made.height], [112, 112]);
    assert.match(await visitor.page.locator("async-job .tiled").getAttribute("style"), /pictures\/0/);
    await visitor.shot("ui-texture");
  },

  async "pictures of a label, several at once"(visitor) {
    await visitor.open();
    await visitor.page.getByLabel("fast").check();
    await visitor.page.waitForFunction(() => document.querySelector('#steps input[type="number"]').value === "8");
    await visitor.set("candidates", 2);
    await visitor.label("monarch");
    await visitor.tab("Generate");
    await visitor.run("generate");
    assert.equal(await visitor.page.locator("async-job .candidates img").count(), 2);
    await visitor.page.click("async-job summary");
    await visitor.page.waitForFunction(() => document.querySelector("async-job pre.command code").textContent.includes("--label monarch"));
  },

  async "what is wrong is said"(visitor) {
    await visitor.open();
    await visitor.page.click("#run-inpaint");
    await visitor.said("open a picture first");
    await visitor.example("orange");
    await visitor.page.click("#run-inpaint");
    await visitor.said("nothing is painted yet");
    const broken = path.join(work, "broken.png");
    fs.writeFileSync(broken, "this is no picture");
    await visitor.painter("hole").locator('input[type="file"]').first().setInputFiles(broken);
    await visitor.page.waitForFunction(() => document.querySelector("#notice").textContent.includes("not a picture"));
    const heavy = path.join(work, "heavy.png");
    fs.writeFileSync(heavy, Buffer.alloc(33 << 20));
    await visitor.painter("hole").locator('input[type="file"]').first().setInputFiles(heavy);
    await visitor.page.waitForFunction(() => document.querySelector('async-painter[mode="hole"] .message.wrong').textContent.includes("may have 32"));
    await visitor.tab("Texture");
    await visitor.set("texture-width", 20);
    await visitor.page.click("#run-texture");
    await visitor.said("at least as large as the swatch");
    await visitor.tab("Generate");
    await visitor.set("width", 900000);
    await visitor.page.click("#run-generate");
    await visitor.said("million pixels");
    assert.deepEqual(visitor.errors, []);
  },

  async "one visitor's pictures are not another's"(visitor, context) {
    await visitor.open();
    await visitor.example("orange");
    const other = new Visitor(await context.newPage(), visitor.address);
    await other.open();
    assert.equal(await other.painter("hole").evaluate((each) => each.image), null);
    await other.page.click("#run-inpaint");
    await other.said("open a picture first");
    await other.page.close();
  },

  async "pictures for the documents"(visitor) {
    await visitor.open();
    await visitor.example("orange");
    await visitor.page.getByLabel("fast").check();
    await visitor.set("candidates", 3);
    await visitor.set("seed", 1);
    await visitor.painter("hole").getByRole("slider", { name: "Size" }).fill("3");
    await visitor.stroke("hole", [0.2, 0.32], [0.4, 0.4], [0.55, 0.36], [0.75, 0.48]);
    await visitor.stroke("hole", [0.55, 0.36], [0.5, 0.7]);
    await visitor.run("inpaint");
    await visitor.page.getByLabel("how much of the picture before is shown").fill("30");
    await visitor.shot("ui");
    await visitor.page.evaluate(() => document.body.classList.add("dark"));
    await visitor.shot("ui-dark");
    await visitor.page.setViewportSize({ width: 400, height: 1000 });
    await visitor.shot("ui-narrow", { fullPage: true });
    const wide = await visitor.page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 400, `the page is ${wide} pixels wide in a window of 400`);
    await visitor.page.emulateMedia({ colorScheme: "dark" });
    await visitor.open();
    assert.ok(await visitor.page.evaluate(() => document.body.classList.contains("dark")));
  },
};

(async () => {
  fs.mkdirSync(shots, { recursive: true });
  const port = await free(), address = `http://127.0.0.1:${port}`;
  const words = command.split(" ");
  const server = spawn(words[0], [...words.slice(1), "ui", "--no-open", "--precision", "fp32", "--port", String(port)], { stdio: "inherit" });
  let failed = 0;
  try {
    for (let k = 0; ; k++) {
      if (await fetch(`${address}/api`).then((answer) => answer.ok, () => false)) break;
      if (server.exitCode !== null || k > 240) throw new Error("the server did not start");
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    for (const [name, test] of Object.entries(tests)) {
      if (only.length && !only.some((each) => name.includes(each))) continue;
      const context = await chromium.launchPersistentContext(fs.mkdtempSync(path.join(work, "profile-")), {
        executablePath: process.env.CHROMIUM || "/usr/bin/chromium", headless: true, args: FLAGS,
        viewport: { width: 1360, height: 1000 }, permissions: ["clipboard-read", "clipboard-write"],
      });
      context.setDefaultTimeout(30000);
      const began = Date.now(), visitor = new Visitor(context.pages()[0] || await context.newPage(), address);
      try {
        await test(visitor, context);
        console.log(`ok    ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
      } catch (error) {
        failed++;
        console.log(`FAIL  ${name}\n${error.stack}\n${visitor.errors.join("\n")}`);
        await visitor.page.screenshot({ path: path.join(shots, "failed.png"), fullPage: true }).catch(() => {});
      } finally { await context.close(); }
    }
  } finally {
    server.kill();
    fs.rmSync(work, { recursive: true, force: true });
  }
  console.log(failed ? `${failed} failed` : "all passed");
  process.exit(failed ? 1 : 0);
})();
