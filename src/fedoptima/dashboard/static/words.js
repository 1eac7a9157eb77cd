// Numbers as people read them, and small pieces of the page.

export const percent = (share) => (share == null ? "–" : `${(100 * share).toFixed(1)} %`);

export function brief(number) {
  if (number == null) return "–";
  if (Number.isInteger(number) || Math.abs(number) >= 100) return Math.round(number).toLocaleString("en");
  return String(Number(number.toPrecision(3)));
}

// How good the model is: an accuracy, or a loss where the task has none.
export const measured = (quality, key) => (quality?.name === "accuracy" ? percent : brief)(quality?.[key]);

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 1) return seconds ? `${brief(1000 * seconds)} ms` : "0 s";
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours} h ${two(minutes)} min` : `${minutes} min ${two(whole % 60)} s`;
}

export const ago = (seconds) => (seconds < 60 ? `${seconds} s` : duration(seconds));
export const megabytes = (bytes) => `${brief(bytes / 1e6)} MB`;
export const byId = (id) => document.getElementById(id);

export function make(tag, text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Sets only what is new, so that a selection, or what a screen reader is at, stays.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// As many children as there are items: `create` makes one, `update` brings it up to date.
export function fill(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    if (!parent.children[index]) parent.append(create(item));
    update(parent.children[index], item);
  });
}

// Buttons of which one is pressed.
export function choice(group, key, chosen) {
  group.addEventListener("click", (event) => {
    const pressed = event.target.closest("button");
    if (pressed) chosen(press(group, key, pressed.dataset[key]));
  });
}

export function press(group, key, value) {
  for (const button of group.children) button.setAttribute("aria-pressed", button.dataset[key] === value);
  return value;
}
