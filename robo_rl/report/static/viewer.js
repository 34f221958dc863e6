"use strict";
// The episode player: one video element, the curves beside it, and a list to choose from.
(() => {
  const byId = (id) => document.getElementById(id);
  const episodes = JSON.parse(byId("episode-data").textContent);
  if (episodes.length === 0) return;

  const viewer = byId("viewer");
  const stage = byId("stage");
  const video = byId("video");
  const scrub = byId("scrub");
  const buttons = [...viewer.querySelectorAll("button.episode")];
  const speeds = [1, 2, 0.5];
  const signs = { success: "✓", failure: "✕", timeout: "✕" };
  const groups = { before: "before improvement", after: "after improvement", demonstration: "demonstration", judged: "" };
  const tracks = new Tracks(byId("tracks"), (target) => { video.pause(); seek(target); });

  let current = -1;
  let frame = 0;
  let wish = null; // the frame to show when the present seek is done
  const urls = new Map();

  const episode = () => episodes[current];
  const lastFrame = () => episode().frames - 1;

  // ---- choosing an episode

  function choose(index, { scroll = true } = {}) {
    if (index === current || index < 0 || index >= episodes.length) return;
    video.pause();
    current = index;
    describe(episode());
    load();
    tracks.frame = 0;
    tracks.show(episode());
    scrub.max = lastFrame();
    showFrame(0);
    buttons.forEach((button, i) => button.setAttribute("aria-current", i === index ? "true" : "false"));
    if (scroll) keepVisible(buttons[index]);
  }

  // Scrolls the list, never the page.
  function keepVisible(button) {
    const list = button.closest(".episode-list");
    const [inner, outer] = [button.getBoundingClientRect(), list.getBoundingClientRect()];
    if (inner.top < outer.top) list.scrollTop += inner.top - outer.top - 30;
    if (inner.bottom > outer.bottom) list.scrollTop += inner.bottom - outer.bottom + 8;
    if (inner.left < outer.left) list.scrollLeft += inner.left - outer.left - 8;
    if (inner.right > outer.right) list.scrollLeft += inner.right - outer.right + 8;
  }

  // Kept once made: the videos are small, and revoking an address that is still being opened can stall the player.
  function load() {
    if (!urls.has(current)) {
      const text = byId(`video-${current}`).textContent;
      const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
      urls.set(current, URL.createObjectURL(new Blob([bytes], { type: "video/mp4" })));
    }
    byId("video-trouble").hidden = true;
    wish = null;
    video.src = urls.get(current);
    video.playbackRate = speeds[0];
  }

  function describe(item) {
    byId("episode-instruction").textContent = `“${item.instruction}”`;
    const outcome = byId("episode-outcome");
    outcome.textContent = `${signs[item.outcome] ?? "?"} ${item.outcome}`;
    outcome.className = `sign ${item.outcome}`;
    const task = item.task === item.instruction ? "" : item.task;
    const start = item.group === "judged" ? "" : `start ${item.index}`;
    byId("episode-facts").textContent = [groups[item.group], task, start, item.policy].filter(Boolean).join(" · ");
    byId("episode-note").textContent = item.note;
    byId("cameras").replaceChildren(...item.cameras.map((name, i) => {
      const label = document.createElement("span");
      label.textContent = name;
      label.style.flex = `${item.shares[i]} 1 0`;
      return label;
    }));
    const twin = byId("twin");
    twin.hidden = item.twin === null;
    twin.textContent = item.group === "before" ? "Same start, after improvement →" : "← Same start, before improvement";
  }

  // ---- time

  const frameAt = (seconds) => Math.min(lastFrame(), Math.max(0, Math.floor(seconds * episode().fps + 1e-6)));

  function showFrame(value) {
    frame = value;
    scrub.value = value;
    const seconds = value / episode().fps;
    byId("clock").textContent = `${seconds.toFixed(1)} s`;
    scrub.setAttribute("aria-valuetext", `frame ${value} of ${lastFrame()}, ${seconds.toFixed(1)} seconds`);
    tracks.moveTo(value);
  }

  // One seek at a time: while the video is busy only the last wish is kept, and granted when it is done.
  function seek(target) {
    const wanted = Math.min(lastFrame(), Math.max(0, target));
    showFrame(wanted);
    wish = wanted;
    if (video.readyState >= 1 && !video.seeking) grant();
  }

  // The middle of a frame's interval, so that rounding cannot show its neighbour.
  function grant() {
    if (wish === null) return;
    video.currentTime = (wish + 0.5) / episode().fps;
    wish = null;
  }

  function follow() {
    if (video.paused) return;
    if (wish === null && !video.seeking) showFrame(frameAt(video.currentTime));
    requestAnimationFrame(follow);
  }

  function toggle() {
    if (!video.paused) {
      video.pause();
      return;
    }
    if (frame >= lastFrame()) seek(0);
    video.play().catch(() => { /* a new episode was chosen meanwhile */ });
  }

  function nextSpeed() {
    speeds.push(speeds.shift());
    video.playbackRate = speeds[0];
    byId("speed").textContent = `${speeds[0]}×`;
  }

  // ---- events

  video.addEventListener("play", () => { byId("play").textContent = "Pause"; follow(); });
  video.addEventListener("pause", () => { byId("play").textContent = "Play"; });
  video.addEventListener("ended", () => showFrame(lastFrame()));
  video.addEventListener("loadedmetadata", () => {
    video.style.aspectRatio = `${video.videoWidth} / ${video.videoHeight}`;
    stage.style.setProperty("--ratio", video.videoWidth / video.videoHeight);
    video.playbackRate = speeds[0];
    grant();
  });
  video.addEventListener("seeked", grant);
  video.addEventListener("error", () => { byId("video-trouble").hidden = false; });
  video.addEventListener("click", toggle);
  byId("play").addEventListener("click", toggle);
  byId("speed").addEventListener("click", nextSpeed);
  byId("twin").addEventListener("click", () => choose(episode().twin));
  scrub.addEventListener("input", () => { video.pause(); seek(Number(scrub.value)); });
  buttons.forEach((button, i) => button.addEventListener("click", () => choose(i, { scroll: false })));

  function changeEpisode(index, target) {
    choose(index);
    if (target.matches("button.episode")) buttons[current].focus({ preventScroll: true });
  }

  const actions = {
    " ": () => toggle(),
    ArrowLeft: () => { video.pause(); seek(frame - 1); },
    ArrowRight: () => { video.pause(); seek(frame + 1); },
    ArrowUp: (target) => changeEpisode(current - 1, target),
    ArrowDown: (target) => changeEpisode(current + 1, target),
    k: (target) => changeEpisode(current - 1, target),
    j: (target) => changeEpisode(current + 1, target),
  };

  viewer.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
    const target = event.target;
    // Space presses a button that has something else to do: speed, twin, or an episode not yet chosen.
    const presses = target.matches("button") && target.getAttribute("aria-current") !== "true";
    if (event.key === " " && presses) return;
    event.preventDefault();
    actions[event.key](target);
  });

  choose(0, { scroll: false });
})();
