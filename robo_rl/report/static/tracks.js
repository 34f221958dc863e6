"use strict";
// The curves of one episode as one SVG: tracks above each other with a common time axis and one cursor.
// Only numbers and fixed words are written as markup; text from the data goes through textContent.
// A curve has `samples` values over the time of the video, which may have fewer frames; null: no answer there.
class Tracks {
  static LEFT = 30;
  static RIGHT = 8;
  static HEAD = 20; // the line with the track's name and its value at the cursor
  static GAP = 10;

  // onSeek(frame) is called while a pointer presses or drags.
  constructor(holder, onSeek) {
    this.holder = holder;
    this.onSeek = onSeek;
    this.episode = null;
    this.frame = 0;
    holder.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      holder.setPointerCapture(event.pointerId);
      this.seekTo(event);
    });
    holder.addEventListener("pointermove", (event) => {
      if (holder.hasPointerCapture(event.pointerId)) this.seekTo(event);
    });
    let width = 0;
    new ResizeObserver(() => {
      if (holder.clientWidth === width) return;
      width = holder.clientWidth;
      this.draw();
    }).observe(holder);
  }

  show(episode) {
    this.episode = episode;
    this.tracks = Tracks.list(episode);
    this.draw();
  }

  static list(episode) {
    const tracks = [];
    const others = episode.others;
    const kind = (other) => `judge s${other.place % 6} dash${other.place % 6}`;
    if (episode.progress || episode.truth || others.length) {
      const lines = [];
      if (episode.truth) lines.push({ values: episode.truth, kind: "truth", name: "true" });
      for (const other of others) lines.push({ values: other.values, kind: kind(other) });
      if (episode.progress) lines.push({ values: episode.progress, kind: "progress", name: "judge" });
      tracks.push({ name: "Progress", height: others.length ? 150 : 84, lines, top: 1 });
    }
    const sure = others.filter((other) => other.success);
    if (episode.success || sure.length) {
      const lines = sure.map((other) => ({ values: other.success, kind: kind(other) }));
      if (episode.success) lines.push({ values: episode.success, kind: "success", name: "" });
      tracks.push({ name: "Success probability", height: 56, lines, top: 1 });
    }
    if (episode.tri) tracks.push({ name: "Progressive, stagnant, regressive", height: 44, tri: episode.tri });
    if (episode.weight) {
      tracks.push({ name: "Sample weight", height: 48, steps: episode.weight,
        top: Math.max(...episode.weight) * 1.05 || 1 });
    }
    return tracks;
  }

  // Pixels from the left of a share of the time.
  across(share) {
    return Tracks.LEFT + (this.width - Tracks.LEFT - Tracks.RIGHT) * share;
  }

  // Pixels from the left of a value of a curve.
  x(sample) {
    return this.across(sample / (this.episode.samples - 1));
  }

  seekTo(event) {
    if (!this.cursor) return;
    const box = this.holder.getBoundingClientRect();
    const inner = this.width - Tracks.LEFT - Tracks.RIGHT;
    const share = (event.clientX - box.left - Tracks.LEFT) / inner;
    const last = this.episode.frames - 1;
    this.onSeek(Math.min(last, Math.max(0, Math.round(share * last))));
  }

  draw() {
    if (!this.episode) return;
    if (this.tracks.length === 0) {
      this.cursor = null;
      this.holder.textContent = "No judge has scored this episode.";
      return;
    }
    this.width = Math.max(this.holder.clientWidth, 200);
    let y = 0;
    let markup = "";
    for (const track of this.tracks) {
      track.y = y + Tracks.HEAD;
      markup += this.track(track);
      y = track.y + track.height + Tracks.GAP;
    }
    const bottom = y - Tracks.GAP + 4;
    markup += this.axis(bottom);
    markup += `<path class="cursor" d="M0 ${Tracks.HEAD - 4}V${bottom}"/>`;
    for (const track of this.tracks) {
      for (const line of track.lines ?? []) markup += `<circle class="mark ${line.kind}" r="3.5"/>`;
    }
    const height = bottom + 30;
    const label = this.tracks.map((track) => track.name).join(", ") || "no curves";
    this.holder.innerHTML = `<svg width="${this.width}" height="${height}" role="img" aria-label="${label}">${markup}</svg>`;
    this.readout = this.episode.others.length ? new Readout(this.episode) : null;
    if (this.readout) this.holder.append(this.readout.element);
    this.cursor = this.holder.querySelector(".cursor");
    this.marks = [...this.holder.querySelectorAll(".mark")];
    this.values = [...this.holder.querySelectorAll(".value")];
    this.moveTo(this.frame);
  }

  track(track) {
    const right = this.width - Tracks.RIGHT;
    const bottom = track.y + track.height;
    const name = track.tri ? this.triName() : track.name;
    let markup = `<text class="name" x="${Tracks.LEFT}" y="${track.y - 7}">${name}</text>`;
    markup += `<text class="value" x="${right}" y="${track.y - 7}" text-anchor="end"></text>`;
    if (track.tri) return markup + this.bands(track);
    const top = track.lines ? "1" : track.top.toPrecision(2);
    markup += `<path class="grid" d="M${Tracks.LEFT} ${track.y}H${right}M${Tracks.LEFT} ${bottom}H${right}"/>`;
    markup += `<text class="tick" x="${Tracks.LEFT - 5}" y="${track.y + 4}" text-anchor="end">${top}</text>`;
    markup += `<text class="tick" x="${Tracks.LEFT - 5}" y="${bottom + 3}" text-anchor="end">0</text>`;
    if (track.steps) return markup + this.stairs(track);
    if (track.name === "Progress") {
      for (const [frame] of this.episode.marks) {
        markup += `<path class="boundary" d="M${this.x(frame).toFixed(1)} ${track.y}V${bottom}"/>`;
      }
    }
    for (const line of track.lines) {
      markup += `<path class="curve ${line.kind}" d="${this.line(track, line.values)}"/>`;
    }
    return markup;
  }

  // Broken where there is no answer; an answer between two gaps is a short stroke.
  line(track, values) {
    let path = "";
    values.forEach((value, i) => {
      if (value === null) return;
      const begins = i === 0 || values[i - 1] === null;
      const alone = begins && (values[i + 1] ?? null) === null;
      path += `${begins ? "M" : "L"}${(this.x(i) - (alone ? 1.5 : 0)).toFixed(1)} ${this.y(track, value).toFixed(1)}`;
      if (alone) path += "h3";
    });
    return path;
  }

  triName() {
    const stagnant = this.width < 380 ? "" : " · stagnant"; // no room on a phone: it is what the others leave
    return `<tspan class="forward">progressive</tspan>${stagnant} · <tspan class="backward">regressive</tspan>`;
  }

  y(track, value) {
    return track.y + track.height * (1 - Math.min(track.top, Math.max(0, value)) / track.top);
  }

  // A weight belongs to the step between two frames, so it is drawn as a stair.
  stairs(track) {
    const bottom = track.y + track.height;
    let path = `M${this.x(0).toFixed(1)} ${bottom}`;
    track.steps.forEach((value, i) => {
      path += `V${this.y(track, value).toFixed(1)}H${this.x(i + 1).toFixed(1)}`;
    });
    return `<path class="stairs" d="${path}V${bottom}Z"/>`;
  }

  // Regressive at the bottom, stagnant in the middle, progressive on top; they sum to one.
  bands(track) {
    const edges = track.tri.map(([forward, still]) => [1, 1 - forward, 1 - forward - still, 0]);
    return ["forward", "still", "backward"].map((kind, band) => {
      let path = "";
      edges.forEach((edge, i) => {
        const [left, right] = [this.x(i), this.x(i + 1)];
        const [high, low] = [edge[band], edge[band + 1]].map((value) => track.y + track.height * (1 - value));
        path += `M${left.toFixed(1)} ${high.toFixed(1)}H${right.toFixed(1)}V${low.toFixed(1)}H${left.toFixed(1)}Z`;
      });
      return `<path class="band ${kind}" d="${path}"/>`;
    }).join("");
  }

  axis(y) {
    const seconds = (this.episode.frames - 1) / this.episode.fps;
    const room = Math.max(2, Math.floor(this.width / 90));
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600].find((s) => seconds / s <= room) ?? 1200;
    let markup = `<path class="base" d="M${Tracks.LEFT} ${y}H${this.width - Tracks.RIGHT}"/>`;
    for (let t = 0; t <= seconds + 1e-9; t += step) {
      const anchor = t * this.episode.fps > this.episode.frames - 2 ? "end" : "middle";
      const text = `${+t.toFixed(2)}${t === 0 ? " s" : ""}`;
      markup += `<text class="tick" x="${this.across(t / seconds)}" y="${y + 15}" text-anchor="${anchor}">${text}</text>`;
    }
    return markup;
  }

  moveTo(frame) {
    this.frame = frame;
    this.holder.dataset.frame = frame;
    if (!this.cursor) return;
    const { frames, samples } = this.episode;
    const share = Math.min(frame, frames - 1) / (frames - 1);
    const x = this.across(share);
    this.cursor.setAttribute("transform", `translate(${x.toFixed(2)} 0)`);
    const sample = Math.round(share * (samples - 1));
    const step = Math.min(sample, samples - 2);
    let mark = 0;
    this.tracks.forEach((track, i) => {
      for (const line of track.lines ?? []) {
        const value = line.values[sample];
        this.marks[mark].setAttribute("cx", x);
        this.marks[mark].setAttribute("cy", this.y(track, value ?? 0));
        this.marks[mark].setAttribute("visibility", value === null ? "hidden" : "visible");
        mark += 1;
      }
      this.values[i].textContent = Tracks.reading(track, sample, step);
    });
    if (this.readout) this.readout.moveTo(sample);
  }

  // What the lines that have a name say at the cursor; those of several judges are in the readout.
  static reading(track, sample, step) {
    if (track.lines) {
      return track.lines.filter((line) => line.name !== undefined)
        .map((line) => `${line.name} ${line.values[sample].toFixed(2)}`.trim()).reverse().join("   ");
    }
    if (track.steps) return track.steps[step].toFixed(2);
    return track.tri[step].map((share) => share.toFixed(2)).join(" · ");
  }
}

// What several judges say at the cursor, and which part of the task is on: names are data, so they are set as text.
class Readout {
  constructor(episode) {
    this.episode = episode;
    this.element = document.createElement("div");
    this.element.className = "readout";
    this.element.addEventListener("pointerdown", (event) => event.stopPropagation()); // to be read, not to seek
    this.part = this.add("p", "part");
    this.said = episode.others.map((other) => {
      const key = this.add("span", "judge-key");
      const style = `s${other.place % 6} dash${other.place % 6}`;
      key.innerHTML = `<svg class="swatch" viewBox="0 0 26 6" aria-hidden="true"><path class="line ${style}" d="M0 3H26"/></svg>`;
      key.append(other.name, " ");
      const value = document.createElement("b");
      key.append(value);
      return value;
    });
  }

  add(tag, name) {
    const child = document.createElement(tag);
    child.className = name;
    this.element.append(child);
    return child;
  }

  moveTo(sample) {
    const { marks, others } = this.episode;
    const begun = marks.filter(([frame]) => frame <= sample).length;
    this.part.hidden = begun === 0;
    if (begun) this.part.textContent = `Part ${begun} of ${marks.length}: ${marks[begun - 1][1]}`;
    others.forEach((other, i) => {
      const [value, success] = [other.values[sample], other.success?.[sample] ?? null];
      const sure = success === null ? "" : `, success ${success.toFixed(2)}`;
      this.said[i].textContent = value === null ? "no answer" : `${value.toFixed(2)}${sure}`;
    });
  }
}
