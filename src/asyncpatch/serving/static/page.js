// What the page cannot do with gradio's own parts: painting, dragging, following a job, comparing.
// Everything here talks to the HTTP interface beside the page, and to nothing else.
(() => {
  "use strict";

  const STRENGTH = [237, 30, 121]; // the colour that a hole is painted in
  const TIMES = [[255, 224, 90], [240, 90, 80], [60, 20, 120]]; // first, in the middle, last
  const UNDO = 40;
  const LOOK = "?side=1536"; // what is looked at may be smaller than what is downloaded
  const SNAP = 40; // of 255: how near to black or white a level of a lossy mask counts as black or white

  const make = (tag, options = {}, ...children) => {
    const { text, ...rest } = options;
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(rest)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    made.append(...children);
    return made;
  };

  const button = (text, title, action) => {
    const made = make("button", { type: "button", text, title, "aria-label": title });
    made.addEventListener("click", action);
    return made;
  };

  const slider = (text, low, high, value, action) => {
    const input = make("input", { type: "range", min: low, max: high, value, "aria-label": text });
    const said = make("output", { text: value });
    input.addEventListener("input", () => { said.textContent = input.value; action(Number(input.value)); });
    const label = make("label", {}, make("span", { text }), input, said);
    label.put = (now) => { input.value = now; said.textContent = input.value; action(Number(input.value)); };
    label.now = () => Number(input.value);
    return label;
  };

  const loaded = (src) => new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("this is not a picture that the browser can show"));
    image.src = src;
  });

  const read = (file) => new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("this file cannot be read"));
    reader.readAsDataURL(file);
  });

  // ---- The picture, and what is painted over it

  class Painter extends HTMLElement {
    connectedCallback() {
      if (this.ready) return;
      this.ready = true;
      this.mode = this.getAttribute("mode");
      this.paints = this.mode === "hole" || this.mode === "order";
      this.image = null;
      this.width = this.height = 0;
      this.past = [];
      this.future = [];
      this.erases = false;
      this.cursor = null;
      this.sides = [0, 0, 0, 0]; // in pixels of the picture itself
      this.classList.add("painter");
      this.append(this.tools(), this.surface());
      this.inform();
      if (shown) this.show(shown);
    }

    tools() {
      const bar = make("div", { class: "tools", role: "toolbar", "aria-label": "painting" });
      const file = make("input", { type: "file", accept: "image/*", hidden: "" });
      file.addEventListener("change", () => { this.take(file.files[0]); file.value = ""; });
      this.chooser = file;
      bar.append(file, button("Open", "Open a picture", () => file.click()));
      if (this.paints) {
        this.brush = button("Brush", "Brush (B)", () => this.erase(false));
        this.eraser = button("Eraser", "Eraser (E)", () => this.erase(true));
        this.back = button("Undo", "Undo the last stroke (Ctrl+Z)", () => this.step(this.past, this.future));
        this.forth = button("Redo", "Redo (Ctrl+Shift+Z)", () => this.step(this.future, this.past));
        bar.append(this.brush, this.eraser, this.back, this.forth);
        bar.append(button("Clear", "Clear all that is painted (Delete)", () => this.clear()));
        if (this.mode === "hole") {
          const mask = make("input", { type: "file", accept: "image/*", hidden: "", class: "mask" });
          mask.addEventListener("change", () => { this.stencil(mask.files[0]); mask.value = ""; });
          bar.append(mask, button("Load mask", "Load a mask: white is repainted, grey: that much", () => mask.click()));
        }
        this.radius = slider("Size", 1, 64, 8, () => this.draw());
        const words = this.mode === "hole" ? ["Strength %", 10, 100, 100] : ["When (0 first, 9 last)", 0, 9, 0];
        this.level = slider(...words, () => this.draw());
        bar.append(this.radius, this.level);
        this.erase(false);
      }
      return bar;
    }

    surface() {
      const keys = this.paints
        ? "Drag to paint. With the keyboard: arrows move, space paints, [ and ] change the size, B and E take brush and eraser, Ctrl+Z undoes."
        : this.mode === "sides" ? "Drag an edge to extend the picture there." : "The current picture.";
      this.canvas = make("canvas", { tabindex: "0", role: this.paints ? "application" : "img", "aria-label": keys, title: keys });
      this.hint = make("p", { class: "hint" });
      this.message = make("p", { class: "message", role: "status" });
      const area = make("div", { class: "surface" }, this.canvas, this.hint);
      area.addEventListener("dragover", (event) => { event.preventDefault(); area.classList.add("over"); });
      area.addEventListener("dragleave", () => area.classList.remove("over"));
      area.addEventListener("drop", (event) => {
        event.preventDefault();
        area.classList.remove("over");
        this.take(event.dataTransfer.files[0]);
      });
      area.addEventListener("paste", (event) => this.take(event.clipboardData.files[0]));
      area.addEventListener("click", () => { if (!this.image) this.chooser.click(); });
      const canvas = this.canvas;
      canvas.addEventListener("pointerdown", (event) => this.press(event));
      canvas.addEventListener("pointermove", (event) => this.move(event));
      canvas.addEventListener("pointerup", (event) => this.release(event));
      canvas.addEventListener("pointercancel", (event) => this.release(event));
      canvas.addEventListener("pointerleave", () => { if (!this.pressed) { this.cursor = null; this.draw(); } });
      canvas.addEventListener("keydown", (event) => this.key(event));
      const both = make("div", {}, area, this.message);
      return both;
    }

    inform() {
      const words = { hole: "Drop a photo here, or click to choose one", sides: "Drop a photo here, or click to choose one",
        view: "Drop a swatch here, or click to choose one", order: "Nothing to paint on yet" };
      this.hint.textContent = this.image ? "" : words[this.mode];
      this.classList.toggle("empty", !this.image);
    }

    say(text, wrong = false) {
      this.message.textContent = text;
      this.message.classList.toggle("wrong", wrong);
    }

    take(file) {
      if (!file) return;
      if (shown && file.size > shown.most) {
        this.say(`This file has ${Math.ceil(file.size / 2 ** 20)} megabytes, and a picture may have ${shown.most / 2 ** 20}: use a smaller one.`, true);
        return;
      }
      this.say("");
      read(file).then((data) => this.dispatchEvent(new CustomEvent("photo", { detail: data })), (error) => this.say(error.message, true));
    }

    // A new picture under what is painted; paint stays where the size does.
    async show(what) {
      const size = this.mode === "order" ? what.order : what.photo;
      if (!size) {
        this.image = null;
        this.width = this.height = 0;
        this.painted = null;
        this.inform();
        this.draw();
        return;
      }
      const image = size.src ? await loaded(size.src) : null;
      if (!this.painted || this.width !== size.width || this.height !== size.height) {
        [this.width, this.height, this.file] = [size.width, size.height, null];
        this.painted = new Uint8Array(this.width * this.height);
        this.past = [];
        this.future = [];
        if (this.paints) this.radius.put(Math.max(2, Math.round(Math.min(this.width, this.height) / 14)));
      }
      this.image = image || document.createElement("canvas");
      this.full = size.full;
      if (this.mode === "sides" && !this.pressed) this.sides = what.sides.map((side) => Math.max(0, side));
      this.inform();
      this.draw();
      this.buttons();
    }

    clear() {
      if (!this.painted) return;
      this.remember();
      this.painted.fill(0);
      this.changed();
    }

    erase(on) {
      this.erases = on;
      this.brush.setAttribute("aria-pressed", String(!on));
      this.eraser.setAttribute("aria-pressed", String(on));
    }

    remember() {
      this.past.push(this.painted.slice());
      if (this.past.length > UNDO) this.past.shift();
      this.future = [];
    }

    step(from, to) {
      if (!from.length) return;
      to.push(this.painted);
      this.painted = from.pop();
      this.changed();
    }

    buttons() {
      if (!this.paints) return;
      this.back.disabled = !this.past.length;
      this.forth.disabled = !this.future.length;
    }

    changed() {
      this.file = null;
      this.draw();
      this.buttons();
      this.say("");
      this.dispatchEvent(new CustomEvent("painted"));
    }

    // 0 is nothing; a hole's strength goes up to 255, an order's times from 1 (first) to 255.
    value() {
      if (this.erases) return 0;
      return this.mode === "hole" ? Math.round(this.level.now() * 2.55) : 1 + Math.round(this.level.now() * 28);
    }

    stamp(x, y) {
      const radius = this.radius.now(), value = this.value();
      const top = Math.max(0, Math.floor(y - radius)), bottom = Math.min(this.height - 1, Math.ceil(y + radius));
      for (let j = top; j <= bottom; j++) {
        const half = radius * radius - (j - y) * (j - y);
        if (half < 0) continue;
        const reach = Math.sqrt(half);
        const from = Math.max(0, Math.ceil(x - reach)), to = Math.min(this.width - 1, Math.floor(x + reach));
        if (to >= from) this.painted.fill(value, j * this.width + from, j * this.width + to + 1);
      }
    }

    stroke(a, b) {
      const length = Math.hypot(b[0] - a[0], b[1] - a[1]), steps = Math.ceil(length / Math.max(1, this.radius.now() / 4));
      for (let k = 0; k <= steps; k++) {
        const share = steps ? k / steps : 1;
        this.stamp(a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share);
      }
    }

    at(event) {
      const box = this.canvas.getBoundingClientRect();
      const across = (event.clientX - box.left) / box.width * this.canvas.width;
      const down = (event.clientY - box.top) / box.height * this.canvas.height;
      return [across / this.scale - this.left, down / this.scale - this.top];
    }

    press(event) {
      if (!this.image || event.button) return;
      this.canvas.setPointerCapture(event.pointerId);
      this.pressed = true;
      const place = this.at(event);
      if (this.paints) {
        this.remember();
        this.stroke(place, place);
        this.last = place;
        this.draw();
      } else if (this.mode === "sides") {
        this.edge = this.nearest(place);
        const [left, , right] = this.sides, pixels = (this.full[0] + left + right) / this.canvas.getBoundingClientRect().width;
        this.from = [event.clientX, event.clientY, this.sides[this.edge], pixels];
      }
    }

    move(event) {
      if (!this.image) return;
      this.cursor = this.at(event);
      if (this.pressed && this.paints) {
        this.stroke(this.last, this.cursor);
        this.last = this.cursor;
      } else if (this.pressed && this.mode === "sides") {
        const [x, y, before, pixels] = this.from;
        const along = [x - event.clientX, y - event.clientY, event.clientX - x, event.clientY - y][this.edge];
        this.sides[this.edge] = Math.max(0, Math.min(4096, Math.round(before + along * pixels)));
      } else if (this.mode === "sides") {
        this.canvas.style.cursor = this.nearest(this.cursor) % 2 ? "ns-resize" : "ew-resize";
      }
      this.draw();
    }

    // The sides as they are drawn: on a large photo a pixel stands for several.
    margins() { return this.sides.map((side) => Math.round(side * this.width / this.full[0])); }

    release(event) {
      if (!this.pressed) return;
      this.pressed = false;
      if (this.paints) this.changed();
      else this.dispatchEvent(new CustomEvent("sides", { detail: this.sides.slice() }));
    }

    nearest([x, y]) {
      const [left, top, right, bottom] = this.margins();
      const far = [Math.abs(x + left), Math.abs(y + top), Math.abs(this.width + right - x), Math.abs(this.height + bottom - y)];
      return far.indexOf(Math.min(...far));
    }

    key(event) {
      if (!this.paints || !this.image) {
        if ((event.key === "Enter" || event.key === " ") && !this.image) { event.preventDefault(); this.chooser.click(); }
        return;
      }
      const step = event.shiftKey ? 16 : 4, moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
      const control = event.ctrlKey || event.metaKey;
      if (moves[event.key]) {
        const [x, y] = this.cursor || [this.width / 2, this.height / 2];
        const next = [Math.max(0, Math.min(this.width, x + moves[event.key][0])), Math.max(0, Math.min(this.height, y + moves[event.key][1]))];
        this.cursor = next;
      } else if (event.key === " " || event.key === "Enter") {
        this.cursor = this.cursor || [this.width / 2, this.height / 2];
        this.remember();
        this.stamp(...this.cursor);
        this.changed();
      } else if (control && event.key.toLowerCase() === "z") {
        if (event.shiftKey) this.step(this.future, this.past); else this.step(this.past, this.future);
      } else if (control && event.key.toLowerCase() === "y") this.step(this.future, this.past);
      else if (control) return;
      else if (event.key.toLowerCase() === "b") this.erase(false);
      else if (event.key.toLowerCase() === "e") this.erase(true);
      else if (event.key === "[") this.radius.put(this.radius.now() - 1);
      else if (event.key === "]") this.radius.put(this.radius.now() + 1);
      else if (event.key === "Delete") this.clear();
      else return;
      event.preventDefault();
      this.draw();
    }

    // A mask file: white is repainted. It must have the photo's shape.
    async stencil(file) {
      if (!file || !this.painted) { if (file) this.say("Open a photo first, then its mask.", true); return; }
      const url = URL.createObjectURL(file);
      try {
        const image = await loaded(url);
        const shape = image.width / image.height, wanted = this.width / this.height;
        if (Math.abs(shape / wanted - 1) > 0.02) {
          this.say(`The mask is ${image.width} x ${image.height} pixels, the photo ${this.full.join(" x ")}: it belongs to another picture.`, true);
          return;
        }
        const page = make("canvas", { width: this.width, height: this.height });
        const context = page.getContext("2d", { willReadFrequently: true });
        context.imageSmoothingEnabled = false;
        context.drawImage(image, 0, 0, this.width, this.height);
        const pixels = context.getImageData(0, 0, this.width, this.height).data;
        let sheet = false; // strokes on a transparent sheet: what is opaque counts
        for (let k = 3; k < pixels.length && !sheet; k += 4) sheet = pixels[k] < 255;
        this.remember();
        const lossy = !["image/png", "image/bmp", "image/gif"].includes(file.type); // an encoder blurs what was drawn
        for (let k = 0; k < this.painted.length; k++) {
          const [r, g, b, a] = pixels.subarray(4 * k, 4 * k + 4);
          const value = sheet ? a : Math.round(0.299 * r + 0.587 * g + 0.114 * b);
          this.painted[k] = lossy && value <= SNAP ? 0 : lossy && value >= 255 - SNAP ? 255 : value;
        }
        this.changed();
        const same = image.width === this.full[0] && image.height === this.full[1];
        if (same) this.file = await read(file); // every pixel of it
        this.say([...(same ? [] : [`The mask is ${image.width} x ${image.height} pixels, and was brought to the photo's ${this.full.join(" x ")}.`]),
          ...(sheet ? ["It has transparent parts: what is opaque will be repainted."] : [])].join(" "));
      } catch (error) {
        this.say(`The mask cannot be used: ${error.message}.`, true);
      } finally { URL.revokeObjectURL(url); }
    }

    // What was painted, as a PNG in a data URL: levels of grey; or the mask file. Empty where nothing was.
    data() {
      if (this.file) return this.file;
      if (!this.painted || !this.painted.some((value) => value)) return "";
      return this.coloured((value) => {
        const grey = this.mode === "hole" ? value : value ? value - 1 : 255;
        return [grey, grey, grey, 255];
      }).toDataURL("image/png");
    }

    // A canvas with a colour (red, green, blue, opacity) for each value that is painted.
    coloured(colour) {
      const table = new Uint32Array(new Uint8ClampedArray(Array.from({ length: 256 }, (_, value) => colour(value)).flat()).buffer);
      const page = make("canvas", { width: this.width, height: this.height });
      const context = page.getContext("2d"), pixels = context.createImageData(this.width, this.height);
      const out = new Uint32Array(pixels.data.buffer);
      for (let k = 0; k < out.length; k++) out[k] = table[this.painted[k]];
      context.putImageData(pixels, 0, 0);
      return page;
    }

    draw() {
      if (this.pending) return;
      this.pending = true;
      requestAnimationFrame(() => { this.pending = false; this.drawn(); });
    }

    drawn() {
      const canvas = this.canvas;
      if (!this.image) { canvas.width = canvas.height = 1; return; }
      const [left, top, right, bottom] = this.margins();
      const width = this.width + left + right, height = this.height + top + bottom;
      const scale = Math.max(1, Math.floor(768 / Math.max(width, height)));
      [this.scale, this.left, this.top] = [scale, left, top];
      if (canvas.width !== width * scale) canvas.width = width * scale;
      if (canvas.height !== height * scale) canvas.height = height * scale;
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = false;
      context.fillStyle = this.mode === "sides" ? "#8a8a8a" : "#777";
      context.fillRect(0, 0, canvas.width, canvas.height);
      if (this.image.width) context.drawImage(this.image, left * scale, top * scale, this.width * scale, this.height * scale);
      if (this.paints) this.overlay(context, scale);
      if (this.mode === "sides") this.handles(context, scale);
    }

    overlay(context, scale) {
      const page = this.coloured((value) => {
        if (!value) return [0, 0, 0, 0];
        return this.mode === "hole" ? [...STRENGTH, 40 + value * 0.62] : [...when((value - 1) / 254), 190];
      });
      context.drawImage(page, 0, 0, this.width * scale, this.height * scale);
      if (this.cursor) {
        context.beginPath();
        context.arc(this.cursor[0] * scale, this.cursor[1] * scale, Math.max(2, this.radius.now() * scale), 0, 2 * Math.PI);
        context.lineWidth = Math.max(1, scale / 2, context.canvas.width / 500);
        context.strokeStyle = "#fff";
        context.stroke();
        context.setLineDash([4, 4]);
        context.strokeStyle = "#000";
        context.stroke();
        context.setLineDash([]);
      }
    }

    handles(context, scale) {
      const { width, height } = context.canvas, thick = Math.max(4, width / 120);
      context.fillStyle = "rgb(237, 30, 121)";
      for (const [x, y, w, h] of [[0, height / 2, thick, height / 6], [width / 2, 0, width / 6, thick],
        [width - thick, height / 2, thick, height / 6], [width / 2, height - thick, width / 6, thick]]) {
        const [a, b] = w > h ? [x - w / 2, y] : [x, y - h / 2];
        context.fillRect(a, b, w, h);
      }
    }
  }

  // ---- A job: how far it is, what is seen of it, and what came of it

  class Job extends HTMLElement {
    connectedCallback() {
      if (this.ready) return;
      this.ready = true;
      this.classList.add("job");
      this.status = make("p", { class: "status", role: "status", "aria-live": "polite" });
      this.bar = make("progress", { max: "1", value: "0", hidden: "", "aria-label": "progress" });
      this.stop = button("Cancel", "Stop this job", () => this.cancel());
      this.stop.hidden = true;
      this.sights = make("div", { class: "sights" });
      this.result = make("div", { class: "result" });
      this.append(make("div", { class: "head" }, this.status, this.stop), this.bar, this.sights, this.result);
      this.say("What is made appears here.");
      window.addEventListener("pagehide", () => { if (this.running) this.cancel(true); });
    }

    say(text, wrong = false) {
      this.status.textContent = text;
      this.status.classList.toggle("wrong", wrong);
    }

    url(path = "") { return `${base}api/jobs/${this.job.id}${path}`; }

    // What the server said to a request: a job, or what is wrong with it.
    follow(answer) {
      const { top, bottom } = this.status.getBoundingClientRect();
      if (top < 0 || bottom > innerHeight) this.scrollIntoView({ block: "start" });
      if (answer.wrong) { this.say(answer.wrong, true); return; }
      if (this.source) this.source.close();
      if (this.running) this.cancel(true); // one at a time: nobody would see what becomes of it
      this.job = answer;
      this.running = true;
      this.stopping = false;
      this.seen = -1;
      this.stop.hidden = false;
      this.bar.hidden = false;
      this.sights.replaceChildren(...["picture", "times", ...(answer.doubt ? ["doubt"] : [])].map((what) => {
        const words = { picture: "what it expects", times: "noise (dark) to clean (light)", doubt: "where it is unsure (bright)" };
        return make("figure", {}, make("img", { alt: words[what], "data-what": what }), make("figcaption", { text: words[what] }));
      }));
      this.result.replaceChildren();
      this.source = new EventSource(this.url("/events"));
      this.source.onmessage = (event) => this.tell(JSON.parse(event.data));
      this.source.onerror = () => {
        if (this.running && this.source.readyState !== EventSource.CLOSED) this.say("The server does not answer; trying again…", true);
        else if (this.running) this.over({ state: "failed", error: "The server does not know this job any more: run it again." });
      };
    }

    tell(now) {
      this.bar.value = now.share;
      if (this.stopping) this.say("Stopping…");
      else if (now.state === "waiting") this.say(`Waiting: ${now.ahead} before this one.`);
      else if (now.state === "running") this.say(`${Math.round(now.share * 100)} %, about ${spoken(now.seconds_left)} left.`);
      if (now.previews !== this.seen && now.state === "running") {
        this.seen = now.previews;
        for (const image of this.sights.querySelectorAll("img")) swap(image, this.url(`/preview/${image.dataset.what}?${now.previews}`));
      }
      if (["done", "failed", "cancelled"].includes(now.state)) this.over(now);
    }

    over(now) {
      this.running = this.stopping = false;
      this.source.close();
      this.stop.hidden = true;
      this.bar.hidden = true;
      this.sights.replaceChildren();
      if (now.state === "cancelled") this.say("Cancelled.");
      if (now.state === "failed") this.say(now.error, true);
      if (now.state !== "done") return;
      this.say(["Done.", ...now.notes.map((note) => `Note: ${note}.`)].join(" "));
      this.done(now);
    }

    async cancel(leaving = false) {
      this.stopping = !leaving;
      if (this.stopping) this.say("Stopping…");
      await fetch(this.url(), { method: "DELETE", keepalive: leaving }).catch(() => {});
    }

    done(now) {
      const { request } = now;
      this.chosen = 0;
      const tiles = now.seeds.map((seed, k) => {
        const made = button("", `candidate ${k + 1}, seed ${seed}`, () => this.choose(k));
        made.append(make("img", { src: this.url(`/pictures/${k}${LOOK}`), alt: `candidate ${k + 1}` }), make("span", { text: `seed ${seed}` }));
        return made;
      });
      this.tiles = tiles;
      this.view = make("div", { class: "view" });
      this.download = make("a", { class: "button", text: "Download PNG", title: "The picture, with all settings in it: drop it here to restore them" });
      const further = button("Go on from this one", "Make it the current picture", () =>
        this.dispatchEvent(new CustomEvent("further", { detail: { id: this.job.id, number: this.chosen } })));
      further.classList.add("main");
      const inputs = make("span", { class: "inputs" });
      for (const name of this.job.inputs) inputs.append(make("a", { class: "button", href: this.url(`/inputs/${name}`), download: `${names[name]}`, text: names[name], title: `The ${name}, for the command line` }));
      this.result.append(
        ...(tiles.length > 1 ? [make("div", { class: "candidates", role: "group", "aria-label": "candidates" }, ...tiles)] : []),
        this.view,
        make("div", { class: "actions" }, further, this.download),
        make("details", {}, make("summary", { text: "The same as a command line, or in Python" }), this.said("command"), this.said("python"), inputs),
      );
      this.seeds = now.seeds;
      this.request = request;
      this.choose(0);
    }

    choose(number) {
      this.chosen = number;
      this.tiles.forEach((tile, k) => tile.setAttribute("aria-pressed", String(k === number)));
      const after = this.url(`/pictures/${number}${LOOK}`), seed = this.seeds[number];
      this.download.href = this.url(`/pictures/${number}`);
      this.download.download = `${this.request.tool}-${seed}.png`;
      const parts = [];
      if (this.request.tool === "texture") {
        const sheet = make("div", { class: "tiled", role: "img", "aria-label": "the texture laid two by two" });
        sheet.style.backgroundImage = `url("${after}")`;
        parts.push(make("figure", {}, make("img", { src: after, alt: `seed ${seed}`, class: "after" }), make("figcaption", { text: `seed ${seed}` })));
        parts.push(make("figure", {}, sheet, make("figcaption", { text: "laid two by two" })));
        loaded(after).then((image) => { sheet.style.aspectRatio = `${image.width} / ${image.height}`; });
      } else if (this.job.inputs.includes("picture")) parts.push(compare(this.url(`/given${LOOK}`), after, seed));
      else parts.push(make("figure", {}, make("img", { src: after, alt: `seed ${seed}`, class: "after" }), make("figcaption", { text: `seed ${seed}` })));
      this.view.replaceChildren(...parts);
    }

    said(language) {
      const code = make("code"), area = make("pre", { class: language, tabindex: "0" }, code);
      fetch(this.url(`/as/${language}`)).then((answer) => answer.text()).then((text) => { code.textContent = text; });
      const words = language === "command" ? "Copy as command line" : "Copy as Python";
      const copy = button(words, words, async () => {
        try { await navigator.clipboard.writeText(code.textContent); } catch {
          getSelection().selectAllChildren(code);
          document.execCommand("copy");
        }
        copy.textContent = "Copied";
        setTimeout(() => { copy.textContent = words; }, 1500);
      });
      return make("div", { class: "said" }, copy, area);
    }
  }

  const names = { picture: "photo.png", mask: "mask.png", order: "order.png" };

  // A picture that is shown only when it is there: no flicker.
  const swap = (image, src) => {
    if (image.busy) return;
    image.busy = true;
    loaded(src).then(() => { image.src = src; }).catch(() => {}).finally(() => { image.busy = false; });
  };

  const compare = (before, after, seed) => {
    const top = make("img", { src: after, alt: "after", class: "after" });
    const range = make("input", { type: "range", min: "0", max: "100", value: "0", "aria-label": "how much of the picture before is shown" });
    const line = make("div", { class: "line" });
    const cut = () => {
      top.style.clipPath = `inset(0 0 0 ${range.value}%)`;
      line.style.left = `${range.value}%`;
      line.hidden = range.value === "0";
    };
    range.addEventListener("input", cut);
    cut();
    const stack = make("div", { class: "stack" }, make("img", { src: before, alt: "before", class: "before" }), top, line);
    const slide = (event) => {
      if (event.type === "pointermove" && !event.buttons) return;
      const box = stack.getBoundingClientRect();
      range.value = Math.max(0, Math.min(100, Math.round((event.clientX - box.left) / box.width * 100)));
      cut();
    };
    stack.addEventListener("pointerdown", slide);
    stack.addEventListener("pointermove", slide);
    const words = make("figcaption", {}, make("span", { text: "before" }), range, make("span", { text: `after (seed ${seed})` }));
    return make("figure", { class: "compare" }, stack, words);
  };

  const when = (share) => {
    const [a, b] = share < 0.5 ? [TIMES[0], TIMES[1]] : [TIMES[1], TIMES[2]], between = (2 * share) % 1 || Number(share === 1);
    return a.map((value, c) => value + (b[c] - value) * between);
  };

  const spoken = (seconds) => seconds >= 90 ? `${(seconds / 60).toFixed(1)} minutes` : `${Math.max(1, Math.round(seconds))} seconds`;

  // ---- What was before

  class Past extends HTMLElement {
    show({ history, at }) {
      this.classList.add("past");
      const pick = (number) => this.dispatchEvent(new CustomEvent("pick", { detail: number }));
      const back = button("Undo step", "Back to the picture before", () => pick(at - 1));
      const forth = button("Redo step", "Forward again", () => pick(at + 1));
      back.disabled = at <= 0;
      forth.disabled = at >= history.length - 1;
      this.replaceChildren(...(history.length < 2 ? [] : [back, forth, ...history.map((src, k) => {
        const made = button("", `picture ${k + 1} of ${history.length}`, () => pick(k));
        made.append(make("img", { src, alt: "" }));
        made.setAttribute("aria-pressed", String(k === at));
        return made;
      })]));
    }
  }

  let shown = null;
  const base = new URL(".", document.currentScript.src).pathname.replace(/asyncpatch\/$/, "");
  const painter = (mode) => document.querySelector(`async-painter[mode="${mode}"]`);

  window.asyncpatch = {
    show(text) {
      if (!text) return;
      shown = JSON.parse(text);
      document.querySelectorAll("async-painter").forEach((each) => each.show && each.show(shown));
      document.querySelector("async-past").show(shown);
    },
    shown: () => shown,
    follow(text) { if (text) document.querySelector("async-job").follow(JSON.parse(text)); },
    hole: () => painter("hole")?.data() || "",
    order: () => painter("order")?.data() || "",
  };
  customElements.define("async-painter", Painter);
  customElements.define("async-job", Job);
  customElements.define("async-past", Past);
})();
