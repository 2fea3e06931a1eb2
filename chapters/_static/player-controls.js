/* What players are controlled by: buttons, keys, and the reader's wish for no motion. */

(() => {
  "use strict";

  const { capital } = schedulePlayer;

  const still = matchMedia("(prefers-reduced-motion: reduce)");

  const ICONS = {
    start: "M4 4v12M16 4L7 10l9 6Z", back: "M13 4L5 10l8 6Z", play: "M6 3.5v13L17 10Z",
    pause: "M6 4h3v12H6ZM11.5 4h3v12h-3Z", forward: "M7 4l8 6-8 6Z", end: "M16 4v12M4 4l9 6-9 6Z",
  };
  const icon = (name) => `<svg viewBox="0 0 20 20" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
  const button = (name, label) => `<button type="button" data-do="${name}" aria-label="${label}" title="${label}">${icon(name)}</button>`;
  const option = (value, text, chosen) => `<option value="${value}"${chosen ? " selected" : ""}>${text}</option>`;

  const BUTTONS = `<span class="sp-buttons">${button("start", "To the start")}${button("back", "One step back")}${button("play", "Play")}${button("forward", "One step forward")}${button("end", "To the end")}</span>`;

  /* Make the play button of a player say what it does now. */
  function showPlaying(player, playing) {
    const node = player.querySelector("[data-do=play]"), name = playing ? "pause" : "play";
    node.innerHTML = icon(name);
    node.title = capital(name);
    node.setAttribute("aria-label", capital(name));
  }

  /* What a key asks a player to do. Lists and sliders know the arrows themselves, buttons and links the space bar. */
  function actionOf(event) {
    const keys = { ArrowRight: "forward", ArrowLeft: "back", Home: "start", End: "end", " ": "play" };
    const name = keys[event.key], on = event.target;
    if (!name || event.ctrlKey || event.altKey || event.metaKey || on.matches("select")) return "";
    if (on.matches("input") && event.key !== " ") return "";
    if (on.matches("button, a") && event.key === " ") return "";
    return name;
  }

  Object.assign(schedulePlayer, { BUTTONS, actionOf, option, showPlaying, still });
})();
