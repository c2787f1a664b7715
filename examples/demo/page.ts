// The elements of index.html, and small helpers for them.

/** The element with this id, which is in index.html. */
export function element<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

export const input = (id: string) => element<HTMLInputElement>(id);

/** Buttons that cannot be used stay in the tab order, so that the focus is not lost when one changes. */
export function enable(id: string, enabled: boolean): void {
  element(id).setAttribute('aria-disabled', String(!enabled));
}

export function isEnabled(id: string): boolean {
  return element(id).getAttribute('aria-disabled') !== 'true';
}

/** Calls `work` when an enabled button is pressed. */
export function onPress(id: string, work: () => void): void {
  element(id).addEventListener('click', () => {
    if (isEnabled(id)) work();
  });
}

/** Changes a text only where it differs, so that a screen reader is not told twice. */
export function say(id: string, text: string): void {
  if (element(id).textContent !== text) element(id).textContent = text;
}

/** Where the skip link leads: the field to write in. */
export function mainField(): HTMLElement {
  return element(skipLink().hash.slice(1));
}

export const skipLink = () => document.querySelector<HTMLAnchorElement>('.skip')!;
